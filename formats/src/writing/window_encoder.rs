//! One window, cut into pieces as its rows arrive.

use std::ops::Range;

use super::piece::{Part, Piece, PieceMemory};
use super::window_format::WindowFormat;
use crate::error::Result;
use crate::{MAX_N_VOCAB, WindowSpec};

/// Turns the rows of one window into [`Piece`]s.
///
/// Rows are encoded by the caller, on as many threads as it likes, into the memory that
/// [`WindowEncoder::reserve_rows`] hands out.
///
/// ```
/// # use std::path::Path;
/// # use kl_formats::{About, Target, WindowSpec, Writer, klpy};
/// let window = WindowSpec { window: 0, tokens: vec![0, 1], first_scored: 0, n_rows: 2 };
/// # let about = About::new(klpy::KIND, "", 4, 2);
/// # let target = Target::new(klpy::KIND, None)?;
/// # let windows = std::slice::from_ref(&window);
/// # let mut writer = Writer::create(Vec::new(), Path::new(""), target, &about, windows)?;
/// let layout = writer.window_format().row_layout();
/// let (mut encoder, head) = writer.window_format().encode(&window)?;
/// writer.append(head.compress())?;
/// while encoder.rows_left() > 0 {
///     let (bytes, n) = encoder.reserve_rows(1, || None);
///     layout.encode(&[0.5, 1.5], bytes);
///     if let Some(piece) = encoder.commit() {
///         writer.append(piece.compress())?;
///     }
/// }
/// encoder.finish()?;
/// # writer.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WindowEncoder {
    format: WindowFormat,
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
    /// Over the whole window so far.
    crc: crc32fast::Hasher,
}

impl WindowFormat {
    /// An encoder of a window, and the piece that comes before its rows.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the file cannot hold such a window.
    pub fn encode(&self, window: &WindowSpec) -> Result<(WindowEncoder, Piece)> {
        WindowEncoder::new(self, window)
    }
}

impl WindowEncoder {
    fn new(format: &WindowFormat, window: &WindowSpec) -> Result<(Self, Piece)> {
        let WindowFormat {
            n_vocab,
            rows_per_piece,
            framing,
            ..
        } = *format;
        let unwritable = |what: &str| {
            let what = format!("window {}: {what}", window.window);
            format.name.unwritable(what)
        };
        if let Some(fault) = (framing.fault)(window, format.n_ctx) {
            return Err(unwritable(fault));
        }
        if let Some(fault) = window.fault(n_vocab) {
            return Err(unwritable(&fault));
        }
        let row_bytes = (1..=MAX_N_VOCAB)
            .contains(&n_vocab)
            .then(|| format.layout.row_bytes(n_vocab as usize))
            .flatten()
            .ok_or_else(|| unwritable(&format!("a vocabulary of {n_vocab}")))?;
        if rows_per_piece == 0 {
            return Err(unwritable("pieces without rows"));
        }
        let mut encoder = Self {
            format: format.clone(),
            window: window.window,
            row_bytes,
            rows_per_piece: rows_per_piece as usize,
            rows_left: window.n_rows as usize,
            reserved: 0,
            plain: (framing.head)(window, n_vocab),
            packed: Vec::new(),
            rows_in_piece: 0,
            piece: 0,
            crc: crc32fast::Hasher::new(),
        };
        let part = Part::Head {
            window: window.entry(),
            n_pieces: window.n_rows.div_ceil(rows_per_piece),
        };
        encoder.checksum(0..encoder.plain.len());
        let piece = encoder.take(part);
        Ok((encoder, piece))
    }

    /// Rows still to be given.
    pub fn rows_left(&self) -> usize {
        self.rows_left + self.reserved
    }

    /// Returns memory for the next rows, and how many: at most `k`, and no more than the piece and
    /// the window have room for (0 once the window is full). The bytes are those rows one after
    /// another, each as long as a row of the file. Fill them before [`WindowEncoder::commit`];
    /// reserving again before that returns the same rows. Where a new piece begins, its memory
    /// comes from `memory`.
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

    /// Counts the reserved rows as filled. Returns the piece if it is full or the window complete.
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
            left => {
                let what = format!("window {} lacks {left} of its rows", self.window);
                Err(self.format.name.unwritable(what))
            }
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "ranges of rows that are in the piece's memory"
    )]
    fn checksum(&mut self, filled: Range<usize>) {
        if self.format.framing.has_checksum {
            self.crc.update(&self.plain[filled]);
        }
    }

    /// The filled bytes as a piece; the window's last piece ends with the checksum.
    fn take(&mut self, part: Part) -> Piece {
        let mut plain = std::mem::take(&mut self.plain);
        if self.format.framing.has_checksum && self.rows_left == 0 {
            plain.extend_from_slice(&self.crc.clone().finalize().to_le_bytes());
        }
        Piece {
            plain,
            packed: std::mem::take(&mut self.packed),
            part,
            kind: self.format.kind,
            pack: self.format.framing.pack,
        }
    }
}
