//! Checks that parts come in the order of a file: a window's head, its rows, the next window's
//! head.

use std::collections::HashSet;

use super::piece::Part;
use crate::WindowEntry;

/// What has been written, and what is still to come.
#[derive(Debug)]
pub(super) struct Order {
    /// Windows that the file must have, if its header states it.
    n_windows: Option<u32>,
    /// Rows that the file must have, if its header states it.
    n_rows: Option<u64>,
    seen: HashSet<u32>,
    rows_seen: u64,
    /// The window being written, and how many of its pieces are written and still to come.
    window: u32,
    pieces_seen: u32,
    pieces_left: u32,
}

impl Order {
    pub(super) fn new(n_windows: Option<u32>, n_rows: Option<u64>) -> Self {
        Self {
            n_windows,
            n_rows,
            seen: HashSet::new(),
            rows_seen: 0,
            window: 0,
            pieces_seen: 0,
            pieces_left: 0,
        }
    }

    /// Counts windows that an earlier writer has written.
    pub(super) fn resume<'w>(&mut self, windows: impl IntoIterator<Item = &'w WindowEntry>) {
        for window in windows {
            self.seen.insert(window.window);
            self.rows_seen += u64::from(window.n_rows);
        }
    }

    /// Counts a part.
    ///
    /// # Errors
    /// A phrase that states why it is not the next one.
    pub(super) fn check(&mut self, part: Part) -> Result<(), String> {
        match part {
            Part::Head { window, n_pieces } => {
                self.check_complete()?;
                let number = window.window;
                let n_seen = self.seen.len() as u64;
                if let Some(n) = self.n_windows.filter(|&n| n_seen >= u64::from(n)) {
                    return Err(format!("window {number} is one more than the header's {n}"));
                }
                if !self.seen.insert(number) {
                    return Err(format!("window {number} comes twice"));
                }
                self.rows_seen += u64::from(window.n_rows);
                (self.window, self.pieces_seen, self.pieces_left) = (number, 0, n_pieces);
            }
            Part::Rows { window, piece } => {
                if self.pieces_left == 0 || self.window != window || self.pieces_seen != piece {
                    return Err(format!("piece {piece} of window {window} is out of order"));
                }
                self.pieces_seen += 1;
                self.pieces_left -= 1;
            }
        }
        Ok(())
    }

    /// Checks that nothing is missing.
    ///
    /// # Errors
    /// A phrase that states what is missing.
    pub(super) fn check_end(&self) -> Result<(), String> {
        self.check_complete()?;
        let (n_windows, n_rows) = (self.seen.len() as u64, self.rows_seen);
        let windows = self.n_windows.map_or(n_windows, u64::from);
        let rows = self.n_rows.unwrap_or(n_rows);
        match (n_windows, n_rows) == (windows, rows) {
            true => Ok(()),
            false => Err(format!(
                "{n_windows} windows with {n_rows} rows were given, the header states {windows} with \
                 {rows}"
            )),
        }
    }

    fn check_complete(&self) -> Result<(), String> {
        match self.pieces_left {
            0 => Ok(()),
            left => Err(format!(
                "window {} lacks {left} pieces of rows",
                self.window
            )),
        }
    }
}
