//! Several models side by side.

use comfy_table::{CellAlignment, Table, presets};

use super::number::{bytes, kld, percent, significant};
use super::result::ModelReport;

/// A column of the table.
struct Column {
    title: &'static str,
    /// A model's number; `None` is shown as `-`.
    value: fn(&ModelReport) -> Option<f64>,
    show: fn(f64) -> String,
    best: Best,
}

/// Which of a column's numbers is the best.
enum Best {
    Lowest,
    Highest,
    Unranked,
}

const COLUMNS: [Column; 9] = [
    Column {
        title: "size",
        value: |report| report.model.size_bytes.map(|size| size as f64),
        show: |size| bytes(size as u64),
        best: Best::Unranked,
    },
    Column {
        title: "BPW",
        value: |report| report.model.bpw,
        show: |bpw| format!("{bpw:.2}"),
        best: Best::Unranked,
    },
    Column {
        title: "mean KLD",
        value: |report| Some(report.summary.kld.as_ref()?.mean.estimate.value),
        show: kld,
        best: Best::Lowest,
    },
    Column {
        title: "±",
        value: |report| report.summary.kld.as_ref()?.mean.clustered.half_width(),
        show: |half_width| significant(half_width, 2),
        best: Best::Unranked,
    },
    Column {
        title: "median",
        value: |report| quantile(report, 0.5),
        show: kld,
        best: Best::Lowest,
    },
    Column {
        title: "99 %",
        value: |report| quantile(report, 0.99),
        show: kld,
        best: Best::Lowest,
    },
    Column {
        title: "max",
        value: |report| Some(report.summary.kld.as_ref()?.max),
        show: kld,
        best: Best::Lowest,
    },
    Column {
        title: "same top",
        value: |report| Some(report.summary.agreement.as_ref()?.ref_top1.estimate.value),
        show: percent,
        best: Best::Highest,
    },
    Column {
        title: "PPL ratio",
        value: |report| Some(report.summary.perplexity.as_ref()?.ratio.value),
        show: |ratio| format!("{ratio:.4}"),
        best: Best::Lowest,
    },
];

/// A table with a row per model; a `*` marks the best of each column.
#[must_use]
pub fn summary_table(reports: &[ModelReport]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(std::iter::once("model").chain(COLUMNS.iter().map(|column| column.title)));
    for report in reports {
        let label = &report.label;
        let is_unique = reports.iter().filter(|other| other.label == *label).count() == 1;
        let mut row = vec![if is_unique { label } else { &report.model.path }.to_owned()];
        row.extend(COLUMNS.iter().map(|column| cell(column, report, reports)));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n± is half of the mean's interval; * best in its column\n")
}

fn cell(column: &Column, report: &ModelReport, all: &[ModelReport]) -> String {
    let Some(value) = (column.value)(report) else {
        return "-".to_owned();
    };
    let values = all.iter().filter_map(|other| (column.value)(other));
    let best = match column.best {
        Best::Lowest => value <= values.fold(f64::INFINITY, f64::min),
        Best::Highest => value >= values.fold(f64::NEG_INFINITY, f64::max),
        Best::Unranked => false,
    };
    format!("{}{}", (column.show)(value), if best { " *" } else { "" })
}

fn quantile(report: &ModelReport, p: f64) -> Option<f64> {
    let quantiles = &report.summary.kld.as_ref()?.quantiles;
    Some(
        quantiles
            .iter()
            .find(|quantile| quantile.p == p)?
            .estimate
            .value,
    )
}
