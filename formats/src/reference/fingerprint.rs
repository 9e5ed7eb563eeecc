//! What distinguishes a file from others of its kind.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::hex;

/// SHA-256 of a file's length, its first 64 KiB and its last 64 KiB. In `kl`'s own files these hold
/// the header, the index and the checksums of the last rows, which differ between any two.
/// `SIDECAR.md` specifies it.
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
