//! `kl`'s own reference: gzip members of bounded size, found through an index. The layout is
//! specified in `LOGITS.md`, beside this crate's manifest.
//!
//! Write: a [`NativeWriter`], and for each window a [`crate::WindowEncoder`] whose pieces are
//! compressed on any threads and appended in order. Read: a [`NativeReader`], from any threads.
//! [`verify()`] reads everything, to see whether it is whole.

mod header;
mod index;
pub(crate) mod member;
mod reader;
mod verify;
mod walk;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::header_lines::{MAX_HEADER_BYTES, MAX_HEADER_BYTES_WITH_PROMPTS};
pub use header::{FORMAT_VERSION, Header, rows_per_piece};
pub use index::WindowEntry;
pub use reader::NativeReader;
pub use verify::verify;
pub use walk::count_windows;
pub use writer::NativeWriter;

/// The plain stream's first line.
pub const MAGIC_LINE: &str = "llama_kl_divergence_v2\n";
