//! A file as it is written: its start, its windows in order, its end.

use std::io::Write;

use super::order::Order;
use super::piece::{Member, PieceMemory};
use super::start::{End, Start};
use super::window_format::WindowFormat;
use crate::error::{Named, Result};
use crate::{Error, RowForms, States, WindowEntry, WindowSpec};

/// Writes a reference of any kind to anything that accepts bytes.
///
/// Call [`Writer::write_window`] for each window. Or share the work between threads:
/// [`Writer::window_format`] encodes windows and [`super::Piece::compress`] compresses their
/// pieces, both on any thread; [`Writer::append`] writes them in order.
///
/// The file is whole only after [`Writer::finish`].
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    name: Named,
    offset: u64,
    format: WindowFormat,
    order: Order,
    end: Box<dyn End>,
    /// The hidden states that its windows hold.
    states: Option<States>,
    /// Whether their head is still to be written.
    is_head_due: bool,
}

impl<W: Write> Writer<W> {
    /// Writes the start of any file.
    pub(crate) fn begin(out: W, name: Named, mut start: Start) -> Result<Self> {
        let bytes = std::mem::take(&mut start.bytes);
        let mut writer = Self::at(out, name, start, 0, []);
        writer.is_head_due = writer.states.is_some();
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// A writer of a file that is written up to `offset`: its head, if it has one, and these windows.
    pub(crate) fn at<'w>(
        out: W,
        name: Named,
        start: Start,
        offset: u64,
        windows: impl IntoIterator<Item = &'w WindowEntry>,
    ) -> Self {
        let mut order = Order::new(start.n_windows, start.n_rows);
        order.resume(windows);
        Self {
            out,
            offset,
            format: WindowFormat {
                name: name.clone(),
                ..start.format
            },
            name,
            order,
            end: start.end,
            states: start.states,
            is_head_due: false,
        }
    }

    pub(crate) fn format(&self) -> &WindowFormat {
        &self.format
    }

    /// How windows become the pieces of this file.
    pub fn window_format(&self) -> WindowFormat {
        self.format.clone()
    }

    /// The hidden states that the file's windows hold, and whether their head is still to be written.
    pub(crate) fn states(&self) -> Option<(&States, bool)> {
        self.states
            .as_ref()
            .map(|states| (states, self.is_head_due))
    }

    /// Notes that the head has been written.
    pub(crate) fn end_head(&mut self) {
        self.is_head_due = false;
    }

    pub(crate) fn name(&self) -> &Named {
        &self.name
    }

    /// Writes a whole window: `window.n_rows` rows of `n_vocab` logits each, or as many hidden
    /// states. Returns how they are stored.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if the file cannot hold such a window or it is not the next one,
    /// [`Error::Io`].
    pub fn write_window<R: AsRef<[f32]>>(
        &mut self,
        window: &WindowSpec,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<RowForms> {
        let layout = self.format.row_layout();
        let row_len = self.format.row_len as usize;
        let (mut encoder, head) = self.format.encode(window)?;
        self.append(head.compress())?;
        let mut memory = None;
        for row in rows {
            let row = row.as_ref();
            let (bytes, n) = encoder.reserve_rows(1, || memory.take());
            if n == 0 || row.len() != row_len {
                return Err(self.unfit(window, row.len()));
            }
            layout.encode(row, bytes);
            if let Some(piece) = encoder.commit(|_| row) {
                memory = self.append(piece.compress())?;
            }
        }
        encoder.finish()
    }

    /// Writes the next member: a window's head, then its rows in order, then the next window's.
    /// Returns the memory of rows, to be reused.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if it is not the next one, or of another kind of file; [`Error::Io`].
    pub fn append(&mut self, member: Member) -> Result<Option<PieceMemory>> {
        if member.kind != self.format.kind {
            return Err(self.name.unwritable("a member of another kind of file"));
        }
        self.check_head()?;
        self.order
            .check(member.part)
            .map_err(|what| self.name.unwritable(what))?;
        self.end.note(member.part, self.offset);
        self.put(&member.bytes)?;
        Ok(member.into_memory())
    }

    /// Writes the end, flushes, and returns the output.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if windows or rows are missing, [`Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        self.check_head()?;
        let whole = self.order.check_end();
        whole.map_err(|what| self.name.unwritable(what))?;
        let end = self.end.bytes(self.offset);
        let end = end.map_err(|what| self.name.unwritable(what))?;
        self.put(&end)?;
        self.out
            .flush()
            .map_err(|source| self.name.io("write", source))?;
        Ok(self.out)
    }

    /// Checks that nothing of the head is missing.
    fn check_head(&self) -> Result<()> {
        match self.is_head_due {
            true => Err(self.name.unwritable("hidden states without their head")),
            false => Ok(()),
        }
    }

    /// Bytes written so far.
    pub fn file_bytes(&self) -> u64 {
        self.offset
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out
            .write_all(bytes)
            .map_err(|source| self.name.io("write", source))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// The error for a row that does not fit into a window.
    fn unfit(&self, window: &WindowSpec, entries: usize) -> Error {
        let WindowSpec { window, n_rows, .. } = window;
        let row_len = self.format.row_len;
        self.name.unwritable(match entries == row_len as usize {
            true => format!("window {window}: more rows were given than its {n_rows}"),
            false => format!("window {window}: a row has {entries} entries, not {row_len}"),
        })
    }
}
