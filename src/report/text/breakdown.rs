//! Where the KLD comes from: a table for each way to divide the tokens.

use comfy_table::{CellAlignment, Table, presets};

use super::sheet::Sheet;
use crate::report::breakdown::{BY_CONFIDENCE, BY_GROUP, BY_KIND, BY_POSITION, title};
use crate::report::number::{count, ends, percent, printable, significant};
use crate::stats::{Bin, Breakdown, Summary};

/// How many characters of a group's name are printed.
const LABEL_CHARS: usize = 16;

/// Adds the table of the groups and the mean of their means, if there are groups.
pub fn groups(out: &mut Sheet, breakdown: &Breakdown, summary: &Summary) {
    table(out, BY_GROUP, &breakdown.by_group);
    if let Some(kld_macro) = &summary.kld_macro {
        out.estimate("mean of the groups' means", kld_macro, |value| {
            significant(value, 3)
        });
    }
}

/// Adds the other tables.
pub fn breakdown(out: &mut Sheet, breakdown: &Breakdown) {
    let Breakdown {
        by_confidence,
        by_position,
        by_group: _,
        special,
    } = breakdown;
    table(out, BY_CONFIDENCE, by_confidence);
    table(out, BY_POSITION, by_position);
    table(out, BY_KIND, special);
}

fn table(out: &mut Sheet, by: &str, bins: &[Bin]) {
    if bins.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["", "tokens", "mean KLD", "interval", "of KLD", "same top"]);
    for bin in bins {
        table.add_row(cells(bin));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    out.title(&format!("KL divergence {}", title(by, out.unit)));
    for line in table.lines() {
        out.block(&format!(" {}\n", line.trim_end()));
    }
}

fn cells(bin: &Bin) -> [String; 6] {
    let show = |value: f64| significant(value, 3);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let interval = bin.kld.map(|kld| ends(kld.lo, kld.hi, show));
    [
        label(&bin.label),
        count(bin.n_tokens),
        or_dash(bin.kld.map(|kld| show(kld.value))),
        interval.unwrap_or_default(),
        or_dash(bin.share_of_kld.map(percent)),
        or_dash(bin.agreement.map(percent)),
    ]
}

/// The beginning of a label, safe for a line on a terminal.
fn label(label: &str) -> String {
    let label = printable(label);
    match label.char_indices().nth(LABEL_CHARS) {
        Some(_) => label.chars().take(LABEL_CHARS - 1).chain(['…']).collect(),
        None => label,
    }
}
