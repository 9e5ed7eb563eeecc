//! Writing a reference, whatever its kind: cuts a window into pieces as its rows arrive.

mod writer;

use crate::error::{Named, Result};
use crate::row::{RowForms, RowLayout, U16Form, append_exact};
use crate::window::{PlacedWindow, WindowEntry, WindowSpec};
pub(crate) use writer::Start;
pub use writer::Writer;

/// Plain bytes that a piece of rows should have.
const PIECE_BYTES: usize = 1 << 20;

/// Rows of `row_len` numbers in a piece: about 1 MiB before compression, and at least one. Rows that
/// are stored exactly make a piece longer.
pub fn rows_per_piece(layout: RowLayout, row_len: u32) -> u32 {
    let rows = PIECE_BYTES / layout.row_bytes(row_len as usize).max(1);
    u32::try_from(rows).unwrap_or(u32::MAX).max(1)
}

/// A bounded part of a file, before and after it is compressed.
#[derive(Clone, Debug)]
pub struct Piece {
    pub(crate) plain: Vec<u8>,
    /// The bytes of the file; empty before it is compressed.
    pub(crate) packed: Vec<u8>,
    pub(crate) part: WindowPart,
    pub(crate) pack: Pack,
}

/// The part of its window that a piece holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowPart {
    /// The first piece: the window's counts and tokens.
    Start(WindowEntry),
    /// Rows, in pieces numbered from 0.
    Rows { window: u32, piece: u32 },
}

/// Appends plain bytes, its last argument, to bytes of a file.
pub(crate) type Pack = fn(&mut Vec<u8>, WindowPart, &[u8]);

impl Piece {
    /// Compresses it, or stores it where compressing does not pay, unless that has been done.
    /// Depends on nothing but the piece, so pieces may be compressed on any thread, in any order.
    #[must_use]
    pub fn compress(mut self) -> Self {
        if self.packed.is_empty() {
            (self.pack)(&mut self.packed, self.part, &self.plain);
        }
        self
    }
}

/// The parts of a kind's format that a writer needs: each window is a piece of counts and tokens and
/// pieces of rows, and an end follows the last.
#[derive(Debug)]
pub(crate) struct FileFormat {
    /// Finds the reason why a file cannot hold a window of at most `n_ctx` tokens, the second argument.
    pub(crate) window_fault: fn(&WindowSpec, u32) -> Option<&'static str>,
    /// A window's plain bytes before its rows: counts and tokens. The second argument is `n_vocab`.
    pub(crate) before_rows: fn(&WindowSpec, u32) -> Vec<u8>,
    /// Set if a CRC-32 of a window's plain bytes follows them.
    pub(crate) has_checksum: bool,
    /// Turns a piece's plain bytes into bytes of the file.
    pub(crate) pack: Pack,
    /// The bytes after the windows of a file, which end at an offset, or a phrase that states what
    /// cannot be written.
    pub(crate) end: fn(&[PlacedWindow], u64) -> Result<Vec<u8>, &'static str>,
}

impl FileFormat {
    /// Finds a fault in a window that is to be written.
    pub(crate) fn fault(&self, window: &WindowSpec, n_ctx: u32, n_vocab: u32) -> Option<String> {
        let of_file = if window.tokens.len() > n_ctx as usize {
            Some("more tokens than n_ctx")
        } else {
            (self.window_fault)(window, n_ctx)
        };
        of_file.map(str::to_owned).or_else(|| window.fault(n_vocab))
    }
}

/// The settings by which the windows of one file become pieces. Windows may be encoded on any thread;
/// their pieces are appended in order by the [`Writer`] that this comes from.
#[derive(Clone, Debug)]
pub struct WindowFormat {
    /// The file, for errors.
    pub(crate) name: Named,
    pub(crate) file_format: &'static FileFormat,
    pub(crate) layout: RowLayout,
    pub(crate) n_ctx: u32,
    /// Entries of the vocabulary, which tokens are below.
    pub(crate) n_vocab: u32,
    /// Numbers in a row: `n_vocab`, or those of a hidden state.
    pub(crate) row_len: u32,
    pub(crate) rows_per_piece: u32,
}

impl WindowFormat {
    /// Windows with rows of `n_vocab` logits, in pieces of the usual size.
    pub(crate) fn of_logits(
        name: &Named,
        file_format: &'static FileFormat,
        layout: RowLayout,
        n_ctx: u32,
        n_vocab: u32,
    ) -> Self {
        Self {
            name: name.clone(),
            file_format,
            layout,
            n_ctx,
            n_vocab,
            row_len: n_vocab,
            rows_per_piece: rows_per_piece(layout, n_vocab),
        }
    }

    /// The layout of its rows.
    pub fn row_layout(&self) -> RowLayout {
        self.layout
    }

    /// Plain bytes of a piece of rows; rows that are stored exactly make it longer.
    pub fn piece_bytes(&self) -> usize {
        self.row_bytes()
            .saturating_mul(self.rows_per_piece as usize)
    }

    /// Bytes of a row that is not stored exactly.
    fn row_bytes(&self) -> usize {
        self.layout.row_bytes(self.row_len as usize)
    }

    /// Begins a window. Returns an encoder of its rows, and its first piece: counts and tokens.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if the file cannot hold such a window.
    pub fn begin(&self, window: &WindowSpec) -> Result<(WindowEncoder, Piece)> {
        if let Some(fault) = self.file_format.fault(window, self.n_ctx, self.n_vocab) {
            let what = format!("window {}: {fault}", window.window);
            return Err(self.name.unwritable(what));
        }
        let mut encoder = WindowEncoder {
            format: self.clone(),
            window: window.window,
            piece: 0,
            rows_left: window.n_rows as usize,
            reserved: 0,
            plain: (self.file_format.before_rows)(window, self.n_vocab),
            packed: Vec::new(),
            rows_in_piece: 0,
            filled: 0,
            forms: RowForms::default(),
            crc: crc32fast::Hasher::new(),
        };
        let piece = encoder.take(WindowPart::Start(window.entry()));
        Ok((encoder, piece))
    }
}

/// Turns the rows of one window into [`Piece`]s.
///
/// Rows are encoded by the caller, on as many threads as it likes, into the memory that
/// [`WindowEncoder::reserve_rows`] hands out.
///
/// ```
/// # use std::path::Path;
/// # use kl_formats::{Kind, About, Target, WindowSpec, Writer, };
/// let window = WindowSpec { window: 0, tokens: vec![0, 1], first_scored: 0, n_rows: 2 };
/// # let about = About::new(Kind::KlPy, "", 4, 2);
/// # let target = Target::new(Kind::KlPy, None)?;
/// # let windows = std::slice::from_ref(&window);
/// # let mut writer = Writer::create(Vec::new(), Path::new(""), target, &about, windows)?;
/// let layout = writer.window_format().row_layout();
/// let (mut encoder, first) = writer.window_format().begin(&window)?;
/// writer.append(first.compress())?;
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
    /// The number of the piece that is being filled.
    piece: u32,
    rows_left: usize,
    reserved: usize,
    /// Plain bytes of the piece: committed rows, reserved ones, and room for more.
    plain: Vec<u8>,
    /// Memory for the compressed piece.
    packed: Vec<u8>,
    rows_in_piece: usize,
    /// Bytes of the committed rows of the piece.
    filled: usize,
    forms: RowForms,
    /// Over the window's pieces so far.
    crc: crc32fast::Hasher,
}

impl WindowEncoder {
    /// The number of rows that have not been committed.
    pub fn rows_left(&self) -> usize {
        self.rows_left
    }

    /// Returns memory for the next rows, and how many: at most `k`, and no more than the piece and
    /// the window have room for (0 once the window is full). The bytes are those rows one after
    /// another, each as long as a row of the file. Fill them before [`WindowEncoder::commit`];
    /// reserving again before that returns the same rows. Where a new piece begins, it uses the memory
    /// of a piece that has been written, which `memory` gives: taking fresh memory from the system for
    /// every piece costs more than filling it.
    #[expect(
        clippy::indexing_slicing,
        reason = "the piece's memory holds the rows committed and those reserved"
    )]
    pub fn reserve_rows(
        &mut self,
        k: usize,
        memory: impl FnOnce() -> Option<Piece>,
    ) -> (&mut [u8], usize) {
        let rows_to_come = self.rows_in_whole_piece() - self.rows_in_piece;
        self.reserved = k.min(rows_to_come);
        if self.plain.is_empty()
            && self.reserved > 0
            && let Some(piece) = memory()
        {
            (self.plain, self.packed) = (piece.plain, piece.packed);
            self.packed.clear();
        }
        // The whole piece at once: its size is bounded, and growing would copy it.
        let row_bytes = self.format.row_bytes();
        let bytes = self.filled + rows_to_come * row_bytes;
        if self.plain.len() != bytes {
            self.plain
                .reserve_exact((bytes + size_of::<u32>()).saturating_sub(self.plain.len()));
            self.plain.resize(bytes, 0);
        }
        let reserved = &mut self.plain[self.filled..self.filled + self.reserved * row_bytes];
        (reserved, self.reserved)
    }

    /// Rows that the piece will have.
    fn rows_in_whole_piece(&self) -> usize {
        let most = self.format.rows_per_piece as usize;
        most.min(self.rows_in_piece + self.rows_left)
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
        self.filled += k * self.format.row_bytes();
        self.insert_exact(start, row);
        let is_full = self.rows_in_piece + k == self.rows_in_whole_piece();
        self.rows_in_piece += k;
        self.rows_left -= k;
        is_full.then(|| {
            self.plain.truncate(self.filled);
            (self.rows_in_piece, self.filled) = (0, 0);
            let (window, piece) = (self.window, self.piece);
            self.piece += 1;
            self.take(WindowPart::Rows { window, piece })
        })
    }

    /// Counts the rows from byte `start` on, if rows have forms, and puts exact rows where those are
    /// only marked.
    #[expect(
        clippy::indexing_slicing,
        reason = "the rows' bytes in the piece's memory"
    )]
    fn insert_exact<'r>(&mut self, start: usize, row: impl Fn(usize) -> &'r [f32]) {
        let (layout, row_bytes) = (self.format.layout, self.format.row_bytes());
        let rows = &self.plain[start..self.filled];
        let forms = rows.chunks_exact(row_bytes).map(|row| layout.form(row));
        let is_exact: Vec<bool> = forms.flatten().map(|form| form == U16Form::Exact).collect();
        let n_exact = is_exact.iter().filter(|&&is_exact| is_exact).count();
        self.forms.total += is_exact.len() as u64;
        self.forms.exact += n_exact as u64;
        if n_exact == 0 {
            return;
        }
        let encoded = rows.to_vec();
        self.plain.truncate(start);
        for (i, (encoded, is_exact)) in encoded.chunks(row_bytes).zip(is_exact).enumerate() {
            if is_exact {
                append_exact(row(i), &mut self.plain);
            } else {
                self.plain.extend_from_slice(encoded);
            }
        }
        self.filled = self.plain.len();
    }

    /// Checks that every row was given, and returns how they are stored.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if rows are missing.
    pub fn finish(self) -> Result<RowForms> {
        match self.rows_left {
            0 => Ok(self.forms),
            left => {
                let what = format!("window {} lacks {left} of its rows", self.window);
                Err(self.format.name.unwritable(what))
            }
        }
    }

    /// The filled bytes as a piece; the window's last piece ends with the checksum.
    fn take(&mut self, part: WindowPart) -> Piece {
        let mut plain = std::mem::take(&mut self.plain);
        if self.format.file_format.has_checksum {
            self.crc.update(&plain);
            if self.rows_left == 0 {
                plain.extend_from_slice(&self.crc.clone().finalize().to_le_bytes());
            }
        }
        Piece {
            plain,
            packed: std::mem::take(&mut self.packed),
            part,
            pack: self.format.file_format.pack,
        }
    }
}
