//! Identical output: the number of tokens for which a model's own greedy answers are the reference's.
//!
//! Where the reference's model answered greedily, its record shows whether the evaluated model would
//! have chosen the same token. Both have seen the same text up to there, so the first token that
//! differs is the first at which the evaluated model's own greedy answer does.

use serde::Serialize;

use super::answers::{Answer, Answers, State};
use super::cluster::Cluster;
use super::clusters::Clusters;
use super::estimate::{Confidence, Estimate};
use super::proportion::Share;
use super::survival::{Lifetime, Step, Survival};

/// The most points of the curve at which it falls: more would not show in a plot.
const CURVE_POINTS: usize = 200;

/// Shares that differ by less are equal: products of fractions are rounded.
const ROUNDING: f64 = 1e-9;

/// The number of tokens for which the model's greedy answers are the same as the reference's.
///
/// An answer counts up to the first token that differs. One that ends before anything differs shows
/// nothing of more tokens: the Kaplan-Meier estimate uses it for as long as it lasts.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IdenticalOutput {
    /// The number of tokens for which half of the answers are the same: the median of the tokens
    /// before the first that differs. Null where more than half are the same as far as answers
    /// reach.
    pub median_tokens: Option<u32>,
    /// The lower end of the median's interval: for up to so many tokens, all of the share's interval
    /// is above one half. Null if it always is, and with fewer than two clusters.
    pub median_lo: Option<u32>,
    /// The upper end of the median's interval: for more tokens, all of the share's interval is at or
    /// below one half. Null if it never is, and with fewer than two clusters.
    pub median_hi: Option<u32>,
    /// The number of greedy answers.
    pub n_answers: u64,
    /// The number of answers that are the same to their end.
    pub n_identical: u64,
    /// The share of answers that are the same to their end, however long they are, with its
    /// clustered interval. An answer does not count if it cannot be followed so far: a row is missing or
    /// not finite, or the model chooses another token where the reference's own row does, at a near tie.
    pub share_identical: Estimate,
    /// The share of answers that are the same for so many tokens: points at 0 and 1, where it falls
    /// (at most 200 of them), and at the end of the answer that is the same for longest.
    pub curve: Vec<SharePoint>,
}

/// A point of the curve of identical output.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SharePoint {
    /// A number of tokens, from the answer's first.
    pub tokens: u32,
    /// The share of answers whose first `tokens` tokens are the same, estimated by Kaplan and
    /// Meier's method.
    pub share: f64,
    /// The lower end of the share's interval; null with fewer than two clusters.
    pub lo: Option<f64>,
    /// The upper end of the share's interval; null with fewer than two clusters.
    pub hi: Option<f64>,
}

impl IdenticalOutput {
    /// Estimates it from the greedy answers, by the clusters of their windows; `None` without any.
    pub(super) fn of(
        answers: &Answers,
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Option<Self> {
        let answers = &answers.0;
        let of_answers: Vec<Cluster> = answers
            .iter()
            .map(|answer| clusters.of_window(answer.window))
            .collect();
        let lifetimes = answers.iter().zip(&of_answers);
        let survival = Survival::of(
            lifetimes
                .map(|(of, cluster)| lifetime(of, *cluster))
                .collect(),
        );
        let known = answers.iter().zip(&of_answers);
        let known = known.filter(|(of, _)| of.state != State::Lost);
        let (is_identical, of_known): (Vec<bool>, Vec<Cluster>) = known
            .map(|(of, cluster)| (of.state == State::Same, *cluster))
            .unzip();
        let estimate = |step: &Step| survival.estimate(step, confidence);
        let median_end = |of: fn(&Estimate) -> Option<f64>| {
            first_half(&survival.steps, |step| of(&estimate(step)))
        };
        Some(Self {
            median_tokens: first_half(&survival.steps, |step| Some(step.share)),
            median_lo: median_end(|share| share.lo),
            median_hi: median_end(|share| share.hi),
            n_answers: answers.len() as u64,
            n_identical: is_identical.iter().filter(|is| **is).count() as u64,
            share_identical: Share::of(&of_known, &is_identical, confidence)?.estimate,
            curve: curve(&survival, answers, estimate),
        })
    }
}

/// The lifetime of an answer: the number of the token that differs, or that of tokens which are known to
/// be the same.
fn lifetime(answer: &Answer, cluster: Cluster) -> Lifetime {
    let is_event = answer.state == State::Differs;
    Lifetime {
        cluster,
        end: answer.n_same + u32::from(is_event),
        is_event,
    }
}

/// The tokens before the first step at which a share, or an end of its interval, is at most one
/// half. The share falls, and so do the ends but for little: the steps are first looked at in
/// strides.
fn first_half(steps: &[Step], of: impl Fn(&Step) -> Option<f64>) -> Option<u32> {
    let is_past = |step: &&Step| of(step).is_some_and(|share| share <= 0.5 + ROUNDING);
    let mut strides = steps.chunks(steps.len().div_ceil(CURVE_POINTS).max(1));
    let stride = strides.find(|stride| stride.last().as_ref().is_some_and(is_past))?;
    Some(stride.iter().find(is_past)?.time - 1)
}

/// The points of the curve, from 0 tokens to the end of the longest answer.
fn curve(
    survival: &Survival,
    answers: &[Answer],
    estimate: impl Fn(&Step) -> Estimate,
) -> Vec<SharePoint> {
    let point = |step: &Step| {
        let Estimate { value, lo, hi } = estimate(step);
        SharePoint {
            tokens: step.time,
            share: value,
            lo,
            hi,
        }
    };
    let mut curve = vec![SharePoint {
        tokens: 0,
        share: 1.0,
        lo: Some(1.0),
        hi: Some(1.0),
    }];
    let first = survival.steps.first().map_or(u32::MAX, |step| step.time);
    let longest = answers.iter().map(|of| of.n_same).max().unwrap_or(0);
    if first > 1 && longest >= 1 {
        curve.push(point(&survival.at(1)));
    }
    // The last of each stride, so that the curve ends as low as it gets.
    let strides = survival
        .steps
        .chunks(survival.steps.len().div_ceil(CURVE_POINTS).max(1));
    curve.extend(strides.filter_map(|stride| stride.last()).map(point));
    if curve.last().is_some_and(|last| last.tokens < longest) {
        curve.push(point(&survival.at(longest)));
    }
    curve
}

#[cfg(test)]
mod tests {
    use kl_formats::TokenRecord;

    use super::*;
    use crate::stats::oracle::summary;
    use crate::stats::{ClusterRule, Statistics};

    const N_PROMPT: u32 = 3;

    /// The record of an answer's `i`-th token, which is the same or not.
    fn token(window: u32, i: u32, is_same: bool) -> TokenRecord {
        TokenRecord {
            window,
            position: N_PROMPT - 1 + i,
            token: 7,
            ref_top: 7,
            eval_top: if is_same { 7 } else { 8 },
            flags: TokenRecord::NEXT_IS_GREEDY,
            ref_top_rank: 1,
            eval_top_rank: 1,
            ..TokenRecord::default()
        }
    }

    /// The records of answers of so many tokens, of which one differs; where it is beyond the end,
    /// none does.
    fn answers(of: &[(u32, u32)]) -> Vec<TokenRecord> {
        let windows = (0..).zip(of);
        let records = windows.flat_map(|(window, &(n, differs_at))| {
            (0..n).map(move |i| token(window, i, i != differs_at))
        });
        records.collect()
    }

    fn of(records: &[TokenRecord]) -> IdenticalOutput {
        summary(records, ClusterRule::Window)
            .identical_output
            .unwrap()
    }

    fn curve(of: &IdenticalOutput) -> Vec<(u32, f64)> {
        let points = of.curve.iter();
        points.map(|point| (point.tokens, point.share)).collect()
    }

    /// By hand: 4 answers have a first token and one differs there, 3 a second, 2 a third and one
    /// differs, 1 more.
    #[test]
    fn an_answer_counts_up_to_its_first_token_that_differs() {
        let of = of(&answers(&[(6, 2), (5, 0), (2, 9), (8, 8)]));
        assert_eq!(
            curve(&of),
            [(0, 1.0), (1, 0.75), (3, 0.75 * 0.5), (8, 0.75 * 0.5)]
        );
        assert_eq!((of.n_answers, of.n_identical), (4, 2));
        assert_eq!(of.share_identical.value, 0.5);
        assert_eq!(of.median_tokens, Some(2));
        let [first, .., last] = of.curve[..] else {
            panic!()
        };
        assert_eq!((first.lo, first.hi), (Some(1.0), Some(1.0)));
        assert_eq!((last.lo, last.hi), (of.curve[2].lo, of.curve[2].hi));
    }

    #[test]
    fn tokens_after_the_first_that_differs_do_not_matter() {
        let mut records = answers(&[(6, 2), (6, 9)]);
        let short = of(&records);
        for record in records.iter_mut().filter(|record| record.window == 0) {
            if record.position > N_PROMPT + 1 {
                record.eval_top = 99;
            }
        }
        assert_eq!(of(&records), short);
    }

    /// A row that is not finite or not there leaves open what the model would have answered.
    #[test]
    fn what_is_not_known_ends_an_answer() {
        let mut records = answers(&[(6, 4), (6, 9)]);
        records[2].flags |= TokenRecord::EVAL_NOT_FINITE;
        let lost = of(&records);
        assert_eq!(curve(&lost), [(0, 1.0), (1, 1.0), (6, 1.0)]);
        assert_eq!((lost.n_answers, lost.n_identical), (2, 1));
        records.remove(2);
        assert_eq!(of(&records), lost);
    }

    /// Where the reference's own row chooses another token than its answer has, two are nearly tied.
    #[test]
    fn a_near_tie_is_no_difference() {
        let mut records = answers(&[(6, 4), (6, 3)]);
        records[2].ref_top = 8;
        records[4].ref_top = 8;
        let tied = of(&records);
        assert_eq!(curve(&tied), [(0, 1.0), (1, 1.0), (4, 0.5)]);
        assert_eq!((tied.n_answers, tied.n_identical), (2, 0));
        assert_eq!(tied.share_identical.value, 0.0);
    }

    #[test]
    fn only_greedy_answers_count() {
        let mut records = answers(&[(6, 4), (6, 9)]);
        for record in &mut records[..6] {
            record.flags = 0;
        }
        let of_one = of(&records);
        assert_eq!((of_one.n_answers, of_one.n_identical), (1, 1));
        for record in &mut records {
            record.flags = 0;
        }
        assert_eq!(
            summary(&records, ClusterRule::Window).identical_output,
            None
        );
        assert_eq!(summary(&[], ClusterRule::Window).identical_output, None);
    }

    #[test]
    fn all_the_same_all_different_and_a_single_answer() {
        let same = of(&answers(&[(5, 9); 40]));
        assert_eq!(curve(&same), [(0, 1.0), (1, 1.0), (5, 1.0)]);
        assert_eq!((same.median_tokens, same.median_lo), (None, None));
        assert_eq!((same.n_identical, same.share_identical.value), (40, 1.0));
        assert!(same.curve[2].lo.unwrap() > 0.9);
        let different = of(&answers(&[(5, 0); 40]));
        assert_eq!(curve(&different), [(0, 1.0), (1, 0.0)]);
        let median = (
            different.median_lo,
            different.median_tokens,
            different.median_hi,
        );
        assert_eq!(median, (Some(0), Some(0), Some(0)));
        assert!(different.curve[1].hi.unwrap() < 0.1);
        let single = of(&answers(&[(5, 3)]));
        assert_eq!(curve(&single), [(0, 1.0), (1, 1.0), (4, 0.0)]);
        assert_eq!((single.median_tokens, single.median_hi), (Some(3), None));
        assert!(single.curve[1..].iter().all(|point| point.lo.is_none()));
    }

    /// Of 300 answers another one differs at each token.
    #[test]
    fn a_long_curve_has_few_points_and_an_exact_median() {
        let each: Vec<(u32, u32)> = (0..300).map(|i| (300, i)).collect();
        let long = of(&answers(&each));
        assert!(long.curve.len() <= CURVE_POINTS + 2);
        for pair in long.curve.windows(2) {
            assert!(pair[0].tokens < pair[1].tokens && pair[0].share >= pair[1].share);
        }
        assert_eq!(curve(&long).last(), Some(&(300, 0.0)));
        // Half of 0, 1, .. 299.
        assert_eq!(long.median_tokens, Some(149));
        // The k for which scipy's Jeffreys interval of k in 300 samples holds one half, but for t.
        assert_eq!((long.median_lo, long.median_hi), (Some(132), Some(167)));
    }

    /// Answers of a conversation are alike, so that half as many tell half as much.
    #[test]
    fn answers_in_a_block_count_as_one() {
        let each: Vec<(u32, u32)> = (0..40).map(|i| (30, i / 4 * 2 + 3)).collect();
        let records = answers(&each);
        let by = |rule| summary(&records, rule).identical_output.unwrap();
        let (by_window, by_block) = (by(ClusterRule::Window), by(ClusterRule::Block));
        assert_eq!(curve(&by_window), curve(&by_block));
        let width = |of: &IdenticalOutput| {
            let middle = of.curve[of.curve.len() / 2];
            middle.hi.unwrap() - middle.lo.unwrap()
        };
        assert!(width(&by_block) > 1.5 * width(&by_window));
        assert!(by_block.median_lo < by_window.median_lo);
        assert!(by_block.median_hi > by_window.median_hi);
    }

    #[test]
    fn the_json_has_these_keys() {
        let statistics: Statistics =
            crate::stats::oracle::statistics(&answers(&[(2, 1), (2, 9)]), &[], ClusterRule::Window);
        let json = serde_json::to_value(statistics.summary).unwrap();
        let json = &json["identical_output"];
        assert_eq!(json["median_tokens"], 1);
        assert_eq!(json["median_hi"], serde_json::Value::Null);
        assert_eq!(json["curve"][2]["tokens"], 2);
        assert_eq!(json["curve"][2]["share"], 0.5);
    }
}
