//! The writing side: members in order, then the index.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use super::member::{self, End, Tag};
use super::{Header, NativeReader, WindowEntry, index};
use crate::error::{Named, Result};
use crate::piece::{Framing, Member, Part, PieceMemory};

/// Writes a native file to anything that takes bytes.
///
/// The file is whole only after [`NativeWriter::finish`]; until then it has no index, and a
/// reader calls it incomplete.
#[derive(Debug)]
pub struct NativeWriter<W: Write> {
    out: W,
    name: Named,
    header: Header,
    offset: u64,
    entries: Vec<WindowEntry>,
    seen: HashSet<u32>,
    n_rows: u64,
    /// Pieces of rows that the window being written still needs.
    pieces_left: u32,
}

impl<W: Write> NativeWriter<W> {
    /// Writes the header. `path` is for messages alone.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if the header contradicts itself, [`crate::Error::Io`].
    pub fn create(out: W, path: &Path, header: &Header) -> Result<Self> {
        let name = Named::new(path);
        let lines = header.to_lines(&name)?;
        let mut writer = Self {
            out,
            name,
            header: header.clone(),
            offset: 0,
            entries: Vec::new(),
            seen: HashSet::new(),
            n_rows: 0,
            pieces_left: 0,
        };
        writer.put(&member::build(Tag::HEADER, &lines))?;
        Ok(writer)
    }

    /// Goes on behind the whole windows of what a writer was cut off in, as
    /// [`NativeReader::open_cut_off`] gives it. `out` takes what follows
    /// [`NativeReader::windows_end`], and the file then is what the first writer would have made of
    /// it, to the byte.
    pub fn resume(out: W, path: &Path, cut_off: &NativeReader) -> Self {
        let entries = cut_off.windows().to_vec();
        Self {
            out,
            name: Named::new(path),
            header: cut_off.header().clone(),
            offset: cut_off.windows_end(),
            seen: entries.iter().map(|entry| entry.window).collect(),
            n_rows: entries.iter().map(|entry| u64::from(entry.n_rows)).sum(),
            entries,
            pieces_left: 0,
        }
    }

    /// Writes the next member: a window's head, then its rows in order, then the next window's.
    /// Gives the memory of rows back, for other rows.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if it is not the next one, [`crate::Error::Io`].
    pub fn append(&mut self, member: Member) -> Result<Option<PieceMemory>> {
        if member.framing != Framing::Native {
            return Err(self.name.unwritable("a member of another kind of file"));
        }
        match member.part {
            Part::Head {
                window,
                n_tokens,
                n_rows,
                first_scored,
                n_pieces,
            } => {
                self.check_complete()?;
                if self.entries.len() as u64 >= u64::from(self.header.n_windows) {
                    return Err(self.name.unwritable(format!(
                        "window {window} is one more than the header's {}",
                        self.header.n_windows
                    )));
                }
                if !self.seen.insert(window) {
                    return Err(self.name.unwritable(format!("window {window} comes twice")));
                }
                let offsets = vec![self.offset];
                self.entries.push(WindowEntry {
                    window,
                    n_tokens,
                    n_rows,
                    first_scored,
                    offsets,
                });
                self.pieces_left = n_pieces;
                self.n_rows += u64::from(n_rows);
            }
            Part::Rows { window, piece } => {
                let offset = self.offset;
                match self.entries.last_mut() {
                    Some(entry)
                        if self.pieces_left > 0
                            && entry.window == window
                            && entry.n_pieces() == piece =>
                    {
                        entry.offsets.push(offset);
                    }
                    _ => {
                        return Err(self.name.unwritable(format!(
                            "piece {piece} of window {window} is out of order"
                        )));
                    }
                }
                self.pieces_left -= 1;
            }
        }
        self.put(&member.bytes)?;
        Ok(member.into_memory())
    }

    /// Writes the index and the end, flushes, and gives the output back.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if windows or rows are missing, [`crate::Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        self.check_complete()?;
        let n_windows = self.entries.len() as u64;
        if n_windows != u64::from(self.header.n_windows) || self.n_rows != self.header.n_rows {
            return Err(self.name.unwritable(format!(
                "{n_windows} windows with {} rows were given, the header says {} with {}",
                self.n_rows, self.header.n_windows, self.header.n_rows
            )));
        }
        let index_offset = self.offset;
        let plain = index::encode(&self.entries);
        if u32::try_from(plain.len()).is_err() {
            return Err(self.name.unwritable("an index of more than 4 GiB"));
        }
        self.put(&member::build(Tag::INDEX, &plain))?;
        let file_bytes = self.offset + member::END_BYTES as u64;
        self.put(&member::build_end(End {
            index_offset,
            file_bytes,
        }))?;
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
        match (self.pieces_left, self.entries.last()) {
            (1.., Some(entry)) => Err(self.name.unwritable(format!(
                "window {} lacks {} pieces of rows",
                entry.window, self.pieces_left
            ))),
            _ => Ok(()),
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
