//! A native file of hidden states, which any thread can read.

use std::io::Read;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::NativeReader;
use crate::error::Result;
use crate::reference::{ReadBlocks, ReadStates};
use crate::{RowBlock, States, WindowSpec};

/// A native file that holds hidden states.
#[derive(Debug)]
pub(super) struct StatesReader {
    reader: NativeReader,
    states: States,
    /// The piece that was read last, and its window's index: the next rows wanted may be in it too.
    last: Mutex<Option<(usize, RowBlock)>>,
}

impl StatesReader {
    pub(super) fn new(reader: NativeReader, states: States) -> Self {
        Self {
            reader,
            states,
            last: Mutex::default(),
        }
    }

    /// Piece `b` of the `i`-th window.
    fn piece(&self, i: usize, b: u32) -> Result<RowBlock> {
        let last = self.lock_last().take();
        let first_row = b.saturating_mul(self.reader.header().rows_per_piece);
        match last {
            Some((of, piece)) if of == i && piece.first_row == first_row => Ok(piece),
            other => self.reader.piece(i, b, other.map(|(_, piece)| piece)),
        }
    }

    fn keep(&self, i: usize, piece: RowBlock) {
        *self.lock_last() = Some((i, piece));
    }

    fn lock_last(&self) -> MutexGuard<'_, Option<(usize, RowBlock)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadStates for StatesReader {
    fn states(&self) -> &States {
        &self.states
    }

    fn window(&self, i: usize) -> Result<WindowSpec> {
        self.reader.window(i)
    }

    #[expect(clippy::panic, reason = "the caller's rows, as documented")]
    fn read(&self, i: usize, rows: Range<u32>, out: &mut Vec<f32>) -> Result<()> {
        let n_rows = self.reader.entry(i).window.n_rows;
        if rows.end > n_rows {
            panic!("rows {rows:?} of {n_rows}");
        }
        let rows_per_piece = self.reader.header().rows_per_piece;
        let n_embd = self.states.n_embd as usize;
        let state_type = self.states.state_type;
        let mut next = rows.start;
        while next < rows.end {
            let piece = self.piece(i, next / rows_per_piece)?;
            let first = piece.first_row;
            let end = rows.end.min(first + piece.n_rows() as u32); // rows are counted in a u32
            let [from, to] = [next, end].map(|row| (row - first) as usize * n_embd);
            let bytes = from * state_type.bytes()..to * state_type.bytes();
            let start = out.len();
            out.resize(start + (to - from), 0.0);
            let (bytes, out) = (piece.bytes().get(bytes), out.get_mut(start..));
            state_type.decode_into(bytes.unwrap_or_default(), out.unwrap_or_default());
            self.keep(i, piece);
            next = end;
        }
        Ok(())
    }

    fn prefetch(&self, i: usize) {
        let offset = self.reader.entry(i).offset();
        let bytes = self.reader.window_end(i) - offset;
        self.reader.source.prefetch(offset, bytes);
    }

    fn head(&self) -> Box<dyn Read + '_> {
        self.reader.head_stream()
    }

    fn check_rows(&self) -> Result<Vec<Vec<f32>>> {
        self.reader.check_rows()
    }

    fn verify_window(&self, i: usize) -> Result<()> {
        self.reader.verify_window(i)
    }

    fn verify_head(&self) -> Result<()> {
        self.reader.verify_head()
    }
}
