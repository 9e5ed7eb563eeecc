//! The log of llama.cpp and ggml, shown on request: its last errors are kept, since functions report failure
//! without a reason. ggml's fatal errors are reported before it ends the process.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use llama_cpp_sys_2 as sys;

use kl_system::locked;
use kl_system::threads;

/// The number of the log's last errors that are kept.
const KEPT_ERRORS: usize = 4;

static IS_VERBOSE: AtomicBool = AtomicBool::new(false);

/// The level of the last message: pieces that continue it have none of their own.
static LEVEL: AtomicU32 = AtomicU32::new(sys::GGML_LOG_LEVEL_NONE);

/// Set once the system has refused to lock weights into memory, which llama.cpp does not treat as
/// an error.
static LOCK_FAILED: AtomicBool = AtomicBool::new(false);

/// The last errors of the log, no more than [`KEPT_ERRORS`].
static LAST_ERRORS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Sends llama.cpp's log to stderr if `verbose`, and keeps its last errors either way.
pub fn follow_log(verbose: bool) {
    IS_VERBOSE.store(verbose, Ordering::Relaxed);
    // SAFETY: the callback may be called on any thread, and does not unwind.
    unsafe { sys::llama_log_set(Some(on_message), std::ptr::null_mut()) }
}

/// True if the system has refused to lock a model's weights into memory.
pub fn mlock_has_failed() -> bool {
    LOCK_FAILED.load(Ordering::Relaxed)
}

/// Returns the last errors of llama.cpp's log in one line, and forgets them.
pub(super) fn last_log_errors() -> String {
    let errors = Vec::from(std::mem::take(&mut *locked(&LAST_ERRORS)));
    if errors.is_empty() {
        return "it gave no reason (-v shows its log)".to_owned();
    }
    errors.join("; ")
}

/// The advice to give if a model or a context cannot be created, by words: the first entry
/// counts that has a word in llama.cpp's reason.
const ADVICE: [(&[&str], &str); 5] = [
    (
        &["quantized V cache"],
        "llama.cpp quantizes cached values with flash attention only: use --flash-attn on or auto, or --cache-type-v f16",
    ),
    (
        &["different K"],
        "give --cache-type-k and --cache-type-v one type",
    ),
    (
        &["block size"],
        "use another --cache-type-k or --cache-type-v: f16 always works",
    ),
    (&["split buffers"], "use --split-mode layer"),
    (
        &["alloc", "memory"],
        "out of memory? lower --n-gpu-layers, --n-ctx, --parallel or --n-batch, or close other programs",
    ),
];

/// Returns the last errors of llama.cpp's log in one line with what to do, and forgets them.
pub(super) fn errors_with_advice() -> String {
    with_advice(last_log_errors())
}

/// Adds what to do to a reason why a model or a context cannot be created or used.
pub(super) fn with_advice(reason: String) -> String {
    match advice_on_log(&reason) {
        Some(advice) => format!("{reason} ({advice})"),
        None => reason,
    }
}

/// The advice on a reason of llama.cpp's, if there is some.
pub(super) fn advice_on_log(reason: &str) -> Option<&'static str> {
    let mentioned = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    let found = ADVICE.iter().find(|(words, _)| mentioned(words));
    found.map(|(_, advice)| *advice)
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
        let mut errors = locked(&LAST_ERRORS);
        if errors.len() == KEPT_ERRORS {
            errors.pop_front();
        }
        errors.push_back(text.trim_end().to_owned());
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

/// The function that ends the process, given ggml's fatal error in one line.
static HANDLER: OnceLock<fn(&str) -> !> = OnceLock::new();

/// The addresses of the servers whose devices are registered.
pub(super) static SERVERS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The addresses of the servers that are connected.
pub fn servers() -> Vec<String> {
    locked(&SERVERS).clone()
}

/// The model that is being loaded.
static LOADING: Mutex<Option<String>> = Mutex::new(None);

unsafe extern "C" {
    /// Reports an exception of C++ that nothing catches, as on a thread of llama.cpp's own: in `shim.cpp`.
    fn kl_report_terminate(report: unsafe extern "C" fn(*const c_char));
}

/// Hands each fatal error of ggml, and each exception of C++ that nothing catches, to `handler`, on the thread where it occurs: any of this program's
/// or of ggml's own, in the middle of its work. So `handler` must end the process without running
/// destructors. Other threads still run meanwhile.
pub fn on_abort(handler: fn(&str) -> !) {
    // A second call, as in tests, keeps the first handler.
    if HANDLER.set(handler).is_ok() {
        // SAFETY: the callback may be called on any thread, and does not unwind.
        unsafe {
            sys::ggml_set_abort_callback(Some(aborted));
            kl_report_terminate(aborted);
        }
    }
}

/// Runs `load`: a fatal error in it is reported as the fault of the model at `path`.
pub(super) fn while_loading<T>(path: &Path, load: impl FnOnce() -> T) -> T {
    *locked(&LOADING) = Some(path.display().to_string());
    let loaded = load();
    *locked(&LOADING) = None;
    loaded
}

/// Called by ggml or by `shim.cpp`, which call abort() as soon as this returns.
unsafe extern "C" fn aborted(message: *const c_char) {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    if IS_ENDING.swap(true, Ordering::Relaxed) {
        // Another thread has failed too, and is about to end the process.
        loop {
            std::thread::park();
        }
    }
    // SAFETY: the message is a string that lives until this returns.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    if let Some(handler) = HANDLER.get() {
        let (loading, servers) = (locked(&LOADING), servers().join(" or "));
        handler(&explain(&message, loading.as_deref(), &servers));
    }
}

/// The source file and the failed assertion where ggml starts its threads (`ggml_threadpool_new_impl`).
const THREADS_OF_POOL: (&str, &str) = ("ggml-cpu.c", "GGML_ASSERT(rc == 0)");

/// Explains in one line what went wrong and what to do. `loading`: the model that is being loaded.
/// `servers`: those that are connected.
fn explain(message: &str, loading: Option<&str>, servers: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    // ggml starts its message with the path of a source file on the machine that compiled it.
    let (path, rest) = line.split_once(": ").unwrap_or(("", &line));
    let source = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let what = [source, rest].join(if source.is_empty() { "" } else { ": " });
    match loading {
        // A thread of its pool could not be started.
        _ if source.starts_with(THREADS_OF_POOL.0) && rest.contains(THREADS_OF_POOL.1) => {
            format!(
                "ggml cannot start the threads that decode ({what}): use --threads 1, or {}",
                threads::ADVICE
            )
        }
        _ if source.starts_with("ggml-rpc") => format!(
            "the connection to a server is lost ({what}): see whether {servers} still runs, start it again if not, and repeat the call with --resume"
        ),
        Some(path) => format!(
            "{path}: llama.cpp cannot load the model ({what}): download or convert it again; if other models fail too, try without --device and --n-gpu-layers"
        ),
        None => format!(
            "llama.cpp cannot continue ({what}): repeat the call with --resume; if it fails again, try without --device, --n-gpu-layers and --flash-attn"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fatal_error_is_one_line_without_the_folders_of_another_machine() {
        let message = "/home/someone/ggml/src/ggml.c:42: GGML_ASSERT(a ==\n b) failed\n";
        let line = explain(message, None, "no server");
        let start = "llama.cpp cannot continue (ggml.c:42: GGML_ASSERT(a == b) failed): ";
        assert!(line.starts_with(start), "{line}");
        assert!(explain("", None, "").starts_with("llama.cpp cannot continue ()"));
    }

    #[test]
    fn threads_that_cannot_be_started_are_named() {
        let message = "/ggml/src/ggml-cpu/ggml-cpu.c:3369: GGML_ASSERT(rc == 0) failed";
        let line = explain(message, Some("m.gguf"), "");
        assert!(line.contains("use --threads 1"), "{line}");
        assert!(!line.contains("--device"), "{line}");
    }

    #[test]
    fn a_lost_server_is_named() {
        let message = r"C:\src\ggml-rpc\ggml-rpc.cpp:573: Remote RPC server crashed";
        let line = explain(message, Some("m.gguf"), "a:1 or b:2");
        let what = "is lost (ggml-rpc.cpp:573: Remote RPC server crashed): see whether a:1 or b:2 ";
        assert!(line.contains(what), "{line}");
    }
}
