//! The fingerprint, which distinguishes a reference from others of its kind. `SIDECAR.md` specifies
//! it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::About;
use crate::{BackendIdentity, WindowSpec, hex};

/// SHA-256 of a file's length, its first 64 KiB and its last 64 KiB. In `kl`'s own files these hold
/// the header, the index and the checksums of the last rows, which differ between any two.
pub(super) fn of_file(path: &Path) -> io::Result<String> {
    const PART: u64 = 64 << 10;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = length.to_le_bytes().to_vec();
    (&mut file).take(PART).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(length.saturating_sub(PART)))?;
    file.take(PART).read_to_end(&mut bytes)?;
    Ok(hex(&Sha256::digest(&bytes)))
}

/// SHA-256 of what determines the rows that a model computes over `windows`: the model by its
/// hashes, how it computes, the groups of the windows, and the windows with their tokens. Names of
/// files and texts do not count.
pub(crate) fn of_model(about: &About, windows: &[WindowSpec]) -> String {
    #[derive(Serialize)]
    struct Described<'a> {
        file_bytes: Option<u64>,
        metadata_sha256: Option<&'a str>,
        sample_sha256: Option<&'a str>,
        backend: Option<&'a BackendIdentity>,
        groups: &'a [String],
        window_groups: &'a [(u32, u32)],
    }
    let (model, groups) = (about.model.as_ref(), about.groups.as_ref());
    let described = Described {
        file_bytes: model.and_then(|model| model.file_bytes),
        metadata_sha256: model.and_then(|model| model.metadata_sha256.as_deref()),
        sample_sha256: model.and_then(|model| model.sample_sha256.as_deref()),
        backend: about.backend.as_ref(),
        groups: groups.map_or(&[], |groups| groups.names()),
        window_groups: groups.map_or(&[], |groups| groups.window_groups()),
    };
    // Strings and numbers always have a JSON.
    let mut hash = Sha256::new_with_prefix(serde_json::to_vec(&described).unwrap_or_default());
    hash.update(b"\n");
    for window in windows {
        let numbers = [
            window.window,
            window.first_scored,
            window.n_rows,
            window.tokens.len() as u32,
        ];
        for number in numbers.iter().chain(&window.tokens) {
            hash.update(number.to_le_bytes());
        }
    }
    hex(&hash.finalize())
}
