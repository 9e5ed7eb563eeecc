//! The header, and the offsets that follow from it.

use super::{LOGITS2_MAGIC, MAGIC, row_bytes};
use crate::{MAX_N_CTX, MAX_N_VOCAB};

/// Bytes of the header: the magic, u32 n_ctx, i32 n_vocab, i32 n_chunk.
pub(super) const HEADER_BYTES: u64 = 20;

/// The three counts that follow a base file's magic, and the kind of rows that the magic stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LlamaCppHeader {
    /// Tokens in each window.
    pub(crate) n_ctx: u32,
    /// Entries of a row.
    pub(crate) n_vocab: u32,
    /// Windows in the file.
    pub(crate) n_windows: u32,
    /// Set if rows are floored, as llama.cpp's are; those of a `_logits2` file are not.
    pub(crate) is_floored: bool,
}

impl LlamaCppHeader {
    /// The position of a window's first row.
    pub(crate) fn first_scored(&self) -> u32 {
        self.n_ctx / 2
    }

    /// Rows of each window: those of the positions from [`LlamaCppHeader::first_scored`] to the
    /// last that has a next token.
    pub(crate) fn rows_per_window(&self) -> u32 {
        self.n_ctx.saturating_sub(1 + self.first_scored())
    }

    /// Rows in the file.
    pub(crate) fn n_rows(&self) -> u64 {
        u64::from(self.n_windows) * u64::from(self.rows_per_window())
    }

    /// Bytes of the whole file; `None` where that overflows.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        self.window_bytes()
            .checked_mul(self.n_windows.into())?
            .checked_add(self.rows_start())
    }

    /// Reads the counts after the magic.
    ///
    /// # Errors
    /// A phrase that names the impossible count.
    pub(super) fn from_bytes(counts: [u8; 12], is_floored: bool) -> Result<Self, String> {
        let [n_ctx, n_vocab, n_windows]: [u32; 3] = bytemuck::cast(counts);
        let header = Self {
            n_ctx,
            n_vocab,
            n_windows,
            is_floored,
        };
        header.fault().map_or(Ok(header), Err)
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        let (magic, counts) = bytes.split_at_mut(MAGIC.len());
        magic.copy_from_slice(match self.is_floored {
            true => &MAGIC,
            false => &LOGITS2_MAGIC,
        });
        let numbers = [self.n_ctx, self.n_vocab, self.n_windows];
        counts.copy_from_slice(bytemuck::cast_slice(&numbers));
        bytes
    }

    /// Finds a fault in the counts.
    pub(super) fn fault(&self) -> Option<String> {
        let Self {
            n_ctx,
            n_vocab,
            n_windows,
            is_floored: _,
        } = *self;
        // The file's own types are signed, but for n_ctx.
        if !(1..=MAX_N_CTX).contains(&n_ctx) {
            Some(format!("n_ctx {n_ctx}, not 1 to {MAX_N_CTX}"))
        } else if !(1..=MAX_N_VOCAB).contains(&n_vocab) {
            let n_vocab = n_vocab.cast_signed();
            Some(format!("n_vocab {n_vocab}, not 1 to {MAX_N_VOCAB}"))
        } else if n_windows.cast_signed() < 0 {
            let n_chunk = n_windows.cast_signed();
            Some(format!("n_chunk {n_chunk}, less than 0"))
        } else {
            None
        }
    }

    /// Bytes of a row. The counts have been checked, here and below: products of two of them are
    /// far from 2^64.
    pub(super) fn row_bytes(&self) -> u64 {
        row_bytes(self.n_vocab as usize) as u64
    }

    /// Bytes of a window's rows.
    pub(super) fn window_bytes(&self) -> u64 {
        u64::from(self.rows_per_window()) * self.row_bytes()
    }

    /// Where the tokens of a window start.
    pub(super) fn tokens_offset(&self, window: u32) -> u64 {
        HEADER_BYTES + 4 * u64::from(self.n_ctx) * u64::from(window)
    }

    /// Where the rows of the first window start: after all tokens.
    pub(super) fn rows_start(&self) -> u64 {
        self.tokens_offset(self.n_windows)
    }
}
