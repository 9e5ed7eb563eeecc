//! The signal that the system sends where a mapped file has become shorter, or cannot be read any more. It
//! comes to whatever thread reads the weights, in the middle of a kernel, so that nothing is left but to say
//! what has happened and to end the process.

use std::ffi::CString;
use std::io::{IsTerminal as _, stderr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::ModelFiles;

/// A file that is mapped, in a list that only grows: the handler may look at it at any moment.
struct MappedFile {
    path: CString,
    bytes: u64,
    is_mapped: AtomicBool,
    /// The line to print if it is shorter than it was.
    is_shorter: Vec<u8>,
    /// The line to print if it is not.
    is_unreadable: Vec<u8>,
    next: *const MappedFile,
}

/// The newest element of the list.
static NEWEST: AtomicPtr<MappedFile> = AtomicPtr::new(ptr::null_mut());

/// The files of one model in the list, as long as it is loaded.
pub(super) struct Mapped(Vec<&'static MappedFile>);

// SAFETY: an element never changes, but for its atomic, and is never freed.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Adds the files of a model, which is about to be loaded.
    pub(super) fn add(files: &ModelFiles) -> Self {
        listen();
        Self(files.lengths().filter_map(|of| add(of.0, of.1)).collect())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        for file in &self.0 {
            file.is_mapped.store(false, Ordering::Relaxed);
        }
    }
}

fn add(path: &Path, bytes: u64) -> Option<&'static MappedFile> {
    // A terminal may show a bar in the line.
    let start = if stderr().is_terminal() {
        "\r\x1b[2K"
    } else {
        ""
    };
    let line = |what: &str| format!("{start}kl: {}: {what}\n", path.display()).into_bytes();
    let file = Box::leak(Box::new(MappedFile {
        path: CString::new(path.as_os_str().as_bytes()).ok()?,
        bytes,
        is_mapped: AtomicBool::new(true),
        is_shorter: line(
            "became shorter while it was read: wait until it is complete, and try again",
        ),
        is_unreadable: line(
            "cannot be read any more (bus error): its disk or its server has failed, or it became shorter; try again, with --no-mmap if it cannot be helped",
        ),
        next: ptr::null(),
    }));
    let place = ptr::from_mut(file);
    // Models are loaded on several threads.
    let _ = NEWEST.fetch_update(Ordering::AcqRel, Ordering::Acquire, |newest| {
        // SAFETY: the element is valid, and nobody else knows it before it is in the list.
        unsafe { (*place).next = newest };
        Some(place)
    });
    // SAFETY: the element is never freed, and changes no more.
    Some(unsafe { &*place })
}

/// Handles the signal from now on. Where that fails, it ends the process as it does without a handler.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only calls functions that are safe in one (POSIX.1-2024, 2.4.3), and reads
        // atomics and what never changes.
        let _ = unsafe { signal_hook::low_level::register(libc::SIGBUS, on_bus_error) };
    });
}

/// Says which file has become shorter, and ends the process. Without a mapped file the signal has another cause,
/// and the handler that was there before, Rust's own, has prepared the process to end by it.
fn on_bus_error() {
    const EXIT_FAILURE: i32 = 1;
    let mut line: Option<&[u8]> = None;
    let mut at: *const MappedFile = NEWEST.load(Ordering::Acquire);
    // SAFETY: elements are valid once they are in the list, and never freed.
    while let Some(file) = unsafe { at.as_ref() } {
        at = file.next;
        if !file.is_mapped.load(Ordering::Relaxed) {
            continue;
        }
        let mut found = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the path ends with NUL, and there is room for the answer, which is read only if it is there.
        let bytes = unsafe {
            (libc::stat(file.path.as_ptr(), found.as_mut_ptr()) == 0)
                .then(|| found.assume_init().st_size)
        };
        if bytes
            .and_then(|n| u64::try_from(n).ok())
            .is_some_and(|n| n < file.bytes)
        {
            line = Some(&file.is_shorter);
            break;
        }
        line = line.or(Some(&file.is_unreadable));
    }
    if let Some(line) = line {
        // SAFETY: the line is as long as stated. Without stderr there is nobody to tell.
        unsafe {
            let _ = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
            libc::_exit(EXIT_FAILURE);
        }
    }
}
