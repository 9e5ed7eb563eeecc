//! The cache of huggingface_hub: `models--USER--REPO/{blobs,refs,snapshots}`. A blob's name is its hash, and
//! the files of a snapshot are links to blobs.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result};

use super::wait::{TICK, told};
use super::{Hub, HubFault, HubFile, HubStep, HubWatch, Repository, is_hash};

impl Hub {
    /// Where a file is once it is loaded.
    pub fn path_of(&self, file: &HubFile) -> PathBuf {
        let snapshots = self.folder(&file.repository).join("snapshots");
        snapshots.join(&file.commit).join(&file.path)
    }

    /// Removes a file that was loaded with a mark, and folders that it leaves empty. Any other file stays, and
    /// so does one that another process is loading or about to use.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn discard(&self, file: &HubFile) -> Result<()> {
        let (path, blob) = (self.path_of(file), self.blob(file));
        let mark = mark_of(&blob);
        if !mark.exists() {
            return Ok(());
        }
        let lock = self.lock_file(file)?;
        if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) || !mark.exists() {
            return Ok(());
        }
        for path in [&path, &blob, &mark] {
            let cannot = || format!("{}: cannot be removed", path.display());
            match fs::remove_file(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.with_context(cannot)?,
            }
        }
        let folder = self.folder(&file.repository);
        let snapshots = folder.join("snapshots");
        let within = path.ancestors().skip(1);
        // Only an empty folder can be removed so.
        for empty in within.take_while(|path| *path != snapshots) {
            let _ = fs::remove_dir(empty);
        }
        // huggingface_hub calls a cache corrupted that refers to a commit without files.
        if !snapshots.join(&file.commit).exists() {
            let main = folder.join("refs").join("main");
            if fs::read_to_string(&main).is_ok_and(|commit| commit == file.commit) {
                let _ = fs::remove_file(main);
            }
        }
        for empty in [folder.join("refs"), folder.join("blobs"), snapshots, folder] {
            let _ = fs::remove_dir(empty);
        }
        Ok(())
    }

    fn folder(&self, repository: &str) -> PathBuf {
        self.cache.join(folder_name(repository))
    }

    pub(super) fn blob(&self, file: &HubFile) -> PathBuf {
        let blobs = self.folder(&file.repository).join("blobs");
        blobs.join(&file.digest)
    }

    /// The files that the cache has of the main branch; `None` if it has none.
    pub(super) fn cached(&self, name: &str) -> Option<Repository> {
        let folder = self.folder(name);
        let written = fs::read_to_string(folder.join("refs").join("main")).ok()?;
        let commit = written.trim().to_owned();
        let snapshot = folder.join("snapshots").join(&commit);
        let (mut files, mut paths) = (Vec::new(), vec![String::new()]);
        while let Some(path) = paths.pop() {
            let full = snapshot.join(&path);
            // A link may have lost its blob.
            let Ok(metadata) = fs::metadata(&full) else {
                continue;
            };
            if metadata.is_dir() {
                let parent = if path.is_empty() { path } else { path + "/" };
                let entries = fs::read_dir(full).into_iter().flatten().flatten();
                let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
                paths.extend(names.map(|name| format!("{parent}{name}")));
                continue;
            }
            let blob = fs::read_link(&full).unwrap_or_default();
            let digest = blob.file_name().unwrap_or_default().to_string_lossy();
            files.push(HubFile {
                repository: name.to_owned(),
                commit: commit.clone(),
                path,
                size: metadata.len(),
                digest: digest.into_owned(),
            });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let is_there = is_hash(&commit, 40) && !files.is_empty();
        let name = format!("{name} in the cache");
        is_there.then_some(Repository { name, files })
    }

    /// The file that `huggingface_hub` locks too while it loads a blob. It stays, so that all lock the same.
    fn lock_file(&self, file: &HubFile) -> Result<File> {
        let all_locks = self.cache.join(".locks");
        let locks = all_locks.join(folder_name(&file.repository));
        let blobs = self.folder(&file.repository).join("blobs");
        let folders = fs::create_dir_all(&locks).and_then(|()| fs::create_dir_all(blobs));
        let path = locks.join(format!("{}.lock", file.digest));
        let mut options = OpenOptions::new();
        let opened = folders.and_then(|()| options.create(true).append(true).open(&path));
        opened.with_context(|| format!("{} cannot be created", path.display()))
    }

    /// Waits for the lock of a file's blob.
    pub(super) fn lock(&self, file: &HubFile, watch: &HubWatch) -> Result<File, HubFault> {
        let lock = self.lock_file(file)?;
        let mut line = Some(format!("{}: another process loads it: waiting", file.path));
        // Where the file system has no locks, the hash still shows what is right.
        while let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let so_far = fs::metadata(incomplete(&self.blob(file)));
            let there = HubStep::There(so_far.map_or(0, |metadata| metadata.len()));
            told(watch, line.take().as_deref().map_or(there, HubStep::Says))?;
            thread::sleep(TICK);
        }
        Ok(lock)
    }

    /// Puts a blob into its snapshot: a link, or the blob itself where the system makes no links. The main
    /// branch is at this commit now.
    pub(super) fn link(&self, file: &HubFile) -> io::Result<()> {
        let (path, blob) = (self.path_of(file), self.blob(file));
        if !is_whole(&path, file) {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            if fs::symlink_metadata(&path).is_ok() {
                fs::remove_file(&path)?;
            }
            let up = "../".repeat(file.path.split('/').count() + 1);
            let to = format!("{up}blobs/{}", file.digest);
            symlink(Path::new(&to), &path).or_else(|_| fs::rename(&blob, &path))?;
        }
        let refs = self.folder(&file.repository).join("refs");
        let main = refs.join("main");
        if fs::read_to_string(&main).is_ok_and(|commit| commit == file.commit) {
            return Ok(());
        }
        fs::create_dir_all(&refs)?;
        let new = refs.join(format!("main.{}.tmp", std::process::id()));
        fs::write(&new, &file.commit)?;
        fs::rename(&new, &main)
    }
}

/// The name of a repository's folder, and of the folder of its locks.
fn folder_name(repository: &str) -> String {
    format!("models--{}", repository.replace('/', "--"))
}

/// The user and the repository of such a folder; `None` for another folder.
pub fn of_folder(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("models--")?.split_once("--")
}

/// True if a whole file is at `path`.
pub fn is_whole(path: &Path, file: &HubFile) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.len() == file.size)
}

/// The mark of a blob that is to be discarded after use.
pub fn mark_of(blob: &Path) -> PathBuf {
    blob.with_extension("kl-discard")
}

/// The part of a blob that has been loaded so far.
pub fn incomplete(blob: &Path) -> PathBuf {
    blob.with_extension("incomplete")
}

#[cfg(unix)]
fn symlink(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(windows)]
fn symlink(to: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}
