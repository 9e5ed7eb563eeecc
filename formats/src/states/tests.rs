//! Descriptions of hidden states that contradict themselves.

use super::*;
use crate::testing::states;

/// A change to a description, and a part of the message that refuses it.
type Change = (fn(&mut States), &'static str);

/// Of 6 numbers, for rows of 5 entries, in windows of 8 tokens.
fn fault(change: impl Fn(&mut States)) -> Option<String> {
    let mut states = states(6, 5);
    states.check.rows = vec![CheckRow {
        window: 9,
        position: 7,
    }];
    change(&mut states);
    states.fault(5, 8)
}

#[test]
fn sizes_and_steps_are_checked() {
    assert_eq!(fault(|_| {}), None);
    let changes: [Change; 19] = [
        (|s| s.n_embd = 0, "n_embd"),
        (|s| s.n_embd = MAX_N_EMBD + 1, "n_embd"),
        (|s| s.n_embd = 7, "bytes"),
        (|s| s.calls.n_batch = 0, "n_batch"),
        (|s| s.calls.n_ubatch = 0, "n_ubatch"),
        (|s| s.calls.n_ubatch = s.calls.n_batch + 1, "n_ubatch"),
        (|s| s.head.type_id = 4, "type"),
        (|s| s.head.type_id = 26, "type"),
        (|s| s.head.type_id = u32::MAX, "type"),
        (|s| s.head.type_id = 1, "type"),
        (|s| s.head.type_name = "F32".into(), "type"),
        (|s| s.head.bytes += 1, "bytes"),
        (|s| s.head.name = "x".repeat(2000), "1 KiB"),
        (|s| s.then = vec![HeadStep::Add { n_values: 4 }], "step"),
        (|s| s.then = vec![HeadStep::Mul { n_values: 0 }], "step"),
        (|s| s.then = vec![HeadStep::Tanh; 17], "16 steps"),
        (|s| s.check.mean_kld = f32::NAN, "finite"),
        (|s| s.check.rows[0].position = 8, "n_ctx"),
        (|s| s.check.rows = vec![s.check.rows[0]; 65], "64 rows"),
    ];
    for (change, part) in changes {
        let found = fault(change).unwrap_or_else(|| panic!("{part}"));
        assert!(found.contains(part), "{found} / {part}");
    }
    let scale = |factor, bias| HeadStep::Scale { factor, bias };
    for step in [scale(f32::INFINITY, 0.0), scale(1.0, f32::NAN)] {
        assert!(fault(|s| s.then = vec![step]).is_some());
    }
    for n_values in [1, 5] {
        let steps = [HeadStep::Add { n_values }, HeadStep::Mul { n_values }];
        assert_eq!(fault(|s| s.then = steps.into()), None);
    }
}

#[test]
fn steps_are_written_as_objects_with_their_operation() {
    let steps = [
        HeadStep::Scale {
            factor: 0.0625,
            bias: 0.0,
        },
        HeadStep::Tanh,
        HeadStep::Add { n_values: 5 },
        HeadStep::Mul { n_values: 1 },
    ];
    let json = r#"[{"op":"scale","factor":0.0625,"bias":0.0},{"op":"tanh"},{"op":"add","n_values":5},{"op":"mul","n_values":1}]"#;
    assert_eq!(serde_json::to_string(&steps).unwrap(), json);
    assert_eq!(serde_json::from_str::<[HeadStep; 4]>(json).unwrap(), steps);
}

/// The batches of a window of `first_scored + n_rows` positions.
fn batches(calls: Calls, first_scored: u32, n_rows: u32) -> Vec<Range<u32>> {
    let states = States {
        calls,
        ..states(2, 3)
    };
    let window = WindowEntry {
        window: 0,
        n_tokens: first_scored.saturating_add(n_rows),
        n_rows,
        first_scored,
    };
    states.row_batches(&window).collect()
}

#[test]
fn batches_are_those_that_computed_the_rows() {
    let calls = Calls::new(5, 3);
    assert_eq!(batches(calls, 0, 10), [0..3, 3..5, 5..8, 8..10]);
    assert_eq!(batches(calls, 1, 9), [0..2, 2..4, 4..7, 7..9]);
    let most = u32::MAX;
    assert_eq!(batches(Calls::new(most, 1), 7, 3), [0..1, 1..2, 2..3]);
    let calls = Calls::new(most - 1, most - 1);
    assert_eq!(batches(calls, most, most), [0..most - 2, most - 2..most]);
    // Four calls of 76, 75, 75 and 75.
    let calls = Calls {
        is_equal: true,
        ..Calls::new(100, 100)
    };
    assert_eq!(batches(calls, 100, 201), [0..51, 51..126, 126..201]);
}

proptest::proptest! {
    /// As a loop over the positions finds them.
    #[test]
    fn batches_cover_a_window(
        first_scored in 0u32..40, n_rows in 0u32..40, n_batch in 1u32..20, n_ubatch in 1u32..20
    ) {
        let n_ubatch = n_ubatch.min(n_batch);
        let found = batches(Calls::new(n_batch, n_ubatch), first_scored, n_rows);
        let batch_of = |row: u32| {
            let position = first_scored + row;
            (position / n_batch, position % n_batch / n_ubatch)
        };
        let mut expected: Vec<Range<u32>> = Vec::new();
        for row in 0..n_rows {
            match expected.last_mut() {
                Some(last) if batch_of(last.start) == batch_of(row) => last.end = row + 1,
                _ => expected.push(row..row + 1),
            }
        }
        proptest::prop_assert_eq!(found, expected);
    }
}
