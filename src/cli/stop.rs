//! The end of the process before its work is done: after a signal (Ctrl-C, SIGTERM, SIGHUP), or a
//! fatal error of ggml.
//!
//! The first signal ends the run after the current decode call, or where no model runs at the next
//! rows, the second at once; before the work has begun, as while a text is read, the first does
//! too. Unfinished files that `--resume` can continue stay. A decode call on a server (`--rpc`)
//! that does not answer never ends: after a signal it has a few seconds. A signal that was ignored
//! when the program started (by `nohup`, or for a script's background job) stays ignored.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use kl_system::threads;

use crate::commands::output::remove_partial_files;
use crate::engine::servers;

/// The time that a run with servers may take to stop after the first signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Threads of the smallest run beside the first: one that decodes, and one that reads or writes; and one to listen.
#[cfg(unix)]
const N_FOR_WORK: usize = 3;

/// The signal that asked to stop; 0 before that.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// True if there is work that looks at `ASKED`.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// True if decode calls, or other work that reports progress, are under way.
static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// True while files are loaded before the work begins.
static LOADING: AtomicBool = AtomicBool::new(false);

/// Notes that the work begins, which asks from now on whether it should stop.
pub fn begin() {
    BEGUN.store(true, Ordering::Relaxed);
    UNDER_WAY.store(true, Ordering::Relaxed);
}

/// Notes that files are being loaded, which asks whether it should stop. What follows it, such as reading a
/// text, may not: [`end`] makes the first signal end the program again, unless the work had begun before.
pub fn begin_loading() {
    if !BEGUN.load(Ordering::Relaxed) {
        LOADING.store(true, Ordering::Relaxed);
    }
    begin();
}

/// Notes that work is under way that does not ask whether it should stop: a signal ends the program at once.
pub fn begin_without_asking() {
    BEGUN.store(false, Ordering::Relaxed);
}

/// Notes that the work has ended: what is left is to save and print what it gave.
pub fn end() {
    if LOADING.swap(false, Ordering::Relaxed) {
        BEGUN.store(false, Ordering::Relaxed);
    }
    UNDER_WAY.store(false, Ordering::Relaxed);
}

/// True if a signal has asked to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed) != 0
}

fn on_signal(signal: i32) {
    let is_first = ASKED.swap(signal, Ordering::Relaxed) == 0;
    let has_begun = BEGUN.load(Ordering::Relaxed);
    if !is_first || !has_begun {
        if !has_begun {
            say!("kl: interrupted");
        }
        remove_partial_files();
        die();
    }
    let servers = servers().join(" or ");
    if servers.is_empty() {
        say!("kl: stopping after this step; press Ctrl-C again to stop at once");
        return;
    }
    say!(
        "kl: stopping after this decode call, or in {} s if {servers} does not answer by then; press Ctrl-C again to stop at once",
        PATIENCE.as_secs()
    );
    // This thread listens for the next signal. Without another one, that has to come.
    let _ = threads::spawn(move || {
        thread::sleep(PATIENCE);
        if !UNDER_WAY.load(Ordering::Relaxed) {
            return;
        }
        say!(
            "kl: interrupted while it waited for an answer from {servers}: check that it still runs, and repeat the call with --resume"
        );
        remove_partial_files();
        die();
    });
}

/// Starts to listen for signals. Where that fails, a signal ends the program as usual.
#[cfg(unix)]
pub fn listen() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    // With this signal caught, a file that reaches a size limit fails like one on a full disk.
    let _ = signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default());
    // Where the system allows few threads, they are for the work.
    if threads::allowed(N_FOR_WORK) < N_FOR_WORK {
        return;
    }
    let ignored = ignored_signals();
    let wanted = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| match ignored {
            Some(mask) => mask & (1 << (signal - 1)) == 0,
            // Unknown on this system: `nohup` may want HUP ignored.
            None => *signal != SIGHUP,
        });
    if let Ok(mut signals) = signal_hook::iterator::Signals::new(wanted) {
        let listener = std::thread::Builder::new();
        let _ = listener.spawn(move || signals.forever().for_each(on_signal));
    }
}

/// Starts to listen for signals. Where that fails, a signal ends the program as usual.
#[cfg(not(unix))]
pub fn listen() {
    let _ = ctrlc::set_handler(|| on_signal(2));
}

/// The signals that were ignored when this program started, one bit each, where the system (Linux)
/// reports them.
#[cfg(unix)]
fn ignored_signals() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Ends the process by the signal itself, so that a shell's loop ends with it.
pub fn die() -> ! {
    let signal = ASKED.load(Ordering::Relaxed);
    #[cfg(unix)]
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    // The exit code by which shells report a signal.
    std::process::exit(128 + signal)
}

/// Prints a fatal error of ggml, and ends the process with the exit code of a failure. Files that
/// `--resume` can continue stay.
pub fn abort(error: &str) -> ! {
    const CLEAR_LINE_OF_BAR: &[u8] = b"\r\x1b[2K";
    const EXIT_FAILURE: i32 = 1;
    if stderr().is_terminal() {
        let _ = stderr().write_all(CLEAR_LINE_OF_BAR);
    }
    say!("kl: {error}");
    remove_partial_files();
    // Without destructors: other threads are in the middle of their work.
    #[cfg(unix)]
    signal_hook::low_level::exit(EXIT_FAILURE);
    #[cfg(not(unix))]
    std::process::exit(EXIT_FAILURE);
}
