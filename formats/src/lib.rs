//! Reads and writes references of logits, whoever made them, and the results of evaluations against
//! them.
//!
//! | module | file | spec |
//! |---|---|---|
//! | [`native`] | `kl`'s own reference, of rows or hidden states, gzip members with an index | `LOGITS.md` |
//! | [`klpy`] | the reference of kl.py | the module's own text |
//! | [`llamacpp`] | the base file of llama.cpp's llama-perplexity | `LLAMACPP.md` |
//! | [`safetensors`] | a folder of files, one for each window, as SGLang's patch writes | `TENSORS.md` |
//! | [`npz`] | numpy's zip of arrays, as mlx-kld keeps its reference | `TENSORS.md` |
//! | [`sidecar`] | one record per scored token | `SIDECAR.md` |
//! | [`map`] | the KLD that each tensor's quantization costs | `MAP.md` |
//!
//! | word | meaning |
//! |---|---|
//! | window | tokens that a model decodes together, and the rows of some of their positions |
//! | row | the logits of one position; in a file of hidden states, the state that they follow from |
//! | piece | a window's counts and tokens, or about 1 MiB of its rows: packed by itself when written |
//! | block | the rows of a piece, as they are read ([`RowBlock`]) |
//! | head | the tensor that hidden states are multiplied with, and the steps that follow |
//! | shard | one of several files that hold the windows of a whole, and can be merged into it |
//!
//! # Reading
//!
//! [`Reference::open`] recognises any kind by its bytes. [`Reference::about`] holds what the file
//! records about itself. [`Reference::rows`] gives its rows: block by block, on many threads
//! ([`Rows::Blocks`]), or, from kl.py's file or an npz, as a stream ([`Rows::Stream`]):
//!
//! ```
//! # use kl_formats::{About, Kind, Reference, Rows, Target, WindowSpec, Writer};
//! # let file = tempfile::NamedTempFile::new()?;
//! # let path = file.path();
//! # let windows = [WindowSpec { window: 0, tokens: vec![0, 1], first_scored: 0, n_rows: 2 }];
//! # let (about, target) = (About::new(Kind::Kl, "", 2, 3), Target::new(Kind::Kl, None)?);
//! # let mut writer = Writer::create(&file, path, target, &about, &windows)?;
//! # writer.write_window(&windows[0], [[0.5, 1.5, -1.0], [2.0, 0.0, 0.0]])?;
//! # writer.finish()?;
//! let reference = Reference::open(path)?;
//! if let Rows::Blocks(file) = reference.rows() {
//!     for i in 0..reference.windows().map_or(0, |windows| windows.len()) {
//!         let window = file.window(i)?;
//!         for b in 0..file.n_blocks(i) {
//!             for row in file.block(i, b, None)?.rows() {
//!                 println!("window {}: the logit of token 0 is {}", window.window, row.get(0));
//!             }
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Hidden states
//!
//! A native file may hold the hidden states that its rows are computed from, and the model's head
//! ([`Rows::States`]). This crate does not multiply them: it hands out the states, the head's bytes
//! and the steps that follow the product.
//!
//! ```
//! # use kl_formats::*;
//! # use sha2::{Digest, Sha256};
//! # let file = tempfile::NamedTempFile::new()?;
//! # let path = file.path();
//! # let windows = [WindowSpec { window: 0, tokens: vec![0, 1], first_scored: 0, n_rows: 2 }];
//! # let mut about = About::new(Kind::Kl, path, 2, 3);
//! # let tensor = [0; 4 * 2 * 3];
//! # about.states = Some(States {
//! #     n_embd: 2,
//! #     state_type: Float::F16,
//! #     head: HeadTensor {
//! #         name: "output.weight".into(),
//! #         type_name: "f32".into(),
//! #         type_id: 0,
//! #         bytes: 24,
//! #         sha256: hex(&Sha256::digest(tensor)),
//! #     },
//! #     then: vec![],
//! #     calls: Calls::new(2, 2),
//! #     check: HeadCheck::default(),
//! # });
//! # let target = Target::new(Kind::Kl, Some(Encoding::Hidden))?;
//! # let mut writer = Writer::create(&file, path, target, &about, &windows)?;
//! # writer.write_head(&tensor[..], &[])?;
//! # writer.write_window(&windows[0], [[0.5, 1.5], [2.0, 0.0]])?;
//! # writer.finish()?;
//! let reference = Reference::open(path)?;
//! if let Rows::States(file, _) = reference.rows() {
//!     let mut head = Vec::new();
//!     std::io::Read::read_to_end(&mut file.head(), &mut head)?;
//!     let window = file.window(0)?;
//!     let states = file.read_states(0, 0..window.n_rows, &mut None)?; // n_rows x n_embd numbers
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Writing
//!
//! A [`Target`] is a kind of file and how it stores a row. A [`Writer`] writes one window after
//! another; hidden states need the head first ([`Writer::write_head`]):
//!
//! ```
//! # use kl_formats::{About, Kind, Target, WindowSpec, Writer};
//! # let file = tempfile::NamedTempFile::new()?;
//! # let path = file.path();
//! let windows = [WindowSpec { window: 0, tokens: vec![0, 1], first_scored: 0, n_rows: 2 }];
//! let about = About::new(Kind::Kl, path, 2, 3); // windows of 2 tokens, 3 logits a row
//! let target = Target::new(Kind::Kl, None)?;
//! let mut writer = Writer::create(&file, path, target, &about, &windows)?;
//! writer.write_window(&windows[0], [[0.5, 1.5, -1.0], [2.0, 0.0, 0.0]])?;
//! writer.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which run a file is of
//!
//! A [`RunKey`] of its header, whose [`diff`](RunKey::diff) lists all in which two runs differ.
//!
//! # What it leaves to others
//!
//! Nothing here uses llama.cpp, computes statistics, prints or starts a thread. Methods that many
//! threads may call at once take `&self`. Every count that a file states is checked against
//! the file's real length, or against a named limit, before memory is allocated for it. An error is
//! one line that names the file, the position and the cause; advice about flags is left to the
//! program.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// No file can make a reader panic. Code that could panic is marked with `#[expect]` and the reason
// why it does not.
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

mod about;
mod cache_sizes;
mod calls;
mod checked_line;
mod error;
mod gzip;
mod kinds;
mod numbers;
mod open;
mod prompt;
mod provenance;
mod python_literal;
mod random;
mod reference;
mod row;
mod run_key;
mod source;
mod speed;
mod states;
mod target;
mod tensors;
mod window;
mod writing;

// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
extern crate self as kl_formats; // for code that unit tests share with `tests/`

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(test)]
mod testing;

pub mod klpy;
pub mod llamacpp;
pub mod map;
pub mod native;
pub mod npz;
pub mod safetensors;
pub mod sidecar;

pub use about::{About, Prompts, ReferenceSummary, Sampling, Values};
pub use cache_sizes::CacheSizes;
pub use calls::Calls;
pub use checked_line::{LineChecksum, with_checksum};
pub use error::{Error, Fault, Position, Result};
pub use kinds::{Checks, Found, Kind};
pub use map::{
    Cell, CutOffMap, ImatrixIdentity, MAP_VERSION, MapHeader, MapTensor, MapWindow, MapWriter,
    Mixture, SensitivityMap, Unmeasured,
};
pub use native::{Header, NativeReader};
pub use numbers::{Float, GgmlType};
pub use prompt::{Messages, PROMPT_SPAN, Prompt, PromptContent, Role, Variables};
pub use provenance::{
    BackendIdentity, ModelIdentity, Provenance, Shard, TextIdentity, TokenizerIdentity, hex,
    split_gguf_name,
};
pub use random::Random;
pub use reference::{Reference, Rows};
pub use row::{Encoding, ReadBlocks, ReadStream, Row, RowBlock, RowForms, RowLayout};
pub use run_key::{
    Aspect, Difference, Effect, Made, ModelKey, PartKey, RowCount, RunKey, Setting, TextKey,
    WindowOrder, WindowsKey,
};
pub use sidecar::{
    CutOffSidecar, SidecarHeader, SidecarReader, SidecarWriter, TokenRecord, TokenTexts,
};
pub use source::sniff;
pub use speed::{Pace, Speed};
pub use states::{CheckRow, HeadCheck, HeadStep, HeadTensor, MAX_N_EMBD, States};
pub use target::Target;
pub use window::{Groups, MAX_N_CTX, MAX_N_VOCAB, WindowEntry, WindowSpec, longest_window, n_rows};
pub use writing::{Piece, WindowEncoder, WindowFormat, Writer, rows_per_piece};
