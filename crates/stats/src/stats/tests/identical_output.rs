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
