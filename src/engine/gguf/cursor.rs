//! Reads a model's file from its first byte on, and checks before each read how much is left.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{ModelError, Result};

/// Skipped strings are read in steps of this many bytes: most are tokens, which are far shorter.
const STEP_BYTES: usize = 256;

/// Opens a regular file, and returns its length too. A model is opened more than once and read at
/// any position, neither of which a pipe allows.
///
/// # Errors
/// A file that is not regular or cannot be opened.
pub fn open(path: &Path) -> Result<(File, u64)> {
    let failed = |cause| ModelError::io(path, "open", &cause);
    // Before opening, which would wait for a named pipe's writer.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_dir() {
        return Err(ModelError::new(path, "is a folder: give a file"));
    }
    if !metadata.is_file() {
        let what = "is not a regular file: save it to one first";
        return Err(ModelError::new(path, what));
    }
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    Ok((file, metadata.len()))
}

/// Reads a GGUF in order, and hashes the bytes that it reads.
pub struct Cursor {
    stream: BufReader<File>,
    /// The hash of all bytes read so far.
    pub(super) hash: Sha256,
    pub(super) path: PathBuf,
    /// Bytes read so far.
    pub(super) offset: u64,
    /// How many of them are in a string, from its first zero byte on.
    after_zero: u64,
    /// Bytes of the file.
    pub(super) len: u64,
    /// What to do with a damaged file besides downloading it again, in one verb.
    remedy: &'static str,
}

impl Cursor {
    /// Opens a file. `remedy`: what to do if it is damaged, besides downloading it again, in one verb.
    ///
    /// # Errors
    /// Those of [`open`].
    pub fn open(path: &Path, remedy: &'static str) -> Result<Self> {
        let (file, len) = open(path)?;
        Ok(Self {
            stream: BufReader::with_capacity(256 << 10, file),
            hash: Sha256::new(),
            path: path.to_owned(),
            offset: 0,
            after_zero: 0,
            len,
            remedy,
        })
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.len.saturating_sub(self.offset)
    }

    /// The bytes that llama.cpp would copy of those read so far: it cuts strings at a zero byte.
    pub(super) fn copied(&self) -> u64 {
        self.offset - self.after_zero
    }

    /// The error for a file that is not a GGUF, or not one that `kl` reads.
    pub(super) fn fault(&self, what: impl Into<String>) -> ModelError {
        ModelError::new(&self.path, what)
    }

    /// The error for a header that is wrong up to here.
    pub fn corrupt(&self, what: impl Display) -> ModelError {
        let (offset, remedy) = (self.offset, self.remedy);
        self.fault(format!(
            "corrupt at byte {offset}: {what}; download or {remedy} it again"
        ))
    }

    /// The error for bytes that are missing from `offset` on.
    pub(super) fn truncated(&self, offset: u64, what: &str) -> ModelError {
        let remedy = self.remedy;
        self.fault(format!(
            "incomplete at byte {offset}: {what}; download or {remedy} it again"
        ))
    }

    /// Fails unless at least `bytes` are left.
    pub(super) fn need(&self, bytes: u64, what: &str) -> Result<()> {
        let left = self.left();
        if bytes <= left {
            return Ok(());
        }
        let what = format!(
            "{what} takes {bytes} bytes but only {left} are left: the file was cut off, or a length is damaged"
        );
        Err(self.truncated(self.offset, &what))
    }

    /// Reads as many bytes as `bytes` holds.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.need(bytes.len() as u64, "the header")?;
        self.stream
            .read_exact(bytes)
            .map_err(|cause| ModelError::io(&self.path, "read", &cause))?;
        self.hash.update(&*bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Reads `n` bytes, which `what` takes.
    ///
    /// # Errors
    /// A file that ends before, or cannot be read.
    pub fn bytes(&mut self, n: u64, what: &str) -> Result<Vec<u8>> {
        self.need(n, what)?;
        let mut bytes = vec![0; n as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a number, little-endian.
    ///
    /// # Errors
    /// A file that ends before, or cannot be read.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a number of items of at least `each` bytes, which the file must have room for.
    pub(super) fn count(&mut self, what: &str, each: u64) -> Result<u64> {
        let n = self.u64()?;
        self.need(n.saturating_mul(each), &format!("a list of {n} {what}"))?;
        Ok(n)
    }

    /// Reads a string's length, which the file must have room for.
    pub(super) fn string_len(&mut self) -> Result<u64> {
        let n = self.u64()?;
        self.need(n, "a string")?;
        Ok(n)
    }

    /// Reads the length of a name, then the name.
    pub(super) fn name(&mut self, max: u64) -> Result<String> {
        let n = self.string_len()?;
        if n > max {
            return Err(self.corrupt(format!("a name of {n} bytes, the limit is {max}")));
        }
        self.text(n)
    }

    /// Reads `n` bytes of text; invalid UTF-8 is replaced by U+FFFD.
    pub(super) fn text(&mut self, n: u64) -> Result<String> {
        let bytes = self.bytes(n, "a string")?;
        self.after_zero += after_zero(&bytes);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Skips `n` bytes, and passes them to `on_bytes`, a few at a time.
    pub(super) fn skip(&mut self, mut n: u64, mut on_bytes: impl FnMut(&[u8])) -> Result<()> {
        self.need(n, "a value")?;
        let mut bytes = [0; STEP_BYTES];
        while n > 0 {
            let step = n.min(STEP_BYTES as u64) as usize;
            let part = bytes.get_mut(..step).unwrap_or_default();
            self.fill(part)?;
            on_bytes(part);
            n -= step as u64;
        }
        Ok(())
    }

    /// Skips a string of `n` bytes, and passes them to `on_bytes`, a few at a time.
    pub(super) fn skip_text(&mut self, n: u64, mut on_bytes: impl FnMut(&[u8])) -> Result<()> {
        let mut cut = 0;
        self.skip(n, |bytes| {
            cut += match cut {
                0 => after_zero(bytes),
                _ => bytes.len() as u64,
            };
            on_bytes(bytes);
        })?;
        self.after_zero += cut;
        Ok(())
    }
}

/// The number of bytes from the first zero on.
fn after_zero(bytes: &[u8]) -> u64 {
    let zero = bytes.iter().position(|&byte| byte == 0);
    zero.map_or(0, |zero| bytes.len() - zero) as u64
}
