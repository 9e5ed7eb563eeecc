//! The weight of entries whose probability the reference does not record.

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::mean::Sum;

/// How much probability the entries that a base file floors could have.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnknownP {
    /// The mean over counted tokens.
    pub mean: f64,
    /// The largest of any token.
    pub max: f64,
}

impl UnknownP {
    /// Summarises the records; `None` if the reference knows every probability.
    pub(super) fn of(records: &[&TokenRecord]) -> Option<Self> {
        let known = |record: &&&TokenRecord| record.ref_unknown_p.is_finite();
        let weights = || {
            records
                .iter()
                .filter(known)
                .map(|record| record.ref_unknown_p)
        };
        let max = weights().max_by(f64::total_cmp).filter(|max| *max > 0.0)?;
        let mean = weights().collect::<Sum>().value() / weights().count() as f64;
        Some(Self { mean, max })
    }
}
