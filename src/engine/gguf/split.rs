//! A model that is split into several files.

use std::io;
use std::path::{Path, PathBuf};

use kl_formats::hex;
use sha2::{Digest, Sha256};

use super::error::{GgufError, Result};
use super::{GgufSummary, read};

/// Reads the header of a model as [`read`] does; of the first part of a split one, those of all
/// parts. Its `file_bytes` are then those of all parts, and its `sample_sha256` the SHA-256 of the
/// parts' own hashes (hex), one after the other.
///
/// # Errors
/// Those of [`read`], [`GgufError::NotFirstPart`], and [`GgufError::Unsupported`] if the parts do not
/// have the names that llama.cpp looks for.
pub fn read_whole(path: &Path) -> Result<GgufSummary> {
    let mut header = read(path)?;
    let count = match header.split {
        Some((0, count @ 2..)) => count,
        Some((part, parts)) if part > 0 => {
            let (path, part) = (path.to_owned(), part + 1);
            return Err(GgufError::NotFirstPart { path, part, parts });
        }
        _ => return Ok(header),
    };
    let mut hash = Sha256::new_with_prefix(&header.sample_sha256);
    for part in part_paths(path, count)?.iter().skip(1) {
        let part = read(part).map_err(|error| match error {
            GgufError::Io { path, cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
                let what = format!(
                    "is missing: the model is split into {count} files, which must lie in one folder"
                );
                GgufError::Unsupported { path, what }
            }
            error => error,
        })?;
        header.file_bytes = header.file_bytes.saturating_add(part.file_bytes);
        hash.update(&part.sample_sha256);
    }
    header.sample_sha256 = hex(&hash.finalize());
    Ok(header)
}

/// The paths of all parts of a split model, by its first part.
pub(super) fn part_paths(first: &Path, count: u16) -> Result<Vec<PathBuf>> {
    let path = |part| {
        part_path(first, part, count).ok_or_else(|| GgufError::Unsupported {
            path: first.to_owned(),
            what: format!(
                "the first of {count} parts, whose name does not end in -00001-of-{count:05}.gguf: give it the name that llama.cpp looks for"
            ),
        })
    };
    (0..count).map(path).collect()
}

/// The path of a part, by its index, beside the first one: `llama_split_path` in llama.cpp's
/// `llama.cpp`.
fn part_path(first: &Path, part: u16, count: u16) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let prefix = name.strip_suffix(&format!("-00001-of-{count:05}.gguf"))?;
    let number = u32::from(part) + 1;
    Some(first.with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_as_llama_cpp_names_them() {
        let first = Path::new("models/a-00001-of-00012.gguf");
        let part = |part| part_path(first, part, 12).unwrap();
        assert_eq!(part(1), Path::new("models/a-00002-of-00012.gguf"));
        assert_eq!(part(11), Path::new("models/a-00012-of-00012.gguf"));
        assert_eq!(part_path(Path::new("a.gguf"), 1, 2), None);
        assert_eq!(part_path(first, 1, 2), None);
    }
}
