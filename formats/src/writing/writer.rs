//! Writes a file: its start, its windows in order, its end.

use std::collections::HashSet;
use std::io::Write;

use super::{Piece, WindowFormat, WindowPart};
use crate::error::{Named, Result};
use crate::row::RowForms;
use crate::states::States;
use crate::window::{PlacedWindow, WindowSpec};

/// The start of a file that is to be written.
#[derive(Debug)]
pub(crate) struct Start {
    /// Everything before the first window.
    pub(crate) bytes: Vec<u8>,
    /// The settings by which windows become pieces.
    pub(crate) format: WindowFormat,
    /// Windows that the file is to have.
    pub(crate) n_windows: u32,
    /// Rows that the file is to have; `None` where its header does not state it.
    pub(crate) n_rows: Option<u64>,
    /// The hidden states that its windows will hold, whose head comes before them.
    pub(crate) states: Option<States>,
}

/// Writes a reference of any kind to anything that accepts bytes.
///
/// Call [`Writer::write_window`] for each window. Or share the work between threads:
/// [`Writer::window_format`] encodes windows and [`Piece::compress`] compresses their pieces, both
/// on any thread; [`Writer::append`] writes them in order.
///
/// The file is whole only after [`Writer::finish`].
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    /// The contents that the file is to have. Its states are those whose head comes next.
    pub(crate) start: Start,
    offset: u64,
    /// The windows written so far, and those of an earlier writer.
    windows: Vec<PlacedWindow>,
    /// Their numbers.
    seen: HashSet<u32>,
    /// Pieces of rows that the last window still lacks.
    n_due: u32,
}

impl<W: Write> Writer<W> {
    /// Writes the start of any file.
    pub(crate) fn begin(out: W, mut start: Start) -> Result<Self> {
        let bytes = std::mem::take(&mut start.bytes);
        let mut writer = Self::at(out, start, 0, Vec::new());
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// A writer of a file that is written up to `offset`: its start, and these windows.
    pub(crate) fn at(out: W, start: Start, offset: u64, windows: Vec<PlacedWindow>) -> Self {
        Self {
            out,
            start,
            offset,
            seen: windows.iter().map(|placed| placed.entry.window).collect(),
            windows,
            n_due: 0,
        }
    }

    /// A copy of the settings by which windows become the pieces of this file, for any thread.
    pub fn window_format(&self) -> WindowFormat {
        self.start.format.clone()
    }

    pub(crate) fn name(&self) -> &Named {
        &self.start.format.name
    }

    /// Writes a whole window: `window.n_rows` rows of `n_vocab` logits each, or as many hidden
    /// states. Returns how they are stored.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if the file cannot hold such a window or it is not the next one,
    /// [`crate::Fault::Io`].
    pub fn write_window<R: AsRef<[f32]>>(
        &mut self,
        window: &WindowSpec,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<RowForms> {
        let (layout, row_len) = (self.start.format.layout, self.start.format.row_len as usize);
        let (mut encoder, first) = self.start.format.begin(window)?;
        self.append(first)?;
        let mut memory = None;
        for row in rows {
            let row = row.as_ref();
            let (bytes, n) = encoder.reserve_rows(1, || memory.take());
            if n == 0 || row.len() != row_len {
                let (window, n_rows) = (window.window, window.n_rows);
                let what =
                    format!("window {window}: rows that are not {n_rows} of {row_len} entries");
                return Err(self.name().unwritable(what));
            }
            layout.encode(row, bytes);
            if let Some(piece) = encoder.commit(|_| row) {
                memory = self.append(piece)?;
            }
        }
        encoder.finish()
    }

    /// Writes the next piece: a window's first, then its rows in order, then the next window's. Returns
    /// a piece of rows, whose memory can be reused.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if it is not the next one, [`crate::Fault::Io`]. It must come from
    /// [`Writer::window_format`] of this file.
    pub fn append(&mut self, piece: Piece) -> Result<Option<Piece>> {
        let placed = self.place(piece.part);
        placed.map_err(|what| self.name().unwritable(what))?;
        let piece = piece.compress();
        self.put(&piece.packed)?;
        Ok(matches!(piece.part, WindowPart::Rows { .. }).then_some(piece))
    }

    /// Notes where a part starts.
    ///
    /// # Errors
    /// A phrase that states why it is not the next one.
    fn place(&mut self, part: WindowPart) -> Result<(), String> {
        match part {
            WindowPart::Start(entry) => {
                self.check_all_written()?;
                let (number, n) = (entry.window, self.start.n_windows);
                if self.windows.len() >= n as usize {
                    return Err(format!("window {number} is one more than the header's {n}"));
                }
                if !self.seen.insert(number) {
                    return Err(format!("window {number} comes twice"));
                }
                self.n_due = entry.n_rows.div_ceil(self.start.format.rows_per_piece);
                self.windows.push(PlacedWindow {
                    entry,
                    offsets: vec![self.offset],
                });
            }
            WindowPart::Rows { window, piece } => match self.windows.last_mut() {
                Some(last)
                    if (last.entry.window, last.n_pieces()) == (window, piece)
                        && self.n_due > 0 =>
                {
                    self.n_due -= 1;
                    last.offsets.push(self.offset);
                }
                _ => return Err(format!("piece {piece} of window {window} is out of order")),
            },
        }
        Ok(())
    }

    /// Checks that the head of hidden states and all rows of the last window have been written.
    fn check_all_written(&self) -> Result<(), String> {
        match (self.windows.last(), self.n_due) {
            _ if self.start.states.is_some() => Err("hidden states without their head".to_owned()),
            (Some(last), 1..) => {
                let (number, left) = (last.entry.window, self.n_due);
                Err(format!("window {number} lacks {left} pieces of rows"))
            }
            _ => Ok(()),
        }
    }

    /// Writes the end, flushes, and returns the output.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if windows or rows are missing, [`crate::Fault::Io`].
    pub fn finish(mut self) -> Result<W> {
        let end = self.end().map_err(|what| self.name().unwritable(what))?;
        self.put(&end)?;
        let flushed = self.out.flush();
        flushed.map_err(|cause| self.name().io("write", cause))?;
        Ok(self.out)
    }

    /// The bytes after all windows, or a phrase that states what is missing.
    fn end(&self) -> Result<Vec<u8>, String> {
        self.check_all_written()?;
        let rows = self.windows.iter().map(|placed| placed.entry.n_rows);
        let n_rows = rows.map(u64::from).sum::<u64>();
        let found = (self.windows.len() as u64, n_rows);
        let stated = (
            self.start.n_windows.into(),
            self.start.n_rows.unwrap_or(n_rows),
        );
        if found != stated {
            return Err(format!(
                "{} windows with {} rows were given, the header states {} with {}",
                found.0, found.1, stated.0, stated.1
            ));
        }
        Ok((self.start.format.file_format.end)(
            &self.windows,
            self.offset,
        )?)
    }

    /// Bytes written so far.
    pub fn file_bytes(&self) -> u64 {
        self.offset
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.out.write_all(bytes);
        written.map_err(|cause| self.name().io("write", cause))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}
