//! Where each model's KLD comes from, as tables.

use super::names::Names;
use super::text::{fitted, kld, lines};
use super::{ComparedModel, Comparison};
use crate::report::breakdown::{BY_CONFIDENCE, BY_GROUP, BY_KIND, BY_POSITION};
use crate::stats::{Bin, Breakdown};

/// The bins of one table.
type Bins = fn(&Breakdown) -> &[Bin];

/// The tables: what tokens are sorted by, and their bins.
const TABLES: [(&str, Bins); 4] = [
    (BY_CONFIDENCE, |of| &of.by_confidence),
    (BY_POSITION, |of| &of.by_position),
    (BY_GROUP, |of| &of.by_group),
    (BY_KIND, |of| &of.special),
];

/// A table: what tokens are sorted by, the titles of its columns, and its rows.
pub type BreakdownTable = (&'static str, Vec<String>, Vec<Vec<String>>);

impl Comparison {
    /// The tables that have bins: a row for each bin, a column for each model. The second column is
    /// the share of tokens in the bin.
    pub(super) fn breakdowns(&self) -> Vec<BreakdownTable> {
        tables_of(&self.models)
    }

    /// The tables as text, a few models beside each other.
    #[must_use]
    pub fn breakdown_text(&self) -> String {
        /// As many columns as fit 80 characters.
        const MODELS_BESIDE: usize = 5;
        let names = Names::of(self);
        let mut text = String::new();
        for models in self.models.chunks(MODELS_BESIDE) {
            for (title, titles, rows) in tables_of(models) {
                text.push_str(&format!("\nMean KLD {title}, nats\n"));
                text.push_str(&fitted(&names, |width| {
                    let (own, labels) = titles.split_at(2);
                    let labels = labels.iter().map(|label| names.short(label, width));
                    let titles = own.iter().cloned().chain(labels).collect();
                    lines(
                        indented(titles),
                        rows.iter().cloned().map(indented).collect(),
                        1,
                    )
                }));
            }
        }
        text
    }
}

/// A row, its first cell indented.
fn indented(mut row: Vec<String>) -> Vec<String> {
    if let Some(first) = row.first_mut() {
        first.insert_str(0, "  ");
    }
    row
}

/// The tables of some of the models.
fn tables_of(models: &[ComparedModel]) -> Vec<BreakdownTable> {
    let tables = TABLES.iter().filter_map(|(title, bins)| {
        let first = models
            .iter()
            .find(|model| !bins(&model.breakdown).is_empty())?;
        let titles = ["tokens".to_owned(), "share".to_owned()].into_iter();
        let rows = bins(&first.breakdown).iter().map(|bin| {
            let share = bin.n_tokens as f64 / first.summary.n_tokens.max(1) as f64;
            let cells = models.iter().map(|model| {
                let same = bins(&model.breakdown)
                    .iter()
                    .find(|of| of.label == bin.label);
                let mean = same.and_then(|bin| bin.kld);
                mean.map_or_else(|| "-".to_owned(), |mean| kld(mean.value))
            });
            [bin.label.clone(), format!("{:.1} %", 100.0 * share)]
                .into_iter()
                .chain(cells)
                .collect()
        });
        Some((
            *title,
            titles
                .chain(models.iter().map(|model| model.label.clone()))
                .collect(),
            rows.collect(),
        ))
    });
    tables.collect()
}

#[cfg(test)]
mod tests {
    use crate::report::comparison::sample::comparison;

    #[test]
    fn breakdown_of_the_comparison() {
        let text = comparison().breakdown_text();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        insta::assert_snapshot!(text);
    }
}
