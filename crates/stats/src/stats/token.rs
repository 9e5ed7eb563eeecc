//! A scored token: its location, whether the statistics count it, and those that diverge most.

use std::cmp::Ordering;

use kl_formats::TokenRecord;
use serde::Serialize;

/// The position of a scored token.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct TokenLocation {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window; its row predicts the token at the next position.
    pub position: u32,
    /// The id of the actual next token; `None` for a window's last row.
    pub token: Option<u32>,
}

impl TokenLocation {
    /// Locates a record.
    pub fn from_record(record: &TokenRecord) -> Self {
        Self {
            window: record.window,
            position: record.position,
            token: record.next_token(),
        }
    }
}

/// A scored token that was left out, and why.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ExcludedToken {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window.
    pub position: u32,
    /// The reason that it was left out.
    pub which: ExclusionReason,
}

/// The reason that a scored token is left out.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExclusionReason {
    /// The reference's row has a NaN or +∞, or no finite logit.
    Ref,
    /// The evaluated model's row has.
    Eval,
    /// Both rows have.
    Both,
    /// A score cannot be right, though neither row has.
    Score,
}

/// The tokens that are left out, by the side whose row is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExcludedTokens {
    /// All of them.
    pub n: u64,
    /// Those at which the reference's row is not finite.
    pub n_ref: u64,
    /// Those at which the evaluated model's row is not finite.
    pub n_eval: u64,
}

impl ExcludedTokens {
    /// Counts a record that is left out for this reason.
    pub(super) fn add(&mut self, why: ExclusionReason) {
        self.n += 1;
        self.n_ref += u64::from(matches!(why, ExclusionReason::Ref | ExclusionReason::Both));
        self.n_eval += u64::from(matches!(why, ExclusionReason::Eval | ExclusionReason::Both));
    }

    /// Counts the records that are left out.
    pub fn of_records(records: &[TokenRecord]) -> Self {
        let mut all = Self::default();
        let reasons = records.iter().filter_map(ExclusionReason::why);
        reasons.for_each(|why| all.add(why));
        all
    }
}

impl ExclusionReason {
    /// The reason that `record` is left out; `None` if it is counted.
    ///
    /// An infinite divergence or NLL is a result: one model finds impossible what the other does
    /// not. So is an NLL of NaN: it is not known, as in llama.cpp's base file.
    pub fn why(record: &TokenRecord) -> Option<Self> {
        /// No probability is as large as e^700.
        const LEAST_NLL: f64 = -700.0;
        let rows = [TokenRecord::REF_NOT_FINITE, TokenRecord::EVAL_NOT_FINITE];
        match rows.map(|bit| record.flags & bit != 0) {
            [true, true] => Some(Self::Both),
            [true, false] => Some(Self::Ref),
            [false, true] => Some(Self::Eval),
            [false, false] => {
                let is_divergence = |x: f64| x > f64::NEG_INFINITY;
                let is_right = is_divergence(record.kld) && is_divergence(record.reverse_kld);
                let is_impossible = record.ref_nll.min(record.eval_nll) < LEAST_NLL;
                (is_impossible || !is_right).then_some(Self::Score)
            }
        }
    }
}

/// `q(next) − p(next)` of these NLLs; NaN without a next token, and where a probability is not known.
pub(super) fn delta_p(ref_nll: f64, eval_nll: f64) -> f64 {
    (-eval_nll).exp() - (-ref_nll).exp()
}

/// True if the statistics count `record`.
pub fn is_counted(record: &TokenRecord) -> bool {
    ExclusionReason::why(record).is_none()
}

/// The KLD of a record in nats; NaN where the statistics do not count it, or where it is infinite.
pub fn usable_kld(record: &TokenRecord) -> f64 {
    let is_usable = is_counted(record) && record.kld.is_finite();
    if is_usable { record.kld } else { f64::NAN }
}

/// The [`usable_kld`] of each record.
pub fn usable_klds(records: &[TokenRecord]) -> Vec<f64> {
    records.iter().map(usable_kld).collect()
}

/// Keeps the `n` records with the largest KLD, each with a note: `n` is small.
///
/// Of records with equal KLDs it keeps the first in the text. It leaves out records that the
/// statistics leave out.
#[derive(Debug)]
pub struct MostDivergent<T> {
    n: usize,
    /// The largest KLD first.
    kept: Vec<(TokenRecord, T)>,
}

impl<T> MostDivergent<T> {
    /// Keeps `n` records.
    pub fn new(n: usize) -> Self {
        Self {
            n,
            kept: Vec::new(),
        }
    }

    /// Considers a record; `note` is called only if the record is kept.
    pub fn push(&mut self, record: &TokenRecord, note: impl FnOnce() -> T) {
        let is_before = |(kept, _): &(TokenRecord, T)| order(kept, record) == Ordering::Less;
        let at = self.kept.partition_point(is_before);
        if at < self.n && is_counted(record) {
            self.kept.insert(at, (*record, note()));
            self.kept.truncate(self.n);
        }
    }

    /// The kept records, the largest KLD first.
    pub fn into_sorted(self) -> Vec<(TokenRecord, T)> {
        self.kept
    }
}

/// Orders by descending KLD, then by position in the text.
fn order(a: &TokenRecord, b: &TokenRecord) -> Ordering {
    let location = TokenLocation::from_record;
    b.kld
        .total_cmp(&a.kld)
        .then_with(|| location(a).cmp(&location(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(position: u32, kld: f64) -> TokenRecord {
        TokenRecord {
            position,
            kld,
            ..TokenRecord::default()
        }
    }

    /// Many ties, in a scrambled order.
    fn records() -> Vec<TokenRecord> {
        (0..500u32)
            .map(|i| record((i * 211) % 500, f64::from((i * 7919) % 37)))
            .collect()
    }

    #[test]
    fn they_are_the_first_n_in_sorted_order() {
        let mut sorted = records();
        sorted.sort_by(order);
        for n in [1, 2, 3, 40, 499, 500, 501, usize::MAX] {
            let mut most = MostDivergent::new(n);
            for record in &records() {
                most.push(record, || record.position);
            }
            let kept = most.into_sorted();
            let got: Vec<TokenRecord> = kept.iter().map(|(record, _)| *record).collect();
            assert_eq!(got, sorted[..n.min(500)]);
            let noted = kept.iter().all(|(record, note)| record.position == *note);
            assert!(noted, "each keeps its own note");
        }
    }

    #[test]
    fn records_that_no_statistic_counts_are_left_out() {
        let mut most = MostDivergent::new(3);
        let excluded = TokenRecord {
            flags: TokenRecord::EVAL_NOT_FINITE,
            ..record(0, f64::NAN)
        };
        most.push(&excluded, || ());
        most.push(&record(1, 0.5), || ());
        assert_eq!(most.into_sorted().len(), 1);
    }
}
