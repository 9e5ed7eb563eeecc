//! Loading a file: what is there is continued, and nothing is used whose hash is not the one that the hub
//! states.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Error, Result, anyhow};
use indicatif::HumanBytes;
use kl_formats::hex;
use sha2::digest::DynDigest;

use super::cache::{incomplete_path, is_whole, mark_path, open_own, write_fresh};
use super::hash::{BLOCK, hash_by_digest};
use super::wait::{Patience, report};
use super::{Hub, HubFault, HubFile, HubStep, HubWatch};

impl Hub {
    /// Makes sure that a file is whole in the cache, at [`path_of`](Self::path_of), and that its bytes have the
    /// hash that its hub states. `mark`: set to let
    /// [`discard`](Self::discard) remove it, in this run or a later one. A file that is there without a mark
    /// gets none; one that is asked for without a mark loses it.
    ///
    /// # Errors
    /// If it cannot be loaded or stored, or the caller stops. What has arrived stays, and the next call
    /// continues.
    pub fn load(&self, file: &HubFile, mark: bool, watch: &HubWatch) -> Result<()> {
        let loaded = self.make_whole(file, mark, watch);
        loaded.map_err(|fault| Error::from(fault).context(file.path.clone()))
    }

    fn make_whole(&self, file: &HubFile, mark: bool, watch: &HubWatch) -> Result<(), HubFault> {
        let (path, blob) = (self.path_of(file), self.blob(file));
        let mark_path = mark_path(&blob);
        if self.is_linked(file) && !mark_path.exists() {
            return self.check(&path, file, watch);
        }
        let _lock = self.lock(file, watch)?;
        let cannot = || format!("{} cannot be written to", self.cache.display());
        if !mark && mark_path.exists() {
            fs::remove_file(&mark_path).with_context(cannot)?;
        }
        if self.is_linked(file) {
            self.check(&path, file, watch)?;
        } else if is_whole(&blob, file) {
            self.check(&blob, file, watch)?;
        } else {
            if mark {
                write_fresh(&mark_path, b"").with_context(cannot)?;
            }
            self.load_blob(file, watch)?;
        }
        Ok(self.link(file).with_context(cannot)?)
    }

    fn load_blob(&self, file: &HubFile, watch: &HubWatch) -> Result<(), HubFault> {
        const WRONG: &str = "what arrived has another hash than the hub states";
        for is_last in [false, true] {
            let mut partial = Partial::open(self.blob(file), file, watch)?;
            let mut patience = Patience::new(self.wait);
            while let Err(fault) = self.receive(&mut partial, watch) {
                patience.wait(fault, partial.length, watch)?;
            }
            if partial.is_right() {
                partial.keep()?;
                self.remember(&self.blob(file));
                return Ok(());
            }
            partial.cannot(fs::remove_file(incomplete_path(&partial.blob)))?;
            if !is_last {
                let line = format!("{}: {WRONG}: loading it again", file.path);
                report(watch, HubStep::Message(&line))?;
            }
        }
        Err(anyhow!("{WRONG}, twice: nothing of it is kept").into())
    }

    /// Receives what is missing, over one connection.
    fn receive(&self, partial: &mut Partial, watch: &HubWatch) -> Result<(), HubFault> {
        let (file, from) = (partial.wanted, partial.length);
        if from == file.size {
            return Ok(());
        }
        let name = &file.repository;
        let url = format!("/{name}/resolve/{}/{}", file.commit, escaped(&file.path));
        let (start, mut reader) = self.client.body(name, &url, from)?;
        if start < from {
            partial.empty()?;
        }
        let mut block = vec![0; BLOCK];
        while partial.length < file.size {
            let why = match reader.read(&mut block) {
                Ok(n @ 1..) => {
                    partial.write(block.get(..n).unwrap_or_default())?;
                    report(watch, HubStep::Arrived(partial.length))?;
                    continue;
                }
                Ok(0) => String::new(),
                Err(error) => format!(" ({error})"),
            };
            let (arrived, size) = (HumanBytes(partial.length), HumanBytes(file.size));
            let what = format!("the connection ended at {arrived} of {size}{why}");
            return Err(HubFault::Passing(what, None));
        }
        Ok(())
    }
}

/// A blob that is being loaded.
struct Partial<'a> {
    wanted: &'a HubFile,
    blob: PathBuf,
    file: File,
    /// The bytes that have arrived.
    length: u64,
    /// Their hash.
    hash: Box<dyn DynDigest>,
}

impl<'a> Partial<'a> {
    /// Opens the part that has arrived, and hashes it.
    ///
    /// # Errors
    /// If the disk has no room for the rest.
    fn open(blob: PathBuf, wanted: &'a HubFile, watch: &HubWatch) -> Result<Self, HubFault> {
        let path = incomplete_path(&blob);
        let file = open_own(
            &path,
            OpenOptions::new().create(true).read(true).append(true),
        )?;
        let mut partial = Self {
            hash: empty_hash(wanted)?,
            wanted,
            blob,
            file,
            length: 0,
        };
        let mut block = vec![0; BLOCK];
        loop {
            let n = partial.cannot((&partial.file).read(&mut block))?;
            partial.length += n as u64;
            partial.hash.update(block.get(..n).unwrap_or_default());
            if partial.length > wanted.size {
                partial.empty()?;
            } else if n == 0 {
                break;
            }
            report(watch, HubStep::Arrived(partial.length))?;
        }
        // Where the file system does not report its free space, writing finds out.
        match fs4::available_space(&path) {
            Ok(free) if free < wanted.size - partial.length => Err(partial.no_space().into()),
            _ => Ok(partial),
        }
    }

    /// Removes what has arrived.
    fn empty(&mut self) -> Result<()> {
        self.cannot(self.file.set_len(0))?;
        (self.length, self.hash) = (0, empty_hash(self.wanted)?);
        Ok(())
    }

    /// Adds bytes, up to the file's size.
    fn write(&mut self, block: &[u8]) -> Result<()> {
        let room = usize::try_from(self.wanted.size - self.length).unwrap_or(usize::MAX);
        let block = block.get(..room).unwrap_or(block);
        self.cannot((&self.file).write_all(block))?;
        self.length += block.len() as u64;
        self.hash.update(block);
        Ok(())
    }

    /// True if its hash is the one that the hub states.
    fn is_right(&mut self) -> bool {
        hex(&self.hash.finalize_reset()) == self.wanted.digest
    }

    /// Gives it the name of a whole blob.
    fn keep(self) -> Result<()> {
        self.cannot(self.file.sync_all())?;
        self.cannot(fs::rename(incomplete_path(&self.blob), &self.blob))
    }

    /// Explains what the disk refused.
    fn cannot<T>(&self, tried: std::io::Result<T>) -> Result<T> {
        tried.map_err(|error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => self.no_space(),
            _ => Error::from(error).context(format!("{} cannot be written", self.blob.display())),
        })
    }

    fn no_space(&self) -> Error {
        let missing = HumanBytes(self.wanted.size - self.length);
        anyhow!(
            "the disk of the cache has no room for the {missing} that are missing: make room, or set HF_HUB_CACHE to a folder on another"
        )
    }
}

/// The hash function of a file, before the first byte.
fn empty_hash(file: &HubFile) -> Result<Box<dyn DynDigest>> {
    let no_hash = || format!("{}: the hub states no hash of it", file.path);
    hash_by_digest(&file.digest, file.size).with_context(no_hash)
}

/// A path as a part of an address.
fn escaped(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let escape = |byte: u8| match char::from(byte) {
        plain if is_plain(byte) => plain.to_string(),
        _ => format!("%{byte:02X}"),
    };
    path.bytes().map(escape).collect()
}
