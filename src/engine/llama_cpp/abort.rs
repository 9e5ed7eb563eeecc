//! Fatal errors of ggml, which are reported before it ends the process.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use llama_cpp_sys_2 as sys;

use super::backends::suspects;
use crate::lock::locked;

/// The function that ends the process, given ggml's fatal error in one line.
type Handler = fn(&str) -> !;

static HANDLER: OnceLock<Handler> = OnceLock::new();

/// The model that is being loaded.
static LOADING: Mutex<Option<String>> = Mutex::new(None);

/// Hands each fatal error of ggml to `handler`, on the thread where it occurs: any of this program's
/// or of ggml's own, in the middle of its work. So `handler` must end the process without running
/// destructors. Other threads still run meanwhile.
pub fn on_abort(handler: Handler) {
    // A second call, as in tests, keeps the first handler.
    if HANDLER.set(handler).is_ok() {
        // SAFETY: the callback may be called on any thread, and does not unwind.
        unsafe { sys::ggml_set_abort_callback(Some(aborted)) };
    }
}

/// Runs `load`: a fatal error in it is reported as the fault of the model at `path`.
pub(super) fn while_loading<T>(path: &Path, load: impl FnOnce() -> T) -> T {
    let set = |path| *locked(&LOADING) = path;
    set(Some(path.display().to_string()));
    let loaded = load();
    set(None);
    loaded
}

/// Called by ggml, which calls abort() as soon as this returns.
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
        let loading = locked(&LOADING);
        handler(&explain(&message, loading.as_deref(), suspects));
    }
}

/// Explains in one line what went wrong and what to do. `loading`: the model that is being loaded.
/// `suspects`: the servers that may be the cause.
fn explain(message: &str, loading: Option<&str>, suspects: impl FnOnce() -> Vec<String>) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    // ggml starts its message with the path of a source file on the machine that compiled it.
    let (path, rest) = line.split_once(": ").unwrap_or(("", &line));
    let source = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let what = match source {
        "" => rest.to_owned(),
        source => format!("{source}: {rest}"),
    };
    match loading {
        _ if source.starts_with("ggml-rpc") => format!(
            "the connection to a server is lost ({what}): see whether {} still runs, start it again if not, and repeat the call with --resume",
            suspects().join(" or ")
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
        let line = explain(message, None, || panic!("no server is to blame"));
        let start = "llama.cpp cannot continue (ggml.c:42: GGML_ASSERT(a == b) failed): ";
        assert!(line.starts_with(start), "{line}");
        assert!(explain("", None, Vec::new).starts_with("llama.cpp cannot continue ()"));
    }

    #[test]
    fn a_lost_server_is_named() {
        let message = r"C:\src\ggml-rpc\ggml-rpc.cpp:573: Remote RPC server crashed";
        let line = explain(message, Some("m.gguf"), || {
            vec!["a:1".to_owned(), "b:2".to_owned()]
        });
        let what = "is lost (ggml-rpc.cpp:573: Remote RPC server crashed): see whether a:1 or b:2 ";
        assert!(line.contains(what), "{line}");
    }
}
