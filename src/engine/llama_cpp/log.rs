//! The log of llama.cpp and ggml, shown on request. Its last errors are kept, since functions report failure
//! without a reason.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use llama_cpp_sys_2 as sys;

use crate::lock::locked;

/// The number of the log's last errors that are kept.
const KEPT_ERRORS: usize = 4;

static IS_VERBOSE: AtomicBool = AtomicBool::new(false);

/// The level of the last message: pieces that continue it have none of their own.
static LEVEL: AtomicU32 = AtomicU32::new(sys::GGML_LOG_LEVEL_NONE);

/// Set once the system has refused to lock weights into memory, which llama.cpp does not treat as
/// an error.
static LOCK_FAILED: AtomicBool = AtomicBool::new(false);

static LAST_ERRORS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Sends llama.cpp's log to stderr if `verbose`, and keeps its last errors either way.
pub fn follow_log(verbose: bool) {
    IS_VERBOSE.store(verbose, Ordering::Relaxed);
    // SAFETY: the callback may be called on any thread, and does not unwind.
    unsafe { sys::llama_log_set(Some(on_message), std::ptr::null_mut()) }
}

/// Returns whether the system has refused to lock a model's weights into memory.
pub fn mlock_has_failed() -> bool {
    LOCK_FAILED.load(Ordering::Relaxed)
}

/// Returns the last errors of llama.cpp's log in one line, and forgets them.
pub(super) fn last_log_errors() -> String {
    let line = locked(&LAST_ERRORS)
        .drain(..)
        .collect::<Vec<_>>()
        .join("; ");
    if line.is_empty() {
        "it gave no reason (-v shows its log)".to_owned()
    } else {
        line
    }
}

/// Receives a message of llama.cpp or ggml, or a piece of one.
unsafe extern "C" fn on_message(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    // SAFETY: the text is a string that lives until this returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let (level, text) = match level {
        sys::GGML_LOG_LEVEL_CONT => (LEVEL.load(Ordering::Relaxed), &*text),
        level => {
            LEVEL.store(level, Ordering::Relaxed);
            (level, without_function(&text))
        }
    };
    if level >= sys::GGML_LOG_LEVEL_WARN && text.contains("failed to mlock") {
        LOCK_FAILED.store(true, Ordering::Relaxed);
    }
    if level >= sys::GGML_LOG_LEVEL_INFO && IS_VERBOSE.load(Ordering::Relaxed) {
        // A closed stderr must not stop the work.
        let _ = write!(std::io::stderr(), "{text}");
    }
    if level == sys::GGML_LOG_LEVEL_ERROR && !text.trim().is_empty() {
        let mut kept = locked(&LAST_ERRORS);
        if kept.len() == KEPT_ERRORS {
            kept.pop_front();
        }
        kept.push_back(text.trim_end().to_owned());
    }
}

/// Strips the name of a function that the message begins with, such as `load_tensors: `.
fn without_function(text: &str) -> &str {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    match text.split_once(": ") {
        Some((name, message)) if is_name(name) => message,
        _ => text,
    }
}
