//! One window's block, cut into pieces as its rows arrive.

use std::ops::Range;

use crate::error::{Named, Result};
use crate::klpy::KlPyHeader;
use crate::llamacpp::{self, LlamaCppHeader};
use crate::native::Header;
use crate::piece::{Framing, Part, Piece, PieceMemory};
use crate::{Encoding, MAX_N_VOCAB, WindowHead, rows_per_piece};

/// Turns the rows of one window into [`Piece`]s.
///
/// Rows are encoded by the caller, on as many threads as it likes, into the memory that
/// [`WindowEncoder::reserve_rows`] hands out.
///
/// ```
/// # use kl_formats::{Encoding, KlPyHeader, WindowEncoder, WindowHead};
/// # let header = KlPyHeader { n_ctx: 4, n_vocab: 2, ..Default::default() };
/// let head = WindowHead { window: 0, tokens: vec![0, 1], first_scored: 0, n_rows: 2 };
/// let (mut window, head) = WindowEncoder::kl_py(&header, &head)?;
/// let mut pieces = vec![head];
/// while window.rows_left() > 0 {
///     let (bytes, n) = window.reserve_rows(1, || None);
///     Encoding::F32.encode(&[0.5, 1.5], bytes);
///     pieces.extend(window.commit());
/// }
/// window.finish()?;
/// # assert_eq!(pieces.len(), 2);
/// # Ok::<(), kl_formats::Error>(())
/// ```
#[derive(Debug)]
pub struct WindowEncoder {
    framing: Framing,
    window: u32,
    row_bytes: usize,
    rows_per_piece: usize,
    /// Rows neither committed nor reserved.
    rows_left: usize,
    reserved: usize,
    /// Plain bytes of the piece being filled: committed rows, reserved ones, and room for more.
    plain: Vec<u8>,
    /// Memory for the compressed piece.
    packed: Vec<u8>,
    rows_in_piece: usize,
    piece: u32,
    /// Over the whole block so far.
    crc: crc32fast::Hasher,
}

impl WindowEncoder {
    /// An encoder of a native window, and the piece with its counts and tokens.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the header contradicts itself, or the counts or the
    /// tokens do not fit it.
    pub fn new(header: &Header, head: &WindowHead) -> Result<(Self, Piece)> {
        if let Some(fault) = header.fault() {
            return Err(unwritable(head, &fault));
        }
        check_n_tokens(head, header.n_ctx)?;
        Self::with_framing(
            Framing::Native,
            header.encoding.row_bytes(header.n_vocab as usize),
            header.n_vocab,
            header.rows_per_piece,
            head,
        )
    }

    /// An encoder of a window of kl.py's file, and the piece with its counts and tokens. Rows are
    /// [`Encoding::F32`], and start at the window's first token.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the counts or the tokens do not fit the header.
    pub fn kl_py(header: &KlPyHeader, head: &WindowHead) -> Result<(Self, Piece)> {
        if head.first_scored != 0 {
            return Err(unwritable(
                head,
                "kl.py's file has rows from a window's first token on",
            ));
        }
        check_n_tokens(head, header.n_ctx)?;
        let rows = rows_per_piece(Encoding::F32, header.n_vocab);
        let row_bytes = Encoding::F32.row_bytes(header.n_vocab as usize);
        Self::with_framing(Framing::Gzip, row_bytes, header.n_vocab, rows, head)
    }

    /// An encoder of a window of llama.cpp's base file, and a piece that holds nothing: the tokens
    /// stand before all rows. Rows are those of [`llamacpp::encode_row`], for the positions
    /// `n_ctx/2 ..= n_ctx-2`.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the counts or the tokens do not fit the header.
    pub fn llama_cpp(header: &LlamaCppHeader, head: &WindowHead) -> Result<(Self, Piece)> {
        if head.tokens.len() != header.n_ctx as usize
            || head.first_scored != header.first_scored()
            || head.n_rows != header.rows_per_window()
        {
            return Err(unwritable(
                head,
                "llama.cpp's base file has the rows n_ctx/2 to n_ctx-2 of windows of n_ctx tokens",
            ));
        }
        let rows = rows_per_piece(Encoding::U16, header.n_vocab);
        let row_bytes = llamacpp::row_bytes(header.n_vocab as usize);
        Self::with_framing(Framing::Bare, row_bytes, header.n_vocab, rows, head)
    }

    fn with_framing(
        framing: Framing,
        row_bytes: Option<usize>,
        n_vocab: u32,
        rows_per_piece: u32,
        head: &WindowHead,
    ) -> Result<(Self, Piece)> {
        if let Some(fault) = head.fault(n_vocab) {
            return Err(unwritable(head, &fault));
        }
        let row_bytes = (1..=MAX_N_VOCAB)
            .contains(&n_vocab)
            .then_some(row_bytes)
            .flatten()
            .ok_or_else(|| unwritable(head, &format!("a vocabulary of {n_vocab}")))?;
        if rows_per_piece == 0 {
            return Err(unwritable(head, "pieces of no rows"));
        }
        let n_tokens = head.tokens.len() as u32; // at most MAX_N_CTX: `fault` has looked
        let counts: &[u32] = match framing {
            Framing::Native => &[
                head.window,
                n_tokens,
                head.n_rows,
                n_vocab,
                head.first_scored,
            ],
            Framing::Gzip => &[n_tokens, head.n_rows, n_vocab],
            Framing::Bare => &[],
        };
        let mut plain: Vec<u8> = bytemuck::cast_slice(counts).to_vec();
        if framing != Framing::Bare {
            plain.extend_from_slice(bytemuck::cast_slice(&head.tokens));
        }
        let mut encoder = Self {
            framing,
            window: head.window,
            row_bytes,
            rows_per_piece: rows_per_piece as usize,
            rows_left: head.n_rows as usize,
            reserved: 0,
            plain,
            packed: Vec::new(),
            rows_in_piece: 0,
            piece: 0,
            crc: crc32fast::Hasher::new(),
        };
        let part = Part::Head {
            window: head.window,
            n_tokens,
            n_rows: head.n_rows,
            first_scored: head.first_scored,
            n_pieces: head.n_rows.div_ceil(rows_per_piece),
        };
        encoder.checksum(0..encoder.plain.len());
        let piece = encoder.take(part);
        Ok((encoder, piece))
    }

    /// Rows that are still to be given.
    pub fn rows_left(&self) -> usize {
        self.rows_left + self.reserved
    }

    /// Memory for the next rows: at most `k`, and no more than the piece and the window still
    /// take; how many is the second value (0 once the window is full). The bytes are those rows
    /// one after the other, each as long as the file's rows are, to be filled before
    /// [`WindowEncoder::commit`]. Reserving again before that gives the same rows anew. Where a new
    /// piece begins, `memory` is asked for some to put it in.
    #[expect(
        clippy::indexing_slicing,
        reason = "the piece's memory holds the rows committed and those reserved"
    )]
    pub fn reserve_rows(
        &mut self,
        k: usize,
        memory: impl FnOnce() -> Option<PieceMemory>,
    ) -> (&mut [u8], usize) {
        self.rows_left += self.reserved;
        let k = k
            .min(self.rows_left)
            .min(self.rows_per_piece - self.rows_in_piece);
        self.rows_left -= k;
        self.reserved = k;
        if self.plain.is_empty() && k > 0 {
            let memory = memory().unwrap_or_default();
            (self.plain, self.packed) = (memory.plain, memory.packed);
            // The whole piece at once: its size is bounded, and growing would copy it.
            let bytes = self.rows_per_piece.min(self.rows_left + k) * self.row_bytes;
            self.plain
                .reserve_exact((bytes + size_of::<u32>()).saturating_sub(self.plain.len()));
            self.plain.resize(bytes, 0);
        }
        let start = self.rows_in_piece * self.row_bytes;
        (&mut self.plain[start..start + k * self.row_bytes], k)
    }

    /// Takes the reserved rows as filled. Gives a piece when it is full or the window complete.
    pub fn commit(&mut self) -> Option<Piece> {
        let k = std::mem::take(&mut self.reserved);
        if k == 0 {
            return None;
        }
        let start = self.rows_in_piece * self.row_bytes;
        self.rows_in_piece += k;
        let end = self.rows_in_piece * self.row_bytes;
        self.checksum(start..end);
        (self.rows_left == 0 || self.rows_in_piece == self.rows_per_piece).then(|| {
            let part = Part::Rows {
                window: self.window,
                piece: self.piece,
            };
            self.rows_in_piece = 0;
            self.piece += 1;
            self.plain.truncate(end);
            self.take(part)
        })
    }

    /// Checks that every row was given.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if rows are missing.
    pub fn finish(self) -> Result<()> {
        match self.rows_left() {
            0 => Ok(()),
            left => Err(Named::default()
                .unwritable(format!("window {} lacks {left} of its rows", self.window))),
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "ranges of rows that are in the piece's memory"
    )]
    fn checksum(&mut self, filled: Range<usize>) {
        if self.framing == Framing::Native {
            self.crc.update(&self.plain[filled]);
        }
    }

    /// The filled bytes as a piece; behind the block's last one, its checksum.
    fn take(&mut self, part: Part) -> Piece {
        let mut plain = std::mem::take(&mut self.plain);
        if self.framing == Framing::Native && self.rows_left == 0 {
            plain.extend_from_slice(&self.crc.clone().finalize().to_le_bytes());
        }
        Piece {
            plain,
            packed: std::mem::take(&mut self.packed),
            part,
            framing: self.framing,
        }
    }
}

fn check_n_tokens(head: &WindowHead, n_ctx: u32) -> Result<()> {
    match head.tokens.len() > n_ctx as usize {
        true => Err(unwritable(head, "more tokens than n_ctx")),
        false => Ok(()),
    }
}

fn unwritable(head: &WindowHead, what: &str) -> crate::Error {
    Named::default().unwritable(format!("window {}: {what}", head.window))
}
