//! References that come through a pipe: they are read once, as their writer goes along.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use kl_formats::Reference;
use kl_system::file_id;
use kl_system::threads;

use super::observer::Watch;

/// The time that a writer has to open its end. llama-perplexity loads its model first, and a large one may take
/// minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// The time after which the user hears what is waited for.
const QUIET: Duration = Duration::from_secs(2);

/// The time between two looks at whether to stop.
const STEP: Duration = Duration::from_millis(50);

/// True if there is a pipe at this path: a named one, a shell's `<(...)`, or `/dev/stdin`.
#[cfg(unix)]
pub fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

#[cfg(not(unix))]
pub fn is_pipe(_: &Path) -> bool {
    false
}

/// Refuses paths of which two lead to one pipe.
///
/// # Errors
/// If two do.
pub fn refuse_same_pipe<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Result<()> {
    let mut known_ids = Vec::new();
    for path in paths.into_iter().filter(|path| is_pipe(path)) {
        let id = fs::metadata(path).ok().as_ref().and_then(file_id);
        if known_ids.contains(&id) {
            bail!(
                "{}: is a pipe that is named twice: it can be read once",
                path.display()
            );
        }
        known_ids.push(id);
    }
    Ok(())
}

/// Opens a reference: a file, or a pipe, whose rows the caller can read this once.
///
/// # Errors
/// A reference that cannot be read, a pipe that nothing writes to, or the observer asks to stop.
pub fn open(path: &Path, watch: &Watch<'_>) -> Result<Reference> {
    if is_pipe(path) {
        open_pipe(path, PATIENCE, watch)
    } else {
        Ok(Reference::open(path)?)
    }
}

/// Opens the reference in a pipe, once its writer has begun. Opening a pipe and reading from it wait for the writer,
/// so a thread of its own does both, which is left behind when the wait ends.
fn open_pipe(path: &Path, patience: Duration, watch: &Watch<'_>) -> Result<Reference> {
    let (shown_path, pipe) = (path.display(), path.to_owned());
    let (sender, receiver) = channel();
    let has_writer = Arc::new(AtomicBool::new(false));
    let is_open = Arc::clone(&has_writer);
    threads::spawn(move || {
        let file = File::open(&pipe);
        is_open.store(true, Ordering::Relaxed);
        let reference = file
            .with_context(|| format!("{}: cannot be read", pipe.display()))
            .and_then(|file| Ok(Reference::read_once(&pipe, file)?));
        // Without a receiver, nobody waits any more.
        let _ = sender.send(reference);
    })?;
    let began = Instant::now();
    let mut is_told = false;
    loop {
        match receiver.recv_timeout(STEP) {
            Ok(reference) => return reference,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(anyhow!(
                    "{shown_path}: internal error: its reader has stopped"
                ));
            }
        }
        watch.check()?;
        let (waited, has_writer) = (began.elapsed(), has_writer.load(Ordering::Relaxed));
        if waited >= patience && !has_writer {
            bail!(
                "{shown_path}: is a pipe that no program has opened to write to it in {} s: start one that does, such as llama-perplexity with --save-all-logits {shown_path}, then kl",
                patience.as_secs()
            );
        }
        if waited >= QUIET && !is_told {
            is_told = true;
            let awaited = if has_writer {
                "the first rows in this pipe"
            } else {
                "a program that opens this pipe to write to it"
            };
            watch.note(&format!(
                "{shown_path}: waiting for {awaited} (Ctrl-C stops)"
            ));
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pipe_that_nobody_opens_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(!is_pipe(&path) && !is_pipe(folder.path()));
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success() && is_pipe(&path));
        let error = open_pipe(&path, Duration::from_millis(1), &Watch::new(&())).unwrap_err();
        let what = "pipe: is a pipe that no program has opened to write to it";
        assert!(error.to_string().contains(what), "{error}");
    }
}
