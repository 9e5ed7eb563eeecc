//! Two models of a comparison.

use serde::Serialize;

/// The paired difference of two models on the same tokens.
#[derive(Serialize, Debug, Clone, PartialEq)]
pub struct ComparedPair {
    /// The label of the first model.
    pub a: String,
    /// The label of the second.
    pub b: String,
    /// The mean KLD of `a` less that of `b`, in nats.
    pub difference: Difference,
    /// The share of tokens on which `a` is nearer to the reference; a tie counts half.
    pub share_a_nearer: f64,
}

/// A difference of two means, in nats.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The difference.
    pub value: f64,
    /// The lower end of its clustered interval.
    pub lo: Option<f64>,
    /// The upper end of its clustered interval.
    pub hi: Option<f64>,
    /// The two-sided p-value.
    pub p: Option<f64>,
}
