//! The end of the process after a fatal error of ggml: one line, and the exit code of a failure.

use std::io::{IsTerminal, Write, stderr};

use crate::commands::output::remove_partial_files;

/// Clears the line of the progress bar.
const CLEAR_LINE: &[u8] = b"\r\x1b[2K";

/// The exit code of a run that failed.
const EXIT_FAILURE: i32 = 1;

/// Prints the error and ends the process. Files that `--resume` can continue stay.
pub fn die(error: &str) -> ! {
    let mut stderr = stderr();
    if stderr.is_terminal() {
        let _ = stderr.write_all(CLEAR_LINE);
    }
    say!("kl: {error}");
    remove_partial_files();
    // Without destructors: other threads are in the middle of their work.
    #[cfg(unix)]
    signal_hook::low_level::exit(EXIT_FAILURE);
    #[cfg(not(unix))]
    std::process::exit(EXIT_FAILURE);
}
