//! Compares what would be written with a file that exists.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A writer that writes nothing: it reads a file, which must hold the bytes that it is given.
pub struct Compared<'d> {
    file: BufReader<Take<File>>,
    /// True if only the first bytes are compared: where they end, writing stops with an error.
    is_start: bool,
    /// Set where the file holds other bytes, as the error passes through other code.
    differs: &'d AtomicBool,
}

impl<'d> Compared<'d> {
    pub fn open(path: &Path, differs: &'d AtomicBool) -> io::Result<Self> {
        let file = BufReader::with_capacity(1 << 20, File::open(path)?.take(u64::MAX));
        Ok(Self {
            file,
            is_start: false,
            differs,
        })
    }

    /// For the first MiB, which holds the header: files of one header are of one whole.
    pub fn open_start(path: &Path, differs: &'d AtomicBool) -> io::Result<Self> {
        let file = BufReader::new(File::open(path)?.take(1 << 20));
        Ok(Self {
            file,
            is_start: true,
            differs,
        })
    }

    /// Checks that nothing follows in the file.
    pub fn finish(mut self) -> io::Result<()> {
        match self.file.fill_buf()?.is_empty() {
            true => Ok(()),
            false => Err(self.other()),
        }
    }

    fn other(&self) -> io::Error {
        self.differs.store(true, Ordering::Relaxed);
        io::Error::other("holds other bytes")
    }
}

impl Write for Compared<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let found = self.file.fill_buf()?;
        if self.is_start && found.is_empty() && !bytes.is_empty() {
            return Err(io::Error::other("ends here"));
        }
        let n = found.len().min(bytes.len());
        let is_same = found.get(..n) == bytes.get(..n) && (n > 0 || bytes.is_empty());
        self.file.consume(n);
        if is_same { Ok(n) } else { Err(self.other()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
