//! The files of a loaded model, which other programs may change while it is used: a converter, a download,
//! `rsync --inplace`, somebody on another machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::EngineError;
use super::gguf::ModelError;
use kl_system::file_id;

/// The activity during which a model's file must not change, for messages.
pub const IN_USE: &str = "read";

/// A change of a model's files since they were looked at; the worst is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileChange {
    /// A name stands for another file, or for none. The bytes of the file that had it are still there for
    /// who has mapped them.
    Replaced,
    /// A file was written to, or became longer.
    Rewritten,
    /// A file became shorter.
    Shortened,
}

/// The properties by which a changed file is noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    id: Option<(u64, u64)>,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn read(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            id: file_id(&metadata),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }

    fn change(&self, now: Option<&Self>) -> Option<FileChange> {
        match now {
            Some(now) if now == self => None,
            Some(now) if now.id == self.id && now.bytes < self.bytes => Some(FileChange::Shortened),
            Some(now) if now.id == self.id => Some(FileChange::Rewritten),
            _ => Some(FileChange::Replaced),
        }
    }
}

/// A model's files, as they were when they were looked at.
#[derive(Debug, Clone, Default)]
pub struct ModelFiles(Vec<(PathBuf, Option<Stamp>)>);

impl ModelFiles {
    /// Looks at the files.
    pub fn look_at(paths: &[PathBuf]) -> Self {
        let files = paths.iter().map(|path| (path.clone(), Stamp::read(path)));
        Self(files.collect())
    }

    /// The files, and their lengths in bytes.
    pub fn lengths(&self) -> impl Iterator<Item = (&Path, u64)> {
        let files = self.0.iter();
        files.filter_map(|(path, stamp)| Some((&**path, stamp.as_ref()?.bytes)))
    }

    /// The worst change of one of them since. It takes a microsecond for each file.
    pub fn change(&self) -> Option<FileChange> {
        self.changed().map(|(_, change)| change)
    }

    fn changed(&self) -> Option<(&Path, FileChange)> {
        let changes = self.0.iter().filter_map(|(path, stamp)| {
            let change = stamp.as_ref()?.change(Stamp::read(path).as_ref())?;
            Some((&**path, change))
        });
        changes.max_by_key(|(_, change)| *change)
    }

    /// Checks that they are the files that they were. `activity`: what was done with them meanwhile, such
    /// as `read`.
    ///
    /// # Errors
    /// The file that has changed.
    pub fn check_same(&self, activity: &str) -> Result<(), EngineError> {
        self.changed()
            .map_or(Ok(()), |(path, change)| Err(change.error(path, activity)))
    }

    /// Checks that nobody has written to them. `activity`: as in [`check_same`](Self::check_same).
    ///
    /// # Errors
    /// The file that was written to.
    pub fn check_bytes(&self, activity: &str) -> Result<(), EngineError> {
        match self.changed() {
            None | Some((_, FileChange::Replaced)) => Ok(()),
            Some((path, change)) => Err(change.error(path, activity)),
        }
    }
}

impl FileChange {
    /// The error of a file that has changed. `activity`: what was done with it meanwhile, such as `read`.
    pub fn error(self, path: &Path, activity: &str) -> EngineError {
        let changed = if self == Self::Shortened {
            "became shorter"
        } else {
            "changed"
        };
        let what =
            format!("{changed} while it was {activity}: wait until it is complete, and try again");
        EngineError::Changed(ModelError::new(path, what))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_that_was_rewritten_is_told_from_one_that_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, other] = ["a", "b", "other"].map(|name| folder.path().join(name));
        for path in [&a, &b] {
            fs::write(path, "0123456789").unwrap();
        }
        let files = ModelFiles::look_at(&[a.clone(), b.clone()]);
        assert_eq!(files.change(), None);
        assert_eq!(files.lengths().map(|(_, n)| n).sum::<u64>(), 20);
        files.check_same("loaded").unwrap();

        fs::write(&other, "0123456789").unwrap();
        fs::rename(&other, &a).unwrap();
        #[cfg(unix)]
        assert_eq!(files.change(), Some(FileChange::Replaced));
        #[cfg(unix)]
        files.check_bytes("read").unwrap();
        files.check_same("loaded").unwrap_err();

        // Of the same length.
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let file = fs::OpenOptions::new().write(true).open(&b).unwrap();
        file.set_modified(long_ago).unwrap();
        assert_eq!(files.change(), Some(FileChange::Rewritten));
        let error = files.check_bytes("read").unwrap_err().to_string();
        let end = "b: changed while it was read: wait until it is complete, and try again";
        assert!(error.ends_with(end), "{error}");

        fs::write(&b, "012").unwrap();
        assert_eq!(files.change(), Some(FileChange::Shortened));
        let error = files.check_bytes("read").unwrap_err().to_string();
        assert!(error.contains("b: became shorter while"), "{error}");

        fs::remove_file(&b).unwrap();
        assert_eq!(files.change(), Some(FileChange::Replaced));
    }
}
