//! Exchanged weights give the logits of the file that llama.cpp's quantizer writes, to the bit.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use kl_formats::{Float, Mixture};
use tempfile::TempDir;

use super::quantize::write;
use super::quantizer_rules::{MODELS, kind};
use super::*;
use crate::gguf;
use crate::{EngineError, ShouldStop, SplitMode, Weights, needs_imatrix};

#[allow(dead_code, reason = "shared with the tests of the program")]
#[path = "../../../../../tests/program/gguf.rs"]
mod made;
use made::Gguf;

/// Never stops.
const NEVER: ShouldStop<'static> = &|| false;

/// Loads a model on the CPU so that its weights can be exchanged, and lie as in its file.
fn exchangeable(path: &Path) -> LlamaCppModel<'static> {
    let options = ModelOptions {
        is_exchangeable: true,
        ..ModelOptions::default()
    };
    load_with(path, &options)
}

/// The bits of all logits of a window.
fn logits(model: &LlamaCppModel<'_>) -> Vec<Vec<u32>> {
    let window = window(model, 20, 0);
    let rows = plain_rows(model, &options(32, 32), &window);
    rows.iter().map(|row| bits(row)).collect()
}

/// An importance matrix with other values for each column of each weight.
fn importances(folder: &TempDir, model: &LlamaCppModel<'_>) -> Imatrix {
    let names = model.exchangeable().unwrap();
    let mut bytes = (names.len() as i32).to_le_bytes().to_vec();
    for name in names {
        let shape = &model.header.tensor(&name).unwrap().shape;
        let n = shape[0] * shape.get(2).unwrap_or(&1);
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        // Made of one chunk of text.
        bytes.extend([1i32, n as i32].map(i32::to_le_bytes).concat());
        let value = |i: u64| 0.1 + ((i * 37 + name.len() as u64) % 101) as f32 / 20.0;
        bytes.extend((0..n).flat_map(|i| value(i).to_le_bytes()));
    }
    let path = folder.path().join("imatrix.dat");
    std::fs::write(&path, bytes).unwrap();
    Imatrix::read(&path).unwrap()
}

/// The logits of the file that llama.cpp's quantizer writes.
fn logits_of_file(
    folder: &TempDir,
    input: &Path,
    mixture: &Mixture,
    imatrix: Option<&Imatrix>,
) -> Vec<Vec<u32>> {
    let output = folder.path().join("quantized.gguf");
    write(input, &output, mixture, imatrix).unwrap();
    logits(&exchangeable(&output))
}

/// A mixture with this type for every weight whose rows are whole blocks of it.
fn all_at(model: &LlamaCppModel<'_>, kind: GgmlType) -> Mixture {
    let names = model.exchangeable().unwrap().into_iter();
    names
        .filter(|name| {
            let tensor = model.header.tensor(name).unwrap();
            tensor.shape[0].is_multiple_of(kind.block)
        })
        .map(|name| (name, kind))
        .collect()
}

/// All types that the quantizer writes and that are not larger than f16.
fn smaller_types() -> impl Iterator<Item = GgmlType> {
    GgmlType::all().filter(|kind| kind.is_for_weights && kind.bits() <= 16.0 && kind.name != "f16")
}

#[test]
fn every_type_in_every_architecture_gives_the_logits_of_the_file() {
    let mut compared = BTreeSet::new();
    for (i, architecture) in MODELS.into_iter().enumerate() {
        let path = fixture(architecture);
        let folder = tempfile::tempdir().unwrap();
        let model = exchangeable(&path);
        let imatrix = importances(&folder, &model);
        let original = logits(&model);
        for (j, kind) in smaller_types().enumerate() {
            let mixture = all_at(&model, kind);
            if mixture.is_empty() {
                continue;
            }
            let needs_one = |name: &String| needs_imatrix(name, kind);
            let has_one = (i + j) % 2 == 0 || mixture.keys().any(needs_one);
            let imatrix = Some(&imatrix).filter(|_| has_one);
            model.exchange(&mixture, imatrix, NEVER).unwrap();
            let exchanged = logits(&model);
            let expected = logits_of_file(&folder, &path, &mixture, imatrix);
            assert!(exchanged == expected, "{architecture} {kind} {has_one}");
            assert!(exchanged != original, "{architecture} {kind}");
            compared.insert((kind.name, has_one));
        }
        model.exchange(&Mixture::new(), None, NEVER).unwrap();
        assert!(logits(&model) == original, "{architecture}");
    }
    // With an importance matrix and without, but for the six that need one.
    assert_eq!(compared.len(), 2 * 26 - 6, "{compared:?}");
}

#[test]
fn weights_are_exchanged_one_at_a_time_and_restored() {
    let path = fixture("tiny-f16.gguf");
    let folder = tempfile::tempdir().unwrap();
    let model = exchangeable(&path);
    let imatrix = importances(&folder, &model);
    let original = logits(&model);
    for (i, name) in model.exchangeable().unwrap().into_iter().enumerate() {
        let kind = kind(["q2_K", "iq2_xs", "q5_0"][i % 3]);
        let mixture = Mixture::from([(name.clone(), kind)]);
        model.exchange(&mixture, Some(&imatrix), NEVER).unwrap();
        let exchanged = logits(&model);
        assert!(exchanged != original, "{name}");
        let expected = logits_of_file(&folder, &path, &mixture, Some(&imatrix));
        assert!(exchanged == expected, "{name} {kind}");
    }
    // The same type with another importance matrix, or without, is another mixture.
    let mixture = all_at(&model, kind("q4_K"));
    let [with, without] = [Some(&imatrix), None].map(|imatrix| {
        model.exchange(&mixture, imatrix, NEVER).unwrap();
        logits(&model)
    });
    assert!(with != without);
    // The original's own type is the original.
    model
        .exchange(&all_at(&model, kind("f16")), None, NEVER)
        .unwrap();
    assert!(logits(&model) == original);
}

#[test]
fn originals_of_other_types_and_split_ones_are_exchanged() {
    let folder = tempfile::tempdir().unwrap();
    let f16 = fixture("tiny-f16.gguf");
    let names = exchangeable(&f16);
    let whole = Gguf::read(std::fs::read(&f16).unwrap());
    for part in [0, 1] {
        let name = format!("split-0000{}-of-00002.gguf", part + 1);
        std::fs::write(folder.path().join(name), whole.part(part)).unwrap();
    }
    for own in ["f32", "bf16", "q8_0", "split"] {
        let path = match own {
            "split" => folder.path().join("split-00001-of-00002.gguf"),
            own => {
                let path = folder.path().join(format!("{own}.gguf"));
                let mixture = all_at(&names, kind(own));
                write(&f16, &path, &mixture, None).unwrap();
                path
            }
        };
        let model = exchangeable(&path);
        let original = logits(&model);
        for other in ["q6_K", "q4_0"] {
            let mixture = all_at(&model, kind(other));
            model.exchange(&mixture, None, NEVER).unwrap();
            let expected = logits_of_file(&folder, &path, &mixture, None);
            assert!(logits(&model) == expected, "{own} {other}");
        }
        model.exchange(&Mixture::new(), None, NEVER).unwrap();
        assert!(logits(&model) == original, "{own}");
    }
}

#[test]
fn an_exchange_stops_when_asked_and_the_next_one_is_whole() {
    let model = exchangeable(&fixture("tiny-f16.gguf"));
    let original = logits(&model);
    let mixture = all_at(&model, kind("q4_0"));
    let n_asked = AtomicUsize::new(0);
    let after_five: ShouldStop<'_> = &|| n_asked.fetch_add(1, Ordering::Relaxed) >= 5;
    let stopped = model.exchange(&mixture, None, after_five);
    assert!(matches!(stopped, Err(EngineError::Interrupted)));
    assert!(
        logits(&model) != original,
        "the first tensors are exchanged"
    );
    model.exchange(&Mixture::new(), None, NEVER).unwrap();
    assert!(logits(&model) == original);
}

#[test]
fn a_file_that_is_cut_off_is_an_error_and_the_next_exchange_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes = std::fs::read(fixture("tiny-f16.gguf")).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let model = exchangeable(&path);
    let original = logits(&model);
    let mixture = all_at(&model, kind("q4_0"));
    model.exchange(&mixture, None, NEVER).unwrap();
    let exchanged = logits(&model);
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    // Nothing is read for what is there already.
    model.exchange(&mixture, None, NEVER).unwrap();
    for mixture in [all_at(&model, kind("q5_1")), Mixture::new()] {
        let message = model
            .exchange(&mixture, None, NEVER)
            .unwrap_err()
            .to_string();
        // By what is left of it, or by its length.
        let is_said = ["cannot be read", "became shorter while it was read"];
        assert!(
            is_said.iter().any(|what| message.contains(what)),
            "{message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
    std::fs::write(&path, &bytes).unwrap();
    // The file could be another one.
    let changed = model.exchange(&Mixture::new(), None, NEVER).unwrap_err();
    assert!(matches!(changed, EngineError::Changed(_)), "{changed}");
    let file = std::fs::OpenOptions::new().append(true).open(&path);
    file.unwrap().set_modified(modified).unwrap();
    model.exchange(&mixture, None, NEVER).unwrap();
    assert!(logits(&model) == exchanged);
    model.exchange(&Mixture::new(), None, NEVER).unwrap();
    assert!(logits(&model) == original);
}

#[test]
fn no_weight_is_exchanged_while_a_decoder_could_use_its_old_graph() {
    let model = exchangeable(&fixture("tiny-f16.gguf"));
    let original = logits(&model);
    let mixture = all_at(&model, kind("q4_0"));
    let [first, second] = [(); 2].map(|()| model.decoder(&options(32, 32)).unwrap());
    drop(first);
    let message = model
        .exchange(&mixture, None, NEVER)
        .unwrap_err()
        .to_string();
    assert!(message.contains("drop its decoders first"), "{message}");
    assert!(!message.contains('\n'), "{message}");
    drop(second);
    assert!(logits(&model) == original);
    model.exchange(&mixture, None, NEVER).unwrap();
    assert!(logits(&model) != original);
}

#[test]
fn what_cannot_be_exchanged_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = "tiny-f16.gguf";
    let of = |model: &str| importances(&folder, &exchangeable(&fixture(model)));
    let [mamba, gpt2] = ["mamba", "gpt2"].map(|name| of(&format!("architectures/{name}.gguf")));
    let (experts, quantized) = ("architectures/mixtral.gguf", "tiny-q4_K_M.gguf");
    // A file, a tensor and a type; then an importance matrix, and the message.
    for (file, name, to, imatrix, part) in [
        (
            tiny,
            "blk.9.attn_q",
            "q8_0",
            None,
            "decoding does not use it",
        ),
        (tiny, "output_norm", "f16", None, "does not quantize it"),
        (tiny, "blk.0.attn_q", "f32", None, "f32 is larger than the "),
        (tiny, "blk.0.attn_q", "q8_1", None, "no type of weights"),
        (
            tiny,
            "blk.0.attn_q",
            "iq2_s",
            None,
            "give one with --imatrix",
        ),
        (tiny, "blk.0.attn_q", "iq1_m", Some(&mamba), "values for it"),
        (tiny, "token_embd", "iq1_s", Some(&gpt2), "it has 32 values"),
        (experts, "blk.0.ffn_down_exps", "q4_K", None, "whole blocks"),
        (
            experts,
            "blk.0.ffn_gate_inp",
            "q8_0",
            None,
            "not quantize it",
        ),
        (quantized, "blk.0.attn_q", "q2_K", None, "give the original"),
    ] {
        let name = &format!("{name}.weight");
        let model = exchangeable(&fixture(file));
        let mixture = Mixture::from([(name.to_owned(), kind(to))]);
        let message = model
            .exchange(&mixture, imatrix, NEVER)
            .unwrap_err()
            .to_string();
        assert!(message.contains(part), "{message}");
        assert!(!message.contains('\n'), "{message}");
        let errors = model.errors(name, &[kind(to)], imatrix, 9);
        assert_eq!(errors.unwrap_err().to_string(), message);
    }
    let mapped = load(&fixture(tiny));
    let message = mapped.weights().err().unwrap().to_string();
    assert!(message.contains("was not loaded to exchange"), "{message}");
    let split = ModelOptions {
        is_exchangeable: true,
        split_mode: Some(SplitMode::Row),
        ..ModelOptions::default()
    };
    let refused = ENGINE
        .load(&fixture(tiny), &split)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("--split-mode row"), "{refused}");
}

/// The numbers of a tensor of f16 or q8_0, read as ggml's `ggml-common.h` describes them.
fn numbers(path: &Path, name: &str) -> Vec<f64> {
    let header = gguf::read(path).unwrap();
    let tensor = header.tensor(name).unwrap();
    let bytes = header.read_tensor(tensor).unwrap();
    let f16 = |bytes: &[u8]| {
        let mut value = [0.0];
        Float::F16.decode(bytes, &mut value);
        f64::from(value[0])
    };
    if tensor.kind.name == "f16" {
        return bytes.chunks(2).map(f16).collect();
    }
    let of_block = |block: &[u8]| {
        let scale = f16(&block[..2]);
        let numbers = block[2..].iter().map(|&n| scale * f64::from(n as i8));
        numbers.collect::<Vec<_>>()
    };
    bytes.chunks(34).flat_map(of_block).collect()
}

#[test]
fn errors_of_weights_are_those_of_the_written_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = fixture("architectures/mixtral.gguf");
    let name = "blk.0.ffn_up_exps.weight";
    let (n_columns, rows_of_expert, n_rows) = (256, 32, 4 * 32);
    let model = exchangeable(&path);
    let imatrix = importances(&folder, &model);
    let kinds = ["q8_0", "f16", "q2_K"].map(kind);
    for imatrix in [None, Some(&imatrix)] {
        let output = folder.path().join("quantized.gguf");
        let mixture = Mixture::from([(name.to_owned(), kinds[0])]);
        write(&path, &output, &mixture, imatrix).unwrap();
        let (original, quantized) = (numbers(&path, name), numbers(&output, name));
        let values = imatrix.map(|imatrix| imatrix.values(name).unwrap());
        for most in [1, 10, n_rows, usize::MAX] {
            let used = most.min(n_rows);
            let (mut errors, mut weights) = (0.0, 0.0);
            for row in (0..used).map(|i| i * n_rows / used) {
                for column in 0..n_columns {
                    let i = row / rows_of_expert * n_columns + column;
                    let value = values.map_or(1.0, |values| f64::from(values[i]));
                    let i = row * n_columns + column;
                    errors += value * (original[i] - quantized[i]).powi(2);
                    weights += value * original[i].powi(2);
                }
            }
            let found = model.errors(name, &kinds, imatrix, most).unwrap();
            let ratio = found[0] / (errors / weights);
            assert!((ratio - 1.0).abs() < 1e-5, "{found:?} {ratio}");
            assert_eq!(found[1], 0.0);
            assert!(found[2] > 100.0 * found[0], "{found:?}");
        }
    }
}
