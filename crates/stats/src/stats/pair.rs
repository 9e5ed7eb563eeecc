//! Two models in depth, on the same tokens.

use std::cmp::Ordering;

use kl_formats::TokenRecord;
use serde::Serialize;

use super::clustered::Share;
use super::clusters::{Clusters, Estimator};
use super::estimate::{Confidence, Estimate};
use super::ratio::{Paired, Ratio, SpanRatio};
use super::spread::{ShareDifference, Spread};
use super::token::{TokenLocation, usable_kld};
use super::windows::Run;

/// The comparison of two evaluations against one reference, token by token. Ratios are a's over
/// b's, and differences a's less b's.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct PairedComparison {
    /// Tokens that are compared.
    pub n_tokens: u64,
    /// Tokens that are not compared: missing or left out in either evaluation, or with an infinite
    /// KLD.
    pub n_left_out: u64,
    /// Windows that they are from.
    pub n_windows: u64,
    /// The ratio of the mean KLDs; `None` where both are 0.
    pub ratio: Option<Ratio>,
    /// The difference of the mean KLDs, in nats, with its interval by cluster.
    pub difference: Estimate,
    /// On how many tokens each model is nearer to the reference.
    pub nearer: Nearer,
    /// The tokens on which each model has the reference's top token.
    pub agreement: McNemar,
    /// The difference of the mean acceptances of drafted tokens, with its interval by cluster, on the tokens
    /// where both are known; `None` without any.
    pub acceptance_difference: Option<Estimate>,
    /// The ratio on the tokens of each span; empty unless several spans have tokens.
    pub by_span: Vec<SpanRatio>,
    /// The tokens on which the KLDs differ most, the largest difference first. The JSON has them
    /// with their texts.
    #[serde(skip)]
    pub top: Vec<PairedToken>,
}

/// On how many tokens each of two models has the smaller KLD.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Nearer {
    /// Tokens on which model a is nearer to the reference.
    pub n_a: u64,
    /// Tokens on which model b is nearer.
    pub n_b: u64,
    /// Tokens on which both have the same KLD.
    pub n_ties: u64,
    /// a's share of the tokens that are not ties, with its clustered interval; `None` if all are.
    pub share_a: Option<Share>,
}

/// A token under two models.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct PairedToken {
    /// Where it is.
    #[serde(flatten)]
    pub location: TokenLocation,
    /// Model a's KLD.
    pub kld_a: f64,
    /// Model b's KLD.
    pub kld_b: f64,
    /// The reference's top token.
    pub ref_top: u32,
    /// Model a's top token.
    pub top_a: u32,
    /// Model b's top token.
    pub top_b: u32,
}

impl PairedComparison {
    /// Compares the records of two evaluations, which may be in any order; lists the `n_top` tokens
    /// on which they differ most. `spans` are the names of the records' spans. `None` if they have no
    /// token in common.
    pub fn in_depth(
        a: &[TokenRecord],
        b: &[TokenRecord],
        spans: &[String],
        clusters: &Clusters,
        confidence: Confidence,
        n_top: usize,
    ) -> Option<Self> {
        let pairs = pairs(a, b);
        let runs = Run::from_records(pairs.iter().map(|(a, _)| *a));
        let numbers_of_both = |number: fn(&TokenRecord) -> f64| -> (Vec<f64>, Vec<f64>) {
            pairs.iter().map(|(a, b)| (number(a), number(b))).unzip()
        };
        let (a_klds, b_klds) = numbers_of_both(|record| record.kld);
        let estimator = &clusters.estimator(&runs, confidence);
        let paired = Paired::compare(estimator, &a_klds, &b_klds)?;
        // An acceptance that is not known is NaN, which leaves its token out.
        let (a_accepts, b_accepts) = numbers_of_both(|record| record.acceptance);
        let acceptance = Paired::compare(estimator, &a_accepts, &b_accepts);
        let mut by_span = SpanRatio::of_each(estimator, &runs, spans, &a_klds, &b_klds);
        SpanRatio::adjust([&mut by_span].into_iter());
        Some(Self {
            n_tokens: pairs.len() as u64,
            n_left_out: (a.len().max(b.len()) - pairs.len()) as u64,
            n_windows: Run::n_windows(&runs),
            ratio: paired.ratio,
            difference: paired.difference,
            nearer: Nearer::from_pairs(estimator, &pairs),
            agreement: McNemar::from_pairs(estimator, &pairs),
            acceptance_difference: acceptance.map(|paired| paired.difference),
            by_span,
            top: top(pairs, n_top),
        })
    }
}

impl Nearer {
    fn from_pairs(estimator: &Estimator, pairs: &[RecordPair<'_>]) -> Self {
        let orders = pairs.iter().map(|(a, b)| a.kld.total_cmp(&b.kld));
        let count = |which| orders.clone().filter(|order| *order == which).count() as u64;
        let a_is_nearer = orders
            .clone()
            .map(|order| order.is_ne().then_some(order.is_lt()));
        Self {
            n_a: count(Ordering::Less),
            n_b: count(Ordering::Greater),
            n_ties: count(Ordering::Equal),
            share_a: estimator.share(a_is_nearer),
        }
    }
}

/// One token's records under both models.
type RecordPair<'r> = (&'r TokenRecord, &'r TokenRecord);

/// The tokens that are compared, in the order of the text.
fn pairs<'r>(a: &'r [TokenRecord], b: &'r [TokenRecord]) -> Vec<RecordPair<'r>> {
    let in_order = |records: &'r [TokenRecord]| {
        let mut usable: Vec<&TokenRecord> = records.iter().collect();
        usable.retain(|record| usable_kld(record).is_finite());
        usable.sort_by_key(|record| TokenLocation::from_record(record));
        usable
    };
    let mut rest = in_order(b).into_iter().peekable();
    let location = |record: &TokenRecord| (record.window, record.position);
    let pairs = in_order(a).into_iter().filter_map(|a| {
        while rest.next_if(|b| location(b) < location(a)).is_some() {}
        rest.next_if(|b| location(b) == location(a)).map(|b| (a, b))
    });
    pairs.collect()
}

/// The `n` tokens on which the KLDs differ most.
fn top(mut pairs: Vec<RecordPair<'_>>, n: usize) -> Vec<PairedToken> {
    let distance = |(a, b): &RecordPair<'_>| (a.kld - b.kld).abs();
    pairs.sort_by(|x, y| distance(y).total_cmp(&distance(x)));
    pairs.truncate(n);
    let token = |(a, b): RecordPair<'_>| PairedToken {
        location: TokenLocation::from_record(a),
        kld_a: a.kld,
        kld_b: b.kld,
        ref_top: a.ref_top,
        top_a: a.eval_top,
        top_b: b.eval_top,
    };
    pairs.into_iter().map(token).collect()
}

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

impl McNemar {
    /// Compares whether each token's top token agrees, under either model.
    fn from_pairs(estimator: &Estimator, pairs: &[RecordPair<'_>]) -> Self {
        let agrees = |record: &TokenRecord| record.ref_top == record.eval_top;
        let agree = pairs.iter().map(|(a, b)| [agrees(a), agrees(b)]);
        let which = [[true, true], [true, false], [false, true], [false, false]];
        let [n_both, n_only_a, n_only_b, n_neither] =
            which.map(|which| agree.clone().filter(|pair| *pair == which).count() as u64);
        let value = (n_only_a as f64 - n_only_b as f64) / pairs.len() as f64;
        let residual = |[a, b]: [bool; 2]| f64::from(i8::from(a) - i8::from(b)) - value;
        let spread = Spread::from_residuals(&estimator.clusters, agree.map(residual));
        Self {
            n_both,
            n_only_a,
            n_only_b,
            n_neither,
            difference: spread.student(value, estimator.confidence),
        }
    }
}

#[cfg(test)]
#[path = "tests/pair.rs"]
mod tests;
