//! Where each model's KLD comes from, as tables.

use super::names::Names;
use super::{ComparedModel, Comparison};
use crate::report::layout::{WIDTH, columns};
use crate::report::number::{count, or_undefined, percent_1, short_kld};
use crate::stats::{Bin, Breakdown, FEW_TOKENS};

// The ways in which the tables divide the tokens.
pub const BY_CONFIDENCE: &str = "by the probability of the reference's top token";
pub const BY_POSITION: &str = "by position in the window";
pub const BY_GROUP: &str = "by group";
pub const BY_SPAN: &str = "by span";
pub const BY_KIND: &str = "by the kind of the next token";

/// The bins of one table.
type Bins = fn(&Breakdown) -> &[Bin];

/// The tables: the way in which each divides the tokens, and its bins.
const TABLES: [(&str, Bins); 4] = [
    (BY_CONFIDENCE, |of| &of.by_confidence),
    (BY_POSITION, |of| &of.by_position),
    (BY_GROUP, |of| &of.by_group),
    (BY_KIND, |of| &of.special),
];

/// The most characters of a bin's name, which only a group's can exceed.
const BIN_CHARS: usize = 16;

/// Marks the name of a bin of few tokens.
const FEW: &str = " *";

/// The mark of a bin of so many tokens, to be put after its name; empty if they are enough, and for a
/// bin without any.
pub fn mark(n_tokens: u64) -> &'static str {
    match n_tokens {
        1..FEW_TOKENS => FEW,
        _ => "",
    }
}

/// The name of a bin without the mark.
fn unmarked(bin: &str) -> &str {
    bin.strip_suffix(FEW).unwrap_or(bin)
}

/// Explains the mark, if one of the bins with these numbers of tokens has it.
pub fn legend(n_tokens: impl IntoIterator<Item = u64>) -> Option<String> {
    let is_marked = n_tokens.into_iter().any(|n| !mark(n).is_empty());
    is_marked.then(|| format!("* fewer than {} tokens: a hint, no more", count(FEW_TOKENS)))
}

/// The titles of columns but the first, and rows: the text of the first column, and the other cells.
pub type Cells = (Vec<String>, Vec<(String, Vec<String>)>);

/// The breakdowns that have bins: the way in which each divides the tokens, and a table with a row for
/// each bin, which shows its share of the tokens and the mean KLD of each model.
pub fn tables(models: &[ComparedModel]) -> Vec<(&'static str, Cells)> {
    let tables = TABLES.iter().filter_map(|(by, bins)| {
        let mut with_bins = models.iter().filter(|of| !bins(&of.breakdown).is_empty());
        let first = with_bins.next()?;
        let rows = bins(&first.breakdown).iter().map(|bin| {
            let share = bin.n_tokens as f64 / first.summary.n_tokens.max(1) as f64;
            let cells = models.iter().map(|model| {
                let mut bins = bins(&model.breakdown).iter();
                let mean = bins.find(|of| of.label == bin.label).and_then(|of| of.kld);
                or_undefined(mean, |mean| short_kld(mean.value))
            });
            let cells = [percent_1(share)].into_iter().chain(cells).collect();
            (format!("{}{}", bin.label, mark(bin.n_tokens)), cells)
        });
        let labels = models.iter().map(|model| model.label.clone());
        let titles = ["share".to_owned()].into_iter().chain(labels).collect();
        Some((*by, (titles, rows.collect())))
    });
    tables.collect()
}

/// Explains the mark in the tables of these models, if it is there.
pub fn legend_of(models: &[ComparedModel]) -> Option<String> {
    let of_model = |model| TABLES.iter().flat_map(move |(_, bins)| bins(model));
    let bins = models.iter().flat_map(|model| of_model(&model.breakdown));
    legend(bins.map(|bin| bin.n_tokens))
}

/// The title for such a way, with `unit` as the word for a window.
pub fn title(by: &str, unit: &str) -> String {
    by.replace("window", unit)
}

impl Comparison {
    /// The tables as text, a few models beside each other.
    pub(super) fn breakdown_text(&self, width: usize) -> String {
        /// As many columns as fit 80 characters.
        const MODELS_BESIDE: usize = 5;
        let names = self.names(width);
        let mut text = String::new();
        for (by, (titles, rows)) in self.models.chunks(MODELS_BESIDE).flat_map(tables) {
            let bins: Vec<&str> = rows.iter().map(|(bin, _)| unmarked(bin)).collect();
            // As short as the longest that is not a group's.
            let beyond = width.saturating_sub(WIDTH);
            let bin_names = Names::whole(&bins, width);
            let bin_name = bin_names.within(BIN_CHARS.saturating_add(beyond));
            let title = title(by, self.reference.unit());
            text.push_str(&format!("\nMean KLD {title}, nats\n"));
            text.push_str(&names.fitted(|name| {
                let labels = titles.iter().skip(1).map(|label| name(label));
                let titles = ["  tokens", "share"].map(str::to_owned);
                let titles: Vec<String> = titles.into_iter().chain(labels).collect();
                let rows = rows.iter().map(|(bin, cells)| {
                    let name = unmarked(bin);
                    let mark = bin.strip_prefix(name).unwrap_or_default();
                    let bin = format!("  {}{mark}", bin_name(name));
                    [bin].into_iter().chain(cells.iter().cloned()).collect()
                });
                columns(titles, rows, 1, 1)
            }));
        }
        let legend = legend_of(&self.models).map(|legend| format!("\n{legend}\n"));
        text + &legend.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use crate::report::layout::WIDTH;
    use crate::report::tests::sample::comparison;

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
        let mut of = comparison();
        for model in &mut of.models {
            model.breakdown.by_confidence.clear();
            let bins = &mut model.breakdown.by_position;
            bins.truncate(2);
            bins[0].label = "wiki\u{202e}\u{1b}".to_owned();
            bins[1].label = "a name that is far too long for a terminal".to_owned();
            model.breakdown.by_group = std::mem::take(bins);
        }
        insta::assert_snapshot!(of.breakdown_text(WIDTH));
    }
}
