//! A file that is written past the page cache, where the system allows it.
//!
//! Copying a reference into the page cache takes CPU time from decoding, and a reference that is
//! larger than memory does not stay there. So it goes straight from this buffer to the disk
//! (`docs/DESIGN.md` has the figures).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Offsets, lengths and memory addresses of direct writes are multiples of this: the largest block
/// that disks have.
const ALIGNMENT: usize = 4096;

/// The bytes that go to the disk at once.
const CHUNK: usize = 4 << 20;

/// A file that grows at its end. Dropped before it is finished, it writes what it still holds if it
/// can: the file is then cut off, and not empty.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    /// A chunk, and room to let it start at a multiple of [`ALIGNMENT`].
    buffer: Vec<u8>,
    /// Where the chunk starts in `buffer`.
    start: usize,
    /// Bytes in the chunk.
    filled: usize,
    is_direct: bool,
    /// Bytes that the file must have in the end.
    length: u64,
    /// True if a write has failed: the bytes still held belong after those that it lost.
    has_failed: bool,
}

impl DirectFile {
    /// Continues after the first `length` bytes of `file`, and drops the rest.
    ///
    /// # Errors
    /// If the file cannot be read or cut to that length.
    pub fn new(mut file: File, length: u64) -> io::Result<Self> {
        let mut buffer = vec![0u8; CHUNK + ALIGNMENT];
        let start = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        file.set_len(length)?;
        // The last block is not whole: it is written again.
        let filled = (length % ALIGNMENT as u64) as usize;
        let block = SeekFrom::Start(length - filled as u64);
        file.seek(block)?;
        file.read_exact(&mut buffer[start..start + filled])?;
        file.seek(block)?;
        let is_direct = set_direct(&file, true);
        Ok(Self {
            file,
            buffer,
            start,
            filled,
            is_direct,
            length,
            has_failed: false,
        })
    }

    /// Writes what is still held, and returns the file's length in bytes.
    ///
    /// # Errors
    /// If the file cannot be written, or has another length than what was written.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        let length = self.file.metadata()?.len();
        if length != self.length {
            let what = format!("it has {length} bytes, but {} were written", self.length);
            return Err(io::Error::other(what));
        }
        Ok(length)
    }

    /// Writes a part of the chunk.
    fn put(&mut self, from: usize, to: usize) -> io::Result<()> {
        let put = self.put_bytes(from, to);
        self.has_failed |= put.is_err();
        put
    }

    fn put_bytes(&mut self, from: usize, to: usize) -> io::Result<()> {
        let mut bytes = &self.buffer[self.start + from..self.start + to];
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Allowed before and refused now: a file system with larger blocks, or without
                // direct writes, or one that has written part of a block.
                Err(error) if self.is_direct && refuses(&error) => {
                    if !set_direct(&self.file, false) {
                        return Err(error);
                    }
                    self.is_direct = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns true if an error refuses direct writes, and not this write as such.
fn refuses(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

impl Write for DirectFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(CHUNK - self.filled);
        let free = self.start + self.filled;
        self.buffer[free..free + n].copy_from_slice(&bytes[..n]);
        self.filled += n;
        self.length += n as u64;
        if self.filled == CHUNK {
            self.put(0, CHUNK)?;
            self.filled = 0;
        }
        Ok(n)
    }

    /// Writes what is held. What does not fill a whole block goes through the page cache, and so
    /// does everything after it.
    fn flush(&mut self) -> io::Result<()> {
        let whole = self.filled - self.filled % ALIGNMENT;
        self.put(0, whole)?;
        if whole < self.filled {
            self.is_direct = self.is_direct && !set_direct(&self.file, false);
            self.put(whole, self.filled)?;
        }
        self.filled = 0;
        self.file.flush()
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        if !self.has_failed {
            let _ = self.flush();
        }
    }
}

/// Makes writes bypass the page cache, or use it; returns whether the system does so.
#[cfg(target_os = "linux")]
fn set_direct(file: &File, on: bool) -> bool {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let set = |flags: OFlags| {
        let wanted = if on {
            flags | OFlags::DIRECT
        } else {
            flags - OFlags::DIRECT
        };
        fcntl_setfl(file, wanted)
    };
    fcntl_getfl(file).and_then(set).is_ok()
}

/// Other systems always use the page cache.
#[cfg(not(target_os = "linux"))]
fn set_direct(_file: &File, _on: bool) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_however_they_are_cut() {
        let bytes: Vec<u8> = (0..CHUNK as u32 * 2 + 12_345)
            .map(|i| (i % 251) as u8)
            .collect();
        // The build's folder is on a disk; the temporary one may be in memory.
        for folder in [std::env::temp_dir(), env!("CARGO_MANIFEST_DIR").into()] {
            for cut in [1000, ALIGNMENT, CHUNK, CHUNK + 1, bytes.len()] {
                let mut read = tempfile::NamedTempFile::new_in(&folder).unwrap();
                let mut file = DirectFile::new(read.reopen().unwrap(), 0).unwrap();
                for (i, part) in bytes.chunks(cut).enumerate() {
                    file.write_all(part).unwrap();
                    if i == 3 {
                        file.flush().unwrap();
                    }
                }
                assert_eq!(file.finish().unwrap(), bytes.len() as u64);
                let mut back = Vec::new();
                io::Read::read_to_end(&mut read, &mut back).unwrap();
                assert!(back == bytes, "cut to {cut}");
            }
        }
    }

    #[test]
    fn writing_continues_after_the_bytes_that_are_there() {
        let bytes: Vec<u8> = (0..3 * ALIGNMENT as u32 + 100).map(|i| i as u8).collect();
        for length in [
            0,
            1,
            ALIGNMENT - 1,
            ALIGNMENT,
            ALIGNMENT + 1,
            2 * ALIGNMENT + 7,
        ] {
            let mut read = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            read.write_all(&bytes[..length]).unwrap();
            read.write_all(b"torn").unwrap();
            let file = read.reopen().unwrap();
            let mut file = DirectFile::new(file, length as u64).unwrap();
            file.write_all(&bytes[length..]).unwrap();
            // Cut off, and so not finished.
            drop(file);
            assert!(
                std::fs::read(read.path()).unwrap() == bytes,
                "after {length}"
            );
        }
    }
}
