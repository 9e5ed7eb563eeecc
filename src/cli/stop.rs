//! Being asked to stop: Ctrl-C, SIGTERM, SIGHUP.
//!
//! The first signal ends the run after the current decode call, the second at once. Of files under way
//! those stay that `--resume` can go on with. A signal that was ignored when the program began (`nohup`, a script's
//! background job) stays ignored.

use std::sync::atomic::{AtomicI32, Ordering};

use super::output::remove_partial_files;
use crate::pipeline::Error;

/// The signal that asked to stop; 0: none yet.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// Whether a signal has asked to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed) != 0
}

/// An error once a signal has asked to stop: what a run's steps end with.
pub fn check() -> Result<(), Error> {
    if asked() {
        Err(Error::Interrupted)
    } else {
        Ok(())
    }
}

fn on_signal(signal: i32) {
    if ASKED.swap(signal, Ordering::Relaxed) != 0 {
        remove_partial_files();
        die();
    }
    say!("kl: stopping; once more to stop at once");
}

/// Begins to listen. Without a handler a signal ends the program as it always does.
#[cfg(unix)]
pub fn listen() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    // A file that meets a limit on its size: with the signal caught, writing fails as on a full disk.
    let _ = signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default());
    let ignored = ignored_signals();
    let wanted = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| match ignored {
            Some(mask) => mask & (1 << (signal - 1)) == 0,
            // Not known here: a HUP may be what `nohup` wants ignored.
            None => *signal != SIGHUP,
        });
    if let Ok(mut signals) = signal_hook::iterator::Signals::new(wanted) {
        std::thread::spawn(move || signals.forever().for_each(on_signal));
    }
}

/// Begins to listen. Without a handler a signal ends the program as it always does.
#[cfg(not(unix))]
pub fn listen() {
    let _ = ctrlc::set_handler(|| on_signal(2));
}

/// The signals that whoever started this program has set to be ignored, one bit each: Linux tells.
#[cfg(unix)]
fn ignored_signals() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Ends as a process that the signal has ended, so that a shell's loop ends with it.
pub fn die() -> ! {
    let signal = ASKED.load(Ordering::Relaxed);
    #[cfg(unix)]
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    // As shells report it.
    std::process::exit(128 + signal)
}
