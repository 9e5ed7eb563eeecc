//! The temporary copy of a model's file in which quantized weights are dequantized.

use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

/// The folder of temporary copies, which `TMPDIR` names.
pub fn copies_folder() -> PathBuf {
    env::temp_dir()
}

/// A temporary file that goes when this is dropped. On Linux it has no name, so that it goes even if the process is
/// killed.
#[derive(Debug)]
pub(super) struct TemporaryCopy {
    path: PathBuf,
    /// Keeps a file without a name.
    _file: File,
    /// Removes one with a name.
    _name: Option<TempPath>,
}

impl TemporaryCopy {
    /// Creates an empty file.
    pub(super) fn create() -> io::Result<Self> {
        let named = tempfile::Builder::new()
            .prefix(".kl-dequantized-")
            .suffix(".gguf")
            .tempfile_in(copies_folder())?;
        let (file, name) = named.into_parts();
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            if path.exists() {
                drop(name);
                return Ok(Self {
                    path,
                    _file: file,
                    _name: None,
                });
            }
        }
        Ok(Self {
            path: name.to_path_buf(),
            _file: file,
            _name: Some(name),
        })
    }

    /// The path by which this process opens it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// Opening the path again would prove nothing: once the file is closed, another thread may get its descriptor.
    #[test]
    fn a_copy_can_be_opened_by_its_path_and_goes() {
        let copy = TemporaryCopy::create().unwrap();
        fs::write(copy.path(), b"weights").unwrap();
        assert_eq!(fs::read(copy.path()).unwrap(), b"weights");
        let opened = File::open(copy.path()).unwrap();
        drop(copy);
        assert_eq!(opened.metadata().unwrap().nlink(), 0);
    }
}
