//! One window, cut into pieces as its rows arrive.

use std::ops::Range;

use super::piece::{Part, Piece, PieceMemory};
use super::window_format::WindowFormat;
use crate::error::Result;
use crate::row::{Form, RowForms, RowLayout};
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
///     let row = [0.5, 1.5];
///     layout.encode(&row, bytes);
///     if let Some(piece) = encoder.commit(|_| &row) {
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
    /// Bytes of the committed rows of the piece.
    filled: usize,
    piece: u32,
    forms: RowForms,
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
            row_len,
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
            .contains(&row_len)
            .then(|| format.layout.row_bytes(row_len as usize))
            .flatten()
            .ok_or_else(|| unwritable(&format!("rows of {row_len}")))?;
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
            filled: 0,
            piece: 0,
            forms: RowForms::default(),
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
        }
        // The whole piece at once: its size is bounded, and growing would copy it.
        let rows_to_come = (self.rows_per_piece - self.rows_in_piece).min(self.rows_left + k);
        let bytes = self.filled + rows_to_come * self.row_bytes;
        if self.plain.len() != bytes {
            self.plain
                .reserve_exact((bytes + size_of::<u32>()).saturating_sub(self.plain.len()));
            self.plain.resize(bytes, 0);
        }
        let reserved = self.filled..self.filled + k * self.row_bytes;
        (&mut self.plain[reserved], k)
    }

    /// Counts the reserved rows as filled. Returns the piece if it is full or the window complete.
    /// `row` gives the logits of a reserved row, by its index among them: it is asked for rows that
    /// are stored exactly, which are longer than their memory.
    pub fn commit<'r>(&mut self, row: impl Fn(usize) -> &'r [f32]) -> Option<Piece> {
        let k = std::mem::take(&mut self.reserved);
        if k == 0 {
            return None;
        }
        let start = self.filled;
        self.filled += k * self.row_bytes;
        if self.count_forms(start) {
            self.insert_exact(start, row);
        }
        self.rows_in_piece += k;
        let end = self.filled;
        self.checksum(start..end);
        (self.rows_left == 0 || self.rows_in_piece == self.rows_per_piece).then(|| {
            let part = Part::Rows {
                window: self.window,
                piece: self.piece,
            };
            (self.rows_in_piece, self.filled) = (0, 0);
            self.piece += 1;
            self.plain.truncate(end);
            self.take(part)
        })
    }

    /// Counts the forms of the rows from byte `start` on. Returns whether any is to be exact.
    #[expect(
        clippy::indexing_slicing,
        reason = "the rows' bytes in the piece's memory"
    )]
    fn count_forms(&mut self, start: usize) -> bool {
        let n_exact = self.forms.exact;
        for encoded in self.plain[start..self.filled].chunks_exact(self.row_bytes) {
            match self.format.layout.form(encoded) {
                Some(form) => self.forms.count(form),
                None => return false,
            }
        }
        self.forms.exact > n_exact
    }

    /// Puts exact rows where those from byte `start` on are only marked.
    #[expect(
        clippy::indexing_slicing,
        reason = "the rows' bytes in the piece's memory"
    )]
    fn insert_exact<'r>(&mut self, start: usize, row: impl Fn(usize) -> &'r [f32]) {
        let marked = self.plain[start..self.filled].to_vec();
        self.plain.truncate(start);
        for (i, encoded) in marked.chunks_exact(self.row_bytes).enumerate() {
            match self.format.layout.form(encoded) {
                Some(Form::Exact) => RowLayout::append_exact(row(i), &mut self.plain),
                _ => self.plain.extend_from_slice(encoded),
            }
        }
        self.filled = self.plain.len();
    }

    /// Checks that every row was given, and returns how they are stored.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if rows are missing.
    pub fn finish(self) -> Result<RowForms> {
        match self.rows_left() {
            0 => Ok(self.forms),
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
