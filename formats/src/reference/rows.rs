//! The rows of a reference, and the ways to read them.

use std::fmt::Debug;

use crate::error::Result;
use crate::{NativeReader, RowBlock, States, WindowSpec};

/// The rows of a reference.
#[derive(Debug)]
pub enum Rows {
    /// Blocks that can be read in any order, by many threads at once.
    Blocks(Box<dyn ReadBlocks>),
    /// One stream from the first window to the last.
    Stream(Box<dyn ReadStream>),
    /// A file of hidden states ([`NativeReader::read_states`]), and the description by which the
    /// caller computes rows from them.
    States(Box<NativeReader>, States),
    /// No rows: the caller computes those of these windows with a model that it has.
    Model(Vec<WindowSpec>),
}

/// Rows that can be read in any order, by many threads at once: window `i` of the file, in blocks.
///
/// Methods panic if there is no such window or block.
pub trait ReadBlocks: Debug + Send + Sync {
    /// Rows in each block but a window's last.
    fn rows_per_block(&self) -> u32;

    /// Blocks of a window's rows.
    fn n_blocks(&self, i: usize) -> u32;

    /// A window's tokens, and which of its rows are stored.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] with the window and its position, [`crate::Fault::Io`].
    fn window(&self, i: usize) -> Result<WindowSpec>;

    /// Block `b` of a window's rows, in the memory of `reuse` if given.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] with the window and its position, [`crate::Fault::Io`].
    fn block(&self, i: usize, b: u32, reuse: Option<RowBlock>) -> Result<RowBlock>;

    /// Tells the system that a block will be read soon, so that the disk can work meanwhile.
    /// Returns at once.
    fn prefetch(&self, _i: usize, _b: u32) {}

    /// Sets the token that the model decodes in place of each window's first, where
    /// [`super::About::hides_bos`].
    fn set_bos(&mut self, _bos: Option<u32>) {}

    /// Reads a whole window and checks all that can be checked in a file of its kind.
    ///
    /// # Errors
    /// The window's first fault.
    fn verify_window(&self, i: usize) -> Result<()> {
        self.window(i)?;
        let mut reuse = None;
        for b in 0..self.n_blocks(i) {
            reuse = Some(self.block(i, b, reuse)?);
        }
        Ok(())
    }
}

/// Rows that can only be read from the first window to the last.
pub trait ReadStream: Debug + Send {
    /// The next window; `None` after the last. Rows of the window before that were not read are
    /// skipped.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] or [`crate::Fault::Truncated`] with the window and its position,
    /// [`crate::Fault::Io`].
    fn next_window(&mut self) -> Result<Option<WindowSpec>>;

    /// Up to `max_rows` more rows of that window; `None` when there are no more.
    ///
    /// # Errors
    /// As [`ReadStream::next_window`].
    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>>;

    /// Opens the same stream again, at its first window.
    ///
    /// # Errors
    /// Those of opening the file.
    fn reopen(&self) -> Result<Box<dyn ReadStream>>;
}
