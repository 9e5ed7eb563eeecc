//! Exchanged weights give the logits of the file that llama.cpp's quantizer writes, to the bit.

use kl_formats::Mixture;
use tempfile::TempDir;

use super::*;
use crate::engine::{Exchange, Quantization};

const ARCHITECTURES: [&str; 10] = [
    "tiny-f16.gguf",
    "architectures/command-r.gguf",
    "architectures/falcon-h1.gguf",
    "architectures/gemma2.gguf",
    "architectures/gpt2.gguf",
    "architectures/lfm2.gguf",
    "architectures/mamba.gguf",
    "architectures/mixtral.gguf",
    "architectures/phi2.gguf",
    "architectures/qwen2.gguf",
];

/// Loads a model on the CPU so that its weights can be exchanged, and lie as in its file.
fn exchangeable(path: &Path) -> LlamaCppModel<'static> {
    hush();
    let options = ModelOptions {
        is_exchangeable: true,
        ..ModelOptions::default()
    };
    ENGINE.load(path, &options).unwrap()
}

/// The bits of all logits of a window.
fn logits(model: &LlamaCppModel<'_>) -> Vec<Vec<u32>> {
    let window = window(model, 20, 0);
    let rows = plain_rows(model, &options(32, 32), &window);
    rows.iter().map(|row| bits(row)).collect()
}

/// The logits of the file that llama.cpp's quantizer writes.
fn logits_of_file(
    folder: &TempDir,
    input: &Path,
    mixture: &Mixture,
    imatrix: Option<&Imatrix>,
) -> Vec<Vec<u32>> {
    let output = folder.path().join("quantized.gguf");
    let quantization = Quantization {
        input,
        output: &output,
        mixture,
        imatrix,
        threads: THREADS,
    };
    ENGINE.quantize(&quantization).unwrap();
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
    let mut n = 0;
    for architecture in ARCHITECTURES {
        let path = fixture(architecture);
        let folder = tempfile::tempdir().unwrap();
        let model = exchangeable(&path);
        let original = logits(&model);
        for kind in smaller_types() {
            let mixture = all_at(&model, kind);
            if mixture.is_empty() {
                continue;
            }
            let needs_one = |name: &String| ENGINE.needs_imatrix(name, kind);
            if mixture.keys().any(needs_one) {
                continue;
            }
            model.exchange(&mixture, None).unwrap();
            let exchanged = logits(&model);
            let expected = logits_of_file(&folder, &path, &mixture, None);
            assert!(exchanged == expected, "{architecture} {kind}");
            assert!(exchanged != original, "{architecture} {kind}");
            n += 1;
        }
        model.exchange(&Mixture::new(), None).unwrap();
        assert!(logits(&model) == original, "{architecture}");
    }
    assert!(n > 150, "{n}");
}
