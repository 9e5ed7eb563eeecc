//! A file that many threads read at once, each at offsets of its own.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::error::{Named, Result};

/// An open file of known length.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    pub(crate) name: Named,
    pub(crate) len: u64,
}

impl Source {
    /// Opens a regular file; `role` is what messages call it.
    pub(crate) fn open(path: &Path, role: &str) -> Result<Self> {
        let name = Named::new(path);
        let (file, len) = open(&name, role)?;
        Ok(Self { file, name, len })
    }

    /// Fills `bytes` from `offset` on.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        read_exact_at(&self.file, bytes, offset).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.name
                    .truncated(None, offset, "the file has become shorter")
            }
            _ => self.name.io("read", source),
        })
    }

    /// Asks the system to fetch bytes that will be read soon. Returns at once; a failure is
    /// ignored.
    pub(crate) fn prefetch(&self, offset: u64, bytes: u64) {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{Advice, fadvise};
            let bytes = std::num::NonZeroU64::new(bytes);
            let _ = fadvise(&self.file, offset, bytes, Advice::WillNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
    }

    /// `N` bytes from `offset` on; `None` if the file has fewer.
    pub(crate) fn array_at<const N: usize>(&self, offset: u64) -> Result<Option<[u8; N]>> {
        if offset
            .checked_add(N as u64)
            .is_none_or(|end| end > self.len)
        {
            return Ok(None);
        }
        let mut bytes = [0; N];
        self.read_exact_at(&mut bytes, offset)?;
        Ok(Some(bytes))
    }
}

/// Opens a regular file; returns its length too. Files are opened more than once and read at given
/// offsets, which a pipe does not allow. `role` is what messages call the file.
pub(crate) fn open(name: &Named, role: &str) -> Result<(File, u64)> {
    // Before opening: that would wait for a named pipe's writer.
    let metadata = std::fs::metadata(name.path()).map_err(|cause| name.io("open", cause))?;
    if metadata.is_dir() {
        return Err(name.unsupported(format!("is a folder: {role} must be a regular file")));
    }
    if !metadata.is_file() {
        return Err(name.unsupported(format!("{role} must be a regular file: save it first")));
    }
    let file = File::open(name.path()).map_err(|cause| name.io("open", cause))?;
    let metadata = file.metadata().map_err(|cause| name.io("open", cause))?;
    Ok((file, metadata.len()))
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                bytes = &mut bytes[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
