//! The weight of entries whose probability the reference does not record.

use serde::Serialize;

use super::mean::Sum;

/// The probability that the entries that a base file floors could have.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnknownP {
    /// The mean over counted tokens.
    pub mean: f64,
    /// The largest of any token.
    pub max: f64,
}

/// The weights of the counted tokens so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnknownWeights {
    n: u64,
    sum: Sum,
    max: f64,
}

impl UnknownWeights {
    /// Adds a token.
    pub fn push(&mut self, weight: f64) {
        if weight.is_finite() {
            self.n += 1;
            self.sum.add(weight);
            self.max = self.max.max(weight);
        }
    }

    /// Summarises the tokens; `None` if the reference knows every probability.
    pub fn summary(&self) -> Option<UnknownP> {
        (self.max > 0.0).then(|| UnknownP {
            mean: self.sum.value() / self.n as f64,
            max: self.max,
        })
    }
}
