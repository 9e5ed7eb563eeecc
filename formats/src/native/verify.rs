//! Every byte read, every checksum computed.

use std::path::Path;

use super::NativeReader;
use super::reader::CRC_BYTES;
use crate::checksum;
use crate::error::Result;
use crate::{RowBlock, VerifyReport};

/// CRC-32 of any bytes with their own CRC-32, little-endian, behind them.
const CRC_OF_WHOLE: u32 = 0x2144_df1c;

/// Reads the whole file, window after window in the order of the file, and checks each byte:
/// header, index, counts and tokens, every member's checksums, and behind each block the one that
/// is for readers of the plain stream. One piece is in memory at a time.
///
/// To use several threads, or to show how far it is, share a [`NativeReader`] and call
/// [`NativeReader::verify_window`] for each window: this does no more.
///
/// # Errors
/// The first fault, with its window and byte: those of [`NativeReader::open`], then those of
/// [`NativeReader::verify_window`].
pub fn verify(path: &Path) -> Result<VerifyReport> {
    let reader = NativeReader::open(path)?;
    for i in 0..reader.windows().len() {
        reader.verify_window(i)?;
    }
    Ok(VerifyReport {
        n_windows: reader.header().n_windows,
        n_rows: reader.header().n_rows,
        file_bytes: reader.file_bytes(),
    })
}

impl NativeReader {
    /// Reads the `i`-th window of the file whole and checks each of its bytes; gives how many it
    /// has in the file. What is in no window was checked when the file was opened.
    ///
    /// # Errors
    /// The window's first fault: [`crate::Error::Corrupt`] with the window and its place,
    /// [`crate::Error::Truncated`] if the file has shrunk, [`crate::Error::Io`].
    ///
    /// # Panics
    /// If `i` is not below the length of [`NativeReader::windows`].
    pub fn verify_window(&self, i: usize) -> Result<u64> {
        let (head, plain) = self.head_and_bytes(i)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&plain);
        let n_pieces = self.n_pieces(i);
        let mut reuse: Option<RowBlock> = None;
        for p in 0..n_pieces {
            let block = self.piece(i, p, reuse.take())?;
            let behind = if p + 1 == n_pieces { CRC_BYTES } else { 0 };
            let bytes = block.n_rows() * self.header().row_bytes() + behind as usize;
            crc.update(block.bytes().get(..bytes).unwrap_or_default());
            reuse = Some(block);
        }
        let (start, end) = (self.entry(i).offset(), self.window_end(i));
        if !checksum::matches(crc.finalize(), CRC_OF_WHOLE) {
            let what = "the checksum behind the block does not match";
            let name = self.name();
            return Err(name.corrupt(Some(head.window), start, what));
        }
        Ok(end - start)
    }
}
