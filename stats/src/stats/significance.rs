//! Tests of two models: McNemar's test by cluster, and several tests at once.

use serde::Serialize;

use super::cluster::Cluster;
use super::estimate::{Confidence, Estimate};
use super::mean::Sum;
use super::spread::Spread;

/// The tokens on which each of two models has the reference's top token.
///
/// McNemar's test compares the tokens on which just one of the models agrees. Its own formula needs
/// independent tokens; here the difference of the two shares has Student's interval and p-value by
/// cluster (Obuchowski 1998, "On the comparison of correlated proportions for clustered data",
/// Statistics in Medicine 17).
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
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
    pub difference: ShareDifference,
}

/// The difference of two models' shares of tokens.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ShareDifference {
    /// The difference, with its interval by cluster.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The two-sided p-value of equal shares; `None` for fewer than two clusters.
    pub p: Option<f64>,
}

impl McNemar {
    /// Compares whether each token's top token agrees, under either model. Token i is in cluster
    /// `clusters[i]`, and the slices are as long as each other; `None` without tokens.
    pub fn of(
        clusters: &[Cluster],
        a: &[bool],
        b: &[bool],
        confidence: Confidence,
    ) -> Option<Self> {
        if clusters.is_empty() {
            return None;
        }
        let share = |is: &bool| f64::from(u8::from(*is));
        let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| share(a) - share(b)).collect();
        let sum: Sum = differences.iter().copied().collect();
        let value = sum.value() / differences.len() as f64;
        let spread = Spread::of(clusters, differences.iter().map(|x| x - value));
        let student = spread.student(value, confidence);
        let count = |which: (bool, bool)| {
            let pairs = a.iter().copied().zip(b.iter().copied());
            pairs.filter(|pair| *pair == which).count() as u64
        };
        Some(Self {
            n_both: count((true, true)),
            n_only_a: count((true, false)),
            n_only_b: count((false, true)),
            n_neither: count((false, false)),
            difference: ShareDifference {
                estimate: student.map_or(Estimate::point(value), |(estimate, _)| estimate),
                p: student.map(|(_, p)| p),
            },
        })
    }
}

/// p-values adjusted for their number, in the given order. Of all tests that are rejected because
/// theirs is below α, none is of a true hypothesis with a probability of at least 1 − α, however the
/// tests depend on each other.
///
/// The smallest value is multiplied by their number, the next by one less, and so on; none is below
/// a smaller one's, and none above 1 (Holm 1979, "A simple sequentially rejective multiple test
/// procedure", Scandinavian Journal of Statistics 6).
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut rising: Vec<usize> = (0..p.len()).collect();
    rising.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut adjusted = vec![0.0; p.len()];
    let mut at_least = 0.0_f64;
    for (rank, i) in rising.into_iter().enumerate() {
        at_least = at_least.max(p[i] * (p.len() - rank) as f64).min(1.0);
        adjusted[i] = at_least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 0.01 · 4, 0.02 · 3, 0.03 · 2 (not below the one before), 0.9 · 1.
    #[test]
    fn holm_adjusts_each_by_how_many_are_left() {
        let got = holm(&[0.9, 0.01, 0.03, 0.02]);
        let expected = [0.9, 0.04, 0.06, 0.06];
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15));
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[0.7]), [0.7]);
        assert_eq!(holm(&[0.6, 1.0, 0.7]), [1.0; 3]);
    }
}
