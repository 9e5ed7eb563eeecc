//! A head without a model, against sums in f64.

use std::io::Cursor;

use kl_formats::{Calls, Float, HeadCheck, HeadStep, HeadTensor, States};

use super::{ENGINE, bits, hush};
use crate::{Engine, EngineError};

const N_EMBD: usize = 256;

/// Numbers between -1 and 1.
fn numbers(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn states(n_vocab: usize, then: Vec<HeadStep>) -> States {
    States {
        n_embd: N_EMBD as u32,
        state_type: Float::F32,
        head: HeadTensor {
            name: "output.weight".to_owned(),
            type_name: "f32".to_owned(),
            type_id: 0,
            bytes: (4 * N_EMBD * n_vocab) as u64,
            sha256: String::new(),
        },
        then,
        calls: Calls::new(1, 1),
        check: HeadCheck::default(),
    }
}

fn close(computed: &[f32], expected: &[f64]) {
    assert_eq!(computed.len(), expected.len());
    for (&computed, &expected) in computed.iter().zip(expected) {
        let error = (f64::from(computed) - expected).abs();
        assert!(error < 1e-4, "{computed} is not {expected}");
    }
}

fn products(head: &[f32], states: &[f32]) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let terms = a.iter().zip(b);
        terms.map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
    };
    let of = |state| head.chunks(N_EMBD).map(move |row| dot(row, state));
    states.chunks(N_EMBD).flat_map(of).collect()
}

/// It is read in three pieces.
#[test]
fn a_large_head_is_the_product() {
    let n_vocab = 34_000;
    let weights = numbers(1, N_EMBD * n_vocab);
    let mut section = Cursor::new(bytes(&weights));
    let mut head = ENGINE
        .load_head(&states(n_vocab, vec![]), &mut section, 1)
        .unwrap();
    assert_eq!(head.device(), "CPU");
    for n in [3, 1, 2, 0] {
        let states = numbers(7, N_EMBD * n);
        close(head.rows(&states).unwrap(), &products(&weights, &states));
    }
}

#[test]
fn steps_follow_the_product() {
    let n_vocab = 40;
    let weights = numbers(1, N_EMBD * n_vocab);
    let (add, mul) = (numbers(2, n_vocab), numbers(3, 1));
    let then = vec![
        HeadStep::Scale {
            factor: 0.25,
            bias: 0.5,
        },
        HeadStep::Tanh,
        HeadStep::Add { n_values: 40 },
        HeadStep::Mul { n_values: 1 },
    ];
    let section = [bytes(&weights), bytes(&add), bytes(&mul)].concat();
    let states_of = states(n_vocab, then);
    let load = |threads| {
        let mut section = Cursor::new(&section);
        ENGINE.load_head(&states_of, &mut section, threads).unwrap()
    };
    let states = numbers(7, N_EMBD * 5);
    let mut expected = products(&weights, &states);
    for (i, logit) in expected.iter_mut().enumerate() {
        let tanh = (*logit * 0.25 + 0.5).tanh();
        *logit = (tanh + f64::from(add[i % n_vocab])) * f64::from(mul[0]);
    }
    let mut head = load(1);
    let rows = head.rows(&states).unwrap();
    close(rows, &expected);
    // The number of threads changes nothing.
    assert_eq!(bits(load(2).rows(&states).unwrap()), bits(rows));
}

#[test]
fn what_does_not_fit_is_an_error() {
    hush();
    let good = states(40, vec![]);
    let section = bytes(&numbers(1, N_EMBD * 40));
    let message = |states: &States, section: &[u8]| {
        let mut section = Cursor::new(section);
        match ENGINE.load_head(states, &mut section, 1) {
            Ok(_) => panic!("was accepted"),
            Err(error) => error.to_string(),
        }
    };
    assert!(message(&good, &section[1..]).contains("failed to fill"));
    let of = |kind: u32, n_bytes: u64| {
        let mut states = good.clone();
        (states.head.type_id, states.head.bytes) = (kind, n_bytes);
        message(&states, &section)
    };
    // An unknown type, one without a product, part of a row, no rows.
    for (kind, n_bytes) in [(4, 40_960), (26, 40_960), (0, 40_959), (0, 0), (14, 209)] {
        assert!(of(kind, n_bytes).contains("do not go together"));
    }
    // More than there is: it is asked for, and refused or never filled.
    let rows = u64::from(i32::MAX as u32) * 1024;
    assert!(of(0, rows).contains("the output head cannot be used"));
    let then = vec![HeadStep::Add { n_values: 40 }];
    assert!(message(&states(40, then), &section).contains("failed to fill"));
    let mut head = ENGINE
        .load_head(&good, &mut Cursor::new(&section), 1)
        .unwrap();
    let error = head.rows(&[0.0; N_EMBD + 1]).unwrap_err();
    assert!(matches!(error, EngineError::Setup(_)));
}
