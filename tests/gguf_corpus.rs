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
    for name in ["gpt2", "mamba"] {
        let model = format!("fixtures/architectures/{name}.gguf");
        let bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(model)).unwrap();
        let cut = &bytes[..bytes.len() * 3 / 4];
        fs::write(corpus.join(format!("model-{name}")), &bytes).unwrap();
        fs::write(corpus.join(format!("model-cut-{name}")), cut).unwrap();
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
