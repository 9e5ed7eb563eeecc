//! A native file of hidden states, which any thread can read.

use std::io::Read;
use std::ops::Range;

use super::NativeReader;
use crate::error::Result;
use crate::reference::{ReadBlocks, ReadStates};
use crate::{States, WindowSpec};

/// A native file that holds hidden states.
#[derive(Debug)]
pub(super) struct StatesReader {
    pub(super) reader: NativeReader,
    pub(super) states: States,
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
        let row_bytes = n_embd * self.states.state_type.bytes();
        let mut next = rows.start;
        let mut reuse = None;
        while next < rows.end {
            let piece = next / rows_per_piece;
            let block = self.reader.piece(i, piece, reuse.take())?;
            let end = rows.end.min(block.first_row.saturating_add(rows_per_piece));
            let bytes = (next - block.first_row) as usize * row_bytes
                ..(end - block.first_row) as usize * row_bytes;
            let start = out.len();
            out.resize(start + (end - next) as usize * n_embd, 0.0);
            let (bytes, out) = (block.bytes().get(bytes), out.get_mut(start..));
            let (bytes, out) = (bytes.unwrap_or_default(), out.unwrap_or_default());
            self.states.state_type.decode_into(bytes, out);
            next = end;
            reuse = Some(block);
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
