//! Identical output: how many of a model's own greedy answers are the reference's, and up to which token.
//!
//! Where the reference's model answered greedily, its record shows whether the evaluated model would
//! have chosen the same token. Both have seen the same text up to there, so the first token that
//! differs is the first at which the evaluated model's own greedy answer does.

use serde::Serialize;

use super::cluster::Cluster;
use super::clustered::Share;
use super::clusters::Clusters;
use super::columns::{Answer, Answers};
use super::estimate::{Confidence, Estimate};

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
    /// The share of answers that are still the same after so many tokens: points at 0 and 1, where it
    /// falls (at most 200 of them), and at `cut_at`, or the end of the longest answer.
    pub curve: Vec<SharePoint>,
}

/// A point of the curve of identical output.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct SharePoint {
    /// A number of tokens, from the answer's first.
    pub tokens: u32,
    /// The share of answers that do not differ within so many tokens.
    pub share: f64,
    /// The lower end of the share's interval; null with fewer than two clusters.
    pub lo: Option<f64>,
    /// The upper end of the share's interval; null with fewer than two clusters.
    pub hi: Option<f64>,
}

impl IdenticalOutput {
    /// Counts the greedy answers, by the clusters of their windows; `None` without any.
    pub(super) fn of(
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
        let of_answers = counted.iter().map(|of| clusters.of_window(of.window));
        let of_answers: Vec<Cluster> = of_answers.collect();
        // Without answers, no share is defined.
        let share = |tokens: u32| {
            let is_same = |of: &&Answer| of.differs_at.is_none_or(|at| at > tokens);
            let is_same: Vec<bool> = counted.iter().map(is_same).collect();
            Some(Share::of(&of_answers, &is_same, confidence)?.estimate)
        };
        let mut differ_at: Vec<u32> = counted.iter().filter_map(|of| of.differs_at).collect();
        differ_at.sort_unstable();
        let ended = counted
            .iter()
            .filter(|of| of.differs_at.is_none() && of.has_ended);
        Some(Self {
            n_answers: counted.len() as u64,
            n_near_ties,
            n_unknown,
            n_cut_short,
            cut_at: answers.iter().any(|of| is_cut(&of)).then_some(longest),
            n_differ: differ_at.len() as u64,
            half_differ_within: differ_at
                .get(differ_at.len().saturating_sub(1) / 2)
                .copied(),
            n_ended: ended.count() as u64,
            same_to_the_end: share(longest),
            curve: curve(&differ_at, longest, share),
        })
    }

    /// The number of answers that are the same up to [`Self::cut_at`], and that go on.
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
    let point = |(tokens, of): (u32, Estimate)| SharePoint {
        tokens,
        share: of.value,
        lo: of.lo,
        hi: of.hi,
    };
    points.map(point).collect()
}

#[cfg(test)]
mod tests {
    use kl_formats::TokenRecord;

    use super::*;
    use crate::stats::ClusterRule;
    use crate::stats::oracle::{Lcg, summary};

    const N_PROMPT: u32 = 3;

    /// A greedy answer of a made-up reference.
    #[derive(Clone, Copy)]
    struct MadeUp {
        n_tokens: u32,
        /// The number of the first token that differs; beyond the end, none does.
        differs_at: u32,
        has_ended: bool,
    }

    /// Answers that the model ended, of so many tokens, of which the first that differs has this number.
    fn ended(of: &[(u32, u32)]) -> Vec<MadeUp> {
        let answer = |&(n_tokens, differs_at)| MadeUp {
            n_tokens,
            differs_at,
            has_ended: true,
        };
        of.iter().map(answer).collect()
    }

    /// The same answers, cut at so many tokens.
    fn cut(answers: &[MadeUp], at: u32) -> Vec<MadeUp> {
        let answer = |of: &MadeUp| MadeUp {
            n_tokens: of.n_tokens.min(at),
            has_ended: of.n_tokens <= at,
            ..*of
        };
        answers.iter().map(answer).collect()
    }

    fn records(answers: &[MadeUp]) -> Vec<TokenRecord> {
        let record = |window: u32, of: &MadeUp, i: u32| {
            let ends = of.has_ended && i == of.n_tokens;
            TokenRecord {
                window,
                position: N_PROMPT - 2 + i,
                token: 7,
                ref_top: 7,
                eval_top: if i == of.differs_at { 8 } else { 7 },
                flags: TokenRecord::NEXT_IS_GREEDY
                    | if ends {
                        TokenRecord::NEXT_ENDS_ANSWER
                    } else {
                        0
                    },
                ref_top_rank: 1,
                eval_top_rank: 1,
                ..TokenRecord::default()
            }
        };
        let windows = (0..).zip(answers);
        let records =
            windows.flat_map(|(window, of)| (1..=of.n_tokens).map(move |i| record(window, of, i)));
        records.collect()
    }

    fn measured(records: &[TokenRecord]) -> IdenticalOutput {
        summary(records, ClusterRule::Window)
            .identical_output
            .unwrap()
    }

    fn of(answers: &[MadeUp]) -> IdenticalOutput {
        measured(&records(answers))
    }

    fn curve(of: &IdenticalOutput) -> Vec<(u32, f64)> {
        let points = of.curve.iter();
        points.map(|point| (point.tokens, point.share)).collect()
    }

    /// The share that is still the same after so many tokens.
    fn share_after(of: &IdenticalOutput, tokens: u32) -> f64 {
        let point = of.curve.iter().rfind(|point| point.tokens <= tokens);
        point.unwrap().share
    }

    /// By hand: of 4 answers one differs at its first token and one at its third; one ends alike after two.
    #[test]
    fn an_answer_that_ends_alike_stays_the_same() {
        let answers = ended(&[(6, 3), (5, 1), (2, 9), (8, 9)]);
        let whole = of(&answers);
        assert_eq!(curve(&whole), [(0, 1.0), (1, 0.75), (3, 0.5), (8, 0.5)]);
        assert_eq!((whole.n_answers, whole.n_differ, whole.n_ended), (4, 2, 2));
        assert_eq!((whole.cut_at, whole.half_differ_within), (None, Some(1)));
        let [start, .., last] = whole.curve[..] else {
            panic!()
        };
        assert_eq!((start.lo, start.hi), (Some(1.0), Some(1.0)));
        let same = whole.same_to_the_end.unwrap();
        assert_eq!((same.value, same.lo, same.hi), (0.5, last.lo, last.hi));
        // Only the last answer is open after 4 tokens.
        let part = of(&cut(&answers, 4));
        assert_eq!(curve(&part), [(0, 1.0), (1, 0.75), (3, 0.5), (4, 0.5)]);
        assert_eq!((part.cut_at, part.n_ended, part.n_cut()), (Some(4), 1, 1));
    }

    /// 244 answers, and the same ones cut at 16, 64 and 192 tokens: what is stated of one cut is true of
    /// all of them.
    #[test]
    fn cuts_of_the_same_answers_agree() {
        let mut random = Lcg::new(244);
        let mut answer = || MadeUp {
            n_tokens: 4 + (300.0 * random.uniform().powi(2)) as u32,
            differs_at: (8.0 / (random.uniform() + 1e-3)) as u32,
            has_ended: true,
        };
        let answers: Vec<MadeUp> = (0..244).map(|_| answer()).collect();
        let whole = of(&answers);
        assert!(whole.n_differ > 60 && whole.n_ended > 60);
        for at in [16, 64, 192] {
            let part = of(&cut(&answers, at));
            assert_eq!((part.n_answers, part.cut_at), (244, Some(at)));
            for tokens in 0..=at {
                assert_eq!(share_after(&part, tokens), share_after(&whole, tokens));
            }
            assert_eq!(part.same_to_the_end.unwrap().value, share_after(&whole, at));
            assert!(part.n_ended <= whole.n_ended && part.n_ended + part.n_cut() >= whole.n_ended);
            let differ = |tokens| 244.0 * (1.0 - share_after(&whole, tokens));
            let half = part.half_differ_within.unwrap();
            assert_eq!(differ(at).round() as u64, part.n_differ);
            assert!(2.0 * differ(half) >= differ(at) && 2.0 * differ(half - 1) < differ(at));
        }
    }

    #[test]
    fn tokens_after_the_first_that_differs_do_not_matter() {
        let answers = ended(&[(6, 3), (6, 9)]);
        let mut records = records(&answers);
        for record in &mut records[3..6] {
            (record.eval_top, record.kld) = (99, f64::NAN);
        }
        assert_eq!(measured(&records), of(&answers));
    }

    /// A row that is not finite or not there leaves open what the model would have answered.
    #[test]
    fn an_answer_that_cannot_be_followed_is_left_out() {
        let mut records = records(&ended(&[(6, 5), (6, 9)]));
        records[2].flags |= TokenRecord::EVAL_NOT_FINITE;
        let lost = measured(&records);
        assert_eq!((lost.n_answers, lost.n_unknown, lost.n_ended), (1, 1, 1));
        records.remove(2);
        assert_eq!(measured(&records), lost);
    }

    /// Where the reference's own row chooses another token than its answer has, two are nearly tied: the
    /// answer is left out, whether the model agrees there, differs there, or has differed before.
    #[test]
    fn an_answer_with_a_near_tie_is_left_out() {
        let mut records = records(&ended(&[(6, 9), (6, 2), (6, 1), (6, 9), (6, 4)]));
        for answer in 0..3 {
            records[6 * answer + 1].ref_top = 8;
        }
        let tied = measured(&records);
        assert_eq!((tied.n_answers, tied.n_near_ties), (2, 3));
        assert_eq!((tied.n_left_out(), tied.n_differ, tied.n_ended), (3, 1, 1));
        records.iter_mut().for_each(|record| record.ref_top = 8);
        let all = measured(&records);
        assert_eq!((all.n_answers, all.same_to_the_end), (0, None));
    }

    /// By `-n`, or by the end of a window.
    #[test]
    fn an_answer_that_is_cut_before_others_is_left_out() {
        let mut answers = ended(&[(6, 9), (8, 9), (4, 9), (3, 2)]);
        for answer in &mut answers[1..] {
            answer.has_ended = false;
        }
        let of_cut = of(&answers);
        assert_eq!((of_cut.n_answers, of_cut.n_cut_short), (2, 2));
        assert_eq!((of_cut.cut_at, of_cut.n_cut()), (Some(8), 1));
        // None but such ones were cut.
        answers[1].has_ended = true;
        assert_eq!((of(&answers).cut_at, of(&answers).n_ended), (None, 2));
    }

    #[test]
    fn only_greedy_answers_count() {
        let mut records = records(&ended(&[(6, 4), (6, 9)]));
        for record in &mut records[..6] {
            record.flags = 0;
        }
        let of_one = measured(&records);
        assert_eq!((of_one.n_answers, of_one.n_ended), (1, 1));
        assert!(of_one.curve[1..].iter().all(|point| point.lo.is_none()));
        for record in &mut records {
            record.flags = 0;
        }
        let summary = |records| summary(records, ClusterRule::Window).identical_output;
        assert_eq!((summary(&records), summary(&[])), (None, None));
    }

    /// Of 300 answers another one differs at each token.
    #[test]
    fn a_long_curve_has_few_points_and_an_exact_median() {
        let each: Vec<(u32, u32)> = (1..=300).map(|i| (300, i)).collect();
        let long = of(&ended(&each));
        assert!(long.curve.len() <= CURVE_POINTS + 2);
        for (tokens, share) in curve(&long) {
            assert_eq!(share, f64::from(300 - tokens) / 300.0);
        }
        assert_eq!(curve(&long).last(), Some(&(300, 0.0)));
        assert_eq!(long.half_differ_within, Some(150));
    }

    /// Answers of a conversation are alike, so that half as many tell half as much.
    #[test]
    fn answers_in_a_block_count_as_one() {
        let each: Vec<(u32, u32)> = (0..40).map(|i| (30, i / 4 * 2 + 3)).collect();
        let records = records(&ended(&each));
        let by = |rule| summary(&records, rule).identical_output.unwrap();
        let (by_window, by_block) = (by(ClusterRule::Window), by(ClusterRule::Block));
        assert_eq!(curve(&by_window), curve(&by_block));
        let width = |of: &IdenticalOutput| {
            let middle = of.curve[of.curve.len() / 2];
            middle.hi.unwrap() - middle.lo.unwrap()
        };
        assert!(width(&by_block) > 1.5 * width(&by_window));
    }
}
