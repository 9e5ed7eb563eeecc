//! Rows of a model that are not distributions: counted, and the first one located, while they are written.

use std::ops::AddAssign;

/// The rows that hold NaN or positive infinity, or no finite logit; of hidden states, those with any number that is not
/// finite, which give such rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotFinite {
    /// Rows that were looked at.
    pub n_rows: u64,
    /// Those that are not finite.
    pub n: u64,
    /// The window and the position of the first of them.
    pub first: Option<(u32, u32)>,
}

impl NotFinite {
    /// Looks at the row of this position in a window.
    pub fn push(&mut self, window: u32, position: u32, is_finite: bool) {
        *self += Self {
            n_rows: 1,
            n: u64::from(!is_finite),
            first: (!is_finite).then_some((window, position)),
        };
    }

    /// True if no row is finite, of one at least.
    pub fn is_all(&self) -> bool {
        self.n > 0 && self.n == self.n_rows
    }
}

impl AddAssign for NotFinite {
    fn add_assign(&mut self, more: Self) {
        self.n_rows += more.n_rows;
        self.n += more.n;
        self.first = self.first.or(more.first);
    }
}
