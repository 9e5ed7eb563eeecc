//! The fake keeps the rules that the real engine keeps.

use std::io::Cursor;
use std::path::Path;

use kl_formats::{Calls, Float, GgmlType, Mixture, States, WindowSpec};

use super::{FakeEngine, FakeModel, FakeStates};
use crate::engine::{
    ContextOptions, Decoder, Engine, Exchange, Model, ModelOptions, Quantization, default_calls,
};
use crate::pipeline::LogitSource as _;

const WINDOW_TOKENS: u32 = 23;

fn model(folder: &Path, states: FakeStates) -> FakeModel {
    let engine = FakeEngine {
        states,
        ..FakeEngine::default()
    };
    let path = folder.join("model");
    std::fs::write(&path, "weights").unwrap();
    engine.load(&path, &ModelOptions::default()).unwrap()
}

fn window() -> WindowSpec {
    WindowSpec {
        window: 0,
        tokens: (0..WINDOW_TOKENS).collect(),
        first_scored: 6,
        n_rows: WINDOW_TOKENS - 6,
    }
}

/// The most by which rows computed from states of this type differ from the model's own.
fn largest_error(kind: FakeStates, state_type: Float) -> f32 {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), kind);
    let options = ContextOptions {
        calls: Calls {
            n_batch: 5,
            n_ubatch: 3,
            is_equal: false,
        },
        shows_states: true,
        ..ContextOptions::default()
    };
    let states = States {
        state_type,
        ..model.describe_states(options.calls).unwrap()
    };
    let mut section = model.read_head().unwrap();
    let mut computing = model.load_head(&states, &mut section, 1).unwrap();
    assert!(computing.is_shared());
    let (mut largest, mut groups) = (0.0f32, Vec::new());
    let mut decoder = model.decoder(&options).unwrap();
    let mut start = Some(0);
    while let Some(at) = start {
        let outputs = decoder.decode_call(&window(), at, true).unwrap();
        let mut bytes = vec![0; outputs.states.len() * state_type.bytes()];
        state_type.encode(&outputs.states, &mut bytes);
        let mut stored = vec![0.0; outputs.states.len()];
        state_type.decode(&bytes, &mut stored);
        let rows = outputs.rows.concat();
        let computed = computing.rows(&stored).unwrap();
        let errors = rows.iter().zip(computed).map(|(a, b)| (a - b).abs());
        largest = errors.fold(largest, f32::max);
        groups.extend_from_slice(&outputs.groups);
        start = outputs.next;
    }
    let expected = states.row_batches(&window().entry()).map(|rows| rows.len());
    assert_eq!(groups, expected.collect::<Vec<_>>());
    largest
}

#[test]
fn rows_of_states_are_as_near_as_was_chosen() {
    use Float::{Bf16, F16, F32};
    for state_type in [F32, F16, Bf16] {
        assert_eq!(largest_error(FakeStates::Half, state_type), 0.0);
        let error = largest_error(FakeStates::Never { error: 0.5 }, state_type);
        assert!(error > 0.4 && error <= 0.5, "{error}");
    }
    let single = FakeStates::Single { error: 0.5 };
    assert_eq!(largest_error(single, F32), 0.0);
    assert!(largest_error(single, F16) > 0.4);
}

#[test]
fn states_that_cannot_be_had_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let unknown = model(folder.path(), FakeStates::Unknown);
    let error = unknown
        .describe_states(Calls::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("FAKE") && error.contains("--encoding u16"),
        "{error}"
    );
}

#[test]
fn another_models_head_is_not_shared() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), FakeStates::Half);
    let mut states = model.describe_states(Calls::default()).unwrap();
    states.head.bytes = 64;
    let mut other = model
        .load_head(&states, &mut Cursor::new([0; 64]), 1)
        .unwrap();
    let n_embd = states.n_embd as usize;
    assert!(!other.is_shared() && other.rows(&vec![0.0; n_embd]).unwrap().len() == 2);
    assert!(
        model
            .load_head(&states, &mut Cursor::new([0; 63]), 1)
            .is_err()
    );
}

#[test]
fn calls_are_those_of_the_batch() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), FakeStates::Half);
    let options = ContextOptions {
        calls: Calls {
            n_batch: 5,
            ..Calls::default()
        },
        ..ContextOptions::default()
    };
    let mut decoder = model.decoder(&options).unwrap();
    let mut n_rows = Vec::new();
    decoder
        .decode(&window(), |rows| {
            n_rows.push(rows.len());
            Ok(())
        })
        .unwrap();
    assert_eq!(n_rows, [0, 4, 5, 5, 3]);
    let outputs = decoder.decode_call(&window(), 20, true).unwrap();
    assert_eq!((outputs.next, outputs.rows.len()), (None, 3));
}

/// With fewer tokens ggml's CPU backend computes attention with another kernel.
#[test]
fn no_call_is_below_64_tokens_unless_a_batch_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), FakeStates::Half);
    let n_ctx = 512;
    for n_vocab in [512, 128_256, 152_064, 248_320, 262_144] {
        let calls = default_calls(n_vocab, n_ctx);
        let options = ContextOptions {
            n_ctx,
            calls,
            ..ContextOptions::default()
        };
        let mut decoder = model.decoder(&options).unwrap();
        for n_tokens in (1..=n_ctx).step_by(73) {
            let window = WindowSpec {
                window: 0,
                tokens: vec![1; n_tokens as usize],
                first_scored: 0,
                n_rows: n_tokens,
            };
            let mut lengths = Vec::new();
            let sink = |rows: &[&[f32]]| {
                lengths.push(rows.len() as u32);
                Ok(())
            };
            decoder.decode(&window, sink).unwrap();
            let least = lengths.iter().min().copied().unwrap();
            assert!(least >= n_tokens.min(64), "{n_vocab}: {lengths:?}");
            assert_eq!(lengths.iter().sum::<u32>(), n_tokens);
        }
    }
}

/// The rows of a long window, one after the other.
fn rows(model: &FakeModel) -> Vec<Vec<f32>> {
    let window = WindowSpec {
        window: 0,
        tokens: (0..600).map(|i| i % 97).collect(),
        first_scored: 0,
        n_rows: 600,
    };
    let mut decoder = model.decoder(&ContextOptions::default()).unwrap();
    let mut all = Vec::new();
    decoder
        .decode(&window, |rows| {
            all.extend(rows.iter().map(|row| row.to_vec()));
            Ok(())
        })
        .unwrap();
    all
}

/// The mean KLD of rows against others, in nats.
fn mean_kld(reference: &[Vec<f32>], rows: &[Vec<f32>]) -> f64 {
    let log_probabilities = |row: &[f32]| {
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        let entry = move |&x: &f32| f64::from(x) - sum.ln();
        row.iter().map(entry).collect::<Vec<f64>>()
    };
    let kld = |(p, q): (&Vec<f32>, &Vec<f32>)| -> f64 {
        let (p, q) = (log_probabilities(p), log_probabilities(q));
        p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    reference.iter().zip(rows).map(kld).sum::<f64>() / reference.len() as f64
}

/// A model whose weights can be exchanged.
fn exchangeable(folder: &Path) -> FakeModel {
    let path = folder.join("model");
    std::fs::write(&path, "weights").unwrap();
    let options = ModelOptions {
        is_exchangeable: true,
        ..ModelOptions::default()
    };
    FakeEngine::default().load(&path, &options).unwrap()
}

fn all_at(model: &FakeModel, kind: &str) -> Mixture {
    let names = model.exchangeable().unwrap().into_iter();
    names.map(|name| (name, kind.parse().unwrap())).collect()
}

#[test]
fn exchanged_weights_move_the_rows_by_their_errors() {
    let folder = tempfile::tempdir().unwrap();
    let model = exchangeable(folder.path());
    let original = rows(&model);
    let mut sum = 0.0;
    for (name, kind) in all_at(&model, "q4_0") {
        let kld = |kind: GgmlType| {
            let mixture = Mixture::from([(name.clone(), kind)]);
            model.exchange(&mixture, None).unwrap();
            mean_kld(&original, &rows(&model))
        };
        let other = "q5_1".parse().unwrap();
        let (klds, kinds) = ([kld(kind), kld(other)], [kind, other]);
        let errors = model.weight_errors(&name, &kinds, None, 1).unwrap();
        let predicted = klds[0] * errors[1] / errors[0] / klds[1];
        assert!((0.8..1.25).contains(&predicted), "{name}: {predicted}");
        sum += klds[0];
    }
    model.exchange(&all_at(&model, "q4_0"), None).unwrap();
    let additivity = mean_kld(&original, &rows(&model)) / sum;
    assert!((0.8..1.25).contains(&additivity), "{additivity}");
    model.exchange(&Mixture::new(), None).unwrap();
    assert_eq!(rows(&model), original);
}

#[test]
fn a_quantized_file_has_the_rows_of_the_exchanged_weights_and_the_stated_size() {
    let folder = tempfile::tempdir().unwrap();
    let model = exchangeable(folder.path());
    let mixture = all_at(&model, "q4_1");
    model.exchange(&mixture, None).unwrap();
    let (input, output) = (folder.path().join("model"), folder.path().join("quantized"));
    let engine = FakeEngine::default();
    let quantization = Quantization {
        input: &input,
        output: &output,
        mixture: &mixture,
        imatrix: None,
        threads: 1,
    };
    engine.quantize(&quantization).unwrap();
    let written = engine.load(&output, &ModelOptions::default()).unwrap();
    assert_eq!(rows(&written), rows(&model));
    let blueprint = engine.blueprint(&output, None).unwrap();
    assert!(
        blueprint
            .tensors
            .iter()
            .all(|tensor| tensor.kind.name != "f16")
    );
    // 319,488 elements, 32 of them in 20 bytes, and a norm of f32.
    let bytes = 2048 + 319_488 / 32 * 20 + 256 * 4;
    assert_eq!(std::fs::metadata(&output).unwrap().len(), bytes);
}

#[test]
fn types_that_cannot_be_had_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = exchangeable(folder.path());
    for (name, kind, part) in [
        ("blk.1.ffn_down.weight", "q4_K", "whole blocks"),
        ("output.weight", "f32", "smaller"),
        ("output.weight", "iq2_xs", "--imatrix"),
        ("output_norm.weight", "q8_0", "cannot be exchanged"),
    ] {
        let mixture = Mixture::from([(name.to_owned(), kind.parse().unwrap())]);
        let message = model.exchange(&mixture, None).unwrap_err().to_string();
        assert!(
            message.contains(name) && message.contains(part),
            "{message}"
        );
    }
}
