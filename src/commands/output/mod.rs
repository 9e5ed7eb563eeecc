//! Output files, which appear whole or not at all.

mod partial_file;

pub use partial_file::{
    Existing, PartialFile, folder_of, follow_links, partial_path, remove_partial_files,
};

use std::path::Path;

use anyhow::{Result, bail};

use crate::report::Warning;
use crate::report::number::bytes;

/// A reference, a sidecar or a map that was written.
#[derive(Debug, Default)]
pub struct NewFile {
    /// The file, as given.
    pub path: String,
    /// True for a map.
    pub is_map: bool,
    /// True if it was there already, and is what would be made.
    pub was_whole: bool,
    pub file_bytes: u64,
    /// Rows; of a sidecar, records; of a map, cells.
    pub n_rows: u64,
    pub wall_s: f64,
    pub warnings: Vec<Warning>,
}

/// The free bytes of the disk that a file is to be on, if the file system reports them.
pub fn free_space(file: &Path) -> Option<u64> {
    fs4::available_space(folder_of(file)).ok()
}

/// Refuses a file that cannot fit on its disk.
///
/// # Errors
/// If the disk has less than `size` bytes free.
pub fn check_free_space(partial: &Path, target: &Path, size: u64) -> Result<()> {
    // Where the file system does not report its free space, writing finds out.
    if let Some(free) = free_space(partial).filter(|&free| size > free) {
        bail!(
            "{}: the reference may take {}, but the disk has {} free: choose another disk, or use less of the text",
            target.display(),
            bytes(size),
            bytes(free)
        );
    }
    Ok(())
}
