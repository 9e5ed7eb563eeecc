//! Identical output: how many of a model's own greedy answers are the reference's, and up to which token.
//!
//! Where the reference's model answered greedily, its record shows whether the evaluated model would
//! have chosen the same token. Both have seen the same text up to there, so the first token that
//! differs is the first at which the evaluated model's own greedy answer does.

use kl_formats::TokenRecord;
use serde::Serialize;

use super::clusters::{Clusters, Estimator};
use super::estimate::{Confidence, Estimate};
use super::token::is_counted;

/// The greedy answers of an evaluation, one for each window that has one.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers(Vec<Answer>);

/// A greedy answer of the reference's model, and the first token that the evaluated model would have
/// chosen otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Answer {
    /// Its window.
    window: u32,
    /// The position of the next record, if it is the answer's.
    next_position: u32,
    n_tokens: u32,
    /// The number of the first token that differs, from 1.
    differs_at: Option<u32>,
    /// The reference's model ended it: it was not cut.
    has_ended: bool,
    /// Two tokens are so nearly tied that the reference's own row, computed in another batch or stored in
    /// 16 bits, chooses another one than its answer.
    has_near_tie: bool,
    /// Before any token differs, a row is missing or not finite.
    is_unknown: bool,
}

impl Answers {
    /// Adds a record. Those of a window come in the order of its positions.
    pub fn push(&mut self, record: &TokenRecord) {
        let Some(token) = record.next_token().filter(|_| record.is_greedy()) else {
            return;
        };
        let is_new = |last: &Answer| last.window != record.window;
        if self.0.last().is_none_or(is_new) {
            self.0.push(Answer {
                window: record.window,
                next_position: record.position,
                ..Answer::default()
            });
        }
        let Some(answer) = self.0.last_mut().filter(|answer| !answer.has_ended) else {
            return;
        };
        answer.n_tokens += 1;
        answer.has_ended = record.ends_answer();
        let is_known = record.position == answer.next_position && is_counted(record);
        answer.has_near_tie |= is_known && record.ref_top != token;
        answer.next_position = record.position.saturating_add(1);
        if answer.differs_at.is_none() {
            answer.is_unknown |= !is_known;
            answer.differs_at = (record.eval_top != token).then_some(answer.n_tokens);
        }
    }
}

/// The most points of the curve at which it falls: more would not show in a plot.
const CURVE_POINTS: usize = 200;

/// The greedy answers of the reference's model that are the evaluated model's too, up to each token.
///
/// An answer that both models end alike stays the same for ever. Only one that was cut leaves open what
/// follows, so nothing is stated beyond `cut_at`. Every share is one of `n_answers`.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct IdenticalOutput {
    /// The greedy answers that count: all but those left out, which the next three keys count.
    pub n_answers: u64,
    /// Answers left out because the reference's own row, computed in another batch or stored in 16 bits,
    /// chooses another token than the answer has: two are nearly tied. What the evaluated model chooses
    /// does not matter.
    pub n_near_ties: u64,
    /// Answers left out because a row before the first token that differs is missing or not finite.
    pub n_unknown: u64,
    /// Answers left out because they were cut before `cut_at`: by `-n`, or by the end of their window.
    pub n_cut_short: u64,
    /// The number of tokens at which answers were cut, as by `--generate`; null if none was.
    pub cut_at: Option<u32>,
    /// The number of answers that differ.
    pub n_differ: u64,
    /// The number of tokens within which half of the answers that differ do so: the median of the number
    /// of their first token that differs, the lower of two. Null if none differs.
    pub half_differ_within: Option<u32>,
    /// The number of answers that are the same, and that both models end.
    pub n_ended: u64,
    /// The share of answers that do not differ: the same to the end, or up to `cut_at`. Null without
    /// answers that count.
    pub same_to_the_end: Option<Estimate>,
    /// The share of answers that are still the same after a number of tokens: points at 0 and 1, where
    /// it falls (at most 200 of them), and at `cut_at`, or the end of the longest answer.
    pub curve: Vec<SharePoint>,
}

/// A point of the curve of identical output.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct SharePoint {
    /// A number of tokens, from the answer's first.
    pub tokens: u32,
    /// The share of answers that do not differ within `tokens` tokens.
    pub share: f64,
    /// The lower end of the share's interval; null with fewer than two clusters.
    pub lo: Option<f64>,
    /// The upper end of the share's interval; null with fewer than two clusters.
    pub hi: Option<f64>,
}

impl IdenticalOutput {
    /// Counts the greedy answers, by the clusters of their windows; `None` without any.
    pub(super) fn from_answers(
        answers: &Answers,
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Option<Self> {
        let answers = &answers.0;
        let longest = answers.iter().map(|of| of.n_tokens).max()?;
        let is_cut = |of: &&Answer| !of.has_ended && of.n_tokens == longest;
        let mut left_out = [0; 3];
        let mut counted: Vec<&Answer> = Vec::new();
        for answer in answers {
            // An answer that was cut before others would count only if it differs early.
            let is_cut_short = !answer.has_ended && answer.n_tokens < longest;
            let reasons = [answer.has_near_tie, answer.is_unknown, is_cut_short];
            match reasons.iter().position(|applies| *applies) {
                Some(reason) => left_out[reason] += 1,
                None => counted.push(answer),
            }
        }
        let [n_near_ties, n_unknown, n_cut_short] = left_out;
        let clusters_of_answers = counted
            .iter()
            .map(|answer| clusters.of_window(answer.window));
        let estimator = Estimator::new(clusters_of_answers, confidence);
        // Without answers, no share is defined.
        let share = |tokens: u32| {
            let is_same = |answer: &&Answer| answer.differs_at.is_none_or(|at| at > tokens);
            let hits = counted.iter().map(|answer| Some(is_same(answer)));
            Some(estimator.share(hits)?.estimate)
        };
        let mut differ_at: Vec<u32> = counted
            .iter()
            .filter_map(|answer| answer.differs_at)
            .collect();
        differ_at.sort_unstable();
        let ended = counted
            .iter()
            .filter(|answer| answer.differs_at.is_none() && answer.has_ended);
        Some(Self {
            n_answers: counted.len() as u64,
            n_near_ties,
            n_unknown,
            n_cut_short,
            cut_at: answers
                .iter()
                .any(|answer| is_cut(&answer))
                .then_some(longest),
            n_differ: differ_at.len() as u64,
            half_differ_within: differ_at
                .get(differ_at.len().saturating_sub(1) / 2)
                .copied(),
            n_ended: ended.count() as u64,
            same_to_the_end: share(longest),
            curve: curve(&differ_at, longest, share),
        })
    }

    /// The number of answers that are the same up to [`Self::cut_at`], where they were cut.
    pub fn n_cut(&self) -> u64 {
        self.n_answers - self.n_differ - self.n_ended
    }

    /// The number of answers that are left out.
    pub fn n_left_out(&self) -> u64 {
        self.n_near_ties + self.n_unknown + self.n_cut_short
    }
}

/// The points of the curve, from 0 tokens to the end of the longest answer. `differ_at` ascends.
fn curve(
    differ_at: &[u32],
    longest: u32,
    share: impl Fn(u32) -> Option<Estimate>,
) -> Vec<SharePoint> {
    let mut steps = differ_at.to_vec();
    steps.dedup();
    // The last of each stride, so that the curve ends as low as it gets.
    let strides = steps.chunks(steps.len().div_ceil(CURVE_POINTS).max(1));
    let steps = strides.filter_map(|stride| stride.last().copied());
    let mut tokens: Vec<u32> = [1].into_iter().chain(steps).chain([longest]).collect();
    tokens.dedup();
    let start = Estimate::within(1.0, 1.0, 1.0);
    let points = tokens
        .into_iter()
        .filter_map(|tokens| Some((tokens, share(tokens)?)));
    let points = [(0, start)].into_iter().chain(points);
    let point = |(tokens, share): (u32, Estimate)| SharePoint {
        tokens,
        share: share.value,
        lo: share.lo,
        hi: share.hi,
    };
    points.map(point).collect()
}

#[cfg(test)]
#[path = "tests/identical_output.rs"]
mod tests;
