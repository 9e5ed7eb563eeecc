//! Output files that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A file that is written beside its target, as `<target>.partial`, and renamed to it when it is
/// whole. Dropped before that, it is removed.
#[derive(Debug)]
pub struct PartialFile {
    file: Option<File>,
    partial: PathBuf,
    target: PathBuf,
}

impl PartialFile {
    /// Creates the file. A target that exists is refused unless `force`.
    pub fn create(target: &Path, force: bool) -> Result<Self> {
        if target.is_dir() {
            bail!("{}: is a folder: name a file", target.display());
        }
        if !force && fs::symlink_metadata(target).is_ok() {
            bail!(
                "{}: exists already: choose another name, or --force",
                target.display()
            );
        }
        let mut name = target.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.write(true);
        if force {
            options.create(true).truncate(true)
        } else {
            options.create_new(true)
        };
        let file = options.open(&partial).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => anyhow::anyhow!(
                "{}: left over from a run that was cut off, or in use by another: remove it, or --force",
                partial.display()
            ),
            _ => anyhow::anyhow!("{}: cannot be created: {error}", target.display()),
        })?;
        Ok(Self {
            file: Some(file),
            partial,
            target: target.to_owned(),
        })
    }

    /// The handle to write through.
    pub fn file(&self) -> Result<File> {
        let file = self.file.as_ref().context("the file is closed")?;
        file.try_clone()
            .with_context(|| format!("{}: cannot be written", self.partial.display()))
    }

    /// Where the bytes go until the file is whole.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Makes sure that every byte is on the disk, then gives the file its name.
    pub fn commit(mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            file.sync_all()
                .with_context(|| format!("{}: cannot be written", self.partial.display()))?;
        }
        let renamed = fs::rename(&self.partial, &self.target);
        renamed.with_context(|| format!("{}: cannot be renamed to", self.target.display()))?;
        sync_folder(&self.target);
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Gone already if the file was committed.
        let _ = fs::remove_file(&self.partial);
    }
}

/// The new name too has to reach the disk. Not every file system can sync a folder; the file's
/// own bytes are safe by then.
fn sync_folder(target: &Path) {
    #[cfg(unix)]
    if let Ok(folder) = File::open(folder_of(target)) {
        let _ = folder.sync_all();
    }
    #[cfg(not(unix))]
    let _ = target;
}

/// The folder that holds `path`.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_appears_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let output = PartialFile::create(&target, false).unwrap();
        output.file().unwrap().write_all(b"whole").unwrap();
        assert!(!target.exists());
        output.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"whole");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_run_that_fails_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        fs::write(&target, b"old").unwrap();
        assert!(
            PartialFile::create(&target, false)
                .unwrap_err()
                .to_string()
                .contains("--force")
        );
        let output = PartialFile::create(&target, true).unwrap();
        output.file().unwrap().write_all(b"ha").unwrap();
        drop(output);
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_leftover_is_named_and_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        fs::write(folder.path().join("a.partial"), b"left").unwrap();
        let message = PartialFile::create(&target, false).unwrap_err().to_string();
        assert!(message.contains("a.partial"), "{message}");
        assert_eq!(fs::read(folder.path().join("a.partial")).unwrap(), b"left");
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let message = PartialFile::create(&folder.path().join("no/a"), false)
            .unwrap_err()
            .to_string();
        assert!(message.contains("cannot be created"), "{message}");
        assert!(PartialFile::create(folder.path(), true).is_err());
    }
}
