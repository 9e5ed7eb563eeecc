//! The distance of rows that were computed a second time from the first ones.

use std::ops::AddAssign;

use kl_formats::{HeadCheck, Row};
use rayon::prelude::*;
use serde::Serialize;

use super::{RowPair, has_softmax, score};

/// The distance of rows that were computed a second time from the model's own.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct RowError {
    /// Rows that were compared.
    pub n_rows: u64,
    /// The mean KL divergence of the computed rows from the model's own, in nats.
    pub mean_kld: f64,
    /// The largest KL divergence of a row.
    pub max_kld: f64,
    /// Rows that differ in a bit, unless neither has a softmax. If one of the two has none, it is infinitely far.
    #[serde(skip)]
    pub n_moved: u64,
    /// The sum that the mean is of.
    #[serde(skip)]
    pub sum_kld: f64,
}

impl RowError {
    /// Compares each of `rows` with the same row of `again`, which holds them one after another.
    ///
    /// # Panics
    /// If `again` does not hold as many logits.
    pub fn each(rows: &[&[f32]], again: &[f32]) -> Vec<Self> {
        let n_vocab = rows.first().map_or(1, |row| row.len());
        let n_logits = rows.len() * n_vocab;
        assert_eq!(again.len(), n_logits, "as many rows again");
        let pairs = rows.par_iter().zip(again.par_chunks_exact(n_vocab));
        pairs.map(|(row, again)| Self::of_row(row, again)).collect()
    }

    fn of_row(row: &[f32], again: &[f32]) -> Self {
        let mut logits = row.iter().zip(again);
        let are_equal = logits.all(|(logit, again)| logit.to_bits() == again.to_bits());
        // Which NaN a product gives is no property of the row.
        if are_equal || !has_softmax(row) && !has_softmax(again) {
            return Self {
                n_rows: 1,
                ..Self::default()
            };
        }
        let score = score(&RowPair::new(Row::F32(row), again, None));
        let kld = if score.is_excluded() {
            f64::INFINITY
        } else {
            score.kld
        };
        Self {
            n_rows: 1,
            n_moved: 1,
            mean_kld: kld,
            max_kld: kld,
            sum_kld: kld,
        }
    }

    /// True if every row is equal to the bit.
    pub fn is_exact(&self) -> bool {
        self.n_moved == 0
    }
}

impl From<&HeadCheck> for RowError {
    fn from(check: &HeadCheck) -> Self {
        Self {
            n_rows: check.n_rows,
            mean_kld: check.mean_kld.into(),
            max_kld: check.max_kld.into(),
            ..Self::default()
        }
    }
}

impl AddAssign for RowError {
    fn add_assign(&mut self, more: Self) {
        self.n_rows += more.n_rows;
        self.n_moved += more.n_moved;
        self.max_kld = self.max_kld.max(more.max_kld);
        self.sum_kld += more.sum_kld;
        self.mean_kld = self.sum_kld / self.n_rows.max(1) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(rows: &[&[f32]], again: &[f32]) -> RowError {
        let mut all = RowError::default();
        let each = RowError::each(rows, again).into_iter();
        each.for_each(|row| all += row);
        all
    }

    #[test]
    fn rows_are_equal_only_to_the_bit() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        let rows: [&[f32]; 3] = [&[0.0, 1.0], &[nan, 1.0], &[infinity, -infinity]];
        let same = compare(&rows, &[0.0, 1.0, nan, 1.0, infinity, -infinity]);
        assert!(same.is_exact());
        assert_eq!((same.n_rows, same.mean_kld, same.max_kld), (3, 0.0, 0.0));
        // Adding a constant to a row moves no probability.
        let shifted = compare(&rows[..1], &[1.0, 2.0]);
        assert!(!shifted.is_exact() && shifted.max_kld == 0.0);
        let signed = compare(&rows[..1], &[-0.0, 1.0]);
        assert_eq!((signed.n_moved, signed.max_kld), (1, 0.0));
    }

    #[test]
    fn the_difference_is_the_divergence_of_the_first_from_the_second() {
        // p = (1/2, 1/2), q = (1/4, 3/4): KL(p‖q) = ln 2 - ln(3)/2.
        let expected = 2f64.ln() - 3f64.ln() / 2.0;
        let half: &[f32] = &[0.0, 0.0];
        let found = compare(&[half, half], &[0.0, 3f32.ln(), 0.0, 0.0]);
        assert!((found.max_kld - expected).abs() < 1e-7, "{found:?}");
        assert!((found.mean_kld - expected / 2.0).abs() < 1e-7);
        assert_eq!((found.n_rows, found.n_moved), (2, 1));
    }

    #[test]
    fn a_row_without_a_softmax_that_differs_is_infinitely_far() {
        let found = compare(&[&[0.0, 1.0]], &[0.0, f32::NAN]);
        assert_eq!((found.n_moved, found.max_kld), (1, f64::INFINITY));
        // Two rows without a softmax are one thing, whatever their bits.
        assert!(compare(&[&[0.0, f32::NAN]], &[f32::INFINITY, -f32::NAN]).is_exact());
        assert_eq!(compare(&[], &[]), RowError::default());
    }
}
