//! Files of a hub that a run needs. When models are evaluated one after another, each is loaded while the
//! one before is at work, and removed afterwards if that is asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kl_hub::{Hub, HubFile, HubStep, total_bytes};
use kl_system::threads;

use super::folder::stem;
use super::observer::{Event, FileWork, Observer, Watch, one_line};

/// The time between two reports of how much of a file is there.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Files of a hub, by the paths that they have in the cache once they are loaded.
#[derive(Default)]
pub struct Shelf {
    /// Where they come from; `None` without any.
    hub: Option<Hub>,
    /// The parts of each; its path is that of the first.
    files: BTreeMap<PathBuf, Vec<HubFile>>,
    /// True if models that `kl` has loaded are removed once they are evaluated.
    discard: bool,
    /// True if its models were chosen by a pattern of quants.
    has_pattern: bool,
}

/// The paths of its files: the hub has a secret.
impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

impl Shelf {
    /// A shelf of these files, each with all of its parts. `has_pattern`: a pattern of quants chose them.
    pub fn new(
        hub: Hub,
        files: BTreeMap<PathBuf, Vec<HubFile>>,
        discard: bool,
        has_pattern: bool,
    ) -> Self {
        Self {
            hub: Some(hub),
            files,
            discard,
            has_pattern,
        }
    }

    /// True if a pattern chose this model, which may then be none: nobody has asked for it by its name.
    pub fn has_by_pattern(&self, path: &Path) -> bool {
        self.has_pattern && self.files.contains_key(path)
    }

    /// True if the file at `path`, or a part of it, is still to be loaded onto this machine.
    pub fn awaits(&self, path: &Path) -> bool {
        self.parts(path)
            .any(|(hub, part)| !hub.path_of(part).exists())
    }

    /// The parts of a file, and where they come from; none of a file that is not of the shelf.
    fn parts(&self, path: &Path) -> impl Iterator<Item = (&Hub, &HubFile)> {
        let parts = self.files.get(path).into_iter().flatten();
        self.hub
            .iter()
            .flat_map(move |hub| parts.clone().map(move |part| (hub, part)))
    }

    /// Refuses files that are neither of the shelf nor on this machine, before any is loaded; a shelf without
    /// files refuses none.
    ///
    /// # Errors
    /// Why one cannot be read.
    pub fn look_for(&self, paths: &[&Path]) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let is_known = |path: &Path| path.as_os_str() == "-" || self.files.contains_key(path);
        for path in paths.iter().filter(|path| !is_known(path)) {
            fs::metadata(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        }
        Ok(())
    }

    /// Loads all files but those at these paths, which are loaded when their turn comes.
    ///
    /// # Errors
    /// Why one cannot be loaded.
    pub fn load_all_but(&self, later: &[PathBuf], observer: &dyn Observer) -> Result<()> {
        let paths: Vec<&Path> = self
            .files
            .keys()
            .filter(|path| !later.contains(path))
            .map(PathBuf::as_path)
            .collect();
        let watch = &Watch::new(observer);
        self.load_ahead(&paths, false, watch, |arrivals| {
            for path in &paths {
                arrivals.wait(path)?;
                // Whoever asked for it while the last bytes came has not been heard yet.
                watch.check()?;
            }
            Ok(())
        })
    }

    /// Bytes of a file of the shelf, of all its parts; `None` for any other.
    pub fn size(&self, path: &Path) -> Option<u64> {
        Some(total_bytes(self.files.get(path)?.iter()))
    }

    /// True if models that `kl` has loaded are removed once they are used.
    pub fn discards(&self) -> bool {
        self.discard
    }

    /// Removes what `kl` has loaded of a model, if models are removed once they are evaluated. A run that was
    /// killed in between leaves it to the next one.
    pub fn discard(&self, path: &Path, watch: &Watch<'_>) {
        for (hub, part) in self.parts(path).filter(|_| self.discard) {
            if let Err(error) = hub.discard(part) {
                watch.note(&one_line(&error));
            }
        }
    }

    /// Does `work` with the models at these paths, one after another: while one is used, the next ones are
    /// loaded; only the next one where they are discarded.
    pub fn evaluate<R>(
        &self,
        paths: &[&Path],
        watch: &Watch<'_>,
        work: impl FnOnce(&mut Arrivals<'_>) -> R,
    ) -> R {
        let own_paths: Vec<&Path> = paths
            .iter()
            .copied()
            .filter(|path| self.files.contains_key(*path))
            .collect();
        self.load_ahead(&own_paths, self.discard, watch, work)
    }

    /// Does `work` with the files at these paths, which are loaded in their order while it works; where they are
    /// discarded, at most one file ahead.
    fn load_ahead<R>(
        &self,
        paths: &[&Path],
        discard: bool,
        watch: &Watch<'_>,
        work: impl FnOnce(&mut Arrivals<'_>) -> R,
    ) -> R {
        let n_bytes = AtomicU64::new(0);
        thread::scope(|scope| {
            // Where files are discarded, each is begun once the one before is taken.
            let (sender, loaded) = sync_channel(if discard { 0 } else { paths.len() });
            let load_all = || {
                let sender = sender;
                for path in paths {
                    if sender
                        .send(self.load(path, discard, watch, &n_bytes))
                        .is_err()
                    {
                        break;
                    }
                }
            };
            let loaded = match threads::spawn_scoped(scope, None, load_all) {
                Err(cause) if !paths.is_empty() => {
                    let (sender, loaded) = sync_channel(paths.len());
                    for _ in paths {
                        let _ = sender.send(Err(cause.clone().into()));
                    }
                    loaded
                }
                _ => loaded,
            };
            let mut arrivals = Arrivals {
                shelf: self,
                watch,
                waiting: paths,
                loaded,
                n_bytes: &n_bytes,
                used: None,
                discard,
            };
            let result = work(&mut arrivals);
            arrivals.discard_used();
            result
        })
    }

    /// Loads all parts of a file. `n_bytes`: how much of it is there.
    fn load(
        &self,
        path: &Path,
        discard: bool,
        watch: &Watch<'_>,
        n_bytes: &AtomicU64,
    ) -> Result<()> {
        let mut bytes_before = 0;
        for (hub, part) in self.parts(path) {
            let follow = |step: HubStep<'_>| {
                match step {
                    HubStep::Arrived(bytes) => {
                        n_bytes.store(bytes.saturating_add(bytes_before), Ordering::Relaxed);
                    }
                    HubStep::Message(line) => watch.note(line),
                }
                watch.should_stop()
            };
            hub.load(part, discard, &follow)?;
            bytes_before = part.size.saturating_add(bytes_before);
        }
        Ok(())
    }
}

/// The files of a run in the order in which they arrive.
pub struct Arrivals<'s> {
    shelf: &'s Shelf,
    watch: &'s Watch<'s>,
    /// The paths of the files that have not been taken.
    waiting: &'s [&'s Path],
    /// The result of loading each of them.
    loaded: Receiver<Result<()>>,
    /// The number of bytes of the first of them that are there.
    n_bytes: &'s AtomicU64,
    /// The one that was taken last, and may still be in use.
    used: Option<&'s Path>,
    discard: bool,
}

impl Arrivals<'_> {
    /// Waits for the file at `path`, if it is the next one, and returns whether it is. The file that was waited
    /// for before may be discarded.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    pub fn wait(&mut self, path: &Path) -> Result<bool> {
        let Some((next, later)) = self
            .waiting
            .split_first()
            .filter(|(next, _)| **next == path)
        else {
            return Ok(false);
        };
        self.waiting = later;
        self.discard_used();
        let parts = self.shelf.parts(next).map(|(_, part)| part);
        let (label, n_bytes_in_all) = (stem(next), total_bytes(parts));
        let mut is_shown = false;
        let loaded = loop {
            match self.loaded.recv_timeout(REPORT_INTERVAL) {
                Ok(loaded) => break loaded,
                Err(RecvTimeoutError::Disconnected) => bail!("{label}: is not loaded"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let n_bytes = self.n_bytes.load(Ordering::Relaxed);
            self.watch.event(&Event::File {
                work: FileWork::Load,
                label: &label,
                n_bytes,
                n_bytes_in_all,
            });
            is_shown = true;
        };
        if is_shown {
            self.watch.event(&Event::End);
        }
        loaded?;
        self.used = Some(*next);
        Ok(true)
    }

    /// Removes the file that was taken last, unless the run was interrupted and may be continued.
    fn discard_used(&mut self) {
        let used = self.used.take().filter(|_| !self.watch.should_stop());
        if let Some(used) = used.filter(|_| self.discard) {
            self.shelf.discard(used, self.watch);
        }
    }
}
