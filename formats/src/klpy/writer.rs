//! The writing side: gzip members in order.

use std::io::Write;
use std::path::Path;

use super::KlPyHeader;
use crate::error::{Named, Result};
use crate::piece::{Framing, Member, Part, PieceMemory, gzip};

/// Writes kl.py's file to anything that takes bytes. Members come from
/// [`crate::WindowEncoder::kl_py`]; windows are read back in the order given.
#[derive(Debug)]
pub struct KlPyWriter<W: Write> {
    out: W,
    name: Named,
    n_windows: Option<u32>,
    windows_seen: u32,
    offset: u64,
    /// The window being written, and how many of its pieces came and are still to come.
    window: u32,
    pieces_seen: u32,
    pieces_left: u32,
}

impl<W: Write> KlPyWriter<W> {
    /// Writes the header. `path` is for messages alone.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the header cannot be, [`crate::Error::Io`].
    pub fn create(out: W, path: &Path, header: &KlPyHeader) -> Result<Self> {
        let name = Named::new(path);
        let lines = header.to_lines(&name)?;
        let mut writer = Self {
            out,
            name,
            n_windows: header.n_windows,
            windows_seen: 0,
            offset: 0,
            window: 0,
            pieces_seen: 0,
            pieces_left: 0,
        };
        writer.put(&gzip(&lines))?;
        Ok(writer)
    }

    /// Writes the next member: a window's head, then its rows in order, then the next window's.
    /// Gives the memory of rows back, for other rows.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if it is not the next one, [`crate::Error::Io`].
    pub fn append(&mut self, member: Member) -> Result<Option<PieceMemory>> {
        if member.framing != Framing::Gzip {
            return Err(self.name.unwritable("a member of another kind of file"));
        }
        match member.part {
            Part::Head {
                window, n_pieces, ..
            } => {
                self.check_complete()?;
                self.windows_seen = self.windows_seen.saturating_add(1);
                (self.window, self.pieces_seen, self.pieces_left) = (window, 0, n_pieces);
            }
            Part::Rows { window, piece } => {
                if self.pieces_left == 0 || self.window != window || self.pieces_seen != piece {
                    return Err(self
                        .name
                        .unwritable(format!("piece {piece} of window {window} is out of order")));
                }
                self.pieces_seen += 1;
                self.pieces_left -= 1;
            }
        }
        self.put(&member.bytes)?;
        Ok(member.into_memory())
    }

    /// Flushes, and gives the output back.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if windows or rows are missing, [`crate::Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        self.check_complete()?;
        if let Some(n) = self.n_windows.filter(|&n| n != self.windows_seen) {
            return Err(self.name.unwritable(format!(
                "{} windows were given, the header says {n}",
                self.windows_seen
            )));
        }
        self.out
            .flush()
            .map_err(|source| self.name.io("write", source))?;
        Ok(self.out)
    }

    /// Bytes written so far.
    pub fn file_bytes(&self) -> u64 {
        self.offset
    }

    fn check_complete(&self) -> Result<()> {
        match self.pieces_left {
            0 => Ok(()),
            left => Err(self.name.unwritable(format!(
                "window {} lacks {left} pieces of rows",
                self.window
            ))),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out
            .write_all(bytes)
            .map_err(|source| self.name.io("write", source))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}
