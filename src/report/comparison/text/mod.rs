//! A comparison as text for a terminal of 80 columns.

mod differences;
mod models;

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::names::Names;
use super::{Comparison, set_up, words};
use crate::report::number::{count_of, printable, short_percent};
use crate::report::warning::Warning;
use crate::stats::{ClusterKind, Clustering};

pub use differences::{p_value, signed};
pub use models::{kld, marks};

/// The width of a terminal.
const WIDTH: usize = 80;

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
                    let cells = cells.map(|cell| cell.cloned().unwrap_or_default());
                    std::iter::once(name).chain(cells).collect()
                };
                let models = self.models.iter().enumerate().map(row).collect();
                lines(titles.clone().collect(), models, usize::MAX)
            }));
        }
        if !self.not_compared.is_empty() {
            text.push_str("\nNot compared\n");
            for file in &self.not_compared {
                let _ = writeln!(text, "  {}", printable(&file.sidecar));
                let _ = writeln!(text, "    {}", printable(&file.why));
            }
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
        if let Some(verdict) = words::verdict(self, &names) {
            text.push('\n');
            text.push_str(&wrapped(&verdict));
        }
        let is_unpaired = |warning: &&Warning| matches!(warning, Warning::Unpaired(_));
        if let Some(warning) = self.warnings.iter().find(is_unpaired) {
            text.push_str(&wrapped(&warning.to_string()));
        }
        text
    }

    fn title(&self, names: &Names) -> String {
        let reference = &self.reference;
        let name = |name: &Option<String>| name.as_deref().map(printable);
        let against = name(&reference.file_name).unwrap_or_else(|| "one reference".to_owned());
        let n_models = count_of(self.models.len() as u64, "model");
        let mut text = format!("{n_models} against {against}\n");
        if let Some(model) = reference.model_name() {
            let _ = writeln!(text, "  reference model  {}", printable(model));
        }
        if let Some(first) = self.models.first() {
            let summary = &first.summary;
            let of = reference.text.as_ref().and_then(|text| name(&text.name));
            let _ = writeln!(
                text,
                "  tokens           {}{} in {} of {}",
                count_of(summary.n_tokens + summary.n_excluded, "token"),
                of.map(|text| format!(" of {text}")).unwrap_or_default(),
                count_of(summary.n_windows, "window"),
                reference.n_ctx
            );
            let level = short_percent(self.confidence.level());
            let clusters = clusters(&summary.clusters);
            let _ = writeln!(text, "  intervals        at {level} %, {clusters}");
        }
        if !names.prefix.is_empty() {
            let _ = writeln!(text, "  models           {}…", names.prefix);
        }
        text
    }
}

/// What an observation is in the intervals, and how many there are.
pub fn clusters(clusters: &Clustering) -> String {
    let kind = match clusters.kind {
        ClusterKind::Window => "window".to_owned(),
        ClusterKind::Block => format!("block of {} windows", clusters.windows_per_block),
    };
    format!("by {kind} ({})", count_of(clusters.n, "cluster"))
}

/// Text in lines of at most 80 columns.
pub(super) fn wrapped(text: &str) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            wrapped.push('\n');
            column = 0;
        }
        if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += width;
    }
    wrapped.push('\n');
    wrapped
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
