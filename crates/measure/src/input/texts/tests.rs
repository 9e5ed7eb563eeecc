//! Texts of groups, cut into windows.

use std::fs;

use kl_engine::{Engine as _, FakeEngine, ModelOptions};

use super::*;
use crate::input::{NamedText, ScoreFrom};

fn source(folder: &tempfile::TempDir) -> Source {
    let texts = [("wiki", "a", 20), ("code", "b", 5), ("wiki", "c", 9)];
    let texts = texts.map(|(group, name, n_tokens)| {
        let path = folder.path().join(name);
        fs::write(&path, name.repeat(n_tokens)).unwrap();
        let group = Some(group.to_owned());
        NamedText { group, path }
    });
    Source {
        texts: texts.into(),
        n_ctx: Some(8),
        ..Source::default()
    }
}

fn prepared(source: &Source, max_rows: Option<u64>) -> PreparedInput {
    let path = &source.texts[0].path;
    let engine = FakeEngine::default();
    let model = engine.load(path, &ModelOptions::default()).unwrap();
    let raw = RawInput::read(source, &mut Vec::new()).unwrap();
    let selection = Selection {
        max_rows,
        ..Selection::default()
    };
    plan(raw, &*model, &selection).unwrap()
}

/// Each window's number, the one text that its tokens come from, and how many there are.
fn windows(input: &PreparedInput) -> Vec<(u32, char, usize)> {
    let windows = input.plan.windows.iter().map(|window| {
        let letter = window.tokens[1];
        assert!(window.tokens[1..].iter().all(|&token| token == letter));
        let letter = char::from_u32(letter).unwrap();
        (window.window, letter, window.tokens.len() - 1)
    });
    windows.collect()
}

#[test]
fn no_window_holds_parts_of_two_texts() {
    let folder = tempfile::tempdir().unwrap();
    let input = prepared(&source(&folder), None);
    let expected = [
        (0, 'a', 7),
        (1, 'a', 7),
        (2, 'a', 6),
        (3, 'b', 5),
        (4, 'c', 7),
        (5, 'c', 2),
    ];
    assert_eq!(windows(&input), expected);
    let groups = input.groups.unwrap();
    assert_eq!(groups.names(), ["wiki", "code"]);
    assert_eq!(groups.window_groups(), [(0, 3), (1, 1), (0, 2)]);
}

#[test]
fn limits_are_of_each_text_and_a_stride_too() {
    let folder = tempfile::tempdir().unwrap();
    let first = Source {
        max_windows: Some(1),
        ..source(&folder)
    };
    let input = prepared(&first, None);
    assert_eq!(windows(&input), [(0, 'a', 7), (1, 'b', 5), (2, 'c', 7)]);
    let overlapping = Source {
        stride: Some(4),
        score: Some(ScoreFrom::New),
        ..source(&folder)
    };
    let input = prepared(&overlapping, None);
    // The first window of each text is scored from its start: nothing has scored it before.
    let from_the_start = input.plan.windows.iter().filter(|w| w.first_scored == 0);
    assert_eq!(
        from_the_start.map(|w| w.window).collect::<Vec<_>>(),
        [0, 5, 6]
    );
    let n_scored: u64 = input.plan.windows.iter().map(|w| u64::from(w.n_rows)).sum();
    assert!(n_scored >= 34, "{n_scored}");
}

#[test]
fn a_sample_is_of_all_texts_and_windows_keep_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let all = prepared(&source(&folder), None);
    let some = prepared(&source(&folder), Some(20));
    assert!(some.plan.seed.is_some());
    assert_eq!(some.groups, all.groups);
    for window in windows(&some) {
        assert!(windows(&all).contains(&window), "{window:?}");
    }
}

#[test]
fn texts_are_identified_together() {
    let folder = tempfile::tempdir().unwrap();
    let input = prepared(&source(&folder), None);
    let text = input.provenance.text.unwrap();
    assert_eq!(text.name.as_deref(), Some("wiki=a, code=b, wiki=c"));
    assert_eq!((text.bytes, text.n_tokens), (Some(34), Some(34)));
    let hash = |bytes: &str| hex(&Sha256::digest(bytes));
    let lines = format!(
        "{}  wiki\n{}  code\n{}  wiki\n",
        hash(&"a".repeat(20)),
        hash(&"b".repeat(5)),
        hash(&"c".repeat(9))
    );
    assert_eq!(text.sha256, Some(hash(&lines)));
    let texts = input.provenance.texts;
    let n_tokens = texts.iter().map(|text| text.n_tokens);
    assert_eq!(n_tokens.collect::<Vec<_>>(), [20, 5, 9].map(Some));
}

#[test]
fn of_a_text_whose_first_windows_are_wanted_the_rest_is_not_tokenized() {
    let folder = tempfile::tempdir().unwrap();
    let mut source = source(&folder);
    source.max_windows = Some(1);
    let input = prepared(&source, None);
    let expected = [(0, 'a', 7), (1, 'b', 5), (2, 'c', 7)];
    assert_eq!(windows(&input), expected);
    // Nobody has counted all tokens of the longer ones.
    let counted = input.provenance.texts.iter().map(|text| text.n_tokens);
    assert_eq!(counted.collect::<Vec<_>>(), [None, Some(5), Some(9)]);
    assert_eq!(input.provenance.text.unwrap().n_tokens, None);
}
