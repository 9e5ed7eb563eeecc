//! The target of model files: the reader of `kl` itself, built here without llama.cpp.

use std::hint::black_box;

use super::framing;
use super::readers::Target;

#[path = "../../crates/engine/src/gguf/mod.rs"]
pub mod reader;

/// Keys, numbers and tensors are kept: the shortest pair has 13 bytes in the file.
/// `tests/gguf_corpus.rs` has the same limits.
pub const GGUF: Target<reader::ModelError> = Target {
    name: "gguf",
    read: |path| reader::read(path).map(|summary| _ = black_box(summary)),
    constant: 4 << 20,
    factor: 32,
    frame: framing::none,
};
