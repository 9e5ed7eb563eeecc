//! Two models in depth, on the same tokens.

use std::collections::BTreeSet;

use kl_formats::TokenRecord;
use serde::Serialize;

use super::cluster::Cluster;
use super::clusters::Clusters;
use super::estimate::{Confidence, Estimate};
use super::paired::Paired;
use super::proportion::Share;
use super::ratio::Ratio;
use super::runs::Run;
use super::significance::McNemar;
use super::span_ratio::SpanRatio;
use super::spans::TokenSpans;
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
        let pairs = Pairs::of(a, b);
        let n = pairs.0.len();
        let paired = pairs.compare(clusters, confidence)?;
        let (runs, differences) = (pairs.runs(), pairs.differences());
        let windows: BTreeSet<u32> = runs.iter().map(|run| run.window).collect();
        let of_tokens = clusters.of_tokens(&runs);
        let agree = |is: fn(&Pair) -> bool| -> Vec<bool> { pairs.0.iter().map(is).collect() };
        let agrees_a = agree(|(a, _)| a.ref_top == a.eval_top);
        let agrees_b = agree(|(_, b)| b.ref_top == b.eval_top);
        Some(Self {
            n_tokens: n as u64,
            n_left_out: (a.len().max(b.len()) - n) as u64,
            n_windows: windows.len() as u64,
            ratio: paired.ratio,
            difference: paired.difference,
            nearer: Nearer::of(&of_tokens, &differences, confidence),
            agreement: McNemar::of(&of_tokens, &agrees_a, &agrees_b, confidence)?,
            acceptance_difference: pairs.acceptance_difference(clusters, confidence),
            by_span: pairs.by_span(spans, clusters, confidence),
            top: pairs.top(n_top),
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
struct Pairs<'r>(Vec<Pair<'r>>);

impl<'r> Pairs<'r> {
    fn of(a: &'r [TokenRecord], b: &'r [TokenRecord]) -> Self {
        let in_order = |records: &'r [TokenRecord]| {
            let mut usable: Vec<&TokenRecord> = records.iter().collect();
            usable.retain(|record| is_counted(record) && record.kld.is_finite());
            usable.sort_by_key(|record| TokenLocation::of(record));
            usable
        };
        let (a, b) = (in_order(a), in_order(b));
        let mut rest = b.into_iter().peekable();
        let location = |record: &TokenRecord| (record.window, record.position);
        let pairs = a.into_iter().filter_map(|a| {
            while rest.next_if(|b| location(b) < location(a)).is_some() {}
            rest.next_if(|b| location(b) == location(a)).map(|b| (a, b))
        });
        Self(pairs.collect())
    }

    fn compare(&self, clusters: &Clusters, confidence: Confidence) -> Option<Paired> {
        let (a, b): (Vec<f64>, Vec<f64>) = self.0.iter().map(|(a, b)| (a.kld, b.kld)).unzip();
        Paired::of(&self.runs(), &a, &b, clusters, confidence)
    }

    /// An acceptance that is not known is NaN, which leaves its token out.
    fn acceptance_difference(
        &self,
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Option<Estimate> {
        let both = self.0.iter().map(|(a, b)| (a.acceptance, b.acceptance));
        let (a, b): (Vec<f64>, Vec<f64>) = both.unzip();
        Some(Paired::of(&self.runs(), &a, &b, clusters, confidence)?.difference)
    }

    fn runs(&self) -> Vec<Run> {
        Run::of(self.0.iter().map(|(a, _)| *a))
    }

    fn differences(&self) -> Vec<f64> {
        self.0.iter().map(|(a, b)| a.kld - b.kld).collect()
    }

    fn by_span(
        &self,
        names: &[String],
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Vec<SpanRatio> {
        let spans: TokenSpans = self.0.iter().map(|(a, _)| a.span).collect();
        let (a, b): (Vec<f64>, Vec<f64>) = self.0.iter().map(|(a, b)| (a.kld, b.kld)).unzip();
        let runs = self.runs();
        let tokens = (runs.as_slice(), &spans);
        let mut of_each = SpanRatio::of_each(tokens, names, &a, &b, clusters, confidence);
        SpanRatio::adjust([&mut of_each].into_iter());
        of_each
    }

    fn top(&self, n: usize) -> Vec<PairedToken> {
        let mut falling = self.0.clone();
        let distance = |(a, b): &Pair| (a.kld - b.kld).abs();
        falling.sort_by(|x, y| distance(y).total_cmp(&distance(x)));
        falling.truncate(n);
        let token = |(a, b): Pair| PairedToken {
            location: TokenLocation::of(a),
            kld_a: a.kld,
            kld_b: b.kld,
            ref_top: a.ref_top,
            top_a: a.eval_top,
            top_b: b.eval_top,
        };
        falling.into_iter().map(token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            record.eval_top = u32::from(i % 3 == 0) * record.ref_top + 60 * u32::from(i % 3 > 0);
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
