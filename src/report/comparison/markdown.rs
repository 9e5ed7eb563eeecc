//! A comparison as Markdown.

use std::fmt::Write as _;

use super::names::Names;
use super::text::{self, kld, p_value, signed};
use super::{ComparedModel, Comparison, PairKind, set_up, words};
use crate::report::breakdown::title;
use crate::report::number::{bytes, count_of, ends, fixed, percent, printable, short_percent};

/// The titles of the table of models.
const TITLES: [&str; 10] = [
    "model",
    "size",
    "BPW",
    "mean KLD",
    "99 %",
    "same top",
    "PPL ratio",
    "to the best",
    "p (Holm)",
    "",
];

impl Comparison {
    /// The table, the paired differences, and what was not compared; with `breakdown`, also where
    /// each model's KLD comes from.
    #[must_use]
    pub fn markdown(&self, breakdown: bool) -> String {
        let mut out = String::new();
        self.markdown_models(&mut out);
        self.markdown_differences(&mut out);
        let differing = set_up::differing(self);
        if !differing.is_empty() {
            out.push_str("\nSet-up, where models differ:\n\n");
            let titles = differing.iter().map(|(title, _)| *title);
            let titles: Vec<&str> = std::iter::once("model").chain(titles).collect();
            let rows = self.models.iter().enumerate().map(|(i, model)| {
                let cells = differing.iter().filter_map(|(_, cells)| cells.get(i));
                let cells = cells.map(|cell| escaped(cell));
                std::iter::once(escaped(&model.label))
                    .chain(cells)
                    .collect()
            });
            table(&mut out, &titles, usize::MAX, rows);
        }
        if breakdown {
            self.markdown_breakdown(&mut out);
        }
        if !self.not_compared.is_empty() {
            out.push_str("\nNot compared:\n\n");
            for (why, files) in self.not_compared_by_reason() {
                let files: Vec<String> = files.into_iter().map(code).collect();
                let _ = writeln!(out, "- {}: {}", files.join(", "), escaped(why));
            }
        }
        out
    }

    /// The table of models and what follows from it.
    pub(super) fn markdown_models(&self, out: &mut String) {
        let names = Names::whole(self);
        let reference = self.reference.file_name.as_deref();
        let level = short_percent(self.confidence.level());
        let _ = writeln!(
            out,
            "KL divergence from {}, nats; intervals at {level} %{}\n",
            code(reference.unwrap_or("one reference")),
            self.models
                .first()
                .map(|model| format!(
                    ", {}",
                    text::clusters(&model.summary.clusters, self.reference.unit())
                ))
                .unwrap_or_default()
        );
        table(out, &TITLES, 1, self.models.iter().map(row));
        out.push_str(
            "\n≈: cannot be told from the best. P: on the Pareto front of size and mean KLD.\n",
        );
        if let Some(verdict) = words::verdict(self, &names, usize::MAX) {
            let _ = writeln!(out, "\n{}", escaped(&verdict));
        }
    }

    fn markdown_differences(&self, out: &mut String) {
        let to_next = self.pairs.iter().filter(|pair| pair.kind == PairKind::Size);
        let rows: Vec<Vec<String>> = to_next
            .map(|pair| {
                let difference = &pair.difference;
                vec![
                    escaped(&pair.a),
                    escaped(&pair.b),
                    signed(difference.value),
                    ends(difference.lo, difference.hi, signed),
                    self.p_of(pair).map(p_value).unwrap_or_default(),
                    pair.share_a_nearer.map(percent).unwrap_or_default(),
                ]
            })
            .collect();
        if !rows.is_empty() {
            out.push_str("\nEach model less the next in size, on the same tokens:\n\n");
            let titles = [
                "model",
                "next in size",
                "difference",
                "interval",
                "p",
                "nearer",
            ];
            table(out, &titles, 2, rows.into_iter());
            if let Some(why) = self.why_p_differs() {
                let _ = writeln!(out, "\n{why}");
            }
        }
    }

    fn markdown_breakdown(&self, out: &mut String) {
        for (by, columns, rows) in self.breakdowns() {
            let title = title(by, self.reference.unit());
            let _ = writeln!(out, "\nMean KLD {title}:\n");
            let columns: Vec<String> = columns.iter().map(|column| escaped(column)).collect();
            let titles: Vec<&str> = columns.iter().map(String::as_str).collect();
            let rows = rows.into_iter().map(|mut row| {
                // A group's name comes from a file.
                if let Some(first) = row.first_mut() {
                    *first = escaped(first);
                }
                row
            });
            table(out, &titles, 1, rows);
        }
    }
}

fn row(model: &ComparedModel) -> Vec<String> {
    let mean = model.mean_kld().map(|mean| {
        let interval = ends(mean.clustered.lo, mean.clustered.hi, kld);
        format!("{} {interval}", kld(mean.estimate.value))
    });
    let to_best = model.difference_to_best.as_ref().map(|to_best| {
        let difference = &to_best.difference;
        let interval = ends(difference.lo, difference.hi, signed);
        format!("{} {interval}", signed(difference.value))
    });
    let p = model.difference_to_best.and_then(|to_best| to_best.p_holm);
    let quantile = model.quantile(0.99).map(|q| kld(q.estimate.value));
    let cells = [
        model.model.shown_bytes().map(bytes),
        model.model.bpw.map(|bpw| format!("{bpw:.2}")),
        mean,
        quantile,
        model.same_top().map(percent),
        model.ppl_ratio().map(|ratio| fixed(ratio, 4)),
        to_best,
        p.map(p_value),
    ];
    let marks = if model.is_incomplete {
        format!("leaves out {}", count_of(model.n_left_out(), "token"))
    } else if model.is_noise_floor {
        "noise floor".to_owned()
    } else {
        text::marks(model).trim().to_owned()
    };
    let cells = cells
        .into_iter()
        .map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
    let label = std::iter::once(escaped(&model.label));
    label.chain(cells).chain([marks]).collect()
}

/// A table whose columns from `right` on are aligned to the right.
fn table(out: &mut String, titles: &[&str], right: usize, rows: impl Iterator<Item = Vec<String>>) {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let titles: Vec<String> = titles.iter().map(|&title| title.to_owned()).collect();
    out.push_str(&line(&titles));
    let rules = (0..titles.len()).map(|i| if i < right { "---" } else { "---:" });
    let rules: Vec<String> = rules.map(str::to_owned).collect();
    out.push_str(&line(&rules));
    for row in rows {
        out.push_str(&line(&row));
    }
}

/// A text that Markdown shows as it is.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in printable(text).chars() {
        if matches!(
            c,
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '&' | '~' | '$'
        ) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// A text as code.
fn code(text: &str) -> String {
    match text.contains('`') {
        true => escaped(text),
        false => format!("`{}`", printable(text).replace('|', "\\|")),
    }
}

#[cfg(test)]
mod tests {
    use crate::report::tests::sample::comparison;

    #[test]
    fn markdown_of_the_comparison() {
        let mut of = comparison();
        of.models[5].label = "other|<b>".to_owned();
        insta::assert_snapshot!(of.markdown(true));
    }

    #[test]
    fn names_of_groups_are_escaped() {
        let mut of = comparison();
        for model in &mut of.models {
            let mut bin = model.breakdown.by_position[0].clone();
            bin.label = "a|<b>".to_owned();
            model.breakdown.by_group = vec![bin];
        }
        let markdown = of.markdown(true);
        assert!(markdown.contains("| a\\|\\<b\\> | 1.2 % |"), "{markdown}");
    }
}
