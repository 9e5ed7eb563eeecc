//! A stream that knows what is left of it, and hashes what it passes.

use std::fs::File;
use std::io::{BufReader, Read};

use sha2::{Digest, Sha256};

use crate::error::{Named, Result};
use crate::hex;

/// Bytes of a string that is skipped are taken in steps of this size: most are tokens, far shorter.
const STEP_BYTES: usize = 256;

/// Reads a GGUF from its first byte on.
pub(super) struct Cursor {
    stream: BufReader<File>,
    hash: Sha256,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) name: Named,
}

impl Cursor {
    pub(super) fn new(file: File, len: u64, name: Named) -> Self {
        let stream = BufReader::with_capacity(256 << 10, file);
        Self {
            stream,
            hash: Sha256::new(),
            offset: 0,
            len,
            name,
        }
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> u64 {
        self.len.saturating_sub(self.offset)
    }

    /// SHA-256 (hex) of all that was read.
    pub(super) fn sha256(&self) -> String {
        hex(&self.hash.clone().finalize())
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> crate::Error {
        self.name.corrupt(None, self.offset, what)
    }

    /// Fails unless `bytes` more are there.
    pub(super) fn need(&self, bytes: u64, what: &str) -> Result<()> {
        if bytes <= self.left() {
            return Ok(());
        }
        Err(self.name.truncated(
            None,
            self.offset,
            format!(
                "{what} takes {bytes} bytes and the file has {} left: the download is incomplete, \
                 or a length is damaged",
                self.left()
            ),
        ))
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.need(bytes.len() as u64, "the header")?;
        self.stream
            .read_exact(bytes)
            .map_err(|source| self.name.io("read", source))?;
        self.hash.update(&*bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of things that take at least `each` bytes: no more than the file can hold.
    pub(super) fn count(&mut self, what: &str, each: u64) -> Result<u64> {
        let n = self.u64()?;
        match n.checked_mul(each) {
            Some(bytes) => self
                .need(bytes, &format!("a list of {n} {what}"))
                .map(|()| n),
            None => Err(self.corrupt(format!("{n} {what}"))),
        }
    }

    /// A string's length, no more than the file can hold.
    pub(super) fn string_len(&mut self) -> Result<u64> {
        let n = self.u64()?;
        self.need(n, "a string")?;
        Ok(n)
    }

    /// A string of at most `max` bytes; what is not UTF-8 is replaced.
    pub(super) fn string(&mut self, max: u64) -> Result<String> {
        let n = self.string_len()?;
        if n > max {
            return Err(self.corrupt(format!("a name of {n} bytes, the limit is {max}")));
        }
        let mut bytes = vec![0; n as usize];
        self.fill(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Passes over a string; `also` sees its length and its bytes.
    pub(super) fn skip_string(&mut self, mut also: impl FnMut(&[u8])) -> Result<()> {
        let n = self.string_len()?;
        also(&n.to_le_bytes());
        self.pass(n, also)
    }

    /// Passes over `n` bytes.
    pub(super) fn pass(&mut self, mut n: u64, mut also: impl FnMut(&[u8])) -> Result<()> {
        self.need(n, "a value")?;
        let mut bytes = [0; STEP_BYTES];
        while n > 0 {
            let step = n.min(STEP_BYTES as u64) as usize;
            let part = bytes.get_mut(..step).unwrap_or_default();
            self.fill(part)?;
            also(part);
            n -= step as u64;
        }
        Ok(())
    }
}
