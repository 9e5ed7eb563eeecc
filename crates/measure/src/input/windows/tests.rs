//! Windows, samples and parts of plans.

use super::*;

fn plan(
    tokens: &[u32],
    n_ctx: u32,
    bos: Option<u32>,
    score: ScoreFrom,
    max_rows: Option<u64>,
) -> Plan {
    let source = Source {
        n_ctx: Some(n_ctx),
        score: Some(score),
        ..Source::default()
    };
    Plan::cut(tokens, &source, bos).limited(max_rows)
}

fn text(n: u32) -> Vec<u32> {
    (100..100 + n).collect()
}

#[test]
fn a_bos_is_inserted_and_no_token_is_lost() {
    let plan = plan(&text(7), 4, Some(1), ScoreFrom::All, None);
    let tokens: Vec<_> = plan.windows.iter().map(|w| w.tokens.clone()).collect();
    assert_eq!(
        tokens,
        [vec![1, 100, 101, 102], vec![1, 103, 104, 105], vec![1, 106]]
    );
    assert_eq!((plan.n_rows(), plan.seed), (10, None));
}

#[test]
fn windows_too_short_for_a_scored_position_are_counted() {
    use ScoreFrom::{All, Half, Text};
    for (n, bos, score, rows, n_unscored) in [
        (7, Some(1), Text, &[(1, 3), (1, 3), (1, 1)][..], 0),
        (7, None, Text, &[(0, 4), (0, 3)], 0),
        (7, None, All, &[(0, 4), (0, 3)], 0),
        (9, None, Half, &[(2, 2), (2, 2)], 1),
    ] {
        let plan = plan(&text(n), 4, bos, score, None);
        let found = plan.windows.iter().map(|w| (w.first_scored, w.n_rows));
        assert_eq!(found.collect::<Vec<_>>(), rows, "{score:?}");
        assert_eq!(plan.n_unscored, n_unscored);
    }
}

#[test]
fn windows_overlap_by_what_the_stride_leaves_and_new_scores_each_token_once() {
    for (n, n_ctx, bos) in [
        (50, 10, Some(1)),
        (47, 10, None),
        (9, 10, None),
        (10, 10, Some(1)),
    ] {
        for stride in 1..=n_ctx - u32::from(bos.is_some()) {
            let mut source = Source {
                n_ctx: Some(n_ctx),
                stride: Some(stride),
                score: Some(ScoreFrom::New),
                ..Source::default()
            };
            let plan = Plan::cut(&text(n), &source, bos);
            let last_seen = plan.windows.iter().flat_map(|window| {
                let scored = window.first_scored..window.first_scored + window.n_rows;
                scored.map(|position| window.tokens[position as usize])
            });
            let expected: Vec<u32> = bos.into_iter().chain(text(n)).collect();
            assert_eq!(last_seen.collect::<Vec<_>>(), expected, "{n} {stride}");
            for pair in plan.windows.windows(2) {
                let start = usize::from(bos.is_some());
                assert_eq!(pair[1].tokens[start], pair[0].tokens[start] + stride);
                assert_eq!(pair[0].tokens.len() as u32, n_ctx);
            }
            (source.score, source.max_windows) = (Some(ScoreFrom::All), Some(2));
            let all = Plan::cut(&text(n), &source, bos);
            assert!(all.windows.len() <= 2);
            assert!(
                all.windows
                    .iter()
                    .all(|w| w.n_rows as usize == w.tokens.len())
            );
        }
    }
}

#[test]
fn a_limit_takes_a_seeded_sample_of_exactly_that_many_rows() {
    let plan = plan(&text(1000), 10, None, ScoreFrom::All, Some(25));
    assert_eq!((plan.n_rows(), plan.seed), (25, Some(DEFAULT_SEED)));
    let numbers: Vec<_> = plan.windows.iter().map(|w| w.window).collect();
    assert!(numbers.len() == 3 && numbers != [0, 1, 2], "{numbers:?}");
    let last = plan.windows.last().unwrap();
    // The token after the last row stays.
    assert_eq!((last.n_rows, last.tokens.len()), (5, 6));
    let whole = super::tests::plan(&text(50), 10, None, ScoreFrom::All, None);
    for beyond in [50, u64::MAX] {
        assert_eq!(whole.clone().limited(Some(beyond)), whole);
    }
}

#[test]
fn every_part_knows_the_first_windows_of_the_whole() {
    let all = plan(&text(60), 11, Some(99), ScoreFrom::Text, None);
    assert_eq!(all.windows.len(), 6);
    for (n_rows, n) in [(0, 0), (1, 1), (10, 1), (11, 2), (60, 6), (900, 6)] {
        assert_eq!(all.first(n_rows), &all.windows[..n], "{n_rows}");
        let mut part = all.clone();
        part.keep(Some("1/4".parse().unwrap()));
        assert_eq!(part.whole(), all.windows);
        assert_eq!(part.first(n_rows), &all.windows[..n], "{n_rows}");
        assert!(part.windows.iter().map(|window| window.window).eq([1, 5]));
    }
}

#[test]
fn chunks_are_llama_perplexitys() {
    let stream = [&[1][..], &text(9)].concat();
    let plan = Plan::chunks(&stream, 4, Some(1));
    let tokens: Vec<_> = plan.windows.iter().map(|w| w.tokens.clone()).collect();
    assert_eq!(
        tokens,
        [[1, 100, 101, 102], [1, 104, 105, 106]],
        "a BOS in place of token 103, and the last two tokens left out"
    );
    assert!(
        plan.windows
            .iter()
            .all(|w| (w.first_scored, w.n_rows) == (2, 1))
    );
    let plan = Plan::chunks(&text(8), 4, None);
    assert_eq!(plan.windows[1].tokens, [104, 105, 106, 107]);
}

#[test]
fn the_first_windows_need_no_more_than_their_own_tokens() {
    let all = text(100);
    for bos in [None, Some(1)] {
        for (max, stride) in [(1, None), (3, None), (3, Some(4)), (4, Some(1))] {
            let source = Source {
                n_ctx: Some(8),
                max_windows: Some(max),
                stride,
                ..Source::default()
            };
            let n = tokens_needed(&source, bos);
            let whole = Plan::cut(&all, &source, bos);
            assert_eq!(Plan::cut(&all[..n], &source, bos), whole);
            assert_eq!(whole.windows.len(), max as usize);
            // One fewer is too few.
            assert_ne!(Plan::cut(&all[..n - 1], &source, bos), whole);
        }
    }
    assert_eq!(tokens_needed(&Source::default(), None), usize::MAX);
}
