//! Two models of a comparison.

use serde::Serialize;

use crate::stats::PairedDifference;

/// Why two models are compared.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PairKind {
    /// The second is the best model.
    Best,
    /// The second is the next model by size, which may be as large.
    Size,
}

/// The paired difference of two models on the same tokens.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComparedPair {
    /// Why the two are compared.
    pub kind: PairKind,
    /// The label of the first model.
    pub a: String,
    /// The label of the second model.
    pub b: String,
    /// The mean KLD of `a` less that of `b`, in nats.
    pub difference: PairedDifference,
    /// Of the tokens whose KLDs differ, the share on which `a` is nearer to the reference; null if
    /// none differs.
    pub share_a_nearer: Option<f64>,
}
