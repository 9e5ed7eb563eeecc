//! A window of an npz: its arrays, and its rows as they are read.

use std::io::{self, Read};

use super::member::{Member, Stream};
use crate::error::{Error, Named};
use crate::row::{RowBlock, RowLayout, Shape};
use crate::tensors::{Matrix, count_fault, id_fault};

/// Most memory that is allocated before its bytes have arrived.
const STEP_BYTES: usize = 1 << 20;

/// A window's arrays.
#[derive(Debug)]
pub(super) struct WindowArrays {
    pub(super) array: Member,
    pub(super) matrix: Matrix,
    /// Empty where the file holds none.
    pub(super) tokens: Vec<u32>,
}

/// The rows of a window that are still to come.
#[derive(Debug)]
pub(super) struct OpenRows {
    pub(super) stream: Stream,
    pub(super) index: usize,
    pub(super) n_read: u32,
}

impl WindowArrays {
    /// Checks that its tokens match its rows, and its vocabulary the first window's.
    ///
    /// # Errors
    /// A phrase that states what does not match.
    pub(super) fn check(&self, first: Option<&WindowArrays>) -> std::result::Result<(), String> {
        let (n_rows, n_vocab) = (self.matrix.n_rows, self.matrix.n_vocab);
        if let Some(first) = first {
            let there = first.matrix.n_vocab;
            let name = &first.array.name;
            if n_vocab != there {
                return Err(format!(
                    "has rows of {n_vocab}, and {name} of {there}: a file holds windows of one model"
                ));
            }
            if self.tokens.is_empty() != first.tokens.is_empty() {
                return Err(format!("it and {name} do not both have token ids"));
            }
        }
        if self.tokens.is_empty() {
            return Ok(());
        }
        let fault = count_fault(self.tokens.len() as u64, n_rows);
        fault
            .or(id_fault(&self.tokens, n_vocab))
            .map_or(Ok(()), Err)
    }

    pub(super) fn fault(&self, name: &Named, rows: &OpenRows, error: io::Error) -> Error {
        let (window, offset) = (rows.index as u32, rows.stream.n_bytes());
        fault(name, Some(window), offset, in_array(&self.array, error))
    }
}

impl OpenRows {
    pub(super) fn next(
        &mut self,
        window: &WindowArrays,
        max_rows: usize,
    ) -> io::Result<Option<RowBlock>> {
        let matrix = window.matrix;
        let n_rows = max_rows.min((matrix.n_rows - self.n_read) as usize);
        if n_rows == 0 {
            return Ok(None);
        }
        let shape = Shape {
            window: self.index as u32,
            first_row: self.n_read,
            n_rows,
            n_vocab: matrix.n_vocab as usize,
            layout: RowLayout::F32,
        };
        let too_large = || io::Error::new(io::ErrorKind::InvalidData, "rows larger than memory");
        let mut packed = Vec::new();
        fill(
            &mut self.stream,
            &mut packed,
            n_rows as u64 * matrix.row_bytes() as u64,
        )?;
        let bytes = shape.bytes().ok_or_else(too_large)?;
        let mut block = RowBlock::prepare(None, shape, bytes);
        let (_, plain) = block.buffers();
        matrix
            .float
            .decode(&packed, bytemuck::cast_slice_mut(plain));
        self.n_read += n_rows as u32; // at most n_rows
        if self.n_read == matrix.n_rows {
            self.stream.finish()?;
        }
        Ok(Some(block))
    }
}

/// Reads `n` bytes. Memory is allocated as they arrive.
pub(super) fn fill(stream: &mut impl Read, bytes: &mut Vec<u8>, n: u64) -> io::Result<()> {
    let mut left = n;
    while left > 0 {
        let start = bytes.len();
        // At most doubles what has arrived already.
        let step = left.min(STEP_BYTES.max(start) as u64);
        bytes.resize(start + step as usize, 0);
        stream.read_exact(bytes.get_mut(start..).unwrap_or_default())?;
        left -= step;
    }
    Ok(())
}

/// The failure, with the name of the array.
pub(super) fn in_array(member: &Member, error: io::Error) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::UnexpectedEof => "ends before all of its shape is read".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{} {what}", member.name))
}

/// The error for a failure to read.
pub(super) fn fault(name: &Named, window: Option<u32>, offset: u64, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => name.truncated(window, offset, error.to_string()),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            name.corrupt(window, offset, error.to_string())
        }
        io::ErrorKind::Unsupported => name.unsupported(error.to_string()),
        _ => name.io("read", error),
    }
}
