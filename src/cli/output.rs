//! Output files that appear whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, IntoInnerError};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use super::direct_file::DirectFile;

/// Files under way, to be removed by a process that is told to end at once.
static UNDER_WAY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// What to do about files that are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Existing {
    /// Replace the target.
    pub replace_target: bool,
    /// What a run that was cut off has left of this file.
    pub leftover: Leftover,
}

/// What becomes of a partial file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// It is named, and not touched; with what to do about it.
    Refuse(&'static str),
    /// The file is begun anew.
    Replace,
    /// It is opened as it is, to be gone on with.
    Resume,
}

impl Existing {
    /// As the flags say, for a file that takes long to write; `None` where it cannot be gone on with.
    pub fn asked(force: bool, resume: Option<bool>) -> Self {
        Self {
            replace_target: force,
            leftover: match (resume, force) {
                (Some(true), _) => Leftover::Resume,
                (_, true) => Leftover::Replace,
                (Some(false), false) => {
                    Leftover::Refuse("--resume goes on with it, --force starts anew")
                }
                (None, false) => Leftover::Refuse("remove it, or --force"),
            },
        }
    }
}

/// A file that is written beside its target, as `<target>.partial`, and takes its name when it is
/// whole. Dropped before that, it is removed, unless it is [worth keeping](Self::keep_if_cut_off). It
/// is locked while it is written, so that two runs never write one file.
#[derive(Debug)]
pub struct PartialFile {
    file: Option<File>,
    partial: PathBuf,
    target: PathBuf,
    existing: Existing,
    is_leftover: bool,
    is_kept: bool,
}

impl PartialFile {
    /// Creates the file. What is no regular file, as a device, is refused whatever `existing` says;
    /// a link is followed.
    pub fn create(target: &Path, existing: Existing) -> Result<Self> {
        let shown = target.display();
        let target = &follow_links(target);
        let target = match fs::metadata(target) {
            Ok(metadata) if metadata.is_dir() => bail!("{shown}: is a folder: name a file"),
            Ok(metadata) if !metadata.is_file() => {
                bail!("{shown}: is no regular file: name another")
            }
            Ok(_) if !existing.replace_target => {
                bail!("{shown}: exists already: choose another name, or --force")
            }
            Ok(_) => {
                fs::canonicalize(target).with_context(|| format!("{shown}: cannot be opened"))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => target.clone(),
            Err(error) => bail!("{shown}: cannot be created: {error}"),
        };
        let partial = partial_path(&target);
        let file = open_locked(&partial, &target)?;
        let mut is_leftover = file.metadata().is_ok_and(|metadata| metadata.len() > 0);
        match existing.leftover {
            Leftover::Refuse(advice) if is_leftover => bail!(
                "{}: left over from a run that was cut off: {advice}",
                partial.display()
            ),
            Leftover::Resume => {}
            Leftover::Refuse(_) | Leftover::Replace => {
                is_leftover = false;
                file.set_len(0)
                    .with_context(|| format!("{}: cannot be written", partial.display()))?;
            }
        }
        let output = Self {
            file: Some(file),
            partial,
            target,
            existing,
            is_leftover,
            is_kept: is_leftover,
        };
        if !output.is_kept {
            under_way(|paths| paths.push(output.partial.clone()));
        }
        Ok(output)
    }

    /// Whether it holds what an earlier run has left, to be gone on with.
    pub fn is_leftover(&self) -> bool {
        self.is_leftover
    }

    /// From here on what is written is worth keeping, if the run is cut off.
    pub fn keep_if_cut_off(&mut self) {
        self.is_kept = true;
        under_way(|paths| paths.retain(|path| *path != self.partial));
    }

    /// Removes it.
    pub fn discard(mut self) {
        self.is_kept = false;
    }

    /// The handle to write through.
    pub fn file(&self) -> Result<File> {
        let file = self.file.as_ref().context("the file is closed")?;
        file.try_clone()
            .with_context(|| format!("{}: cannot be written", self.partial.display()))
    }

    /// What to write through behind the first `length` bytes, past the page cache.
    pub fn direct_file(&self, length: u64) -> Result<DirectFile> {
        DirectFile::new(self.file()?, length)
            .with_context(|| format!("{}: cannot be written", self.partial.display()))
    }

    /// Where the bytes go until the file is whole.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Makes sure that every byte is on the disk, then gives the file its name. If another file
    /// has taken the name meanwhile and is not to be replaced, this one stays where it is.
    pub fn commit(mut self) -> Result<()> {
        if let Some(file) = &self.file {
            file.sync_all()
                .with_context(|| format!("{}: cannot be written", self.partial.display()))?;
        }
        let named = if self.existing.replace_target {
            fs::rename(&self.partial, &self.target)
        } else {
            rename_new(&self.partial, &self.target)
        };
        // From here on there is nothing to remove: the file has its name, or is whole and stays.
        under_way(|paths| paths.retain(|path| *path != self.partial));
        let partial = std::mem::take(&mut self.partial);
        if let Err(error) = named {
            let why = match error.kind() {
                io::ErrorKind::AlreadyExists => "was made by somebody else meanwhile".to_owned(),
                _ => format!("cannot be named so: {error}"),
            };
            bail!(
                "{}: {why}: what was written is whole, in {}",
                self.target.display(),
                partial.display()
            );
        }
        sync_folder(&self.target);
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        under_way(|paths| paths.retain(|path| *path != self.partial));
        // Committed files have left this name, which may by now be another run's.
        let is_here = |file: &File| is_same_file(file, &self.partial);
        if !self.is_kept && self.file.as_ref().is_some_and(is_here) {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Removes what is under way, for a process that ends at once.
pub fn remove_partial_files() {
    under_way(|paths| {
        for path in paths.drain(..) {
            let _ = fs::remove_file(path);
        }
    });
}

fn under_way(change: impl FnOnce(&mut Vec<PathBuf>)) {
    change(
        &mut UNDER_WAY
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner),
    );
}

/// Opens the partial file, there or not, and locks it: a lock shows a run that is alive, where the
/// file alone may be what a killed one has left.
fn open_locked(partial: &Path, target: &Path) -> Result<File> {
    let cannot =
        |error: io::Error| anyhow::anyhow!("{}: cannot be created: {error}", target.display());
    // A pipe would be waited for, and a device is nobody's leftover.
    if fs::symlink_metadata(partial).is_ok_and(|metadata| !metadata.is_file()) {
        bail!("{}: is in the way: remove it", partial.display());
    }
    let file = OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(partial)
        .map_err(cannot)?;
    let in_use = || anyhow::anyhow!("{}: is being written by another run", target.display());
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(in_use()),
        // A file system without locks.
        Err(TryLockError::Error(_)) => Ok(file),
        // The other run may have finished, and so renamed the file, between opening and locking.
        Ok(()) if !is_same_file(&file, partial) => Err(in_use()),
        Ok(()) => Ok(file),
    }
}

#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_same_file(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Renames without replacing: a hard link fails where the name is taken. File systems that have
/// none leave a moment between looking and renaming.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if fs::symlink_metadata(to).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
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

/// Where the bytes of `target`, or of what it links to, go until it is whole.
pub fn partial_path(target: &Path) -> PathBuf {
    let mut name = follow_links(target).into_os_string();
    name.push(".partial");
    name.into()
}

/// The path that links at `path` lead to, be it there or not.
pub fn follow_links(path: &Path) -> PathBuf {
    /// As many as Linux follows.
    const MAX_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(to) => path = folder_of(&path).join(to),
            Err(_) => break,
        }
    }
    path
}

/// Ends a buffered file: an error is one of writing to `path`.
pub fn flushed(file: BufWriter<File>, path: &Path) -> Result<File> {
    file.into_inner()
        .map_err(IntoInnerError::into_error)
        .with_context(|| format!("{}: cannot be written", path.display()))
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

    const NEW: Existing = Existing {
        replace_target: false,
        leftover: Leftover::Refuse("--force"),
    };
    const FORCED: Existing = Existing {
        replace_target: true,
        leftover: Leftover::Replace,
    };
    const RESUMED: Existing = Existing {
        replace_target: false,
        leftover: Leftover::Resume,
    };

    fn refused(target: &Path, existing: Existing) -> String {
        PartialFile::create(target, existing)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_file_appears_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let output = PartialFile::create(&target, NEW).unwrap();
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
        assert!(refused(&target, NEW).contains("--force"));
        let output = PartialFile::create(&target, FORCED).unwrap();
        output.file().unwrap().write_all(b"ha").unwrap();
        drop(output);
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_leftover_is_named_and_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let partial = folder.path().join("a.partial");
        fs::write(&partial, b"left").unwrap();
        let message = refused(&target, NEW);
        assert!(
            message.contains("a.partial") && message.contains("left over"),
            "{message}"
        );
        assert_eq!(fs::read(&partial).unwrap(), b"left");
        PartialFile::create(&target, FORCED)
            .unwrap()
            .commit()
            .unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"", "nothing of what was left");
    }

    #[test]
    fn what_is_worth_keeping_is_kept_and_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let mut output = PartialFile::create(&target, RESUMED).unwrap();
        assert!(!output.is_leftover());
        output.file().unwrap().write_all(b"half").unwrap();
        output.keep_if_cut_off();
        drop(output);
        let output = PartialFile::create(&target, RESUMED).unwrap();
        assert!(output.is_leftover());
        assert_eq!(fs::read(output.path()).unwrap(), b"half");
        // Nothing was done with it: it is still there.
        drop(output);
        let output = PartialFile::create(&target, RESUMED).unwrap();
        output.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"half");
        let mut output = PartialFile::create(&folder.path().join("b"), NEW).unwrap();
        output.keep_if_cut_off();
        output.discard();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn two_runs_never_write_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let first = PartialFile::create(&target, FORCED).unwrap();
        assert!(refused(&target, FORCED).contains("another run"));
        first.file().unwrap().write_all(b"first").unwrap();
        first.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"first");
    }

    #[test]
    fn a_name_taken_meanwhile_is_respected_and_the_work_kept() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let output = PartialFile::create(&target, NEW).unwrap();
        output.file().unwrap().write_all(b"work").unwrap();
        fs::write(&target, b"precious").unwrap();
        let message = output.commit().unwrap_err().to_string();
        assert!(message.contains("a.partial"), "{message}");
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        assert_eq!(fs::read(folder.path().join("a.partial")).unwrap(), b"work");
    }

    #[test]
    fn a_name_that_cannot_be_given_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let output = PartialFile::create(&target, FORCED).unwrap();
        output.file().unwrap().write_all(b"work").unwrap();
        fs::create_dir(&target).unwrap();
        let message = output.commit().unwrap_err().to_string();
        assert!(message.contains("whole, in"), "{message}");
        assert_eq!(fs::read(folder.path().join("a.partial")).unwrap(), b"work");
    }

    #[test]
    fn folders_and_what_is_not_there_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        assert!(refused(&folder.path().join("no/a"), NEW).contains("cannot be created"));
        assert!(refused(folder.path(), FORCED).contains("folder"));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed_and_a_device_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, b"old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let output = PartialFile::create(&link, FORCED).unwrap();
        output.file().unwrap().write_all(b"new").unwrap();
        output.commit().unwrap();
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

        // A link to a file that is yet to be made, on a larger disk perhaps.
        let (far, dangling) = (folder.path().join("far"), folder.path().join("dangling"));
        std::os::unix::fs::symlink("far", &dangling).unwrap();
        let output = PartialFile::create(&dangling, NEW).unwrap();
        output.commit().unwrap();
        assert!(far.is_file() && fs::symlink_metadata(&dangling).unwrap().is_symlink());

        let device = folder.path().join("device");
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        assert!(refused(&device, FORCED).contains("regular"));
    }
}
