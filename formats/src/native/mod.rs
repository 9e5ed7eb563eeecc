//! `kl`'s own reference: gzip members of bounded size, found through an index. The layout is
//! specified in `LOGITS.md`, beside this crate's manifest.
//!
//! [`NativeReader`] reads any window and any block of its rows, from any threads.
//! [`crate::Writer::native`] writes a file with a [`Header`] of your own, [`crate::Writer::resume`]
//! resumes one that was cut off.

mod blocks;
mod head_members;
mod header;
mod index;
mod member;
mod reader;
mod walk;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::header_lines::{MAX_HEADER_BYTES, MAX_HEADER_BYTES_WITH_PROMPTS};
pub use header::{FORMAT_VERSION, Header};
pub use reader::NativeReader;
pub use walk::count_windows;
pub(crate) use writer::start;

/// The plain stream's first line.
pub const MAGIC_LINE: &str = "llama_kl_divergence_v2\n";
