//! The identity of a file, whatever its name.

use std::fs;

/// The identity of a file, one under all of its names, where the system has such a thing.
#[cfg(unix)]
pub fn file_id(metadata: &fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
pub fn file_id(_: &fs::Metadata) -> Option<(u64, u64)> {
    None
}
