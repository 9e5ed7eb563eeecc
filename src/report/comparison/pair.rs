//! Two models of a comparison.

use serde::Serialize;

use crate::stats::PairedDifference;

/// The paired difference of two models on the same tokens.
#[derive(Serialize, Debug, Clone, PartialEq)]
pub struct ComparedPair {
    /// The label of the first model.
    pub a: String,
    /// The label of the second.
    pub b: String,
    /// The mean KLD of `a` less that of `b`, in nats.
    pub difference: PairedDifference,
    /// Of the tokens whose KLDs differ, the share on which `a` is nearer to the reference; null if
    /// none differs.
    pub share_a_nearer: Option<f64>,
}
