//! The reader in LOGITS.md computes rows from hidden states and a head of any type.

use std::process::Command;

use half::{bf16, f16};

use super::*;

/// Numbers in a state: a block of q8_0.
const N_EMBD: usize = 32;

/// Entries of a row.
const N_VOCAB: usize = 5;

/// A number of few bits, so that every type holds it exactly.
fn number(i: usize) -> f32 {
    (i * 37 % 61) as f32 / 8.0 - 3.5
}

/// A head's type: ggml's name and number, and how a row of it is written.
type HeadType = (&'static str, u32, fn(&[f32]) -> Vec<u8>);

const HEADS: [HeadType; 4] = [
    ("f32", 0, |row| each(row, |x| x.to_le_bytes())),
    ("f16", 1, |row| {
        each(row, |x| f16::from_f32(x).to_le_bytes())
    }),
    ("bf16", 30, |row| {
        each(row, |x| bf16::from_f32(x).to_le_bytes())
    }),
    // A scale, in f16, and what it is multiplied with (block_q8_0 in ggml-common.h).
    ("q8_0", 8, |row| {
        let quants = row.iter().map(|x| (x * 8.0) as i8 as u8);
        f16::from_f32(0.125)
            .to_le_bytes()
            .into_iter()
            .chain(quants)
            .collect()
    }),
];

fn each<const N: usize>(row: &[f32], of: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    row.iter().flat_map(|&x| of(x)).collect()
}

/// Every kind of step, and the values of those that have any.
fn steps() -> Vec<(HeadStep, Vec<f32>)> {
    let values = |n: usize| (0..n).map(|i| number(i + 3)).collect::<Vec<f32>>();
    let n_vocab = N_VOCAB as u32;
    vec![
        (
            HeadStep::Scale {
                factor: 0.1,
                bias: 0.25,
            },
            vec![],
        ),
        (HeadStep::Mul { n_values: n_vocab }, values(N_VOCAB)),
        (HeadStep::Tanh, vec![]),
        (HeadStep::Add { n_values: n_vocab }, values(N_VOCAB)),
        (HeadStep::Mul { n_values: 1 }, vec![30.0]),
        (HeadStep::Add { n_values: 1 }, vec![-1.5]),
    ]
}

fn state(window: u32, i: u32) -> [f32; N_EMBD] {
    std::array::from_fn(|k| number(k * 5 + 7 * i as usize + 11 * window as usize))
}

/// A row, computed in f64.
fn row(head: &[Vec<f32>], state: &[f32]) -> Vec<f32> {
    let of_entry = |(t, line): (usize, &Vec<f32>)| {
        let products = line
            .iter()
            .zip(state)
            .map(|(a, b)| f64::from(*a) * f64::from(*b));
        let apply = |x: f64, (step, values): (HeadStep, Vec<f32>)| {
            let value = || f64::from(values[t % values.len()]);
            match step {
                HeadStep::Scale { factor, bias } => x * f64::from(factor) + f64::from(bias),
                HeadStep::Tanh => x.tanh(),
                HeadStep::Add { .. } => x + value(),
                HeadStep::Mul { .. } => x * value(),
            }
        };
        steps().into_iter().fold(products.sum(), apply) as f32
    };
    head.iter().enumerate().map(of_entry).collect()
}

/// A reference of hidden states of this type, with this head.
fn write(state_type: Float, head_type: HeadType, head: &[Vec<f32>]) -> tempfile::NamedTempFile {
    let (_, type_id, encode) = head_type;
    let tensor: Vec<u8> = head.iter().flat_map(|line| encode(line)).collect();
    let mut about = common::about(Kind::Kl, 3, N_VOCAB as u32);
    let mut states = common::states(N_EMBD as u32, state_type, type_id, &tensor);
    states.then = steps().into_iter().map(|(step, _)| step).collect();
    states.calls.is_equal = type_id == 1;
    about.states = Some(states);
    let target = Target::new(Kind::Kl, Some(Encoding::Hidden)).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let windows = windows();
    let path = file.path().to_owned();
    let mut writer = Writer::create(file, &path, target, &about, &windows).unwrap();
    let values = steps()
        .into_iter()
        .flat_map(|(_, values)| each(&values, f32::to_le_bytes));
    let section: Vec<u8> = tensor.into_iter().chain(values).collect();
    let check_row = row(head, &state(1, 1));
    writer.write_head(&section[..], &[check_row]).unwrap();
    for window in &windows {
        let states = (0..window.n_rows).map(|i| state(window.window, i));
        writer.write_window(window, states).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn the_reader_in_logits_md_computes_rows_from_hidden_states() {
    let script = logits_md() + "\nprint([row.shape for row in check_rows])\n";
    let has_gguf = Command::new("python3").args(["-c", "import gguf"]).output();
    let has_gguf = has_gguf.is_ok_and(|out| out.status.success());
    let lines = |t: usize| (0..N_EMBD).map(|k| number(t * 3 + k * k)).collect();
    let head: Vec<Vec<f32>> = (0..N_VOCAB).map(lines).collect();
    let expected = expected_of(|window, i| row(&head, &state(window, i)));
    for (i, head_type) in HEADS.into_iter().enumerate() {
        if head_type.1 == 8 && !has_gguf {
            eprintln!("no gguf package here: a quantized head is not checked");
            continue;
        }
        let state_type = [Float::F32, Float::F16, Float::Bf16][i % 3];
        let file = write(state_type, head_type, &head);
        if let Some(printed) = python(&script, file.path()) {
            assert_eq!(printed, format!("{expected}[(5,)]\n"), "{}", head_type.0);
        }
    }
}
