//! The tables of a comparison. Each function is given another, which turns a model's label into
//! the name to show: text shortens labels until lines fit.

use std::cmp::Reverse;

use kl_stats::stats::{
    Bin, Breakdown, ClusterKind, Clustering, DEFAULT_DRAFTED, Estimate, FEW_TOKENS,
    IdenticalOutput, Ratio, SpanRatio,
};

use super::sizes::Caches;
use super::{ComparedModel, ComparedPair, Comparison, PairKind};
use crate::identical_output::{left_out, same_up_to};
use crate::layout::{View, WIDTH};
use crate::names::Names;
use crate::number::{
    SizeUnit, bytes, count, count_of, fixed, or_undefined, p_value, percent_1, printable, ratio,
    short_kld, short_percent,
};
use crate::set_up;
use crate::table::Table;

/// Makes a name of a label.
pub type ShownName<'n> = &'n dyn Fn(&str) -> String;

/// The marks of a row, which the lines below the table explain.
const NEAR_BEST: &str = "≈";
const SAME: &str = "=";
const PARETO: &str = "P";
const NOISE: &str = "-";
const INCOMPLETE: &str = "!";
const WEIGHTS_ALONE: &str = "w";
const ROUNDED: &str = "~";

/// Marks a model that loses more in a span than elsewhere, and explains the mark.
const MORE_IN_SPAN: &str = "+";
pub const MORE_IN_SPAN_LEGEND: &str =
    "+ loses more in this span than elsewhere, compared with the best, by Holm's test";

/// The title of the table of acceptance.
pub(super) const ACCEPTANCE_TITLE: &str =
    "Tokens that the quant drafts and the original accepts, at temperature 1";

/// The use of the table of acceptance.
const DRAFT_ADVICE: &str = "To draft for the original, take a small quant of which many tokens are accepted: a draft costs \
     time by its size, and saves as many of the original's steps as tokens are accepted.";

/// The type of the KV cache beside which others are shown: llama.cpp's default.
const USUAL_CACHE: &str = "f16";

// The ways in which the tables divide the tokens.
pub const BY_CONFIDENCE: &str = "by the probability of the reference's top token";
pub const BY_POSITION: &str = "by position in the window";
pub const BY_GROUP: &str = "by group";
pub const BY_SPAN: &str = "by span";
pub const BY_KIND: &str = "by the kind of the next token";

/// The bins of one table.
type Bins = fn(&Breakdown) -> &[Bin];

/// The tables of the breakdown: the way in which each divides the tokens, and its bins.
const BREAKDOWN: [(&str, Bins); 4] = [
    (BY_CONFIDENCE, |breakdown| &breakdown.by_confidence),
    (BY_POSITION, |breakdown| &breakdown.by_position),
    (BY_GROUP, |breakdown| &breakdown.by_group),
    (BY_KIND, |breakdown| &breakdown.special),
];

/// The title for a way to divide the tokens, with `unit` as the word for a window.
pub fn division_title(division: &str, unit: &str) -> String {
    division.replace("window", unit)
}

/// The mark of a bin of `n_tokens` tokens, to be put after its name; empty if they are enough, and for a
/// bin without any.
pub fn few_tokens_mark(n_tokens: u64) -> &'static str {
    match n_tokens {
        1..FEW_TOKENS => " *",
        _ => "",
    }
}

/// Explains the mark, if one of the bins with these numbers of tokens has it.
pub fn few_tokens_legend(n_tokens: impl IntoIterator<Item = u64>) -> Option<String> {
    let is_marked = n_tokens.into_iter().any(|n| !few_tokens_mark(n).is_empty());
    is_marked.then(|| format!("* fewer than {} tokens: a hint, no more", count(FEW_TOKENS)))
}

/// A share in percent, without the sign.
fn points(share: f64) -> String {
    two_decimals(100.0 * share)
}

fn two_decimals(number: f64) -> String {
    fixed(number, 2)
}

/// A ratio without its p-value.
fn estimate(Ratio { value, lo, hi, .. }: Ratio) -> Estimate {
    Estimate { value, lo, hi }
}

/// Describes what an observation is in the intervals, and how many there are. `unit` is the word
/// for a window.
pub fn clusters_text(clusters: &Clustering, unit: &str) -> String {
    let kind = match clusters.kind {
        ClusterKind::Window => unit.to_owned(),
        ClusterKind::Block => format!("block of up to {} {unit}s", clusters.windows_per_block),
        ClusterKind::Part => {
            let n = count(clusters.positions_per_part.unwrap_or_default());
            format!("part of up to {n} positions")
        }
    };
    let n = count_of(clusters.n, "cluster");
    let worth = clusters
        .worth_notably_less(clusters.n)
        .map(|worth| format!(", worth {worth} of equal length"));
    format!("by {kind} ({n}{})", worth.unwrap_or_default())
}

impl Comparison {
    pub(crate) fn interval_title(&self) -> String {
        format!("{} %\ninterval", short_percent(self.confidence.level()))
    }

    /// A row for each model.
    pub(super) fn models_table(&self, name: ShownName<'_>) -> Table<&ComparedModel> {
        let (unit, sizes, interval) = (self.size_unit(), self.sizes(), &self.interval_title());
        // The runs of one model need the space for their names.
        let first_bpw = self.models.first().and_then(|first| first.model.bpw);
        let shows_bpw = !sizes.has_caches() || self.models.iter().any(|m| m.model.bpw != first_bpw);
        let size = |m: &&ComparedModel| Some(sizes.of_model(m)? as f64 / unit.bytes);
        let times_best = |m: &&ComparedModel| Some(estimate(m.ratio_to_best?.ratio));
        // In text, two columns make room for those of speeds.
        let has_speed = self.models.iter().any(|m| m.speed.is_some());
        let mut n_candidates = 0;
        let rank = |m: &&ComparedModel| {
            n_candidates += u64::from(m.is_candidate());
            match (m.is_candidate(), m.is_incomplete) {
                (true, _) => n_candidates.to_string(),
                (false, true) => INCOMPLETE.to_owned(),
                (false, false) if m.is_noise_floor => NOISE.to_owned(),
                (false, false) => WEIGHTS_ALONE.to_owned(),
            }
        };
        Table::new("", &self.models)
            .left("", rank)
            .left("", |m| self.marks(m))
            .left("\nmodel", |m| name(&m.label))
            .number(format!("{}\n", sizes.word()), size, two_decimals)
            .unit(unit.symbol)
            .number("\nBPW", |m| m.model.bpw, two_decimals)
            .in_markdown_if(has_speed)
            .shown_if(shows_bpw)
            .estimate(["mean\nKLD", interval], |m| m.mean_kld(), short_kld)
            .number("99 %\nKLD", |m| m.q99(), short_kld)
            .number("same\ntop", |m| m.same_top(), points)
            .unit("%")
            .number("PPL\nratio", |m| m.ppl_ratio(), |ratio| fixed(ratio, 4))
            .in_markdown_if(has_speed)
            .speeds(|m| m.speed)
            .estimate(["times the best", ""], times_best, ratio)
            .in_markdown()
            .number("p (Holm)", |m| m.ratio_to_best?.p_holm, p_value)
            .in_markdown()
    }

    /// The marks of a model.
    fn marks(&self, model: &ComparedModel) -> String {
        let pareto = if model.pareto { PARETO } else { " " };
        let may_be_rounding = self.may_be_rounding(model);
        let rounded = if may_be_rounding { ROUNDED } else { "" };
        match (&model.same_as, model.is_near_best()) {
            (Some(_), _) => format!("{SAME}{pareto}{rounded}"),
            (None, true) => format!("{NEAR_BEST}{pareto}{rounded}"),
            (None, false) if may_be_rounding => format!("{ROUNDED}{pareto}"),
            (None, false) => format!(" {pareto}"),
        }
    }

    /// Explains the marks that occur, each mark before its words.
    pub(super) fn legend(&self) -> Vec<String> {
        let is_used = |mark: &str| {
            self.models
                .iter()
                .any(|model| self.marks(model).contains(mark))
        };
        let has_floor = self.models.iter().any(|model| model.is_noise_floor);
        let near_best = "cannot be told from the best, by Holm's test on the same tokens";
        let same = "has the same KLD as the one above it, at every token";
        let pareto = "on the Pareto front: no other is as small and has as low a mean KLD";
        let noise = "the noise floor: the reference's own model";
        let has_weights_alone = self.models.iter().any(|model| model.is_weights_alone);
        let weights_alone =
            "the weights alone, dequantized: without rounding in kernels, not ranked";
        let rounded = "most of it may be rounding in kernels: --dequantize shows the weights alone";
        let sizes = self.sizes();
        let size = format!("{}:", sizes.word());
        let size_explained = sizes.explained().map(|parts| format!("that of {parts}"));
        let legends = [
            (is_used(NEAR_BEST), NEAR_BEST, near_best),
            (is_used(SAME), SAME, same),
            (is_used(PARETO), PARETO, pareto),
            (has_floor, NOISE, noise),
            (has_weights_alone, WEIGHTS_ALONE, weights_alone),
            (is_used(ROUNDED), ROUNDED, rounded),
            (
                sizes.has_caches(),
                &size,
                size_explained.as_deref().unwrap_or_default(),
            ),
        ];
        let marks_explained = legends
            .into_iter()
            .filter(|(is_used, ..)| *is_used)
            .map(|(_, mark, meaning)| format!("{mark} {meaning}"));
        let not_ranked = self
            .models
            .iter()
            .filter(|model| model.is_incomplete)
            .map(|model| {
                let tokens = count_of(model.n_left_out(), "token");
                format!(
                    "{INCOMPLETE} not ranked: {} leaves out {tokens}",
                    model.label
                )
            });
        let floor = self.floor.map(|floor| {
            let kld = short_kld(floor.kld);
            format!("Rounding alone moves this set-up by {kld} nats (kl check).")
        });
        let band = self.best().and_then(|best| best.band_in_words());
        marks_explained
            .chain(not_ranked)
            .chain(floor)
            .chain(band)
            .chain(self.speed_legend())
            .collect()
    }

    /// Explains the columns of speeds, where there are any.
    pub(crate) fn speed_legend(&self) -> Option<String> {
        let speed = self.models.iter().find_map(|model| model.speed)?;
        let (prompt, generation) = (speed.prompt.n_tokens, speed.generation.n_tokens);
        Some(format!(
            "t/s: tokens a second, of a prompt of {prompt} and of {generation} generated after it"
        ))
    }

    /// The pairs of one kind, in the order of the models; a ratio to the best is only among those.
    pub(super) fn pairs_of(&self, kind: PairKind) -> Vec<&ComparedPair> {
        let best = self.best().map(|best| best.label.as_str());
        let mut pairs: Vec<&ComparedPair> = self
            .pairs
            .iter()
            .filter(|pair| {
                pair.kind == kind && (kind == PairKind::Best || best != Some(pair.b.as_str()))
            })
            .collect();
        pairs.sort_by_key(|pair| self.models.iter().position(|m| m.label == pair.a));
        pairs
    }

    /// The ratios to the best model, and in full those to the next in size.
    pub(super) fn ratios_table(&self, name: ShownName<'_>, view: View) -> Table<&ComparedPair> {
        let to_best = self.pairs_of(PairKind::Best);
        let (to_best, more_line) = view.first_rows(&to_best);
        let to_next = if view.full {
            self.pairs_of(PairKind::Size)
        } else {
            Vec::new()
        };
        let pairs = to_best.iter().copied().chain(to_next).collect();
        let title = "How many times as far, by the mean KLDs on the same tokens";
        let mut table = self.pairs_table(title, pairs, name).more_line(more_line);
        if let Some(best) = self.best().filter(|_| !to_best.is_empty()) {
            table = table.group(0, format!("as {}, the best", name(&best.label)));
        }
        if table.rows().len() > to_best.len() {
            table = table.group(to_best.len(), "as the next in size".to_owned());
        }
        table
    }

    /// A row for each of some pairs.
    pub(super) fn pairs_table<'p>(
        &self,
        title: &str,
        pairs: Vec<&'p ComparedPair>,
        name: ShownName<'_>,
    ) -> Table<&'p ComparedPair> {
        let ratio_estimate = |pair: &&ComparedPair| pair.paired.ratio.map(estimate);
        let names = |pair: &&ComparedPair| match pair.kind {
            PairKind::Size => format!("  {} as {}", name(&pair.a), name(&pair.b)),
            _ => format!("  {}", name(&pair.a)),
        };
        let p = |pair: &&ComparedPair| self.p_of(pair).map(p_value);
        let nearer = |pair: &&ComparedPair| pair.paired.share_a_nearer.map(percent_1);
        Table::new(title, pairs)
            .left("", names)
            .in_text()
            .left("model", |pair| name(&pair.a))
            .in_markdown()
            .left("next in size", |pair| name(&pair.b))
            .in_markdown()
            .estimate(["\nratio", &self.interval_title()], ratio_estimate, ratio)
            .right("\np", |pair| p(pair).unwrap_or_default())
            .right("is nearer\nat", |pair| nearer(pair).unwrap_or_default())
            .notes(self.why_p_differs())
    }

    /// The settings that differ between the models' set-ups; without rows if all were run alike.
    pub(super) fn set_up_table(&self, name: ShownName<'_>) -> Table<&ComparedModel> {
        let set_ups: Vec<_> = self.models.iter().map(|model| &model.set_up).collect();
        let mut differing = set_up::differing(&set_ups);
        if self.all_are_in_tables_of_caches() {
            // They show the types.
            differing.retain(|(title, _)| *title != set_up::KV_CACHE);
        }
        let models = self.models.iter().filter(|_| !differing.is_empty());
        let mut table = Table::new("Set-up, where models differ", models);
        table = table.left("  model", |m| format!("  {}", name(&m.label)));
        for (title, setting) in differing {
            table = table.left(title, |m| {
                printable(&setting(&m.set_up).unwrap_or_default())
            });
        }
        table
    }

    /// The mean KLDs in each span, with a row for each model; without rows unless there are several.
    pub(super) fn brief_spans_table(&self, name: ShownName<'_>) -> Table<&ComparedModel> {
        let spans = self.spans();
        let models = self.models.iter().filter(|_| !spans.is_empty());
        let mut table = Table::new("Mean KLD by span, nats", models).gap(2);
        table = table.left("\n  tokens", |m| format!("  {}", name(&m.label)));
        for span in spans {
            let (label, n) = (printable(&span.label), count(span.n_tokens));
            let title = format!("{label}\n{n}{}", few_tokens_mark(span.n_tokens));
            table = table.right(title, |m| {
                self.more_in_span_mark(m, span).to_owned() + &kld_in(m, span)
            });
        }
        table.notes(self.span_legends())
    }

    /// The models in each span; without rows unless there are several.
    pub(super) fn spans_table(&self, name: ShownName<'_>) -> Table<(&Bin, &ComparedModel)> {
        let (spans, has_ratios) = (self.spans(), self.has_span_ratios());
        let rows = spans
            .iter()
            .flat_map(|span| self.models.iter().map(move |m| (span, m)));
        let title = match self.best().filter(|_| has_ratios) {
            Some(best) => format!(
                "By span, and how many times as far as {}, the best",
                name(&best.label)
            ),
            None => "By span".to_owned(),
        };
        let interval = &self.interval_title();
        let times = |(span, m): &(&Bin, &ComparedModel)| Some(estimate(ratio_in(m, span)?.ratio?));
        let mut table = Table::new(title, rows)
            .left("span", |(span, _)| span.label.clone())
            .in_markdown()
            .left("tokens", |(span, _)| {
                count(span.n_tokens) + few_tokens_mark(span.n_tokens)
            })
            .in_markdown()
            .left("\n    model", |(_, m)| format!("    {}", name(&m.label)))
            .left("", |(span, m)| self.more_in_span_mark(m, span).to_owned())
            .right("mean\nKLD", |(span, m)| kld_in(m, span))
            .number("same\ntop", |(span, m)| bin_in(m, span)?.agreement, points)
            .unit("%")
            .estimate(["times\nas far", interval], times, ratio)
            .shown_if(has_ratios)
            .notes(self.span_legends());
        for (i, span) in spans.iter().enumerate() {
            let (tokens, mark) = (
                count_of(span.n_tokens, "token"),
                few_tokens_mark(span.n_tokens),
            );
            let title = format!("  {}, {tokens}{mark}", printable(&span.label));
            table = table.group(i * self.models.len(), title);
        }
        table
    }

    /// The mark of a model that loses more in a span than elsewhere.
    fn more_in_span_mark(&self, model: &ComparedModel, span: &Bin) -> &'static str {
        match ratio_in(model, span) {
            Some(ratio) if self.loses_more(ratio) => MORE_IN_SPAN,
            _ => "",
        }
    }

    /// The explanations of the marks that occur.
    fn span_legends(&self) -> Vec<String> {
        let any_loses_more = self
            .models
            .iter()
            .flat_map(|model| &model.ratio_to_best_by_span)
            .any(|ratio| self.loses_more(ratio));
        let more_in_span = any_loses_more.then(|| MORE_IN_SPAN_LEGEND.to_owned());
        let few_tokens = few_tokens_legend(self.spans().iter().map(|span| span.n_tokens));
        more_in_span.into_iter().chain(few_tokens).collect()
    }

    /// The tables of KV caches, one for each model that was run with several.
    pub(super) fn caches_tables(&self) -> Vec<Table<&ComparedModel>> {
        let (interval, best) = (&self.interval_title(), self.best().map(|best| &best.label));
        let tables = self.caches().into_iter().map(|(caches, runs)| {
            let size = |m: &ComparedModel| caches.of_model(m).map(|bytes| bytes as f64);
            let first = runs.first();
            let name = first.map_or_else(String::new, |first| {
                printable(first.model.default_label())
            });
            let largest = first.and_then(|first| caches.of_model(first));
            let unit = SizeUnit::for_sizes(largest.unwrap_or(0));
            let mut sizes = runs.iter().filter_map(|m| m.set_up.kv_cache_sizes.as_ref());
            let any_is_bounded = sizes.any(|sizes| !sizes.are_in_proportion());
            let note = "What a sliding window or a recurrent layer keeps does not grow with the context: \
                        --for-context N shows the caches of N tokens.";
            let note = Some(note).filter(|_| any_is_bounded && self.for_context.is_none());
            let usual_size = runs
                .iter()
                .find(|m| cache_types(m) == Some([USUAL_CACHE; 2]))
                .and_then(|usual| size(usual));
            let times = |m: &&ComparedModel| Some(m.ratio_to_best?.ratio);
            let types = |m: &ComparedModel| cache_types(m).unwrap_or_default().map(printable);
            let share_title = format!("share of\n{USUAL_CACHE}");
            let for_tokens = caches.for_tokens();
            let title = format!("KV caches of {name}{for_tokens}, the largest first");
            Table::new(title, runs)
                .gap(2)
                .left("  K", |m| format!("  {}", types(m)[0]))
                .left("V", |m| types(m)[1].clone())
                .number("cache\n", |m| Some(size(m)? / unit.bytes), two_decimals)
                .unit(unit.symbol)
                .number(share_title, |m| Some(size(m)? / usual_size?), percent_1)
                .shown_if(usual_size.is_some())
                .number("mean\nKLD", |m| Some(m.mean_kld()?.value), short_kld)
                .right("times\nthe best", |m| match times(m) {
                    None if best == Some(&m.label) => "best".to_owned(),
                    times => or_undefined(times, |times| ratio(times.value)),
                })
                .interval(interval.as_str(), |m| times(m).map(estimate), ratio)
                .number("same\ntop", |m| m.same_top(), points)
                .unit("%")
                .notes(note.map(str::to_owned))
        });
        tables.collect()
    }

    /// The runs of each model that was run with several types of the KV cache, the largest cache first, and the
    /// caches whose sizes they have. Of runs with the same types, the first counts; one whose size is not
    /// recorded is left out.
    fn caches(&self) -> Vec<(Caches, Vec<&ComparedModel>)> {
        let mut runs_of_models: Vec<Vec<&ComparedModel>> = Vec::new();
        for model in &self.models {
            let types = cache_types(model);
            if types.is_none() || model.set_up.kv_cache_bytes.unwrap_or(0) == 0 {
                continue;
            }
            let runs_of_model = runs_of_models
                .iter_mut()
                .find(|runs| runs[0].is_of_same_file(model));
            match runs_of_model {
                Some(runs) if runs.iter().any(|run| cache_types(run) == types) => {}
                Some(runs) => runs.push(model),
                None => runs_of_models.push(vec![model]),
            }
        }
        runs_of_models.retain(|runs| runs.len() > 1);
        runs_of_models
            .into_iter()
            .map(|mut runs| {
                let known = Caches::known(runs.iter().copied(), self.for_context);
                let caches = known.unwrap_or(Caches::Measured);
                // Of equally large ones, the nearest comes first, as they are sorted already.
                runs.sort_by_key(|run| Reverse(caches.of_model(run)));
                (caches, runs)
            })
            .collect()
    }

    /// True if the tables of KV caches have every model.
    pub(super) fn all_are_in_tables_of_caches(&self) -> bool {
        let n_runs: usize = self.caches().iter().map(|(_, runs)| runs.len()).sum();
        n_runs == self.models.len()
    }

    /// The models whose greedy answers were compared, and, if `with_drafts` is set, the drafted tokens that a round
    /// accepts.
    pub(crate) fn identical_table(
        &self,
        name: ShownName<'_>,
        with_drafts: bool,
    ) -> Table<(&ComparedModel, &IdenticalOutput)> {
        let drafted = format!("accepted of\n{DEFAULT_DRAFTED} drafted");
        let interval = &self.interval_title();
        let rows: Vec<_> = self
            .models
            .iter()
            .filter_map(|m| Some((m, m.summary.identical_output.as_ref()?)))
            .collect();
        let outputs = || rows.iter().map(|(_, output)| *output);
        // The cut is the reference's, so it is the same for all.
        let title = outputs().next().map(|output| {
            let up_to = same_up_to(output);
            format!("Greedy answers that are the original's {up_to}")
        });
        let notes = left_out(outputs());
        Table::new(title.unwrap_or_default(), rows)
            .left("\n  model", |(m, _)| format!("  {}", name(&m.label)))
            .right("answers", |(_, output)| {
                let n_same = output.n_answers - output.n_differ;
                let [same, all] = [n_same, output.n_answers].map(count);
                format!("{same} of {all}")
            })
            .estimate(
                ["share\n%", interval],
                |(_, output)| output.same_to_the_end,
                points,
            )
            .right("half of those that\ndiffer do so within", |(_, output)| {
                or_undefined(output.half_differ_within, |n| count_of(n.into(), "token"))
            })
            .number(drafted, |(m, _)| Some(accepted(m)?.value), two_decimals)
            .shown_if(with_drafts)
            .notes(notes)
    }

    /// The models whose drafted tokens were counted.
    pub(crate) fn acceptance_table(&self, name: ShownName<'_>) -> Table<&ComparedModel> {
        let round = format!(
            "A round drafts {DEFAULT_DRAFTED} tokens, llama.cpp's default, and ends with one of the \
             original's own."
        );
        let note = if self.has_sizes_to_draft() {
            format!("{round} {DRAFT_ADVICE}")
        } else {
            round
        };
        let drafted = format!("accepted of\n{DEFAULT_DRAFTED} drafted");
        let interval = &self.interval_title();
        let share = |m: &&ComparedModel| Some(m.summary.acceptance.as_ref()?.mean.value);
        let size = |m: &&ComparedModel| m.model.shown_bytes().map(|size| size as f64);
        Table::new(ACCEPTANCE_TITLE, self.drafts())
            .left("\n  model", |m| format!("  {}", name(&m.label)))
            .number("file\nsize", size, |size| bytes(size as u64))
            .number("accepted\n%", share, points)
            .estimate([&drafted, interval], |m| accepted(m), two_decimals)
            .notes([note])
    }

    /// The models that could draft for the original, one for each file, whatever its KV cache, and as it runs, not by
    /// its weights alone; none where the models are runs of a single file.
    pub(crate) fn drafts(&self) -> Vec<&ComparedModel> {
        let mut drafts: Vec<&ComparedModel> = Vec::new();
        for model in &self.models {
            let may_draft = !model.is_reference_model
                && !model.is_weights_alone
                && model.summary.acceptance.is_some();
            if may_draft && !drafts.iter().any(|other| other.is_of_same_file(model)) {
                drafts.push(model);
            }
        }
        let [first, others @ ..] = self.models.as_slice() else {
            return drafts;
        };
        if others.iter().all(|model| model.is_of_same_file(first)) {
            drafts.clear();
        }
        drafts
    }

    /// True if texts show the drafts: they are about answers. Pages and JSON always do.
    pub(super) fn shows_drafts(&self) -> bool {
        self.models.iter().any(|model| model.measures_answers())
    }

    /// True if there are drafts of several sizes to choose from.
    pub(super) fn has_sizes_to_draft(&self) -> bool {
        let mut sizes = self
            .drafts()
            .into_iter()
            .filter_map(|model| model.model.shown_bytes());
        let first = sizes.next();
        sizes.any(|size| Some(size) != first)
    }

    /// Where the KLD of some of the models comes from: a table for each way to divide the tokens, with a
    /// row for each bin, its share of the tokens and the mean KLD of each model. Names of bins, which only
    /// a group's can exceed, are cut where `width` is that of a terminal.
    pub(super) fn breakdown_tables<'m>(
        &self,
        models: &'m [ComparedModel],
        name: ShownName<'_>,
        width: Option<usize>,
    ) -> Vec<Table<&'m Bin>> {
        /// The most characters of a bin's name on a terminal of 80 columns.
        const BIN_CHARS: usize = 16;
        let tables = BREAKDOWN.iter().filter_map(|(by, bins)| {
            let first = models
                .iter()
                .find(|model| !bins(&model.breakdown).is_empty())?;
            let n_tokens = first.summary.n_tokens.max(1) as f64;
            let bins_of_first = bins(&first.breakdown);
            let labels: Vec<&str> = bins_of_first.iter().map(|bin| bin.label.as_str()).collect();
            let names = Names::whole(&labels, WIDTH);
            let spare_width = width.map_or(usize::MAX, |width| width.saturating_sub(WIDTH));
            let bin_name = names.within(BIN_CHARS.saturating_add(spare_width));
            let title = division_title(by, self.reference.unit());
            let tokens = |bin: &&Bin| {
                format!(
                    "  {}{}",
                    bin_name(&bin.label),
                    few_tokens_mark(bin.n_tokens)
                )
            };
            let mut table = Table::new(format!("Mean KLD {title}, nats"), bins_of_first)
                .left("  tokens", tokens)
                .right("share", |bin| percent_1(bin.n_tokens as f64 / n_tokens));
            for model in models {
                let bins = bins(&model.breakdown);
                table = table.right(name(&model.label), |bin| {
                    let own_bin = bins.iter().find(|own_bin| own_bin.label == bin.label);
                    let mean = own_bin.and_then(|own_bin| own_bin.kld);
                    or_undefined(mean, |mean| short_kld(mean.value))
                });
            }
            Some(table)
        });
        tables.collect()
    }

    /// Explains the mark in the tables of the breakdown, if it is there.
    pub(super) fn breakdown_legend(&self) -> Option<String> {
        let bins = self.models.iter().flat_map(|model| {
            BREAKDOWN
                .iter()
                .flat_map(|(_, bins)| bins(&model.breakdown))
        });
        few_tokens_legend(bins.map(|bin| bin.n_tokens))
    }
}

/// The tokens of a draft that a round accepts.
fn accepted(model: &ComparedModel) -> Option<Estimate> {
    let acceptance = model.summary.acceptance.as_ref()?;
    acceptance.of_drafted(DEFAULT_DRAFTED).copied()
}

/// A model's tokens in a span.
fn bin_in<'m>(model: &'m ComparedModel, span: &Bin) -> Option<&'m Bin> {
    model
        .breakdown
        .by_span
        .iter()
        .find(|bin| bin.label == span.label)
}

/// A model's ratio to the best in a span.
fn ratio_in<'m>(model: &'m ComparedModel, span: &Bin) -> Option<&'m SpanRatio> {
    model
        .ratio_to_best_by_span
        .iter()
        .find(|ratio| ratio.label == span.label)
}

fn kld_in(model: &ComparedModel, span: &Bin) -> String {
    let kld = bin_in(model, span).and_then(|bin| bin.kld);
    or_undefined(kld, |kld| short_kld(kld.value))
}

/// The types of a run's KV cache; `None` where they are not recorded.
fn cache_types(model: &ComparedModel) -> Option<[&str; 2]> {
    let set_up = &model.set_up;
    Some([set_up.type_k.as_deref()?, set_up.type_v.as_deref()?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample::comparison;
    use crate::tests::FULL;

    fn caches_text(comparison: &Comparison) -> String {
        comparison.caches_tables().iter().map(Table::text).collect()
    }

    /// Five runs of two models, each with a KV cache of its own.
    fn swept() -> Comparison {
        let mut comparison = comparison();
        comparison.models.truncate(5);
        let caches = [
            ("q4", "f16", "f16", 8 << 30),
            ("q4", "q8_0", "f16", 6_576_668_672),
            ("q4", "q4_0", "q4_0", 2_415_919_104),
            ("q2", "f16", "f16", 8 << 30),
            ("q2", "q8_0", "q8_0", 4_563_402_752),
        ];
        for (model, (name, k, v, bytes)) in comparison.models.iter_mut().zip(caches) {
            model.model.path = format!("{name}.gguf");
            model.set_up.type_k = Some(k.to_owned());
            model.set_up.type_v = Some(v.to_owned());
            model.set_up.kv_cache_bytes = Some(bytes);
        }
        comparison
    }

    #[test]
    fn each_model_that_was_run_with_several_has_a_table() {
        let comparison = swept();
        insta::assert_snapshot!(caches_text(&comparison));
        assert!(comparison.text(FULL).contains(&caches_text(&comparison)));
        for line in comparison.text(FULL).lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        // All of the types are there already.
        assert!(
            !comparison
                .text(FULL)
                .contains("Set-up, where models differ")
        );
    }

    #[test]
    fn runs_that_were_timed_keep_their_sizes() {
        let mut comparison = swept();
        let pace = kl_formats::Pace {
            n_tokens: 64,
            tokens_per_s: 20.0,
            lo: 19.0,
            hi: 21.0,
        };
        comparison.models[0].result.speed = Some(kl_formats::Speed {
            prompt: pace,
            generation: pace,
            waited: None,
        });
        let table = comparison.models_table(&str::to_owned).rows_text();
        assert!(table.contains(comparison.sizes().word()), "{table}");
        assert!(table.contains("t/s"), "{table}");
    }

    #[test]
    fn there_is_none_where_it_would_say_nothing() {
        assert_eq!(caches_text(&comparison()), "");
        // No size is recorded.
        let mut comparison = swept();
        comparison
            .models
            .iter_mut()
            .for_each(|model| model.set_up.kv_cache_bytes = None);
        assert_eq!(caches_text(&comparison), "");
        // All runs have the same types.
        let mut comparison = swept();
        for model in &mut comparison.models {
            model.set_up.type_k = Some("f16".to_owned());
            model.set_up.type_v = Some("f16".to_owned());
        }
        assert_eq!(caches_text(&comparison), "");
    }

    /// A plain run beside those of a sweep, and one of a file that does not record the size.
    #[test]
    fn the_first_run_with_a_pair_of_types_counts() {
        let whole = swept();
        let mut comparison = swept();
        let mut twice = comparison.models[0].clone();
        twice.label = "again".to_owned();
        comparison.models.push(twice);
        assert_eq!(caches_text(&comparison), caches_text(&whole));
        let n_rows = |comparison: &Comparison| {
            comparison
                .caches()
                .iter()
                .map(|(_, runs)| runs.len())
                .sum::<usize>()
        };
        comparison.models.pop();
        comparison.models[0].set_up.kv_cache_bytes = None;
        assert_eq!(n_rows(&comparison) + 1, n_rows(&whole));
    }

    fn labels(comparison: &Comparison) -> Vec<&str> {
        let drafts = comparison.drafts().into_iter();
        drafts.map(|model| model.label.as_str()).collect()
    }

    #[test]
    fn neither_the_original_nor_runs_of_one_file_are_drafts_to_choose_from() {
        let mut comparison = comparison();
        comparison.models.truncate(3);
        assert_eq!(labels(&comparison), ["tiny-q4_K_M", "tiny-iq4_xs"]);
        assert!(
            comparison.has_sizes_to_draft() && comparison.text(FULL).contains(ACCEPTANCE_TITLE)
        );
        // Another file of the same size.
        comparison.models[2].model.file_bytes = comparison.models[1].model.file_bytes;
        comparison.models[2].model.size_bytes = comparison.models[1].model.size_bytes;
        assert!(
            !comparison.has_sizes_to_draft() && comparison.text(FULL).contains(ACCEPTANCE_TITLE)
        );
        // Two runs of one.
        comparison.models[2].model = comparison.models[1].model.clone();
        assert_eq!(labels(&comparison), ["tiny-q4_K_M"]);
        comparison.models.remove(0);
        for shown in [comparison.text(FULL), comparison.markdown(false)] {
            assert!(!shown.contains(ACCEPTANCE_TITLE), "{shown}");
        }
        let page = crate::page::html(&comparison).unwrap();
        assert!(!page.contains("Drafted tokens that are accepted"));
    }

    /// Only the page, the JSON and the whole report show drafts of plain texts.
    #[test]
    fn drafts_are_shown_where_answers_are_measured() {
        let brief = View {
            full: false,
            ..FULL
        };
        let mut comparison = comparison();
        assert!(comparison.text(brief).contains("3 drafted"));
        let drafts = Vec::from_iter(comparison.drafts().iter().map(|draft| draft.label.clone()));
        let mut dequantized = comparison.clone();
        for model in &mut dequantized.models {
            model.is_weights_alone = model.label == drafts[0];
        }
        let other_drafts = dequantized.drafts().into_iter().map(|draft| &draft.label);
        assert!(
            other_drafts.eq(&drafts[1..]),
            "nobody runs the first like that"
        );
        for model in &mut comparison.models {
            model.summary.identical_output = None;
        }
        // Answers without greedy ones have spans.
        assert!(comparison.text(brief).contains(ACCEPTANCE_TITLE));
        for model in &mut comparison.models {
            model.breakdown.by_span.clear();
        }
        for shown in [comparison.text(brief), comparison.markdown(false)] {
            assert!(!shown.contains("draft"), "{shown}");
        }
        assert!(comparison.text(FULL).contains(ACCEPTANCE_TITLE));
        let page = crate::page::html(&comparison).unwrap();
        assert!(page.contains("Drafted tokens that are accepted"));
    }

    #[test]
    fn breakdown_of_the_comparison() {
        let text = comparison().breakdown_text(WIDTH);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        insta::assert_snapshot!(text);
    }

    #[test]
    fn groups_have_safe_names() {
        let mut comparison = comparison();
        for model in &mut comparison.models {
            model.breakdown.by_confidence.clear();
            let bins = &mut model.breakdown.by_position;
            bins.truncate(2);
            bins[0].label = "wiki\u{202e}\u{1b}".to_owned();
            bins[1].label = "a name that is far too long for a terminal".to_owned();
            model.breakdown.by_group = std::mem::take(bins);
        }
        insta::assert_snapshot!(comparison.breakdown_text(WIDTH));
    }
}
