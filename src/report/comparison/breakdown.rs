//! Where each model's KLD comes from, as tables.

use super::names::Names;
use super::text::{fitted, kld, lines};
use super::{ComparedModel, Comparison};
use crate::report::breakdown::{BY_CONFIDENCE, BY_GROUP, BY_KIND, BY_POSITION, title};
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

/// The row of the mean of the groups' means.
const MEAN_OF_GROUPS: &str = "mean of the groups";

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
            for (by, titles, mut rows) in tables_of(models) {
                shorten_bins(&mut rows);
                let title = title(by, self.reference.unit());
                text.push_str(&format!("\nMean KLD {title}, nats\n"));
                text.push_str(&fitted(&names, |width| {
                    let (own, labels) = titles.split_at(2);
                    let labels = labels.iter().map(|label| names.short(label, width));
                    let titles = own.iter().cloned().chain(labels).collect();
                    let rows = rows.iter().cloned().map(indented).collect();
                    lines(indented(titles), rows, 1)
                }));
            }
        }
        text
    }
}

/// Makes the names of bins safe for a terminal, and as short as the longest that is not a group's.
fn shorten_bins(rows: &mut [Vec<String>]) {
    let bins: Vec<String> = rows.iter().filter_map(|row| row.first().cloned()).collect();
    let names = Names::of_whole_labels(&bins.iter().map(String::as_str).collect::<Vec<_>>());
    for bin in rows.iter_mut().filter_map(|row| row.first_mut()) {
        *bin = names.short(bin, MEAN_OF_GROUPS.len());
    }
}

/// A row, its first cell indented.
fn indented(mut row: Vec<String>) -> Vec<String> {
    if let Some(first) = row.first_mut() {
        first.insert_str(0, "  ");
    }
    row
}

/// The row of the mean of the groups' means, if there is one.
fn mean_of_groups(models: &[ComparedModel]) -> Option<Vec<String>> {
    let means = models.iter().map(|model| model.summary.kld_macro);
    if means.clone().all(|mean| mean.is_none()) {
        return None;
    }
    let first = [MEAN_OF_GROUPS.to_owned(), String::new()];
    let cells = means.map(|mean| mean.map_or_else(|| "-".to_owned(), |mean| kld(mean.value)));
    Some(first.into_iter().chain(cells).collect())
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
        let mut rows: Vec<Vec<String>> = rows.collect();
        if *title == BY_GROUP {
            rows.extend(mean_of_groups(models));
        }
        let labels = models.iter().map(|model| model.label.clone());
        Some((*title, titles.chain(labels).collect(), rows))
    });
    tables.collect()
}

#[cfg(test)]
mod tests {
    use crate::report::tests::sample::comparison;
    use crate::stats::Estimate;

    #[test]
    fn breakdown_of_the_comparison() {
        let text = comparison().breakdown_text();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        insta::assert_snapshot!(text);
    }

    #[test]
    fn groups_have_their_mean_and_safe_names() {
        let mut of = comparison();
        for model in &mut of.models {
            model.breakdown.by_confidence.clear();
            let bins = &mut model.breakdown.by_position;
            bins.truncate(2);
            bins[0].label = "wiki\u{202e}\u{1b}".to_owned();
            bins[1].label = "a name that is far too long for a terminal".to_owned();
            model.breakdown.by_group = std::mem::take(bins);
            model.summary.kld_macro = Some(Estimate::within(0.25, 0.125, 0.5));
        }
        of.models[1].summary.kld_macro = None;
        let text = of.breakdown_text();
        insta::assert_snapshot!(text);
        assert!(
            of.markdown(true)
                .contains("| mean of the groups |  | 0.250 | - | 0.250 |")
        );
    }
}
