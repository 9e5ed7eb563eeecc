//! Compares what would be written with a file that exists.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A writer that writes nothing: it reads a file, which must hold the bytes that it is given.
pub struct Compared<'d> {
    file: BufReader<File>,
    /// Set where the file holds other bytes, as the error passes through other code.
    differs: &'d AtomicBool,
}

impl<'d> Compared<'d> {
    pub fn open(path: &Path, differs: &'d AtomicBool) -> io::Result<Self> {
        let file = BufReader::with_capacity(1 << 20, File::open(path)?);
        Ok(Self { file, differs })
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
        let n = found.len().min(bytes.len());
        let is_same = found.get(..n) == bytes.get(..n) && (n > 0 || bytes.is_empty());
        self.file.consume(n);
        if is_same { Ok(n) } else { Err(self.other()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
