//! Two models on the same tokens: the ratio and the difference of their mean KLDs, over all tokens and in
//! each span.

use std::collections::BTreeMap;
use std::iter::repeat_n;

use serde::Serialize;

use super::clusters::{Estimator, n_effective};
use super::estimate::{Confidence, Estimate, finite, finite_or_null};
use super::mean::Totals;
use super::probability::{student_one_sided, student_p, student_two_sided};
use super::spread::{by_cluster, degrees, standard_error, strata};
use super::windows::{Cluster, Run};

/// The ratio of two models' mean KLDs on the same tokens: 2 means that the first is twice as far from the
/// reference as the second.
///
/// A hard text multiplies every model's KLD by about the same factor, which cancels in the ratio, even if
/// the models are far apart. Its interval is the exponential of that of its logarithm.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Ratio {
    /// The first model's mean KLD over the second's; null where it is not finite, because the
    /// second's is 0, and in a comparison where it is noise: below 1e-9, or at most twice the noise
    /// floor's.
    #[serde(serialize_with = "finite_or_null")]
    #[cfg_attr(feature = "testing", schemars(with = "Option<f64>"))]
    pub value: f64,
    /// The standard error of its natural logarithm, by cluster; `None` for fewer than two clusters,
    /// and where a mean is 0.
    pub se_ln: Option<f64>,
    /// The lower end of its interval.
    pub lo: Option<f64>,
    /// The upper end of its interval.
    pub hi: Option<f64>,
    /// The end of the one-sided interval: the true ratio is below it with the asked confidence.
    pub upper: Option<f64>,
    /// The two-sided p-value of equally far models; `None` for fewer than two clusters.
    pub p: Option<f64>,
}

/// The numbers of tokens in each cluster, and the sums of both models' KLDs over them.
pub type KldSums = BTreeMap<Cluster, Totals>;

/// The sums over all clusters.
fn total(sums: &KldSums) -> Totals {
    sums.values().copied().collect()
}

/// The logarithm of the ratio, of all sums less those of a cluster.
fn ln_without(all: Totals, cluster: Totals) -> f64 {
    let [a, b, _] = std::array::from_fn(|model| all.sums[model] - cluster.sums[model]);
    // A difference, so that swapping the two changes the sign alone.
    f64::ln(a) - f64::ln(b)
}

impl Ratio {
    /// Estimates the ratio from both models' sums of KLDs in each cluster. `None` without clusters,
    /// and where both models' KLDs are all 0.
    ///
    /// The error is that of the ratio's logarithm, left without each cluster in turn (see
    /// `standard_error`), and the interval is Student's.
    pub fn from_sums(sums: &KldSums, confidence: Confidence) -> Option<Self> {
        let all = total(sums);
        let [a, b, _] = all.sums;
        let value = a / b;
        if value.is_nan() {
            return None;
        }
        if sums.len() < 2 {
            return Some(Self {
                value,
                ..Self::default()
            });
        }
        if a == 0.0 || b == 0.0 {
            // Only one of the models equals the reference: the ratio is 0 or infinite.
            let end = finite(value);
            return Some(Self {
                value,
                lo: end,
                hi: end,
                upper: end,
                p: Some(0.0),
                ..Self::default()
            });
        }
        let without = sums
            .iter()
            .map(|(cluster, totals)| (*cluster, ln_without(all, *totals)));
        // The larger over the smaller, so that swapping the two changes the sign alone.
        let distance = (a.max(b) / a.min(b)).ln();
        let degrees = degrees(sums, |totals| totals.n);
        Some(Self::within(value, distance, without, degrees, confidence))
    }

    /// Estimates how many times as large the ratio is on some tokens as on others, from both models'
    /// sums of KLDs in each cluster that has such tokens. `None` where a sum of all clusters is 0, and
    /// for fewer than two clusters of either.
    ///
    /// Each cluster is left out of both at once, so what its tokens have in common cancels. The degrees
    /// of freedom are those of the tokens whose clusters are worth less, since what these differ by is
    /// known least.
    fn of_ratios(sums: [&KldSums; 2], confidence: Confidence) -> Option<Self> {
        let all = sums.map(total);
        let [inside, outside] = all.map(|totals| totals.sums[0] / totals.sums[1]);
        let value = inside / outside;
        let distance = value.ln().abs();
        if sums.iter().any(|clusters| clusters.len() < 2) || !distance.is_finite() {
            return None;
        }
        let without = sums
            .iter()
            .flat_map(|clusters| clusters.keys())
            .map(|cluster| {
                let [inside, outside] =
                    sums.map(|clusters| clusters.get(cluster).copied().unwrap_or_default());
                let ln = ln_without(all[0], inside) - ln_without(all[1], outside);
                (*cluster, ln)
            });
        let [degrees_inside, degrees_outside] =
            sums.map(|clusters| degrees(clusters, |totals| totals.n));
        let degrees = degrees_inside.min(degrees_outside);
        Some(Self::within(value, distance, without, degrees, confidence))
    }

    /// A ratio whose logarithm is `distance` from 0, and is `without` each cluster.
    fn within(
        value: f64,
        distance: f64,
        without: impl Iterator<Item = (Cluster, f64)>,
        degrees: f64,
        confidence: Confidence,
    ) -> Self {
        let se = standard_error(&strata(&without.collect()));
        let factor = (student_two_sided(confidence, degrees) * se).exp();
        let factor_above = (student_one_sided(confidence, degrees) * se).exp();
        Self {
            value,
            se_ln: finite(se),
            lo: finite(value / factor),
            hi: finite(value * factor),
            upper: finite(value * factor_above),
            p: finite(student_p(distance, se, degrees)),
        }
    }

    /// The p-value alone, where the second mean is too small for a multiple of it to say anything.
    pub fn p_alone(self) -> Self {
        Self {
            value: f64::INFINITY,
            p: self.p,
            ..Self::default()
        }
    }

    /// The second model over the first. Its one-sided end is not known.
    pub fn inverse(self) -> Self {
        Self {
            value: 1.0 / self.value,
            lo: self.hi.map(f64::recip),
            hi: self.lo.map(f64::recip),
            upper: None,
            ..self
        }
    }
}

/// The comparison of two models, `a` and `b`, over the tokens that both count.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Paired {
    /// The number of tokens that both count.
    pub n_tokens: u64,
    /// The mean KLD of `a` over that of `b`; null where both are 0.
    pub ratio: Option<Ratio>,
    /// The mean KLD of `a` less that of `b`, in nats.
    pub difference: Estimate,
    /// The share of tokens on which `a` is nearer to the reference, among those whose KLDs differ; null
    /// if none differs.
    pub share_a_nearer: Option<f64>,
}

impl Paired {
    /// Compares the KLDs of two models, in nats, on the same tokens: NaN where a model does not count a
    /// token. `None` if they have no token in common.
    pub fn compare(estimator: &Estimator, a: &[f64], b: &[f64]) -> Option<Self> {
        let differences = a.iter().zip(b).map(|(a, b)| a - b);
        let count = |is: fn(f64) -> bool| differences.clone().filter(|x| is(*x)).count();
        let (n_nearer, n_farther) = (count(|x| x < 0.0), count(|x| x > 0.0));
        let sums = sums(estimator, a, b, |_| true);
        Some(Self {
            n_tokens: count(f64::is_finite) as u64,
            ratio: Ratio::from_sums(&sums, estimator.confidence),
            difference: estimator.mean(differences.clone())?.estimate(),
            share_a_nearer: finite(n_nearer as f64 / (n_nearer + n_farther) as f64),
        })
    }
}

/// The p-value of `a` being no farther from the reference than `b`, on the same tokens as [`Paired::compare`]: one-sided, and
/// made for few clusters of which some hold most of the KLD. Its degrees of freedom are those of as many clusters of equal
/// KLDs as these are worth, by Kish's formula. `None` where they are worth less than two, and where a mean is 0.
pub fn p_no_farther(estimator: &Estimator, a: &[f64], b: &[f64]) -> Option<f64> {
    let sums = sums(estimator, a, b, |_| true);
    let ratio = Ratio::from_sums(&sums, estimator.confidence)?;
    let worth = n_effective(sums.values().map(|totals| totals.sums[0] + totals.sums[1]));
    if worth < 2.0 {
        return None;
    }
    let two_sided = student_p(ratio.value.ln(), ratio.se_ln?, worth - 1.0);
    let half = finite(two_sided / 2.0)?;
    Some(if ratio.value > 1.0 { half } else { 1.0 - half })
}

/// The sums in each cluster of two models' KLDs on the tokens that both count and whose number `is_inside`
/// accepts.
fn sums(estimator: &Estimator, a: &[f64], b: &[f64], is_inside: impl Fn(usize) -> bool) -> KldSums {
    let totals = |(token, (a, b)): (usize, (&f64, &f64))| {
        let is_counted = is_inside(token) && b.is_finite();
        let a = if is_counted { *a } else { f64::NAN };
        Totals {
            n: 1.0,
            sums: [a, *b, 0.0],
        }
    };
    let tokens = a.iter().zip(b).enumerate();
    by_cluster(&estimator.clusters, tokens.map(totals))
}

/// The ratio of two models' mean KLDs on the tokens of a span.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct SpanRatio {
    /// The span's name.
    pub label: String,
    /// Tokens of the span that both models count.
    pub n_tokens: u64,
    /// The ratio of the mean KLDs on these tokens; null where both are 0.
    pub ratio: Option<Ratio>,
    /// That ratio over the ratio on all other tokens: above 1, the model loses more in this span than
    /// elsewhere. Null where a mean is 0, where the second's in the span is noise, and from fewer than two
    /// clusters.
    pub to_others: Option<Ratio>,
    /// The p-value of `to_others` after Holm's adjustment for the number of models and spans; exactly two
    /// spans are one test. Null where it was not adjusted.
    pub p_holm: Option<f64>,
}

impl SpanRatio {
    /// Compares the KLDs of two models, in nats, on the tokens of `runs`, NaN where a model does not
    /// count a token: a ratio for each span that has tokens, in the order of `names`. Empty unless two
    /// spans have some: a single one is all of the tokens.
    pub fn of_each(
        estimator: &Estimator,
        runs: &[Run],
        names: &[String],
        a: &[f64],
        b: &[f64],
    ) -> Vec<Self> {
        if names.len() < 2 {
            return Vec::new();
        }
        let runs_of_spans = runs.iter().map(|run| repeat_n(run.span as usize, run.n));
        let spans: Vec<usize> = runs_of_spans.flatten().collect();
        let ratio_of_span = |(span, label): (usize, &String)| {
            let inside = sums(estimator, a, b, |token| spans[token] == span);
            let outside = sums(estimator, a, b, |token| spans[token] != span);
            Self {
                label: label.clone(),
                n_tokens: total(&inside).n as u64,
                ratio: Ratio::from_sums(&inside, estimator.confidence),
                to_others: Ratio::of_ratios([&inside, &outside], estimator.confidence),
                p_holm: None,
            }
        };
        let mut ratios: Vec<Self> = names.iter().enumerate().map(ratio_of_span).collect();
        ratios.retain(|ratio| ratio.n_tokens > 0);
        if ratios.len() < 2 {
            ratios.clear();
        }
        ratios
    }

    /// Adjusts the p-values of `to_others` for the number of models and spans, by Holm's method: `models` are
    /// the spans of each. Exactly two spans are one test, as the one's ratio to the other is the inverse of
    /// the other's.
    pub fn adjust<'r>(models: impl Iterator<Item = &'r mut Vec<Self>>) {
        let all_tests = models.flat_map(|spans| {
            let spans_of_a_test = if spans.len() == 2 { 2 } else { 1 };
            spans.chunks_mut(spans_of_a_test)
        });
        let p = |test: &[Self]| test.first()?.to_others?.p;
        let tests: Vec<&mut [Self]> = all_tests.filter(|test| p(test).is_some()).collect();
        let each_p: Vec<f64> = tests.iter().filter_map(|test| p(test)).collect();
        for (test, p_holm) in tests.into_iter().zip(holm(&each_p)) {
            test.iter_mut().for_each(|of| of.p_holm = Some(p_holm));
        }
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
#[path = "tests/ratio.rs"]
mod tests;
