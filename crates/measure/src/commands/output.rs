//! Output files, which appear whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Error, Result, anyhow, bail};

use kl_report::number::bytes;
use kl_system::file_id;
use kl_system::locked;

/// Files that are being written, which a process that must end at once removes.
static UNDER_WAY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The treatment of an output that exists already, finished or begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays as it is, and an error names it; of a file that was begun, with this advice.
    Refuse(&'static str),
    /// It is replaced.
    Replace,
    /// It stays; a file that was begun is opened as it is, to be continued.
    Resume,
}

impl Existing {
    /// The treatment that `--force` and `--resume` ask for; `resume` is `None` for a file that cannot
    /// be resumed.
    pub fn by_flags(force: bool, resume: Option<bool>) -> Self {
        match (resume, force) {
            (Some(true), _) => Self::Resume,
            (_, true) => Self::Replace,
            (Some(false), false) => Self::Refuse("--resume continues it, --force starts over"),
            (None, false) => Self::Refuse("remove it, or use --force"),
        }
    }
}

/// A file that is written as `<target>.partial` and gets its own name when it is whole. If it is dropped
/// before that, it is removed, unless it is [worth keeping](Self::keep_if_cut_off). It is locked while it
/// is written, so that two runs never write one file.
#[derive(Debug)]
pub struct PartialFile {
    file: File,
    partial: PathBuf,
    target: PathBuf,
    may_replace: bool,
    /// The file that it replaces, whose access rights it gets.
    replaced: Option<fs::Metadata>,
    /// True if it holds what an earlier run left, to be continued.
    pub is_resumed: bool,
    is_kept: bool,
}

impl PartialFile {
    /// Creates the file. Links are followed. A target that is not a regular file, such as a device,
    /// is refused in any case. `may_replace`: set if a finished file may be replaced; `begun` is the
    /// treatment of one that an earlier run began.
    pub fn create(target: &Path, may_replace: bool, begun: Existing) -> Result<Self> {
        let shown_path = target.display();
        let target = &follow_links(target);
        let replaced = fs::metadata(target).ok();
        let target = match fs::metadata(target) {
            Ok(metadata) if metadata.is_dir() => bail!("{shown_path}: is a folder: name a file"),
            Ok(metadata) if !metadata.is_file() => {
                bail!("{shown_path}: is not a regular file: name another")
            }
            Ok(_) if !may_replace => {
                bail!("{shown_path}: exists already: choose another name, or use --force")
            }
            Ok(_) => fs::canonicalize(target)
                .with_context(|| format!("{shown_path}: cannot be opened"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => target.clone(),
            Err(error) => {
                return Err(error).with_context(|| format!("{shown_path}: cannot be created"));
            }
        };
        let partial = partial_path(&target);
        let file = open_locked(&partial, &target)?;
        let has_bytes = file.metadata().is_ok_and(|metadata| metadata.len() > 0);
        match begun {
            Existing::Refuse(advice) if has_bytes => bail!(
                "{}: is left over from a run that was cut off: {advice}",
                partial.display()
            ),
            Existing::Resume => {}
            Existing::Refuse(_) | Existing::Replace => cannot_write(&partial, file.set_len(0))?,
        }
        if let Some(replaced) = &replaced {
            cannot_write(&partial, keep_access(&file, replaced, MODE_WHILE_WRITTEN))?;
        }
        let is_resumed = has_bytes && begun == Existing::Resume;
        let output = Self {
            file,
            partial,
            target,
            may_replace,
            replaced,
            is_resumed,
            is_kept: is_resumed,
        };
        if !output.is_kept {
            under_way(|paths| paths.push(output.partial.clone()));
        }
        Ok(output)
    }

    /// Keeps what is written from here on, if the run is cut off.
    pub fn keep_if_cut_off(&mut self) {
        self.is_kept = true;
        under_way(|paths| paths.retain(|path| *path != self.partial));
    }

    /// Removes the file.
    pub fn discard(mut self) {
        self.is_kept = false;
    }

    /// Keeps the `n_pieces` that were written, for `--resume`, and says so, calling them `pieces`; removes a file without
    /// any.
    pub fn keep(self, n_pieces: u64, pieces: &str) -> Option<String> {
        if n_pieces == 0 {
            self.discard();
            return None;
        }
        let path = self.partial.display();
        Some(format!("{path} keeps {pieces}: --resume continues it"))
    }

    /// A handle to write through.
    pub fn file(&self) -> Result<File> {
        cannot_write(&self.partial, self.file.try_clone())
    }

    /// A writer that continues after the first `length` bytes, and drops the rest.
    pub fn writer(&self, length: u64) -> Result<BufWriter<File>> {
        /// A piece of a reference is some megabytes.
        const BUFFER_BYTES: usize = 4 << 20;
        let mut file = self.file()?;
        let positioned = file
            .set_len(length)
            .and_then(|()| file.seek(SeekFrom::Start(length)));
        cannot_write(&self.partial, positioned)?;
        Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
    }

    /// Where the bytes go until the file is whole.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Replaces what was written so far by `bytes`: there are always the old ones or the new.
    ///
    /// # Errors
    /// If they cannot be written; the old ones stay.
    pub fn replace(&mut self, bytes: &[u8]) -> Result<()> {
        let mut name = self.partial.clone().into_os_string();
        name.push(".new");
        let new_path = PathBuf::from(name);
        let mut file = cannot_write(&new_path, create_fresh(&new_path))?;
        let old = cannot_write(&self.partial, self.file.metadata())?;
        cannot_write(&new_path, keep_access(&file, &old, MODE_WHILE_WRITTEN))?;
        // Where the file system has no locks, the old file has none either.
        let _ = file.try_lock();
        let written = file
            .write_all(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&new_path, &self.partial));
        if written.is_err() {
            let _ = fs::remove_file(&new_path);
        }
        cannot_write(&new_path, written)?;
        self.file = file;
        Ok(())
    }

    /// Writes what `writer` still holds, and [commits](Self::commit) the file. Returns its length in
    /// bytes.
    pub fn commit_writer(self, writer: BufWriter<File>) -> Result<u64> {
        let flushed_length = writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| Ok(file.metadata()?.len()));
        let length = cannot_write(&self.partial, flushed_length)?;
        self.commit()?;
        Ok(length)
    }

    /// Makes sure that every byte is on the disk, then gives the file its name. If another file
    /// took that name meanwhile and must not be replaced, this one keeps its partial name.
    pub fn commit(mut self) -> Result<()> {
        if let Some(replaced) = &self.replaced {
            cannot_write(&self.partial, keep_access(&self.file, replaced, 0))?;
        }
        cannot_write(&self.partial, self.file.sync_all())?;
        let (from, to) = (&self.partial, &self.target);
        let renamed = if self.may_replace {
            fs::rename(from, to).map_err(|error| format!("cannot be created: {error}"))
        } else {
            rename_new(from, to, |from| fs::remove_file(from))
        };
        // Nothing is left to remove: the file has its name, or is whole and stays.
        under_way(|paths| paths.retain(|path| *path != self.partial));
        let partial = std::mem::take(&mut self.partial);
        if let Err(fault) = renamed {
            bail!(
                "{}: {fault}: what was written is whole, in {}",
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
        // After a commit, this name may belong to another run.
        if !self.is_kept && is_same_file(&self.file, &self.partial) {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Adds what was [kept](PartialFile::keep) to the error that ended a run.
pub fn with_kept(error: Error, kept: Option<String>) -> Error {
    match kept {
        Some(kept) => anyhow!("{error:#}; {kept}"),
        None => error,
    }
}

/// Removes the files that are being written, for a process that must end at once.
pub fn remove_partial_files() {
    under_way(|paths| {
        for path in paths.drain(..) {
            let _ = fs::remove_file(path);
        }
    });
}

/// Names the file in the error of something that was tried with it.
fn cannot_write<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.with_context(|| format!("{}: cannot be written", path.display()))
}

/// Changes the list of files that are being written.
fn under_way(change: impl FnOnce(&mut Vec<PathBuf>)) {
    change(&mut locked(&UNDER_WAY));
}

/// Creates a file in place of what a killed run has left. A link that somebody put there is not followed.
fn create_fresh(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Opens or creates the partial file, and locks it: the lock shows that a run is alive, where the
/// file alone may be left over from a killed one.
fn open_locked(partial: &Path, target: &Path) -> Result<File> {
    let cannot_create = || format!("{}: cannot be created", target.display());
    // Opening a pipe would block, and a device is not a partial file.
    if fs::symlink_metadata(partial).is_ok_and(|metadata| !metadata.is_file()) {
        bail!(
            "{}: is in the way of the file to be written: remove it",
            partial.display()
        );
    }
    let file = OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(partial)
        .with_context(cannot_create)?;
    let in_use = || {
        anyhow!(
            "{}: is being written by another run: wait for it, or use another name",
            target.display()
        )
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(in_use()),
        // A file system without locks.
        Err(TryLockError::Error(_)) => Ok(file),
        // The other run may have finished, and so renamed the file, between opening and locking.
        Ok(()) if !is_same_file(&file, partial) => Err(in_use()),
        Ok(()) => Ok(file),
    }
}

/// The mode bits that a file has until it is whole, whatever it gets then: `--resume` opens it to read and to write.
const MODE_WHILE_WRITTEN: u32 = 0o600;

/// Gives a file the access rights of the one that it is to replace: its mode, and its owner and group where the
/// system lets this user give files away. `more_mode` is added to the mode.
#[cfg(unix)]
fn keep_access(file: &File, replaced: &fs::Metadata, more_mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let new = file.metadata()?;
    let (owner, group) = (replaced.uid(), replaced.gid());
    if (new.uid(), new.gid()) != (owner, group) && fchown(file, Some(owner), Some(group)).is_err() {
        let _ = fchown(file, None, Some(group));
    }
    let mut mode = replaced.mode() & 0o777;
    if file.metadata()?.gid() != group {
        // What the old group was allowed to do, another group is allowed only as far as everybody is.
        mode = (mode & 0o707) | (mode & 0o007) << 3;
    }
    mode |= more_mode;
    if new.mode() & 0o777 == mode {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn keep_access(_: &File, _: &fs::Metadata, _: u32) -> io::Result<()> {
    Ok(())
}

fn is_same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => file_id(&open) == file_id(&named),
        _ => false,
    }
}

/// Renames without replacing: making a hard link fails where the name is taken. On file systems
/// without hard links, a moment passes between looking and renaming. `unlink` removes a name.
///
/// # Errors
/// What is wrong with `to`, in words.
fn rename_new(
    from: &Path,
    to: &Path,
    unlink: impl Fn(&Path) -> io::Result<()>,
) -> Result<(), String> {
    match fs::hard_link(from, to) {
        // With two names, a later run that starts the partial file over would empty this file.
        Ok(()) => unlink(from).map_err(|error| {
            format!("was created, but its partial name must be removed by hand ({error})")
        }),
        Err(_) if fs::symlink_metadata(to).is_ok() => {
            Err("was created by another program meanwhile".to_owned())
        }
        Err(_) => fs::rename(from, to).map_err(|error| format!("cannot be created: {error}")),
    }
}

/// Makes the new name reach the disk too. Not every file system can sync a folder; the file's own
/// bytes are safe by then.
fn sync_folder(target: &Path) {
    #[cfg(unix)]
    if let Ok(folder) = File::open(folder_of(target)) {
        let _ = folder.sync_all();
    }
    #[cfg(not(unix))]
    let _ = target;
}

/// The partial file of `target`, or of what it links to.
pub fn partial_path(target: &Path) -> PathBuf {
    let mut name = follow_links(target).into_os_string();
    name.push(".partial");
    name.into()
}

/// The path that links at `path` lead to, whether it exists or not.
pub fn follow_links(path: &Path) -> PathBuf {
    /// Linux follows this many, too.
    const MAX_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(link_target) => path = folder_of(&path).join(link_target),
            Err(_) => break,
        }
    }
    path
}

/// The folder that holds `path`.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A reference, a sidecar or a map that was written.
#[derive(Debug, Default)]
pub struct NewFile {
    /// The file, as given.
    pub path: String,
    /// True for a map.
    pub is_map: bool,
    /// True if it was there already, and is what would be made.
    pub was_whole: bool,
    pub file_bytes: u64,
    /// Rows; of a sidecar, records; of a map, cells.
    pub n_rows: u64,
    pub wall_s: f64,
}

/// The free bytes of the disk that a file is to be on, if the file system reports them.
pub fn free_space(file: &Path) -> Option<u64> {
    fs4::available_space(folder_of(file)).ok()
}

/// The advice where a file does not fit on its disk.
pub const ANOTHER_DISK: &str = "choose another disk";

/// Refuses a file that cannot fit on its disk. `advice` says what to do where so many bytes are free.
///
/// # Errors
/// If the disk has less than `size` bytes free.
pub fn check_free_space(
    partial: &Path,
    target: &Path,
    size: u64,
    advice: impl FnOnce(u64) -> String,
) -> Result<()> {
    // Where the file system does not report its free space, writing finds out.
    if let Some(free) = free_space(partial).filter(|&free| size > free) {
        bail!(
            "{}: what is to be written may take {}, but the disk has {} free: {}",
            target.display(),
            bytes(size),
            bytes(free),
            advice(free)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
