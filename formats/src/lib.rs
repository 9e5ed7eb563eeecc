//! Bytes to values and back: the files that `kl` reads and writes.
//!
//! | module | file | spec |
//! |---|---|---|
//! | [`native`] | `kl`'s own reference of logits, gzip members with an index | `LOGITS.md` |
//! | [`klpy`] | the reference of kl.py | the module's own text |
//! | [`llamacpp`] | the base file of llama.cpp's llama-perplexity | `LLAMACPP.md` |
//! | [`safetensors`] | a folder of them, a file a window, as SGLang's patch writes | `TENSORS.md` |
//! | [`npz`] | numpy's zip of arrays, as mlx-kld keeps its reference | `TENSORS.md` |
//! | [`sidecar`] | one record per scored token | `SIDECAR.md` |
//! | [`gguf`] | what a model file says of itself, read without llama.cpp | GGUF's own |
//!
//! [`Reference`] opens any reference by its bytes. Nothing here knows llama.cpp, statistics or a
//! terminal, and nothing starts a thread; readers take `&self` where many threads may read at
//! once. Every count that a file states is checked against the file's real length, or against a
//! named limit, before memory is taken for it.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// No file can make a reader panic. What may panic says so with `#[expect]`, and why it cannot.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

#[cfg(not(target_endian = "little"))]
compile_error!("kl-formats casts little-endian bytes in place: big-endian hosts are not supported");

mod checksum;
mod deflate;
mod error;
mod header_lines;
mod identity;
mod piece;
mod prompt;
mod row;
mod source;
mod tensors;
mod verify;
mod window;
mod window_encoder;

#[cfg(test)]
mod testing;

pub mod gguf;
pub mod klpy;
pub mod llamacpp;
pub mod native;
pub mod npz;
pub mod reference;
pub mod safetensors;
pub mod sidecar;

pub use error::{Error, Result};
pub use gguf::GgufSummary;
pub use identity::{BackendIdentity, ModelIdentity, TextIdentity, TokenizerIdentity, hex};
pub use klpy::{KlPyHeader, KlPyReader, KlPyWriter};
pub use llamacpp::{LlamaCppHeader, LlamaCppReader, LlamaCppWriter};
pub use native::{Header, NativeReader, NativeWriter, WindowEntry, rows_per_piece};
pub use npz::NpzReader;
pub use piece::{Member, Piece, PieceMemory};
pub use prompt::{Messages, Prompt, PromptContent};
pub use reference::{Reference, ReferenceKind, sniff};
pub use row::{Encoding, Row, RowBlock};
pub use safetensors::SafetensorsReader;
pub use sidecar::{
    CutOffSidecar, ReferenceSummary, SidecarHeader, SidecarReader, SidecarWriter, TokenRecord,
    is_sidecar,
};
pub use tensors::Float;
pub use verify::VerifyReport;
pub use window::WindowHead;
pub use window_encoder::WindowEncoder;

/// Most vocabulary entries a row may have. The widest vocabulary published by 2026 holds 262,144.
pub const MAX_N_VOCAB: u32 = 1 << 24;

/// Most tokens a window may hold. The longest context published by 2026 is 10 million tokens.
pub const MAX_N_CTX: u32 = 1 << 26;
