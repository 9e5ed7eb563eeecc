//! A comparison as text for a terminal of 80 columns.

use super::breakdown::Cells;
use super::caches::Caches;
use super::names::Names;
use super::{ComparedModel, ComparedPair, Comparison, PairKind};
use crate::report::layout::{columns, hanging, wrapped};
use crate::report::number::{
    UNDEFINED, count, count_of, ends, fixed, or_undefined, p_value, percent_1, printable, ratio,
    short_kld, short_percent,
};
use crate::report::result::{ModelReport, WorstToken};
use crate::report::set_up;
use crate::report::text_report;
use crate::report::warning::Warning;
use crate::stats::{ClusterKind, Clustering};

/// The widest that names are in a sentence.
const NAME_IN_SENTENCE: usize = 60;

/// The marks of a row, which the lines below the table explain.
const NEAR_BEST: &str = "≈";
const SAME: &str = "=";
const PARETO: &str = "P";
const NOISE: &str = "-";
const INCOMPLETE: &str = "!";

impl Comparison {
    /// The report of the model if there is only one: as its evaluation printed it, without what no
    /// sidecar holds. `None` for several models.
    pub fn only_report(&self, shows_breakdown: bool) -> Option<String> {
        let [model] = self.models.as_slice() else {
            return None;
        };
        let report = ModelReport {
            shows_breakdown,
            max_at_text: max_at_text(model),
            result: model.result.clone(),
            ..ModelReport::default()
        };
        let text = text_report(&report, &self.reference.info());
        Some(text + &self.not_compared_text())
    }

    /// Everything that a terminal shows: what it comes to, the table of the models, how many times as
    /// far others are, and what to know.
    pub fn text(&self) -> String {
        let names = self.names();
        let name = |label: &str| names.short(label, NAME_IN_SENTENCE);
        let mut text = String::new();
        let sentences = self.sentences(name);
        if !sentences.is_empty() {
            text.push_str(&wrapped(&sentences.join(" ")));
        }
        let is_unpaired = |warning: &&Warning| matches!(warning, Warning::Unpaired(_));
        if let Some(warning) = self.warnings.iter().find(is_unpaired) {
            text.push_str(&wrapped(&printable(&warning.to_string())));
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&self.title(&names));
        text.push('\n');
        text.push_str(&self.models_text(&names));
        text.push_str(&self.legend());
        text.push_str(&self.ratios_text(&names));
        text.push_str(&self.spans_text(&names));
        text.push_str(&self.caches_text());
        text.push_str(&self.in_use_text(&names));
        text.push_str(&self.set_up_text(&names));
        text + &self.not_compared_text()
    }

    fn title(&self, names: &Names) -> String {
        let reference = &self.reference;
        let against = printable(reference.shown_name());
        let n_models = count_of(self.models.len() as u64, "model");
        let mut text = hanging("", 2, &format!("{n_models} against {against}"));
        let mut fact = |name: &str, value: &str| {
            text.push_str(&hanging(&format!("  {name:<17}"), 19, value));
        };
        if let Some(model) = reference.model_name() {
            fact("reference model", &printable(model));
        }
        if let Some(first) = self.models.first() {
            let summary = &first.summary;
            let of = reference.text.as_ref().and_then(|text| text.name.as_ref());
            let of = of.map(|text| format!(" of {}", printable(text)));
            let most = if reference.prompts { "at most " } else { "" };
            let tokens = format!(
                "{}{} in {} of {most}{}",
                count_of(summary.n_tokens + summary.n_excluded, "token"),
                of.unwrap_or_default(),
                count_of(summary.n_windows, reference.unit()),
                count(reference.n_ctx.into())
            );
            fact("tokens", &tokens);
            if let Some(sampled) = reference.sampled_answers() {
                fact("answers", &sampled);
            }
            let level = short_percent(self.confidence.level());
            let clusters = clusters(&summary.clusters, reference.unit());
            fact("intervals", &format!("at {level} %, {clusters}"));
        }
        if !names.prefix.is_empty() {
            fact("models", &format!("{}…", names.prefix));
        }
        text
    }

    /// A row for each model.
    fn models_text(&self, names: &Names) -> String {
        let (unit, sizes) = (self.size_unit(), self.sizes());
        let size = format!("size\n{}", unit.symbol);
        let interval = format!("{} %\ninterval", short_percent(self.confidence.level()));
        // The runs of one model need the space for their names.
        let bpw = |model: &ComparedModel| model.model.bpw;
        let first = self.models.first().and_then(bpw);
        let shows_bpw = !sizes.has_caches || self.models.iter().any(|model| bpw(model) != first);
        let mut titles = vec!["", "", "\nmodel", &size];
        titles.extend(shows_bpw.then_some("\nBPW"));
        titles.extend([
            "mean\nKLD",
            &interval,
            "99 %\nKLD",
            "same\ntop %",
            "PPL\nratio",
        ]);
        names.fitted(|name| {
            let mut candidates = 0;
            let rows = self.models.iter().map(|model| {
                candidates += u64::from(model.is_candidate());
                let rank = match model.is_candidate() {
                    true => candidates.to_string(),
                    false if model.is_incomplete => INCOMPLETE.to_owned(),
                    false => NOISE.to_owned(),
                };
                let mean = model.mean_kld();
                let interval = mean.map(|of| ends(of.lo, of.hi, short_kld));
                let size = sizes.bytes(model).map(|size| size as f64 / unit.bytes);
                let mut cells = vec![
                    rank,
                    marks(model),
                    name(&model.label),
                    or_undefined(size, |size| format!("{size:.2}")),
                ];
                let bpw = || or_undefined(bpw(model), |bpw| format!("{bpw:.2}"));
                cells.extend(shows_bpw.then(bpw));
                cells.extend([
                    or_undefined(mean, |mean| short_kld(mean.value)),
                    interval.unwrap_or_default(),
                    or_undefined(model.q99(), short_kld),
                    or_undefined(model.same_top(), |share| format!("{:.2}", 100.0 * share)),
                    or_undefined(model.ppl_ratio(), |ratio| fixed(ratio, 4)),
                ]);
                cells
            });
            columns(titles.clone(), rows, 3, 1)
        })
    }

    /// Explains the marks that occur.
    fn legend(&self) -> String {
        let marked = |mark: &str| self.models.iter().any(|model| marks(model).contains(mark));
        let mut text = String::new();
        let mut line = |mark: &str, what: &str| text.push_str(&format!("{mark} {what}\n"));
        let near_best = "cannot be told from the best, by Holm's test on the same tokens";
        let same = "has the same KLD as the one above it, at every token";
        let pareto = "on the Pareto front: no other is as small and has as low a mean KLD";
        for (mark, what) in [(NEAR_BEST, near_best), (SAME, same), (PARETO, pareto)] {
            if marked(mark) {
                line(mark, what);
            }
        }
        if self.models.iter().any(|model| model.is_noise_floor) {
            line(NOISE, "the noise floor: the reference's own model");
        }
        if self.sizes().has_caches {
            line("size:", "that of the file and of the KV cache");
        }
        for model in self.models.iter().filter(|model| model.is_incomplete) {
            let n = count_of(model.n_left_out(), "token");
            let label = &model.label;
            line(INCOMPLETE, &format!("not ranked: {label} leaves out {n}"));
        }
        text
    }

    /// The ratios to the best model, and those to the next in size; empty without any.
    fn ratios_text(&self, names: &Names) -> String {
        if self.pairs.is_empty() {
            return String::new();
        }
        let interval = format!("{} %\ninterval", short_percent(self.confidence.level()));
        let titles = ["", "\nratio", &interval, "\np", "is nearer\nat"];
        let rank = |pair: &&ComparedPair| self.models.iter().position(|m| m.label == pair.a);
        let best = self.best().map(|best| best.label.as_str());
        let mut text = "\nHow many times as far, by the mean KLDs on the same tokens\n".to_owned();
        text.push_str(&names.fitted(|name| {
            let mut rows = Vec::new();
            for kind in [PairKind::Best, PairKind::Size] {
                // A ratio to the best is shown once.
                let is_shown = |pair: &&ComparedPair| {
                    pair.kind == kind && (kind == PairKind::Best || best != Some(pair.b.as_str()))
                };
                let mut pairs: Vec<&ComparedPair> = self.pairs.iter().filter(is_shown).collect();
                pairs.sort_by_key(rank);
                if !pairs.is_empty() {
                    rows.push(vec![match (kind, best) {
                        (PairKind::Best, Some(best)) => format!("as {}, the best", name(best)),
                        _ => "as the next in size".to_owned(),
                    }]);
                }
                rows.extend(pairs.into_iter().map(|pair| {
                    let [ratio, interval, p] = self.ratio_cells(pair);
                    let models = match kind {
                        PairKind::Size => format!("  {} as {}", name(&pair.a), name(&pair.b)),
                        _ => format!("  {}", name(&pair.a)),
                    };
                    let nearer = pair.share_a_nearer.map(percent_1).unwrap_or_default();
                    vec![models, ratio, interval, p, nearer]
                }));
            }
            columns(titles, rows, 1, 1)
        }));
        if let Some(why) = self.why_p_differs() {
            text.push_str(&wrapped(&why));
        }
        text
    }

    /// The set-ups, where models differ; empty if all were run alike.
    fn set_up_text(&self, names: &Names) -> String {
        let (titles, rows) = self.set_up_table();
        if rows.is_empty() {
            return String::new();
        }
        let table = names.fitted(|name| {
            let titles = titles.iter().map(String::as_str);
            let rows = rows.iter().map(|(model, cells)| {
                let model = format!("  {}", name(model));
                let cells = cells.iter().map(|cell| printable(cell));
                [model].into_iter().chain(cells).collect()
            });
            let titles = ["  model"].into_iter().chain(titles);
            columns(titles, rows, usize::MAX, 1)
        });
        format!("\nSet-up, where models differ\n{table}")
    }

    /// A pair's ratio, its interval and its p-value.
    pub(super) fn ratio_cells(&self, pair: &ComparedPair) -> [String; 3] {
        let p = self.p_of(pair).map(p_value).unwrap_or_default();
        match &pair.ratio {
            Some(of) => [ratio(of.value), ends(of.lo, of.hi, ratio), p],
            None => [UNDEFINED.to_owned(), String::new(), p],
        }
    }

    /// A table of what differs between the models' set-ups: a row for each model, none if all were
    /// run alike.
    pub(super) fn set_up_table(&self) -> Cells {
        let set_ups: Vec<_> = self.models.iter().map(|model| &model.set_up).collect();
        let mut differing = set_up::differing(&set_ups);
        let n_in_tables: usize = self.caches().iter().map(Caches::n_runs).sum();
        if n_in_tables == self.models.len() {
            // The tables of KV caches show the types.
            differing.retain(|(title, _)| *title != set_up::KV_CACHE);
        }
        let titles = differing.iter().map(|(title, _)| (*title).to_owned());
        let rows = self.models.iter().map(|model| {
            let cells = differing.iter().map(|(_, of)| of(&model.set_up));
            let cells = cells.map(Option::unwrap_or_default);
            (model.label.clone(), cells.collect())
        });
        let rows = rows.filter(|_| !differing.is_empty()).collect();
        (titles.collect(), rows)
    }

    /// The files that are not among the models; empty if all are.
    pub(super) fn not_compared_text(&self) -> String {
        let mut text = String::new();
        if !self.not_compared.is_empty() {
            text.push_str("\nNot compared\n");
        }
        for (why, files) in self.not_compared_by_reason() {
            for file in files {
                text.push_str(&format!("  {}\n", printable(file)));
            }
            text.push_str(&hanging("    ", 4, &printable(why)));
        }
        text
    }
}

/// The text of the token with the largest finite KLD; infinite ones come before it in `top`.
fn max_at_text(model: &ComparedModel) -> Option<String> {
    let at = &model.summary.kld.as_ref()?.max_at;
    let is_there = |token: &&WorstToken| (token.window, token.position) == (at.window, at.position);
    let largest = model.top.iter().find(is_there)?;
    largest.text.as_ref()?.next.clone()
}

/// The marks of a model.
pub fn marks(model: &ComparedModel) -> String {
    let near = match model.same_as.is_some() {
        true => SAME,
        false if model.is_near_best() => NEAR_BEST,
        false => " ",
    };
    format!("{near}{}", if model.pareto { PARETO } else { " " })
}

/// A difference of KLDs, with its sign.
pub fn signed(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", short_kld(value))
}

/// Describes what an observation is in the intervals, and how many there are. `unit` is the word
/// for a window.
pub fn clusters(clusters: &Clustering, unit: &str) -> String {
    let kind = match clusters.kind {
        ClusterKind::Window => unit.to_owned(),
        ClusterKind::Block => format!("block of up to {} {unit}s", clusters.windows_per_block),
        ClusterKind::Part => {
            let n = count(clusters.positions_per_part.unwrap_or_default());
            format!("part of up to {n} positions")
        }
    };
    format!("by {kind} ({})", count_of(clusters.n, "cluster"))
}

#[cfg(test)]
mod tests {
    use crate::report::layout::WIDTH;
    use crate::report::tests::sample;
    use crate::report::tests::sample::comparison;

    /// As `ls` shows it, not the tensors alone.
    #[test]
    fn the_size_is_the_files() {
        let mut of = comparison();
        for model in &mut of.models {
            model.model.file_bytes = model.model.size_bytes.map(|size| 2 * size);
        }
        of.models[4].model.file_bytes = None;
        let (text, markdown) = (of.text(), of.markdown(false));
        let page = crate::report::page::html(&of).unwrap();
        for (label, size) in [("4_K_M", "2.38"), ("q2_K", "0.81")] {
            let mut lines = text.lines();
            let row = lines.find(|line| line.contains(label) && line.contains('['));
            assert!(row.unwrap().contains(&format!(" {size} ")), "{text}");
        }
        for (label, size) in [
            ("tiny-q4\\_K\\_M", "2.38 MiB"),
            ("tiny-q2\\_K", "830.08 KiB"),
        ] {
            let mut rows = markdown.lines().filter(|line| line.starts_with('|'));
            let row = rows.find(|line| line.contains(label)).unwrap();
            assert!(row.contains(size), "{row}");
            assert!(page.contains(size), "{size}");
        }
    }

    #[test]
    fn long_names_and_reasons_fit_the_terminal() {
        let mut of = comparison();
        let long = |label: &str| format!("{}-{label}\u{202e}", "long".repeat(30));
        for model in &mut of.models {
            model.label = long(&model.label);
            // Without what all begin with, names are short again.
            if model.label.contains("other") {
                model.label = "x".repeat(90);
            }
        }
        for pair in &mut of.pairs {
            (pair.a, pair.b) = (long(&pair.a), long(&pair.b));
        }
        of.pairs.retain(|pair| !pair.a.contains("other"));
        of.not_compared[0].why = "a reason of some words, ".repeat(10);
        if let Some(text) = &mut of.reference.text {
            text.name = Some("wiki.txt, code.txt, ".repeat(10));
        }
        let text = of.text();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(!text.contains('\u{202e}'), "{text}");
        assert!(text.contains("\n                   wiki.txt, "), "{text}");
        assert!(text.contains("\n    a reason of some words"), "{text}");
    }

    /// The largest KLD is the largest finite one, and infinite ones are listed before it.
    #[test]
    fn the_token_at_the_maximum_is_not_an_infinite_one() {
        let mut of = sample::comparison();
        of.models.truncate(1);
        let model = &mut of.models[0];
        let at = model.summary.kld.as_ref().unwrap().max_at;
        let (infinite, finite) = model.top.split_first_mut().unwrap();
        infinite.kld = f64::INFINITY;
        (finite[0].window, finite[0].position) = (at.window, at.position);
        let text = finite[0].text.as_mut().unwrap();
        text.next = Some(" finite".to_owned());
        let report = of.only_report(false).unwrap();
        let (_, maximum) = report.split_once("\n  maximum").unwrap();
        assert!(maximum.contains("before \" finite\"\n"), "{report}");
        of.models[0].top.truncate(1);
        let report = of.only_report(false).unwrap();
        assert!(!report.contains("\" there\""), "{report}");
    }
}
