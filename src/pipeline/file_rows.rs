//! A file's rows in place of a model's: to evaluate them, or to write them into another file.

use std::collections::HashMap;

use kl_formats::WindowSpec;

use super::in_turn::LogitSource;
use super::open_window::OpenWindow;
use super::reference_rows::ReferenceRows;
use super::{Error, Pool};

/// A source of a file's rows.
pub struct FileRows<'r, 'h> {
    rows: &'r ReferenceRows<'h>,
    /// Its own windows, by the number of the window that is asked for, where they differ.
    windows: HashMap<u32, WindowSpec>,
    /// The memory of logits.
    used: Pool<Vec<f32>>,
}

impl<'r, 'h> FileRows<'r, 'h> {
    /// Hands out `rows`, whose windows come in the order in which they are asked for. `windows` holds
    /// the rows to use, by the number of the window that is asked for, where those are not its own.
    pub fn new(rows: &'r ReferenceRows<'h>, windows: HashMap<u32, WindowSpec>) -> Self {
        Self {
            rows,
            windows,
            used: Pool::default(),
        }
    }

    /// Goes on to the window with this number.
    fn find(&self, number: u32) -> Result<OpenWindow<'r, 'h>, Error> {
        while let Some(window) = self.rows.next_window()? {
            if window.spec.window == number {
                return Ok(window);
            }
        }
        Err(Error::inconsistent(&format!("no window {number}")))
    }
}

impl LogitSource for FileRows<'_, '_> {
    fn n_vocab(&self) -> usize {
        self.rows.source.n_vocab
    }

    fn is_floored(&self) -> bool {
        self.rows.source.is_floored
    }

    /// Hands `sink` the logits of a window's rows, a bounded number at a time: all or some of those of
    /// the file's window with that number. Windows before it are skipped.
    fn decode(
        &mut self,
        window: &WindowSpec,
        sink: impl FnMut(&[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let wanted = self.windows.get(&window.window).unwrap_or(window);
        let mut found = self.find(wanted.window)?;
        let (spec, n_rows) = (&found.spec, wanted.n_rows);
        let before = wanted.first_scored.checked_sub(spec.first_scored);
        let before = before.filter(|before| before + n_rows <= spec.n_rows);
        let number = wanted.window;
        let before = before.ok_or_else(|| {
            Error::inconsistent(&format!("different rows for window {number} than before"))
        })?;
        found.skip(before as usize);
        found.logits(n_rows as usize, &self.used, sink)
    }
}
