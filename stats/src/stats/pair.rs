//! Two models in depth, on the same tokens.

use std::collections::BTreeSet;

use kl_formats::TokenRecord;
use serde::Serialize;

use super::cluster::Cluster;
use super::clustered::Share;
use super::clusters::Clusters;
use super::columns::{Run, TokenSpans};
use super::estimate::{Confidence, Estimate};
use super::mean::Moments;
use super::ratio::{Paired, Ratio, SpanRatio};
use super::spread::Spread;
use super::token::{TokenLocation, is_counted};

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
    /// of which both are known; `None` without any.
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
    pub fn of(
        a: &[TokenRecord],
        b: &[TokenRecord],
        spans: &[String],
        clusters: &Clusters,
        confidence: Confidence,
        n_top: usize,
    ) -> Option<Self> {
        let pairs = pairs(a, b);
        let runs = Run::of(pairs.iter().map(|(a, _)| *a));
        let compare = |of: fn(&TokenRecord) -> f64| {
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(a, b)| (of(a), of(b))).unzip();
            let paired = Paired::of(&runs, &a, &b, clusters, confidence);
            (paired, a, b)
        };
        let (paired, a_klds, b_klds) = compare(|record| record.kld);
        let paired = paired?;
        // An acceptance that is not known is NaN, which leaves its token out.
        let (acceptance, ..) = compare(|record| record.acceptance);
        let of_spans: TokenSpans = pairs.iter().map(|(a, _)| a.span).collect();
        let tokens = (runs.as_slice(), &of_spans);
        let mut by_span = SpanRatio::of_each(tokens, spans, &a_klds, &b_klds, clusters, confidence);
        SpanRatio::adjust([&mut by_span].into_iter());
        let differences: Vec<f64> = a_klds.iter().zip(&b_klds).map(|(a, b)| a - b).collect();
        let windows: BTreeSet<u32> = runs.iter().map(|run| run.window).collect();
        let of_tokens = clusters.of_tokens(&runs);
        Some(Self {
            n_tokens: pairs.len() as u64,
            n_left_out: (a.len().max(b.len()) - pairs.len()) as u64,
            n_windows: windows.len() as u64,
            ratio: paired.ratio,
            difference: paired.difference,
            nearer: Nearer::of(&of_tokens, &differences, confidence),
            agreement: McNemar::of(&of_tokens, &pairs, confidence)?,
            acceptance_difference: acceptance.map(|paired| paired.difference),
            by_span,
            top: top(pairs, n_top),
        })
    }
}

impl Nearer {
    /// Counts the signs of the tokens' differences, a's less b's.
    fn of(clusters: &[Cluster], differences: &[f64], confidence: Confidence) -> Self {
        let tokens = clusters.iter().zip(differences);
        let untied = tokens.filter(|(_, difference)| **difference != 0.0);
        let (clusters, a_is): (Vec<Cluster>, Vec<bool>) = untied
            .map(|(cluster, difference)| (*cluster, *difference < 0.0))
            .unzip();
        let n_a = a_is.iter().filter(|is| **is).count();
        Self {
            n_a: n_a as u64,
            n_b: (a_is.len() - n_a) as u64,
            n_ties: (differences.len() - a_is.len()) as u64,
            share_a: Share::of(&clusters, &a_is, confidence),
        }
    }
}

/// One token's records under both models.
type Pair<'r> = (&'r TokenRecord, &'r TokenRecord);

/// The tokens that are compared, in the order of the text.
fn pairs<'r>(a: &'r [TokenRecord], b: &'r [TokenRecord]) -> Vec<Pair<'r>> {
    let in_order = |records: &'r [TokenRecord]| {
        let mut usable: Vec<&TokenRecord> = records.iter().collect();
        usable.retain(|record| is_counted(record) && record.kld.is_finite());
        usable.sort_by_key(|record| TokenLocation::of(record));
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
fn top(mut pairs: Vec<Pair<'_>>, n: usize) -> Vec<PairedToken> {
    let distance = |(a, b): &Pair<'_>| (a.kld - b.kld).abs();
    pairs.sort_by(|x, y| distance(y).total_cmp(&distance(x)));
    pairs.truncate(n);
    let token = |(a, b): Pair<'_>| PairedToken {
        location: TokenLocation::of(a),
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
    /// `clusters[i]`; `None` without tokens.
    fn of(clusters: &[Cluster], pairs: &[Pair<'_>], confidence: Confidence) -> Option<Self> {
        let agrees = |record: &TokenRecord| record.ref_top == record.eval_top;
        let agree = || pairs.iter().map(|(a, b)| (agrees(a), agrees(b)));
        let count = |which| agree().filter(|pair| *pair == which).count() as u64;
        let share = |agrees: bool| f64::from(u8::from(agrees));
        let differences: Vec<f64> = agree().map(|(a, b)| share(a) - share(b)).collect();
        Some(Self {
            n_both: count((true, true)),
            n_only_a: count((true, false)),
            n_only_b: count((false, true)),
            n_neither: count((false, false)),
            difference: ShareDifference::of(clusters, &differences, confidence)?,
        })
    }
}

impl ShareDifference {
    /// The mean of each token's difference; `None` without tokens.
    fn of(clusters: &[Cluster], differences: &[f64], confidence: Confidence) -> Option<Self> {
        let value = Moments::of(differences)?.mean;
        let spread = Spread::of(clusters, differences.iter().map(|x| x - value));
        let student = spread.student(value, confidence);
        Some(Self {
            estimate: student.map_or(Estimate::point(value), |(estimate, _)| estimate),
            p: student.map(|(_, p)| p),
        })
    }
}

#[cfg(test)]
mod tests {
    mod pair {
        use super::super::*;
        use crate::stats::oracle::records;
        use crate::stats::{ClusterRule, Windows};

        fn compare(a: &[TokenRecord], b: &[TokenRecord]) -> Option<PairedComparison> {
            let mut windows = Windows::default();
            windows.add_empty(&Run::of(a));
            let clusters = Clusters::of(&windows, ClusterRule::Window);
            let names = ["prompt", "answer", "code"].map(str::to_owned);
            PairedComparison::of(a, b, &names, &clusters, Confidence::default(), 3)
        }

        /// The records of two models: b's KLDs are the reverse KLDs, and its top tokens differ.
        fn models() -> [Vec<TokenRecord>; 2] {
            let a = records();
            let mut b = a.clone();
            for (i, record) in b.iter_mut().enumerate() {
                record.kld = match i % 10 {
                    0 => record.kld,
                    _ => record.reverse_kld,
                };
                record.eval_top =
                    u32::from(i % 3 == 0) * record.ref_top + 60 * u32::from(i % 3 > 0);
            }
            [a, b]
        }

        #[test]
        fn counts_and_differences_add_up() {
            let [a, b] = models();
            let got = compare(&a, &b).unwrap();
            let counted = a.iter().filter(|r| r.flags == 0).count() as u64;
            assert_eq!(got.n_tokens, counted);
            assert_eq!(got.n_tokens + got.n_left_out, a.len() as u64);
            let Nearer {
                n_a, n_b, n_ties, ..
            } = got.nearer;
            assert_eq!(n_a + n_b + n_ties, counted);
            let ties = a
                .iter()
                .enumerate()
                .filter(|(i, r)| i % 10 == 0 && r.flags == 0);
            assert_eq!(n_ties, ties.count() as u64);
            let share = got.nearer.share_a.unwrap().estimate.value;
            assert!((share - n_a as f64 / (n_a + n_b) as f64).abs() < 1e-15);
            let agreement = got.agreement;
            let only = agreement.n_only_a as f64 - agreement.n_only_b as f64;
            assert!((agreement.difference.estimate.value - only / counted as f64).abs() < 1e-12);
        }

        /// Acceptances are compared as KLDs are: with the same numbers, the result is the same.
        #[test]
        fn acceptances_are_compared_where_both_are_known() {
            let [mut a, mut b] = models();
            for record in a.iter_mut().chain(&mut b) {
                record.acceptance = record.kld;
            }
            let same = compare(&a, &b).unwrap();
            assert_eq!(same.acceptance_difference, Some(same.difference));
            let counted = a.iter().position(|record| record.flags == 0).unwrap();
            a[counted].acceptance = f64::NAN;
            let without = compare(&a, &b).unwrap();
            a.remove(counted);
            let alone = compare(&a, &b).unwrap().difference;
            assert_eq!(without.acceptance_difference, Some(alone));
            a.iter_mut().for_each(|record| record.acceptance = f64::NAN);
            assert_eq!(compare(&a, &b).unwrap().acceptance_difference, None);
        }

        #[test]
        fn the_order_of_the_records_does_not_matter() {
            let [a, b] = models();
            let expected = compare(&a, &b);
            let reversed: Vec<TokenRecord> = b.iter().rev().copied().collect();
            assert_eq!(compare(&a, &reversed), expected);
            let swapped = compare(&b, &a).unwrap();
            let expected = expected.unwrap();
            assert_eq!(swapped.nearer.n_a, expected.nearer.n_b);
            assert_eq!(swapped.ratio.unwrap().p, expected.ratio.unwrap().p);
        }

        #[test]
        fn the_largest_differences_come_first() {
            let [a, b] = models();
            let top = compare(&a, &b).unwrap().top;
            let distances: Vec<f64> = top.iter().map(|t| (t.kld_a - t.kld_b).abs()).collect();
            assert!(top.len() == 3 && distances.is_sorted_by(|x, y| x >= y));
            let both = a.iter().zip(&b).filter(|(a, _)| a.flags == 0);
            let largest = both.map(|(a, b)| (a.kld - b.kld).abs()).fold(0.0, f64::max);
            assert_eq!(distances[0], largest);
        }

        /// Each span's ratio is that of its tokens alone.
        #[test]
        fn spans_divide_the_tokens() {
            let [mut a, mut b] = models();
            assert!(compare(&a, &b).unwrap().by_span.is_empty());
            let in_spans = |records: &mut [TokenRecord]| {
                for record in records {
                    record.span = 1 + u32::from(record.position % 3 == 0);
                }
            };
            in_spans(&mut a);
            in_spans(&mut b);
            let by_span = compare(&a, &b).unwrap().by_span;
            let labels: Vec<&str> = by_span.iter().map(|of| of.label.as_str()).collect();
            assert_eq!(labels, ["answer", "code"]);
            for (of, span) in by_span.iter().zip(1..) {
                let [a, b] = [&a, &b].map(|records| {
                    let mut records = records.clone();
                    records.retain(|record| record.span == span);
                    records
                });
                let alone = compare(&a, &b).unwrap();
                assert_eq!((of.n_tokens, of.ratio), (alone.n_tokens, alone.ratio));
                // Of two spans, each is the other's rest: one test.
                let (p, p_holm) = (of.to_others.unwrap().p.unwrap(), of.p_holm.unwrap());
                assert!((p_holm - p).abs() < 1e-9);
            }
            let [one, other] = [0, 1].map(|i: usize| by_span[i].to_others.unwrap().value);
            assert!((one * other - 1.0).abs() < 1e-12);
        }

        #[test]
        fn tokens_of_only_one_are_left_out() {
            let [mut a, b] = models();
            a.truncate(500);
            a[0].kld = f64::INFINITY;
            let got = compare(&a, &b).unwrap();
            let counted = a.iter().filter(|r| r.flags == 0).count() as u64;
            assert_eq!(got.n_tokens, counted - 1);
            assert_eq!(got.n_tokens + got.n_left_out, b.len() as u64);
            assert_eq!(compare(&a[..1], &b), None);
            assert_eq!(compare(&[], &[]), None);
        }
    }
}
