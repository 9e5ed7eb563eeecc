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
    pub fn of(record: &TokenRecord) -> Self {
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
    /// Why it was left out.
    pub which: ExclusionReason,
}

/// Why a scored token is left out.
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

impl ExclusionReason {
    /// Why `record` is left out; `None` if it is counted.
    ///
    /// An infinite divergence or NLL is a result: one model finds impossible what the other does
    /// not. So is an NLL of NaN: it is not known, as in llama.cpp's base file.
    pub fn of(record: &TokenRecord) -> Option<Self> {
        let flag = |bit| record.flags & bit != 0;
        match (
            flag(TokenRecord::REF_NOT_FINITE),
            flag(TokenRecord::EVAL_NOT_FINITE),
        ) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Ref),
            (false, true) => Some(Self::Eval),
            (false, false) => {
                /// No exponential of less overflows.
                const MOST_NEGATIVE_NLL: f64 = -700.0;
                let is_divergence = |x: f64| x > f64::NEG_INFINITY;
                let may_overflow = |nll: f64| nll < MOST_NEGATIVE_NLL;
                let is_right = is_divergence(record.kld)
                    && is_divergence(record.reverse_kld)
                    && !((may_overflow(record.ref_nll) || may_overflow(record.eval_nll))
                        && delta_p(record).is_infinite());
                (!is_right).then_some(Self::Score)
            }
        }
    }
}

/// `q(next) − p(next)`; NaN without a next token, and where a probability is not known.
pub(super) fn delta_p(record: &TokenRecord) -> f64 {
    (-record.eval_nll).exp() - (-record.ref_nll).exp()
}

/// Returns true if the statistics count `record`.
pub fn is_counted(record: &TokenRecord) -> bool {
    ExclusionReason::of(record).is_none()
}

/// Keeps the `n` records with the largest KLD, each with a note, in memory for `2n`.
///
/// Of records with equal KLDs it keeps the first in the text. It leaves out records that the
/// statistics leave out.
#[derive(Debug)]
pub struct MostDivergent<T> {
    n: usize,
    kept: Vec<(TokenRecord, T)>,
    /// The last of the `n` kept records, once there are `n`: what sorts after it is not kept.
    last: Option<TokenRecord>,
}

impl<T> MostDivergent<T> {
    /// Keeps `n` records, at least 1.
    pub fn new(n: usize) -> Self {
        Self {
            n: n.max(1),
            kept: Vec::new(),
            last: None,
        }
    }

    /// Considers a record; `note` is called only if the record may be kept.
    pub fn push(&mut self, record: &TokenRecord, note: impl FnOnce() -> T) {
        let is_before = |last: &TokenRecord| order(record, last) == Ordering::Less;
        if self.last.as_ref().is_none_or(is_before) && is_counted(record) {
            self.kept.push((*record, note()));
            if self.kept.len() >= self.n.saturating_mul(2) {
                self.cut();
            }
        }
    }

    /// The kept records, the largest KLD first.
    pub fn into_sorted(mut self) -> Vec<(TokenRecord, T)> {
        self.cut();
        self.kept
    }

    fn cut(&mut self) {
        self.kept.sort_unstable_by(|(a, _), (b, _)| order(a, b));
        self.kept.truncate(self.n);
        if self.kept.len() == self.n {
            self.last = self.kept.last().map(|(record, _)| *record);
        }
    }
}

/// Orders by descending KLD, then by position in the text.
fn order(a: &TokenRecord, b: &TokenRecord) -> Ordering {
    let location = TokenLocation::of;
    b.kld
        .total_cmp(&a.kld)
        .then_with(|| location(a).cmp(&location(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(position: u32, kld: f64) -> TokenRecord {
        TokenRecord {
            window: 0,
            position,
            token: 1,
            flags: 0,
            ref_top: 0,
            eval_top: 0,
            ref_top_rank: 1,
            eval_top_rank: 1,
            kld,
            reverse_kld: kld,
            ref_nll: 1.0,
            eval_nll: 1.0,
            ref_entropy: 1.0,
            ref_top_p: 0.5,
            eval_top_p: 0.25,
            ref_unknown_p: 0.0,
            group: 0,
            span: 0,
            acceptance: 0.9,
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
    fn few_are_kept_and_noted_on_the_way() {
        let mut most = MostDivergent::new(3);
        let mut noted = 0;
        for position in 0..1000 {
            most.push(&record(position, 1.0), || noted += 1);
            assert!(most.kept.len() < 6);
        }
        assert_eq!(noted, 6, "of equal ones the first");
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
