//! Rows computed from hidden states against llama.cpp's own rows.

mod caches;
mod dequantize;
mod exchange;
mod generation;
mod ggml_types;
mod head;
mod load;
mod quantize;
mod quantizer_rules;
mod sampler;
mod stored_rows;
mod words;

use std::ffi::CString;
use std::io::Read;
use std::path::{Path, PathBuf};

use kl_formats::{Calls, GgmlType, HeadStep, States, WindowSpec};
use llama_cpp_2::{LogOptions, send_logs_to_tracing};
use llama_cpp_sys_2 as sys;
use tempfile::TempDir;

use super::*;
use crate::gguf;
use crate::{ContextOptions, Engine, Head, Model};

/// Logical and physical batches: one token, less than a window, all of it, and several physical
/// batches in a call.
const BATCHES: [(u32, u32); 6] = [(1, 1), (7, 7), (64, 64), (130, 130), (64, 7), (130, 64)];

const N_TOKENS: u32 = 140;
/// Tests run side by side, and ggml's threads wait for each other without sleeping.
const THREADS: u32 = 1;

static ENGINE: LlamaCpp = LlamaCpp {
    started: OnceLock::new(),
};

pub(super) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name)
}

fn hush() {
    send_logs_to_tracing(LogOptions::default().with_logs_enabled(false));
}

pub(super) fn load(path: &Path) -> LlamaCppModel<'static> {
    load_with(path, &ModelOptions::default())
}

fn load_with(path: &Path, options: &ModelOptions) -> LlamaCppModel<'static> {
    hush();
    ENGINE.backend().unwrap();
    LlamaCppModel::load(&ENGINE, path, options).unwrap()
}

fn window(model: &dyn Model, n_tokens: u32, first_scored: u32) -> WindowSpec {
    let n_vocab = model.facts().n_vocab;
    let token = |i: u32| i.wrapping_mul(2_654_435_761) % n_vocab;
    WindowSpec {
        window: 0,
        tokens: (0..n_tokens).map(token).collect(),
        n_rows: n_tokens - first_scored,
        first_scored,
    }
}

fn options(n_batch: u32, n_ubatch: u32) -> ContextOptions {
    ContextOptions {
        n_ctx: N_TOKENS,
        calls: Calls::new(n_batch, n_ubatch),
        threads: THREADS,
        shows_states: true,
        ..ContextOptions::default()
    }
}

/// The section of a file that holds a model's head.
fn section(model: &dyn Model) -> impl Read {
    model.read_head().unwrap()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// The rows of a window, as a context without a callback decodes them.
fn plain_rows(model: &dyn Model, options: &ContextOptions, window: &WindowSpec) -> Vec<Vec<f32>> {
    let options = ContextOptions {
        shows_states: false,
        ..options.clone()
    };
    let mut decoder = model.decoder(&options).unwrap();
    let mut all = Vec::new();
    let mut next = Some(0);
    while let Some(start) = next {
        let outputs = decoder.decode_call(window, start, true).unwrap();
        all.extend(outputs.rows.iter().map(|row| row.to_vec()));
        next = outputs.next;
    }
    all
}

/// Checks that each row that a head computes is the model's own, to the bit, and that the states are
/// the same where the graph ends before the head.
#[track_caller]
fn check(model: &dyn Model, head: &mut dyn Head, batch: (u32, u32), window: &WindowSpec) {
    let options = options(batch.0, batch.1);
    let n_vocab = model.facts().n_vocab as usize;
    let expected = plain_rows(model, &options, window);
    assert_eq!(expected.len(), window.n_rows as usize);
    let states = model.describe_states(options.calls).unwrap();
    let n_embd = states.n_embd as usize;
    let mut decoder = model.decoder(&options).unwrap();
    let (mut all_states, mut groups, mut next) = (Vec::new(), Vec::new(), 0);
    let mut start = Some(0);
    while let Some(at) = start {
        let outputs = decoder.decode_call(window, at, true).unwrap();
        let mut left = &outputs.states[..];
        let mut of_call = outputs.rows.iter();
        for &n in &outputs.groups {
            let (states, rest) = left.split_at(n * n_embd);
            let computed = head.rows(states).unwrap();
            assert_eq!(computed.len(), n * n_vocab);
            for row in computed.chunks(n_vocab) {
                assert_eq!(bits(row), bits(&expected[next]), "row {next}, {batch:?}");
                assert_eq!(bits(row), bits(of_call.next().unwrap()));
                next += 1;
            }
            left = rest;
        }
        assert!(left.is_empty() && of_call.next().is_none());
        all_states.extend_from_slice(&outputs.states);
        groups.extend_from_slice(&outputs.groups);
        start = outputs.next;
    }
    assert_eq!(next, expected.len());

    let of_format = states.row_batches(&window.entry()).map(|rows| rows.len());
    assert_eq!(groups, of_format.collect::<Vec<_>>(), "{batch:?}");

    let (mut without_rows, mut start) = (Vec::new(), Some(0));
    while let Some(at) = start {
        let outputs = decoder.decode_call(window, at, false).unwrap();
        assert!(outputs.rows.is_empty());
        without_rows.extend_from_slice(&outputs.states);
        start = outputs.next;
    }
    assert_eq!(bits(&without_rows), bits(&all_states), "{batch:?}");
    // The same context gives whole rows after that.
    let outputs = decoder.decode_call(window, 0, true).unwrap();
    for (row, expected) in outputs.rows.iter().zip(&expected) {
        assert_eq!(bits(row), bits(expected));
    }
}

/// Checks a model in all batches, with its own matrix and with a copy of it.
#[track_caller]
fn check_model(path: &Path, n_tokens: u32) -> States {
    let model = load(path);
    let mut states = model.describe_states(Calls::default()).unwrap();
    states.head.sha256 = model.head_sha256().unwrap();
    for (i, batch) in BATCHES.into_iter().enumerate() {
        let window = window(&model, n_tokens, [1, 0, 9, 70][i % 4].min(n_tokens / 2));
        let mut shared = model
            .load_head(&states, &mut section(&model), THREADS)
            .unwrap();
        assert!(shared.is_shared() && shared.device() == "CPU");
        check(&model, &mut *shared, batch, &window);
        let mut own = ENGINE
            .load_head(&states, &mut section(&model), THREADS)
            .unwrap();
        assert!(!own.is_shared());
        check(&model, &mut *own, batch, &window);
    }
    states
}

#[test]
fn rows_of_states_are_the_models_own() {
    for (name, type_name) in [
        ("tiny-f16.gguf", "f16"),
        ("tiny-q8_0.gguf", "q8_0"),
        ("tiny-q4_K_M.gguf", "q6_K"),
        ("tiny-q2_K.gguf", "q6_K"),
    ] {
        let states = check_model(&fixture(name), N_TOKENS);
        assert_eq!(states.head.name, "token_embd.weight", "tied");
        assert_eq!(
            (&states.head.type_name[..], states.n_embd),
            (type_name, 256)
        );
        assert!(states.then.is_empty());
    }
}

/// Tokens are chosen from rows, whatever the call before wanted.
#[test]
fn a_context_that_shows_states_continues_a_text() {
    let model = load(&fixture("tiny-f16.gguf"));
    let window = window(&model, 20, 1);
    let continued = |shows_states| {
        let options = ContextOptions {
            shows_states,
            ..options(7, 7)
        };
        let mut decoder = model.decoder(&options).unwrap();
        if shows_states {
            let mut start = Some(0);
            while let Some(at) = start {
                start = decoder.decode_call(&window, at, false).unwrap().next;
            }
        }
        let text = [window.tokens[..9].to_vec()];
        generation::grow(&mut *decoder, &text, 12, 7).0
    };
    assert_eq!(continued(true), continued(false));
}

/// The model in `path`, with a head of another type.
fn with_head_type(folder: &TempDir, path: &Path, kind: sys::ggml_type) -> PathBuf {
    let out = folder.path().join(format!("{kind}.gguf"));
    let [from, to] = [path, &out].map(|path| CString::new(path.to_str().unwrap()).unwrap());
    // SAFETY: the paths are zero-terminated and, like the parameters, outlive the call.
    let status = unsafe {
        let mut params = sys::llama_model_quantize_default_params();
        params.ftype = sys::LLAMA_FTYPE_MOSTLY_Q8_0;
        params.output_tensor_type = kind;
        params.token_embedding_type = kind;
        sys::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const params)
    };
    assert_eq!(status, 0);
    out
}

/// Among them those that the CPU keeps in another order, for faster kernels.
#[test]
fn heads_of_every_type_give_the_models_own_rows() {
    let folder = tempfile::tempdir().unwrap();
    hush();
    for (kind, name) in [
        (sys::GGML_TYPE_F32, "f32"),
        (sys::GGML_TYPE_BF16, "bf16"),
        (sys::GGML_TYPE_Q8_0, "q8_0"),
        (sys::GGML_TYPE_Q6_K, "q6_K"),
        (sys::GGML_TYPE_Q5_K, "q5_K"),
        (sys::GGML_TYPE_Q5_0, "q5_0"),
        (sys::GGML_TYPE_Q4_0, "q4_0"),
        (sys::GGML_TYPE_Q4_1, "q4_1"),
        (sys::GGML_TYPE_Q4_K, "q4_K"),
        (sys::GGML_TYPE_Q3_K, "q3_K"),
        (sys::GGML_TYPE_Q2_K, "q2_K"),
        (sys::GGML_TYPE_IQ4_NL, "iq4_nl"),
        (sys::GGML_TYPE_IQ4_XS, "iq4_xs"),
    ] {
        let path = with_head_type(&folder, &fixture("tiny-f16.gguf"), kind);
        let states = check_model(&path, 70);
        assert_eq!(states.head.type_name, name);
    }
}

#[test]
fn what_follows_the_head_is_learned_from_the_graph() {
    for name in [
        "gemma2",
        "qwen2",
        "command-r",
        "phi2",
        "mixtral",
        "mamba",
        "falcon-h1",
        "lfm2",
        "gpt2",
    ] {
        let n_tokens = if name == "gpt2" { 48 } else { N_TOKENS };
        let path = fixture(&format!("architectures/{name}.gguf"));
        let states = check_model(&path, n_tokens);
        let steps: Vec<&str> = states
            .then
            .iter()
            .map(|step| match step {
                HeadStep::Scale { .. } => "scale",
                HeadStep::Tanh => "tanh",
                HeadStep::Add { .. } => "add",
                HeadStep::Mul { .. } => "mul",
            })
            .collect();
        let expected: &[&str] = match name {
            "gemma2" => &["scale", "tanh", "scale"],
            "command-r" => &["scale"],
            "phi2" => &["add"],
            _ => &[],
        };
        assert_eq!(steps, expected, "{name}");
    }
}
