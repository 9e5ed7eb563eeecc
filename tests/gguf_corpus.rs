//! Reads every model file of the fuzzer's corpus: see `fuzz/README.md`.

#[path = "../fuzz/src/memory.rs"]
mod memory;

use std::fs;
use std::path::Path;
use std::process::Command;

use kl::engine::gguf;

/// Bytes of memory that reading may use: the same as in `fuzz/src/gguf.rs`.
fn memory_limit(file_bytes: u64) -> usize {
    (4 << 20) + 32 * file_bytes as usize
}

#[test]
fn the_corpus_is_read_without_a_panic_or_a_bomb() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus.tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(folder.path());
    assert!(tar.arg("corpus/gguf").status().unwrap().success());
    let corpus = folder.path().join("corpus/gguf");
    for n_tokens in [3, 121] {
        let bytes = model(n_tokens);
        let cut = &bytes[..bytes.len() * 3 / 4];
        fs::write(corpus.join(format!("model-{n_tokens}")), &bytes).unwrap();
        fs::write(corpus.join(format!("model-cut-{n_tokens}")), cut).unwrap();
    }
    let (mut whole, mut faulty) = (0, 0);
    for entry in fs::read_dir(corpus).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        eprintln!("{}", path.display());
        let limit = memory_limit(entry.metadata().unwrap().len());
        match memory::limited(limit, || gguf::read(&path)) {
            Ok(_) => whole += 1,
            Err(error) => {
                faulty += 1;
                let message = error.to_string();
                assert!(!message.contains('\n'), "{message:?}");
                assert!(message.contains(path.to_str().unwrap()), "{message}");
            }
        }
    }
    eprintln!("{whole} whole, {faulty} faulty");
    assert!(whole > 0 && faulty > 0);
}

/// A small model: a key of each type that the reader uses, `n_tokens` tokens and two tensors.
fn model(n_tokens: u32) -> Vec<u8> {
    let string = |s: &str| [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat();
    let u32s =
        |values: &[u32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let array = |kind: u32, n: u64, values: Vec<u8>| {
        [&kind.to_le_bytes()[..], &n.to_le_bytes(), &values].concat()
    };
    let tokens: Vec<u8> = (0..n_tokens).flat_map(|i| string(&i.to_string())).collect();
    let pairs = [
        ("general.architecture", 8u32, string("llama")),
        ("general.name", 8, string("")),
        ("general.alignment", 4, u32s(&[32])),
        ("llama.context_length", 4, u32s(&[8])),
        ("llama.attention.causal", 7, vec![1]),
        ("llama.pooling_type", 4, u32s(&[0])),
        ("llama.rope.freq_base", 6, vec![0; 4]),
        ("tokenizer.ggml.model", 8, string("llama")),
        (
            "tokenizer.ggml.tokens",
            9,
            array(8, n_tokens.into(), tokens),
        ),
        ("tokenizer.ggml.scores", 9, array(6, 2, vec![0; 8])),
        ("tokenizer.ggml.token_type", 9, array(5, 2, u32s(&[1, 5]))),
        ("tokenizer.ggml.add_bos_token", 7, vec![0]),
        ("tokenizer.chat_template", 8, string("{}")),
        ("split.no", 2, vec![0, 0]),
        ("split.count", 2, vec![1, 0]),
        ("x", 9, array(9, 1, array(0, 3, vec![1, 2, 3]))),
    ];
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(u32s(&[3, 2, 0, pairs.len() as u32, 0]));
    for (key, kind, value) in &pairs {
        bytes.extend([string(key), u32s(&[*kind]), value.clone()].concat());
    }
    // Name, dimensions, type, offset: F32 and Q8_0.
    bytes.extend([string("token_embd.weight"), u32s(&[1, 8, 0, 0, 0, 0])].concat());
    bytes.extend([string("output.weight"), u32s(&[2, 32, 0, 2, 0, 8, 32, 0])].concat());
    bytes.resize(bytes.len().next_multiple_of(32) + 32 + 68, 0);
    bytes
}
