//! Rows that another run has stored, evaluated instead of a model's.

use std::collections::HashMap;

use kl_formats::WindowSpec;

use super::Error;
use super::decoded::decoded_rows;
use super::reference_rows::ReferenceRows;
use super::spare::Spare;
use crate::engine::LogitSource;

/// A file whose rows are evaluated as a model's are.
pub struct Stored<'h> {
    rows: ReferenceRows<'h>,
    n_vocab: usize,
    /// Its own windows, by the number of the window that each is compared with.
    windows: HashMap<u32, WindowSpec>,
    spare: Spare<Vec<f32>>,
}

impl<'h> Stored<'h> {
    /// Evaluates `rows`, whose windows come in the order in which they are asked for. `windows`
    /// holds the rows to use of each, by the number of the window that is asked for.
    #[must_use]
    pub fn new(rows: ReferenceRows<'h>, n_vocab: u32, windows: HashMap<u32, WindowSpec>) -> Self {
        Self {
            rows,
            n_vocab: n_vocab as usize,
            windows,
            spare: Spare::default(),
        }
    }
}

impl LogitSource for Stored<'_> {
    type Error = Error;

    fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn is_floored(&self) -> bool {
        self.rows.is_floored()
    }

    fn decode<E: From<Error>>(
        &mut self,
        window: &WindowSpec,
        sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        let wanted = self
            .windows
            .get(&window.window)
            .ok_or_else(|| Error::Inconsistent {
                found: format!("a different window {} than before", window.window),
            })?;
        decoded_rows(&self.rows, wanted, &self.spare, sink)
    }
}
