//! What a file holds apart from its windows: start and end.

use std::fmt::Debug;

use super::piece::Part;
use super::window_format::WindowFormat;
use crate::States;

/// The start of a file that is to be written.
pub(crate) struct Start {
    /// Everything before the first window.
    pub(crate) bytes: Vec<u8>,
    /// How windows become pieces.
    pub(crate) format: WindowFormat,
    /// Windows that the file is to have; `None` where its header does not state it.
    pub(crate) n_windows: Option<u32>,
    /// Rows that the file is to have; `None` where its header does not state it.
    pub(crate) n_rows: Option<u64>,
    /// The hidden states that its windows will hold, whose head comes before them.
    pub(crate) states: Option<States>,
    /// What comes after the windows.
    pub(crate) end: Box<dyn End>,
}

/// What comes after the windows of a file.
pub(crate) trait End: Debug + Send {
    /// Notes that `part`, the next of the file, starts at `offset`.
    fn note(&mut self, part: Part, offset: u64);

    /// The bytes of the end of a file whose windows end at `offset`.
    ///
    /// # Errors
    /// A phrase that states what cannot be written.
    fn bytes(&self, offset: u64) -> Result<Vec<u8>, &'static str>;
}

/// The end of a file that ends with its last window.
#[derive(Debug)]
pub(crate) struct NoEnd;

impl End for NoEnd {
    fn note(&mut self, _part: Part, _offset: u64) {}

    fn bytes(&self, _offset: u64) -> Result<Vec<u8>, &'static str> {
        Ok(Vec::new())
    }
}
