//! The hash of a sample of a model's file, which identifies its weights.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use kl_formats::hex;
use sha2::{Digest, Sha256};

use super::cursor::open;
use super::error::{ModelError, Result};

/// The number of samples that are hashed: hashing the whole file would take minutes.
const SAMPLES: u64 = 64;

/// Bytes of each sample.
const SAMPLE_BYTES: u64 = 4096;

/// SHA-256 (hex) of 64 samples of 4 KiB, evenly spaced from the file's first byte to its last; of
/// the whole file, if it is not longer than that.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn sample_sha256(path: &Path, file_bytes: u64) -> Result<String> {
    let (mut file, _) = open(path)?;
    let mut hash = Sha256::new();
    let mut sample = |from: u64, bytes: u64| {
        let mut sample = Vec::new();
        file.seek(SeekFrom::Start(from))?;
        (&mut file).take(bytes).read_to_end(&mut sample)?;
        hash.update(&sample);
        Ok::<_, std::io::Error>(())
    };
    let read = match file_bytes.checked_sub(SAMPLE_BYTES) {
        Some(last) if file_bytes > SAMPLES * SAMPLE_BYTES => {
            // No overflow: no file has 2^58 bytes.
            let from = |i| last.saturating_mul(i) / (SAMPLES - 1);
            (0..SAMPLES).try_for_each(|i| sample(from(i), SAMPLE_BYTES))
        }
        _ => sample(0, file_bytes),
    };
    read.map_err(|cause| ModelError::io(path, "read", &cause))?;
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_weights_change_the_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let hash = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            sample_sha256(&path, bytes.len() as u64).unwrap()
        };
        let mut bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let before = hash(&bytes);
        for weight in bytes.iter_mut().skip(1_000_000).take(500_000) {
            *weight ^= 1;
        }
        assert_ne!(hash(&bytes), before);
        // The last byte counts too, and each of a short file.
        let last = bytes.len() - 1;
        let before = hash(&bytes);
        bytes[last] ^= 1;
        assert_ne!(hash(&bytes), before);
        let short = &mut bytes[..200_000];
        let before = hash(short);
        short[123_456] ^= 1;
        assert_ne!(hash(short), before);
        assert_eq!(hash(&[]), hex(&Sha256::digest([])));
    }
}
