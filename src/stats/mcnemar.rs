//! McNemar's test by cluster: which of two models agrees with the reference more often.

use serde::Serialize;

use super::cluster::ClusterRule;
use super::estimate::Confidence;
use super::paired::PairedDifference;

/// The tokens on which each of two models has the reference's top token.
///
/// McNemar's test compares the tokens on which just one of the models agrees. Its own formula needs
/// independent tokens; here the difference of the two shares has the clustered interval and p-value
/// of any paired difference (Obuchowski 1998, "On the comparison of correlated proportions for
/// clustered data", Statistics in Medicine 17).
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct McNemar {
    /// Tokens on which both models agree with the reference.
    pub n_both: u64,
    /// Tokens on which only model a does.
    pub n_only_a: u64,
    /// Tokens on which only model b does.
    pub n_only_b: u64,
    /// Tokens on which neither does.
    pub n_neither: u64,
    /// The difference of the shares of tokens, a's less b's.
    pub difference: PairedDifference,
}

impl McNemar {
    /// Compares whether each token's top token agrees, under either model. The slices are as long
    /// as each other; `None` without tokens.
    pub fn of(
        windows: &[(u32, u32)],
        a: &[bool],
        b: &[bool],
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Option<Self> {
        let share = |is: &bool| f64::from(u8::from(*is));
        let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| share(a) - share(b)).collect();
        let count = |which: (bool, bool)| {
            let pairs = a.iter().copied().zip(b.iter().copied());
            pairs.filter(|pair| *pair == which).count() as u64
        };
        Some(Self {
            n_both: count((true, true)),
            n_only_a: count((true, false)),
            n_only_b: count((false, true)),
            n_neither: count((false, false)),
            difference: PairedDifference::of(windows, &differences, confidence, rule)?,
        })
    }
}
