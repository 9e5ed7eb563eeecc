//! The hashes of files in the cache. A blob's name is its hash, but its bytes may have changed since they
//! were checked: each is hashed once, and again whenever the file system shows that it was written to.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, anyhow};
use kl_formats::hex;
use sha1::Sha1;
use sha2::Sha256;
use sha2::digest::{Digest as _, DynDigest};

use super::cache::{small_text, stamp_path, write_fresh};
use super::wait::report;
use super::{GIT_DIGITS, Hub, HubFault, HubFile, HubStep, HubWatch, SHA_256_DIGITS, is_hash};

/// Most bytes that are read at once.
pub const BLOCK: usize = 1 << 18;

impl Hub {
    /// Checks that a file in the cache has the hash that its name states, unless it was checked since it was
    /// last written to. Of a file that is no link to a blob, and comes from no listing, no hash is known.
    ///
    /// # Errors
    /// A file with another hash, or the caller stops.
    pub(super) fn check(
        &self,
        path: &Path,
        file: &HubFile,
        watch: &HubWatch,
    ) -> Result<(), HubFault> {
        let blob = self.blob(file);
        let Some(mut hash) = hash_by_digest(&file.digest, file.size) else {
            return Ok(());
        };
        let cannot = || format!("{} cannot be read", path.display());
        let before = fs::metadata(path).with_context(cannot)?;
        if small_text(&stamp_path(&blob)).is_some_and(|stamp| stamp == stamp_text(&before)) {
            return Ok(());
        }
        let mut opened = File::open(path).with_context(cannot)?;
        let (mut block, mut length) = (vec![0; BLOCK], 0);
        loop {
            let n = opened.read(&mut block).with_context(cannot)?;
            if n == 0 {
                break;
            }
            hash.update(block.get(..n).unwrap_or_default());
            length += n as u64;
            report(watch, HubStep::Arrived(length))?;
        }
        if hex(&hash.finalize_reset()) != file.digest {
            let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            return Err(anyhow!(
                "its bytes in the cache have another hash than the hub states: remove {} to load it again",
                real.display()
            )
            .into());
        }
        // What changed meanwhile is hashed the next time. A cache that cannot be written to is hashed each time.
        let _ = write_fresh(&stamp_path(&blob), stamp_text(&before).as_bytes());
        Ok(())
    }

    /// Remembers that a blob was checked.
    pub(super) fn remember(&self, blob: &Path) {
        if let Ok(about) = fs::metadata(blob) {
            // Without it, the blob is hashed again.
            let _ = write_fresh(&stamp_path(blob), stamp_text(&about).as_bytes());
        }
    }
}

/// True if the name of a file, or of the file that it links, states a hash that its bytes do not have:
/// of a blob in the cache of a hub, or in Ollama's. `step` may stop the reading, after each block.
///
/// # Errors
/// A file that cannot be read, or that of `step`.
pub fn differs_from_name(
    path: &Path,
    step: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let cannot = || format!("{}: cannot be read", path.display());
    let real = fs::canonicalize(path).with_context(cannot)?;
    let Some(digest) = stated_digest(&real) else {
        return Ok(false);
    };
    let mut opened = File::open(&real).with_context(cannot)?;
    let about = opened.metadata().with_context(cannot)?;
    let Some(mut hash) = hash_by_digest(&digest, about.len()).filter(|_| about.is_file()) else {
        return Ok(false);
    };
    let mut block = vec![0; BLOCK];
    loop {
        match opened.read(&mut block).with_context(cannot)? {
            0 => return Ok(hex(&hash.finalize_reset()) != digest),
            n => hash.update(block.get(..n).unwrap_or_default()),
        }
        step()?;
    }
}

/// The hash in the name of a blob: `blobs/HASH` in a folder of a hub's repository, `blobs/sha256-HASH` of Ollama.
fn stated_digest(path: &Path) -> Option<String> {
    let (name, folder) = (path.file_name()?.to_str()?, path.parent()?);
    let repository = folder.parent().and_then(Path::file_name)?.to_string_lossy();
    let is_hub = folder.ends_with("blobs") && repository.contains("--");
    let digest = match name.strip_prefix("sha256-") {
        Some(digest) if folder.ends_with("blobs") => digest,
        _ if is_hub => name,
        _ => return None,
    };
    Some(digest.to_owned())
}

/// The hash function whose result `digest` is, for a file of `size` bytes, before the first of them; `None` if
/// `digest` is not a hash.
pub fn hash_by_digest(digest: &str, size: u64) -> Option<Box<dyn DynDigest>> {
    if is_hash(digest, SHA_256_DIGITS) {
        return Some(Box::new(Sha256::new()));
    }
    // Git hashes a blob's length before its bytes.
    let git_hash =
        || Box::new(Sha1::new_with_prefix(format!("blob {size}\0"))) as Box<dyn DynDigest>;
    is_hash(digest, GIT_DIGITS).then(git_hash)
}

/// The properties that change when a file is written to, or replaced: its length, its times, its number on the disk.
fn stamp_text(about: &Metadata) -> String {
    let modified = about.modified().and_then(|time| {
        let since = time.duration_since(UNIX_EPOCH);
        since.map_err(io::Error::other)
    });
    let modified = modified.map_or(0, |since| since.as_nanos());
    format!("{} {modified} {}", about.len(), inode_and_change(about))
}

/// The time of the last change cannot be set back, as that of the last writing can.
#[cfg(unix)]
fn inode_and_change(about: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt as _;
    format!(
        "{} {}.{:09}",
        about.ino(),
        about.ctime(),
        about.ctime_nsec()
    )
}

#[cfg(not(unix))]
fn inode_and_change(_: &Metadata) -> String {
    String::new()
}
