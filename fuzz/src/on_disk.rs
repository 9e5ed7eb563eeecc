//! The input of a reader: a file, or a folder of files.

use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

/// The file or files that a target makes of an input.
pub enum OnDisk {
    File(Vec<u8>),
    /// `0.safetensors`, `1.safetensors`; two at most.
    Folder(Vec<Vec<u8>>),
}

impl OnDisk {
    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        match self {
            OnDisk::File(bytes) => bytes.len(),
            OnDisk::Folder(files) => files.iter().map(Vec::len).sum(),
        }
    }

    /// Writes it into a folder that may hold an earlier one; returns its path.
    pub fn put(&self, folder: &Path) -> Result<PathBuf> {
        let files = match self {
            OnDisk::File(bytes) => {
                let path = folder.join("file");
                fs::write(&path, bytes)?;
                return Ok(path);
            }
            OnDisk::Folder(files) => files,
        };
        for i in 0..2 {
            let path = folder.join(format!("{i}.safetensors"));
            match files.get(i) {
                Some(bytes) => fs::write(path, bytes)?,
                None if path.exists() => fs::remove_file(path)?,
                None => {}
            }
        }
        Ok(folder.to_owned())
    }
}
