//! Hostile files for every reader of kl-formats: see README.md.

mod framing;
mod memory;
pub mod readers;

use std::fs::File;
use std::io::{Seek, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use readers::Target;

/// The one file of this process, and what has been fed to it.
struct Fed {
    path: PathBuf,
    file: File,
    runs: u64,
    bytes: u64,
    /// Bytes after which the process ends, if the environment says.
    enough: Option<u64>,
}

static FED: Mutex<Option<Fed>> = Mutex::new(None);

/// Feeds `input` to a target: as a file, in the folder for temporary files.
pub fn run(target: &Target, input: &[u8]) {
    let mut fed = FED.lock().expect("one thread");
    let fed = fed.get_or_insert_with(Fed::new);
    let bytes = (target.frame)(input);
    fed.write(&bytes);
    let found = memory::limited(target.memory(bytes.len()), || (target.read)(&fed.path));
    if let Err(error) = found {
        let message = error.to_string();
        assert!(!message.contains('\n'), "{message:?}");
        assert!(message.contains(&*fed.path.to_string_lossy()), "{message}");
    }
    fed.count(target, input.len() as u64);
}

impl Fed {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("kl-fuzz-{}", std::process::id()));
        let enough = std::env::var("KL_FUZZ_BYTES").ok();
        Self {
            file: File::create(&path).expect("a file for inputs"),
            path,
            runs: 0,
            bytes: 0,
            enough: enough.map(|n| n.parse().expect("KL_FUZZ_BYTES: a number")),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let written = self
            .file
            .rewind()
            .and_then(|()| self.file.write_all(bytes))
            .and_then(|()| self.file.set_len(bytes.len() as u64));
        written.expect("an input as a file");
    }

    /// Counts an input, and ends the process after enough of them.
    fn count(&mut self, target: &Target, bytes: u64) {
        self.runs += 1;
        self.bytes += bytes;
        if self.enough.is_some_and(|enough| self.bytes >= enough) {
            let (runs, bytes) = (self.runs, self.bytes);
            println!("{}: {runs} runs, {bytes} bytes, no finding", target.name);
            let _ = std::fs::remove_file(&self.path);
            // Not `exit`: libFuzzer takes that for a finding.
            // SAFETY: ends the process; what was printed is a whole line.
            unsafe { _exit(0) }
        }
    }
}

unsafe extern "C" {
    fn _exit(code: i32) -> !;
}
