//! The writing side: header and tokens, then rows in order.

use std::io::Write;
use std::path::Path;

use super::LlamaCppHeader;
use crate::error::{Named, Result};
use crate::piece::{Framing, Member, Part, PieceMemory};

/// Writes a base file to anything that takes bytes.
///
/// A file that lacks rows is found too short by every reader; [`LlamaCppWriter::finish`] says so
/// at once.
///
/// ```
/// # use std::path::Path;
/// # use kl_formats::{LlamaCppWriter, llamacpp};
/// // One window of 4 tokens has the row of position 2; 3 logits are padded to 4 codes.
/// let mut writer = LlamaCppWriter::create(Vec::new(), Path::new("base"), 4, 3, &[0, 1, 2, 1])?;
/// let mut row = [0; 16];
/// llamacpp::encode_row(&[0.5, 1.5, -1.0], &mut row);
/// writer.append(&row)?;
/// assert_eq!(writer.finish()?.len(), 20 + 4 * 4 + 16);
/// # Ok::<(), kl_formats::Error>(())
/// ```
#[derive(Debug)]
pub struct LlamaCppWriter<W: Write> {
    out: W,
    name: Named,
    header: LlamaCppHeader,
    rows_left: u64,
    offset: u64,
}

impl<W: Write> LlamaCppWriter<W> {
    /// Writes the header and all tokens, those of whole windows of `n_ctx` one after the other.
    /// Each window has rows for the positions `n_ctx/2 ..= n_ctx-2`. `path` is for messages alone.
    ///
    /// llama-perplexity puts BOS in the place of each window's first token before it decodes,
    /// where the model adds one: a window that was decoded with another first token than that
    /// would not be compared with itself.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if counts or tokens are impossible, [`crate::Error::Io`].
    pub fn create(out: W, path: &Path, n_ctx: u32, n_vocab: u32, tokens: &[u32]) -> Result<Self> {
        let name = Named::new(path);
        let n_windows = tokens.len().checked_div(n_ctx as usize).unwrap_or(0);
        let header = LlamaCppHeader {
            n_ctx,
            n_vocab,
            n_windows: u32::try_from(n_windows).unwrap_or(u32::MAX),
        };
        if let Some(fault) = header.fault() {
            return Err(name.unwritable(fault));
        }
        if n_windows * n_ctx as usize != tokens.len() {
            let what = format!("{} tokens are no whole windows of {n_ctx}", tokens.len());
            return Err(name.unwritable(what));
        }
        if let Some(token) = tokens.iter().find(|&&token| token >= n_vocab) {
            let what = format!("token {token} is outside the vocabulary of {n_vocab}");
            return Err(name.unwritable(what));
        }
        if header.file_bytes().is_none() {
            return Err(name.unwritable("a file of more than 2^64 bytes"));
        }
        let mut writer = Self {
            out,
            name,
            header,
            rows_left: header.n_rows(),
            offset: 0,
        };
        writer.put(&header.to_bytes())?;
        writer.put(bytemuck::cast_slice(tokens))?;
        Ok(writer)
    }

    /// Writes the next rows, one or more, each as [`super::encode_row`] makes it: a window's in
    /// the order of their positions, then the next window's.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the bytes are no whole rows or the rows are too many,
    /// [`crate::Error::Io`].
    pub fn append(&mut self, rows: &[u8]) -> Result<()> {
        let (bytes, row_bytes) = (rows.len() as u64, self.header.row_bytes());
        if bytes % row_bytes != 0 {
            let what = format!("{bytes} bytes are no whole rows of {row_bytes}");
            return Err(self.name.unwritable(what));
        }
        let n_rows = bytes / row_bytes;
        self.rows_left = self.rows_left.checked_sub(n_rows).ok_or_else(|| {
            self.name.unwritable(format!(
                "{n_rows} rows were given where {} were left",
                self.rows_left
            ))
        })?;
        self.put(rows)
    }

    /// Writes the next piece of [`crate::WindowEncoder::llama_cpp`], in the order of the windows and
    /// of each one's rows. Gives its memory back, for other rows.
    ///
    /// # Errors
    /// As [`LlamaCppWriter::append`], and [`crate::Error::Unwritable`] for another file's piece.
    pub fn append_member(&mut self, member: Member) -> Result<Option<PieceMemory>> {
        if member.framing != Framing::Bare {
            return Err(self.name.unwritable("a member of another kind of file"));
        }
        if matches!(member.part, Part::Rows { .. }) {
            self.append(&member.bytes)?;
        }
        Ok(member.into_memory())
    }

    /// Flushes, and gives the output back.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if rows are missing, [`crate::Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        if self.rows_left > 0 {
            return Err(self.name.unwritable(format!(
                "{} of {} rows are missing",
                self.rows_left,
                self.header.n_rows()
            )));
        }
        self.out
            .flush()
            .map_err(|source| self.name.io("write", source))?;
        Ok(self.out)
    }

    /// The header written.
    pub fn header(&self) -> &LlamaCppHeader {
        &self.header
    }

    /// Bytes written so far.
    pub fn file_bytes(&self) -> u64 {
        self.offset
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out
            .write_all(bytes)
            .map_err(|source| self.name.io("write", source))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}
