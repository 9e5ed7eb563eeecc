//! A look at the weights: enough to tell two models of one header apart.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Named, Result};
use crate::hex;

/// How many places are looked at: a whole hash would take minutes.
const SAMPLES: u64 = 64;

/// Bytes of each.
const SAMPLE_BYTES: u64 = 4096;

/// SHA-256 (hex) of 64 samples of 4 KiB, from the file's first byte to its last at equal distances;
/// of the whole file, where it is no longer than these.
///
/// # Errors
/// [`crate::Error::Io`].
pub(super) fn sha256(path: &Path, file_bytes: u64) -> Result<String> {
    let name = Named::new(path);
    let (mut file, _) = crate::source::open(&name, "a model")?;
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
    read.map_err(|cause| name.io("read", cause))?;
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn changed_weights_show() {
        let scratch = Scratch::new();
        let of = |bytes: &[u8]| sha256(scratch.file(bytes), bytes.len() as u64).unwrap();
        let mut bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let before = of(&bytes);
        for weight in bytes.iter_mut().skip(1_000_000).take(500_000) {
            *weight ^= 1;
        }
        assert_ne!(of(&bytes), before);
        // The last byte too, and each of a short file.
        let last = bytes.len() - 1;
        let before = of(&bytes);
        bytes[last] ^= 1;
        assert_ne!(of(&bytes), before);
        let short = &mut bytes[..200_000];
        let before = of(short);
        short[123_456] ^= 1;
        assert_ne!(of(short), before);
        assert_eq!(of(&[]), hex(&Sha256::digest([])));
    }
}
