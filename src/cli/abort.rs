//! The end of the process after a fatal error of ggml: one line, and the exit code of a failure.

use std::io::{IsTerminal, stderr};

use crate::commands::output::remove_partial_files;

/// Clears the line of the progress bar.
const CLEAR_LINE: &str = "\r\x1b[2K";

/// The exit code of a run that failed.
const EXIT_FAILURE: i32 = 1;

/// Prints the error and ends the process. Files that `--resume` can continue stay.
pub fn die(error: &str) -> ! {
    let clear = match stderr().is_terminal() {
        true => CLEAR_LINE,
        false => "",
    };
    say!("{clear}kl: {error}");
    remove_partial_files();
    // Without destructors: other threads are in the middle of their work.
    #[cfg(unix)]
    signal_hook::low_level::exit(EXIT_FAILURE);
    #[cfg(not(unix))]
    std::process::exit(EXIT_FAILURE);
}
