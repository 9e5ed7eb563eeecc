//! The cache of huggingface_hub: `models--USER--REPO/{blobs,refs,snapshots}`. A blob's name is its hash, and
//! the files of a snapshot are links to blobs.
//!
//! Other programs and users may write there too. What kl writes never follows a link out of the cache, and
//! what it reads there is a regular file of a bounded size, or a file that its caller names.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result, bail};

use super::wait::{TICK, report};
use super::{GIT_DIGITS, Hub, HubFault, HubFile, HubStep, HubWatch, Repository, is_hash};

impl Hub {
    /// Where a file is once it is loaded.
    pub fn path_of(&self, file: &HubFile) -> PathBuf {
        let snapshots = self.folder(&file.repository).join("snapshots");
        snapshots.join(&file.commit).join(&file.path)
    }

    /// Removes a file that was loaded with a mark, and folders that it leaves empty. Any other file stays, and
    /// so does one that another process is loading or about to use. A blob that another file of a snapshot
    /// links stays too.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn discard(&self, file: &HubFile) -> Result<()> {
        let (path, blob) = (self.path_of(file), self.blob(file));
        let mark = mark_path(&blob);
        if !mark.exists() {
            return Ok(());
        }
        let lock = self.lock_file(file)?;
        if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) || !mark.exists() {
            return Ok(());
        }
        let (own, stamp) = (vec![&path], stamp_path(&blob));
        let removed = match self.other_user(file) {
            None => vec![&path, &blob, &stamp, &mark],
            // Another file of this run, perhaps, with the same bytes.
            Some(commit) if commit == file.commit => own,
            // Somebody else needs it from now on.
            Some(_) => vec![&path, &mark],
        };
        for path in removed {
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
            if small_text(&main).is_some_and(|commit| commit == file.commit) {
                let _ = fs::remove_file(main);
            }
        }
        for empty in [folder.join("refs"), folder.join("blobs"), snapshots, folder] {
            let _ = fs::remove_dir(empty);
        }
        Ok(())
    }

    /// The commit of another file that links the same blob, if there is one: one of another commit first.
    fn other_user(&self, file: &HubFile) -> Option<String> {
        let path = self.path_of(file);
        let snapshots = self.folder(&file.repository).join("snapshots");
        let links_it = |found: &String| {
            let found = snapshots.join(found);
            found != path && digest_of_link(&found).as_deref() == Some(&*file.digest)
        };
        let users = files_within(&snapshots).into_iter().filter(links_it);
        let commits = users.filter_map(|found| Some(found.split_once('/')?.0.to_owned()));
        commits.max_by_key(|commit| *commit != file.commit)
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
        let written = small_text(&folder.join("refs").join("main"))?;
        let commit = Some(written.trim()).filter(|commit| is_hash(commit, GIT_DIGITS))?;
        let snapshot = folder.join("snapshots").join(commit);
        let file_at = |path: String| {
            let full = snapshot.join(&path);
            // A link may have lost its blob, or lead to a pipe.
            let about = fs::metadata(&full).ok().filter(fs::Metadata::is_file)?;
            Some(HubFile {
                repository: name.to_owned(),
                commit: commit.to_owned(),
                path,
                size: about.len(),
                digest: digest_of_link(&full).unwrap_or_default(),
            })
        };
        let found = files_within(&snapshot).into_iter();
        let mut files: Vec<HubFile> = found.filter_map(file_at).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let name = format!("{name} in the cache");
        (!files.is_empty()).then_some(Repository { name, files })
    }

    /// The file that `huggingface_hub` locks too while it loads a blob. It stays, so that all lock the same.
    fn lock_file(&self, file: &HubFile) -> Result<File> {
        let locks = self.locks(file);
        let blobs = self.folder(&file.repository).join("blobs");
        let folders = fs::create_dir_all(&locks).and_then(|()| fs::create_dir_all(blobs));
        let path = locks.join(format!("{}.lock", file.digest));
        folders.with_context(|| format!("{} cannot be created", path.display()))?;
        open_own(&path, OpenOptions::new().create(true).append(true))
    }

    fn locks(&self, file: &HubFile) -> PathBuf {
        let all_locks = self.cache.join(".locks");
        all_locks.join(folder_name(&file.repository))
    }

    /// Waits for the lock of a file's blob.
    pub(super) fn lock(&self, file: &HubFile, watch: &HubWatch) -> Result<File, HubFault> {
        let lock = self.lock_file(file)?;
        let mut line = Some(format!("{}: another process loads it: waiting", file.path));
        // Where the file system has no locks, the hash still shows what is right.
        while let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let so_far = fs::metadata(incomplete_path(&self.blob(file)));
            let arrived = HubStep::Arrived(so_far.map_or(0, |metadata| metadata.len()));
            let message = line.take();
            report(watch, message.as_deref().map_or(arrived, HubStep::Message))?;
            thread::sleep(TICK);
        }
        Ok(lock)
    }

    /// True if a whole file is in its snapshot. Where upper and lower case are one, a link with another's name
    /// may lead to another blob.
    pub(super) fn is_linked(&self, file: &HubFile) -> bool {
        let path = self.path_of(file);
        let is_right = digest_of_link(&path).is_none_or(|digest| digest == file.digest);
        is_right && is_whole(&path, file)
    }

    /// Puts a blob into its snapshot: a link, or the blob itself where the system makes no links. The main
    /// branch is at this commit now.
    pub(super) fn link(&self, file: &HubFile) -> Result<()> {
        let (path, blob) = (self.path_of(file), self.blob(file));
        if !self.is_linked(file) {
            self.create_folders(file)?;
            if fs::symlink_metadata(&path).is_ok() {
                fs::remove_file(&path)?;
            }
            let up = "../".repeat(file.path.split('/').count() + 1);
            let to = format!("{up}blobs/{}", file.digest);
            symlink(Path::new(&to), &path).or_else(|_| fs::rename(&blob, &path))?;
        }
        let refs = self.folder(&file.repository).join("refs");
        let main = refs.join("main");
        if small_text(&main).is_some_and(|commit| commit == file.commit) {
            return Ok(());
        }
        fs::create_dir_all(&refs)?;
        // Each file in `refs` is a branch: what a killed run leaves must not be there.
        let name = format!("main.{}.tmp", std::process::id());
        let new = self.locks(file).join(name);
        write_fresh(&new, file.commit.as_bytes())?;
        let renamed = fs::rename(&new, &main);
        if renamed.is_err() {
            let _ = fs::remove_file(&new);
        }
        renamed.with_context(|| format!("{} cannot be written", main.display()))
    }

    /// Creates the folders of a file in its snapshot, none of which may be a link to elsewhere.
    fn create_folders(&self, file: &HubFile) -> Result<()> {
        let mut folder = self.folder(&file.repository).join("snapshots");
        fs::create_dir_all(&folder)?;
        let (within, _) = file.path.rsplit_once('/').unwrap_or_default();
        let names = within.split('/').filter(|name| !name.is_empty());
        for name in [&*file.commit].into_iter().chain(names) {
            folder.push(name);
            match fs::symlink_metadata(&folder) {
                Ok(about) if about.is_dir() => {}
                Ok(_) => bail!("{} is in the way of a folder: remove it", folder.display()),
                Err(_) => fs::create_dir(&folder).or_else(|error| match error.kind() {
                    ErrorKind::AlreadyExists => Ok(()),
                    _ => Err(error),
                })?,
            }
        }
        Ok(())
    }
}

/// The name of a repository's folder, and of the folder of its locks.
fn folder_name(repository: &str) -> String {
    format!("models--{}", repository.replace('/', "--"))
}

/// The user and the repository that the name of a folder in the cache stands for; `None` for another folder.
pub fn repository_of_folder(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("models--")?.split_once("--")
}

/// True if a whole file is at `path`.
pub fn is_whole(path: &Path, file: &HubFile) -> bool {
    fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == file.size)
}

/// The name of the blob that a link leads to; `None` of a file that is no link.
fn digest_of_link(path: &Path) -> Option<String> {
    let blob = fs::read_link(path).ok()?;
    Some(blob.file_name()?.to_string_lossy().into_owned())
}

/// The paths of all files within a folder, with `/`. Links are files here: where they lead is not looked at.
pub fn files_within(root: &Path) -> Vec<String> {
    let (mut files, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder));
        for entry in entries.into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(format!("{folder}{name}/"));
            } else {
                files.push(format!("{folder}{name}"));
            }
        }
    }
    files
}

/// A regular file's text, if it is short. A pipe would block, and a device may have no end.
pub fn small_text(path: &Path) -> Option<String> {
    const MOST: u64 = 1 << 16;
    let is_file = fs::metadata(path).is_ok_and(|about| about.is_file());
    let file = is_file.then(|| File::open(path).ok()).flatten()?;
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Opens or creates a file that kl alone writes: a pipe would block, and a link may lead out of the cache.
///
/// # Errors
/// What is in its place, or why it cannot be opened.
pub fn open_own(path: &Path, options: &OpenOptions) -> Result<File> {
    let is_other = |about: fs::Metadata| !about.is_file();
    if fs::symlink_metadata(path).is_ok_and(is_other) {
        bail!(
            "{} is in the way of a file of the cache: remove it",
            path.display()
        );
    }
    let opened = options.open(path);
    opened.with_context(|| format!("{} cannot be opened", path.display()))
}

/// The path of the file that records when a blob was checked.
pub fn stamp_path(blob: &Path) -> PathBuf {
    blob.with_extension("kl-verified")
}

/// Writes a new file, in place of what is there.
pub fn write_fresh(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .open(path)?
        .write_all(bytes)
}

/// The path of the mark of a blob that is to be discarded after use.
pub fn mark_path(blob: &Path) -> PathBuf {
    blob.with_extension("kl-discard")
}

/// The path of the part of a blob that has been loaded so far.
pub fn incomplete_path(blob: &Path) -> PathBuf {
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
