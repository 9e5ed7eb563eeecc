//! The pair of rows at one position that is scored.

use kl_formats::Row;

/// Two rows of the same length at one position, to be compared.
///
/// A logit of −∞ is a probability of 0. Where a row has a floor, its values are log-probabilities,
/// and an entry at the floor has one that is not known: see [`floor`](super::floor()).
#[derive(Clone, Copy, Debug)]
pub struct RowPair<'a> {
    /// The reference's row.
    pub reference: Row<'a>,
    /// The evaluated model's row.
    pub eval: &'a [f32],
    /// The token that actually follows, an index into the rows.
    pub next: Option<u32>,
    /// The reference row's floor.
    pub ref_floor: Option<f32>,
    /// The evaluated row's floor.
    pub eval_floor: Option<f32>,
}

impl<'a> RowPair<'a> {
    /// Two rows of which every entry is known.
    pub fn new(reference: Row<'a>, eval: &'a [f32], next: Option<u32>) -> Self {
        Self {
            reference,
            eval,
            next,
            ref_floor: None,
            eval_floor: None,
        }
    }

    /// Checks what every pass over the rows relies on.
    ///
    /// # Panics
    ///
    /// If the rows are empty or of different length, or a floor is not one of
    /// [`floor`](super::floor())'s.
    pub(super) fn check(&self) {
        let n = self.eval.len();
        assert!(n > 0, "a row of logits has at least one entry");
        assert_eq!(self.reference.len(), n, "rows of different length");
        let floors = [self.ref_floor, self.eval_floor];
        assert!(
            floors.into_iter().flatten().all(super::floor::is_possible),
            "floors of {floors:?}"
        );
    }
}
