//! Two models on the same tokens: the mean difference of their KLDs.

use serde::Serialize;

use super::cluster::{ClusterRule, Clustering, Clusters, Windows};
use super::columns::Run;
use super::estimate::Confidence;
use super::mean::Sum;
use super::spread::Spread;

/// The mean difference of a value that two models have on the same tokens, a's less b's.
///
/// What makes a token hard is hard for both models, and drops out of the difference: its interval
/// is mostly much narrower than the two models' own.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PairedDifference {
    /// The mean difference.
    pub value: f64,
    /// The lower end of its clustered interval; `None` for fewer than two clusters.
    pub lo: Option<f64>,
    /// The upper end of its clustered interval.
    pub hi: Option<f64>,
    /// The standard error that the interval is made from: by cluster, or with tokens as
    /// independent where that is larger.
    pub se: Option<f64>,
    /// The two-sided p-value of no difference. It is below `1 − confidence` exactly where the
    /// interval does not hold 0.
    pub p: Option<f64>,
    /// The number of tokens that were compared.
    pub n_tokens: u64,
    /// The clusters that the tokens were put into.
    pub clusters: Clustering,
}

impl PairedDifference {
    /// Estimates the mean of the finite differences of some tokens; `None` without any.
    ///
    /// The rule is applied to the windows' means of the differences themselves, not to those of
    /// either model: an article that is hard for both models makes neighbouring windows alike in
    /// each, and mostly not in the difference.
    pub fn of(
        tokens: &[Run],
        differences: &[f64],
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Option<Self> {
        if differences.is_empty() {
            return None;
        }
        let clusters = Clusters::of(&Windows::of(tokens, differences), rule);
        let sum: Sum = differences.iter().copied().collect();
        let mean = sum.value() / differences.len() as f64;
        let residuals = differences.iter().map(|x| x - mean);
        let spread = Spread::of(&clusters.of_tokens(tokens), residuals);
        let interval = spread.interval(mean, confidence);
        Some(Self {
            value: mean,
            lo: interval.lo,
            hi: interval.hi,
            se: spread.larger_se(),
            p: interval.ends().and_then(|_| spread.p_of_0(mean)),
            n_tokens: differences.len() as u64,
            clusters: clusters.clustering,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ClusterKind;
    use crate::stats::oracle::{assert_close, records};

    /// The records' two divergences, as if they were two models'.
    fn difference(rule: ClusterRule, groups: u32, half: f64, level: f64) -> PairedDifference {
        let records: Vec<_> = records().into_iter().filter(|r| r.flags == 0).collect();
        let windows = Run::of_each(records.iter().map(|r| (r.window, r.window % groups)));
        let differences = records.iter().map(|r| half * r.reverse_kld - r.kld);
        let differences: Vec<f64> = differences.collect();
        let confidence = Confidence::new(level).unwrap();
        PairedDifference::of(&windows, &differences, confidence, rule).unwrap()
    }

    /// The p-values of `oracle.py` come from bisection on the confidence of scipy's intervals.
    #[test]
    fn matches_numpy_and_scipy() {
        for (windows_per_block, groups, half, value, lo, hi, se, p) in PAIRED {
            let rule = match windows_per_block {
                1 => ClusterRule::Window,
                _ => ClusterRule::Block,
            };
            let got = difference(rule, groups, half, 0.95);
            assert_eq!(got.clusters.windows_per_block, u64::from(windows_per_block));
            assert_close(got.value, value, 1e-12);
            assert_close(got.lo.unwrap(), lo, 1e-11);
            assert_close(got.hi.unwrap(), hi, 1e-11);
            assert_close(got.se.unwrap(), se, 1e-11);
            let error = (got.p.unwrap() / p - 1.0).abs();
            assert!(error < 1e-9, "p {:?}, not {p}", got.p);
        }
    }

    #[allow(clippy::type_complexity)]
    const PAIRED: [(u32, u32, f64, f64, f64, f64, f64, f64); 7] = [
        (
            1,
            1,
            1.0,
            0.012309529951745769,
            -0.03369329597033259,
            0.2525310594762426,
            0.02475686341002406,
            0.5697489149180168,
        ),
        (
            4,
            1,
            1.0,
            0.012309529951745769,
            -0.033872525811251455,
            0.0779911826653677,
            0.023577414427946555,
            0.5798109411926998,
        ),
        (
            1,
            3,
            1.0,
            0.012309529951745776,
            -0.03208812752431857,
            0.1453986286504493,
            0.024414727010108127,
            0.5635172342765288,
        ),
        (
            1,
            1,
            0.9,
            -0.032958684175242746,
            -0.07415447192602137,
            0.01603890756355212,
            0.020110791991896932,
            0.1561102954249331,
        ),
        (
            1,
            3,
            0.9,
            -0.03295868417524275,
            -0.07091868285880565,
            0.014607490783623611,
            0.019459579548569198,
            0.14666789963878657,
        ),
        (
            4,
            1,
            0.7,
            -0.12349511242921982,
            -0.20175029552489582,
            -0.08543050183389655,
            0.020054335433970696,
            1.2225691650690086e-05,
        ),
        (
            4,
            3,
            0.7,
            -0.12349511242921983,
            -0.18944428263110724,
            -0.08823096255433319,
            0.01930579555666797,
            8.553927034987569e-07,
        ),
    ];

    #[test]
    fn p_is_the_share_outside_of_the_widest_interval_without_0() {
        for half in [0.5, 0.7, 0.85, 0.9, 1.0, 1.5] {
            let p = difference(ClusterRule::Auto, 1, half, 0.95).p.unwrap();
            let holds_0 = |outside: f64| {
                let got = difference(ClusterRule::Auto, 1, half, 1.0 - outside);
                assert_eq!(got.p, Some(p));
                (got.lo.unwrap()..=got.hi.unwrap()).contains(&0.0)
            };
            assert!(!holds_0((1.0001 * p).min(0.9999)), "{half}: {p}");
            assert!(holds_0(0.9999 * p), "{half}: {p}");
        }
    }

    #[test]
    fn equal_models_do_not_differ() {
        let of = |differences: &[f64], windows: &[u32]| {
            let windows = Run::of_each(windows.iter().map(|window| (*window, 0)));
            let confidence = Confidence::default();
            PairedDifference::of(&windows, differences, confidence, ClusterRule::Auto).unwrap()
        };
        let none = of(&[0.0; 4], &[0, 0, 1, 1]);
        assert_eq!(
            (none.value, none.lo, none.hi, none.p),
            (0.0, Some(0.0), Some(0.0), Some(1.0))
        );
        let same = of(&[1.0; 4], &[0, 0, 1, 1]);
        assert_eq!((same.lo, same.p), (Some(1.0), Some(0.0)));
        let one_window = of(&[1.0, 2.0, 3.0, 4.0], &[7; 4]);
        assert_eq!((one_window.lo, one_window.p), (None, None));
        let empty = PairedDifference::of(&[], &[], Confidence::default(), ClusterRule::Auto);
        assert_eq!(empty, None);
    }

    /// Neighbouring windows may be alike in both models: without being alike in the difference, they
    /// need no blocks.
    #[test]
    fn clusters_are_those_of_the_difference() {
        let windows: Vec<u32> = (0..100).collect();
        let hard = |window: &u32| f64::from(window / 10 % 2);
        let a: Vec<f64> = windows.iter().map(hard).collect();
        let b: Vec<f64> = windows.iter().map(|w| hard(w) + f64::from(w % 2)).collect();
        let confidence = Confidence::default();
        let of = |a: &[f64], b: &[f64]| {
            let windows = Run::of_each(windows.iter().map(|window| (*window, 0)));
            let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
            let got = PairedDifference::of(&windows, &differences, confidence, ClusterRule::Auto);
            got.unwrap().clusters.kind
        };
        assert_eq!(of(&a, &b), ClusterKind::Window);
        assert_eq!(of(&a, &[0.0; 100]), ClusterKind::Block);
    }
}
