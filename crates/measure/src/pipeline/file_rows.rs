//! Rows of a file in the place of a model's.

use std::collections::HashMap;

use kl_formats::WindowSpec;

use super::in_turn::{LogitSource, UseRows};
use super::reference_rows::ReferenceRows;
use super::{Error, Pool};

/// A source of a file's rows.
pub struct FileRows<'r, 'h> {
    rows: &'r ReferenceRows<'h>,
    /// Its own windows, by the number of the window that is asked for, where they differ.
    windows: HashMap<u32, WindowSpec>,
    /// Logits whose memory can be used again.
    memory: Pool<Vec<f32>>,
}

impl<'r, 'h> FileRows<'r, 'h> {
    /// Hands out `rows`, whose windows come in the order in which they are asked for. `windows` holds
    /// the rows to use, by the number of the window that is asked for, where those are not its own.
    pub fn new(rows: &'r ReferenceRows<'h>, windows: HashMap<u32, WindowSpec>) -> Self {
        Self {
            rows,
            windows,
            memory: Pool::default(),
        }
    }
}

impl LogitSource for FileRows<'_, '_> {
    fn n_vocab(&self) -> usize {
        self.rows.n_vocab
    }

    fn is_floored(&self) -> bool {
        self.rows.is_floored
    }

    /// Hands `sink` the logits of each window's rows, a bounded number at a time: all or some of those of
    /// the file's window with that number. Windows before it are skipped.
    fn decode(&mut self, windows: &[&WindowSpec], sink: &mut UseRows<'_>) -> Result<(), Error> {
        for (i, window) in windows.iter().enumerate() {
            let wanted = self.windows.get(&window.window).unwrap_or(window);
            let mut open_window = self.rows.find(wanted.window)?;
            let (spec, n_rows) = (&open_window.spec, wanted.n_rows);
            let n_rows_before = wanted
                .first_scored
                .checked_sub(spec.first_scored)
                .filter(|n_rows_before| n_rows_before + n_rows <= spec.n_rows);
            let Some(n_rows_before) = n_rows_before else {
                let contents = format!("different rows for window {} than before", wanted.window);
                return Err(Error::inconsistent(&contents));
            };
            open_window.rows.skip(n_rows_before as usize);
            open_window.logits(n_rows as usize, self.n_vocab(), &self.memory, |rows| {
                sink(i, rows)
            })?;
        }
        Ok(())
    }
}
