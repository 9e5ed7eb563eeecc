//! The tokens that diverge most, of any number.

use std::cmp::Ordering;

use kl_formats::sidecar::TokenRecord;

use super::summary::Cause;

/// The `n` records with the largest KLD, each with what was noted of it: memory for twice as many.
/// Of equal ones the first of the text are kept. Records that the statistics leave out are left
/// out here too.
#[derive(Debug)]
pub struct Worst<T> {
    n: usize,
    kept: Vec<(TokenRecord, T)>,
    /// The last of `n` that are kept: whatever comes after it is not wanted.
    last: Option<TokenRecord>,
}

impl<T> Worst<T> {
    /// Room for `n` records, at least 1.
    pub fn new(n: usize) -> Self {
        Self {
            n: n.max(1),
            kept: Vec::new(),
            last: None,
        }
    }

    /// Takes note of a record; `note` is asked for only if the record may be among the worst.
    pub fn push(&mut self, record: &TokenRecord, note: impl FnOnce() -> T) {
        let is_worse = |last: &TokenRecord| order(record, last) == Ordering::Less;
        if Cause::of(record).is_none() && self.last.as_ref().is_none_or(is_worse) {
            self.kept.push((*record, note()));
            if self.kept.len() >= self.n.saturating_mul(2) {
                self.cut();
            }
        }
    }

    /// The worst first.
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

/// Larger KLDs first, then in the order of the text.
fn order(a: &TokenRecord, b: &TokenRecord) -> Ordering {
    let place = |record: &TokenRecord| (record.window, record.position);
    b.kld
        .total_cmp(&a.kld)
        .then_with(|| place(a).cmp(&place(b)))
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
        }
    }

    /// Many ties, in an order that is none.
    fn records() -> Vec<TokenRecord> {
        (0..500u32)
            .map(|i| record((i * 211) % 500, f64::from((i * 7919) % 37)))
            .collect()
    }

    #[test]
    fn they_are_the_first_of_all_when_sorted() {
        let mut sorted = records();
        sorted.sort_by(order);
        for n in [1, 2, 3, 40, 499, 500, 501, usize::MAX] {
            let mut worst = Worst::new(n);
            for record in &records() {
                worst.push(record, || record.position);
            }
            let worst = worst.into_sorted();
            let got: Vec<TokenRecord> = worst.iter().map(|(record, _)| *record).collect();
            assert_eq!(got, sorted[..n.min(500)]);
            let noted = worst.iter().all(|(record, note)| record.position == *note);
            assert!(noted, "each keeps its own note");
        }
    }

    #[test]
    fn little_is_kept_and_noted_on_the_way() {
        let mut worst = Worst::new(3);
        let mut noted = 0;
        for position in 0..1000 {
            worst.push(&record(position, 1.0), || noted += 1);
            assert!(worst.kept.len() < 6);
        }
        assert_eq!(noted, 6, "of equal ones the first");
    }

    #[test]
    fn what_no_statistic_counts_is_left_out() {
        let mut worst = Worst::new(3);
        let excluded = TokenRecord {
            flags: TokenRecord::EVAL_NOT_FINITE,
            ..record(0, f64::NAN)
        };
        worst.push(&excluded, || ());
        worst.push(&record(1, 0.5), || ());
        assert_eq!(worst.into_sorted().len(), 1);
    }
}
