//! The fake keeps the rules that the real engine keeps.

use std::path::Path;

use kl_formats::{Calls, GgmlType, Mixture, WindowSpec};

use super::{FakeEngine, FakeModel};
use crate::engine::{
    ContextOptions, Decoder, Engine, Exchange, Model, ModelOptions, default_calls,
};
use crate::pipeline::LogitSource as _;
use crate::score::testing::{kld, log_softmax};

const WINDOW_TOKENS: u32 = 23;

fn model(folder: &Path) -> FakeModel {
    load(folder, &ModelOptions::default())
}

fn load(folder: &Path, options: &ModelOptions) -> FakeModel {
    let path = folder.join("model");
    std::fs::write(&path, "weights").unwrap();
    FakeEngine::default().load(&path, options).unwrap()
}

fn window() -> WindowSpec {
    WindowSpec {
        window: 0,
        tokens: (0..WINDOW_TOKENS).collect(),
        first_scored: 6,
        n_rows: WINDOW_TOKENS - 6,
    }
}

#[test]
fn calls_are_those_of_the_batch() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
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
    let model = model(folder.path());
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
    let kld = |(p, q): (&Vec<f32>, &Vec<f32>)| kld(&log_softmax(p), &log_softmax(q));
    reference.iter().zip(rows).map(kld).sum::<f64>() / reference.len() as f64
}

/// A model whose weights can be exchanged.
fn exchangeable(folder: &Path) -> FakeModel {
    let options = ModelOptions {
        is_exchangeable: true,
        ..ModelOptions::default()
    };
    load(folder, &options)
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
