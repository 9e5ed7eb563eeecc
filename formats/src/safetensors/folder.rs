//! Which files of a folder are windows, and in which order.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Named, Result};

/// The files of a folder in the order of their numbers, which must not have a gap. Other files,
/// which do not end in `.safetensors`, are ignored.
///
/// # Errors
/// [`crate::Error::Unsupported`] naming the file whose name is not a number, the numbers that two
/// files have or none has, or a folder without any; [`crate::Error::Io`].
pub(super) fn windows(folder: &Named) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let failed = |cause| folder.io("read", cause);
    for entry in fs::read_dir(folder.path()).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if is_window(&path) {
            files.push((number(&path)?, path));
        }
    }
    files.sort_unstable();
    let Some(&(first, _)) = files.first() else {
        return Err(folder.unsupported(
            "is a folder without safetensors files: give one with 0.safetensors, 1.safetensors \
             and so on, one file for each window",
        ));
    };
    for ((number, path), expected) in files.iter().zip(first..) {
        if *number < expected {
            return Err(Named::new(path).unsupported(format!(
                "another file in its folder has the number {number} too: remove one of them"
            )));
        }
        if *number > expected {
            return Err(folder.unsupported(format!(
                "lacks {expected}.safetensors, but has {number}.safetensors: copy it again or \
                 renumber its files"
            )));
        }
    }
    if u32::try_from(files.len()).is_err() {
        return Err(folder.too_large("more than 2^32 windows"));
    }
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Whether a file of a folder is a window's, by its name.
pub fn is_window(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "safetensors")
}

/// The number that a file is named by.
fn number(path: &Path) -> Result<u64> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let digits = stem.filter(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()));
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| {
            Named::new(path).unsupported(
            "its name is not a number: a folder of logits holds 0.safetensors, 1.safetensors and so \
             on, a file a window",
        )
        })
}
