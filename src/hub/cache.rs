//! The cache of huggingface_hub: `models--USER--REPO/{blobs,refs,snapshots}`.
//!
//! A blob is named by its hash, and a snapshot's files link to blobs.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::load::TICK;
use super::{Hub, HubFile, Repository, Step, Watch, is_hash};

impl Hub {
    /// Where a file lies once it is loaded.
    pub fn path_of(&self, file: &HubFile) -> PathBuf {
        let snapshot = self
            .folder(&file.repository)
            .join("snapshots")
            .join(&file.commit);
        file.path
            .split('/')
            .fold(snapshot, |path, part| path.join(part))
    }

    /// Removes a file that was loaded with a mark, and its empty folders. Other files stay.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn discard(&self, file: &HubFile) -> Result<()> {
        let (blob, path) = (self.blob(file), self.path_of(file));
        let mark = mark_of(&blob);
        if !mark.exists() {
            return Ok(());
        }
        for path in [&path, &blob, &mark] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error)
                        .with_context(|| format!("{}: cannot be removed", path.display()));
                }
                _ => {}
            }
        }
        let folder = self.folder(&file.repository);
        let snapshots = folder.join("snapshots");
        // A folder that is not empty stays, and so do those that hold it.
        let is_removed = |path: &&Path| fs::remove_dir(path).is_ok();
        let inner = path
            .ancestors()
            .skip(1)
            .take_while(|path| *path != snapshots);
        let _ = inner.take_while(is_removed).count();
        let reference = folder.join("refs").join("main");
        let commit = fs::read_to_string(&reference).unwrap_or_default();
        if !snapshots.join(&commit).exists() {
            let _ = fs::remove_file(&reference);
        }
        for empty in [folder.join("refs"), folder.join("blobs"), snapshots, folder] {
            let _ = fs::remove_dir(empty);
        }
        Ok(())
    }

    pub(super) fn folder(&self, repository: &str) -> PathBuf {
        self.cache
            .join(format!("models--{}", repository.replace('/', "--")))
    }

    pub(super) fn blob(&self, file: &HubFile) -> PathBuf {
        self.folder(&file.repository)
            .join("blobs")
            .join(&file.digest)
    }

    /// The files that the cache holds of the main branch; `None` if there are none.
    pub(super) fn cached(&self, name: &str) -> Option<Repository> {
        let folder = self.folder(name);
        let commit = fs::read_to_string(folder.join("refs").join("main")).ok()?;
        let commit = commit.trim().to_owned();
        if !is_hash(&commit, &[40]) {
            return None;
        }
        let snapshot = folder.join("snapshots").join(&commit);
        let (mut files, mut folders) = (Vec::new(), vec![snapshot.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                // Of a link whose blob is gone there is none.
                let Ok(metadata) = fs::metadata(&path) else {
                    continue;
                };
                if metadata.is_dir() {
                    folders.push(path);
                    continue;
                }
                let blob = fs::read_link(&path).ok();
                let digest = blob
                    .as_deref()
                    .and_then(Path::file_name)
                    .unwrap_or_default();
                let parts: Vec<_> = path
                    .strip_prefix(&snapshot)
                    .ok()?
                    .iter()
                    .map(|part| part.to_string_lossy())
                    .collect();
                files.push(HubFile {
                    repository: name.to_owned(),
                    commit: commit.clone(),
                    path: parts.join("/"),
                    size: metadata.len(),
                    digest: digest.to_string_lossy().into_owned(),
                });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let repository = Repository {
            name: name.to_owned(),
            commit,
            files,
            is_cached: true,
        };
        (!repository.files.is_empty()).then_some(repository)
    }

    /// Waits for the lock of a file's blob, which `huggingface_hub` uses too; `None` if it is to stop.
    pub(super) fn lock(&self, file: &HubFile, watch: &Watch) -> Result<Option<File>> {
        let locks = self
            .cache
            .join(".locks")
            .join(format!("models--{}", file.repository.replace('/', "--")));
        let path = locks.join(format!("{}.lock", file.digest));
        let cannot = || format!("{}: cannot be created", path.display());
        fs::create_dir_all(&locks).with_context(cannot)?;
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(cannot)?;
        let mut is_said = false;
        // Where the file system has no locks, huggingface_hub has none either.
        while let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let text = format!("{}: another process is loading it: waiting", file.path);
            let step = if is_said {
                Step::There(0)
            } else {
                Step::Says(&text)
            };
            is_said = true;
            if watch(step).is_break() {
                return Ok(None);
            }
            std::thread::sleep(TICK);
        }
        Ok(Some(lock))
    }

    /// Puts a whole blob into its snapshot: as a link; where the system has none, the blob itself.
    pub(super) fn link(&self, file: &HubFile) -> io::Result<()> {
        let (blob, path) = (self.blob(file), self.path_of(file));
        let up = "../".repeat(file.path.split('/').count() + 1);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        if fs::symlink_metadata(&path).is_ok() {
            fs::remove_file(&path)?;
        }
        if symlink(Path::new(&format!("{up}blobs/{}", file.digest)), &path).is_err() {
            fs::rename(&blob, &path)?;
        }
        let reference = self.folder(&file.repository).join("refs").join("main");
        if fs::read_to_string(&reference).is_ok_and(|commit| commit == file.commit) {
            return Ok(());
        }
        let new = reference.with_extension(format!("{}.tmp", std::process::id()));
        fs::create_dir_all(self.folder(&file.repository).join("refs"))?;
        fs::write(&new, &file.commit)?;
        fs::rename(&new, &reference)
    }
}

/// The mark beside a blob that was loaded to be discarded after use.
pub fn mark_of(blob: &Path) -> PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(".kl-discard");
    name.into()
}

#[cfg(unix)]
fn symlink(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(windows)]
fn symlink(to: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}
