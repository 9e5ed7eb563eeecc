//! A comparison as text for a terminal of 80 columns.

mod differences;
mod models;

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::names::Names;
use super::{Comparison, set_up, words};
use crate::report::number::{count_of, printable, short_percent};
use crate::report::warning::Warning;
use crate::report::wrap::{WIDTH, hanging, wrapped};
use crate::stats::{ClusterKind, Clustering};

pub use differences::{p_value, signed};
pub use models::{kld, marks};

/// The widest that names are in a sentence.
const NAME_IN_SENTENCE: usize = 60;

/// The narrowest that names are cut to.
const MIN_NAME: usize = 8;

impl Comparison {
    /// Everything that a terminal shows: the table, the paired differences, and what to know.
    #[must_use]
    pub fn text(&self) -> String {
        let names = Names::of(self);
        let mut text = self.table();
        text.push_str(&differences::table(self, &names));
        let rows = set_up::differing(self);
        if !rows.is_empty() {
            text.push_str("\nSet-up, where models differ\n");
            let titles = rows.iter().map(|(title, _)| (*title).to_owned());
            let titles = std::iter::once("  model".to_owned()).chain(titles);
            text.push_str(&fitted(&names, |width| {
                let row = |(i, model): (usize, &super::ComparedModel)| {
                    let name = format!("  {}", names.short(&model.label, width));
                    let cells = rows.iter().map(|(_, cells)| cells.get(i));
                    let cells = cells.map(|cell| cell.map(|cell| printable(cell)));
                    let cells = cells.map(Option::unwrap_or_default);
                    std::iter::once(name).chain(cells).collect()
                };
                let models = self.models.iter().enumerate().map(row).collect();
                lines(titles.clone().collect(), models, usize::MAX)
            }));
        }
        text + &self.not_compared_text()
    }

    /// The files that are not among the models; empty if all are.
    pub(super) fn not_compared_text(&self) -> String {
        let mut text = String::new();
        if !self.not_compared.is_empty() {
            text.push_str("\nNot compared\n");
        }
        for (why, files) in self.not_compared_by_reason() {
            for file in files {
                let _ = writeln!(text, "  {}", printable(file));
            }
            text.push_str(&hanging("    ", 4, &printable(why)));
        }
        text
    }

    /// The table of the models, and which is the best.
    #[must_use]
    pub fn table(&self) -> String {
        let names = Names::of(self);
        let mut text = self.title(&names);
        text.push('\n');
        text.push_str(&models::table(self, &names));
        if let Some(verdict) = words::verdict(self, &names, NAME_IN_SENTENCE) {
            text.push('\n');
            text.push_str(&wrapped(&verdict));
        }
        let is_unpaired = |warning: &&Warning| matches!(warning, Warning::Unpaired(_));
        if let Some(warning) = self.warnings.iter().find(is_unpaired) {
            text.push_str(&wrapped(&printable(&warning.to_string())));
        }
        text
    }

    fn title(&self, names: &Names) -> String {
        let reference = &self.reference;
        let name = |name: &Option<String>| name.as_deref().map(printable);
        let against = name(&reference.file_name).unwrap_or_else(|| "one reference".to_owned());
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
            let of = reference.text.as_ref().and_then(|text| name(&text.name));
            let unit = reference.unit();
            let most = if reference.prompts { "at most " } else { "" };
            let tokens = format!(
                "{}{} in {} of {most}{}",
                count_of(summary.n_tokens + summary.n_excluded, "token"),
                of.map(|text| format!(" of {text}")).unwrap_or_default(),
                count_of(summary.n_windows, unit),
                reference.n_ctx
            );
            fact("tokens", &tokens);
            let level = short_percent(self.confidence.level());
            let clusters = clusters(&summary.clusters, unit);
            fact("intervals", &format!("at {level} %, {clusters}"));
        }
        if !names.prefix.is_empty() {
            fact("models", &format!("{}…", names.prefix));
        }
        text
    }
}

/// What an observation is in the intervals, and how many there are. `unit`: what a window is called.
pub fn clusters(clusters: &Clustering, unit: &str) -> String {
    let kind = match clusters.kind {
        ClusterKind::Window => unit.to_owned(),
        ClusterKind::Block => format!("block of {} {unit}s", clusters.windows_per_block),
    };
    format!("by {kind} ({})", count_of(clusters.n, "cluster"))
}

/// The text that `draw` makes with names of at most a width: the widest that fits.
pub fn fitted(names: &Names, draw: impl Fn(usize) -> String) -> String {
    let widest = names.width();
    let mut width = widest;
    loop {
        let text = draw(width);
        let fits = text.lines().all(|line| line.chars().count() <= WIDTH);
        if fits || width <= MIN_NAME {
            return text;
        }
        width -= 1;
    }
}

/// Rows of cells below their titles, which may have two lines. Columns from `right` on are aligned
/// to the right.
pub fn lines(titles: Vec<String>, rows: Vec<Vec<String>>, right: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(titles.into_iter().map(Cell::new));
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if index >= right {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.to_string();
    let lines = text.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(
            text.replace('\n', " ").contains("smaller: 2.19 MiB"),
            "{text}"
        );
        for (label, size) in [
            ("tiny-q4\\_K\\_M", "2.38 MiB"),
            ("tiny-q2\\_K", "830.08 KiB"),
        ] {
            let row = markdown.lines().find(|line| line.contains(label)).unwrap();
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
}
