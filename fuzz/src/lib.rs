//! Hostile files for every reader: see README.md.

mod framing;
pub mod gguf;
mod memory;
mod on_disk;
pub mod readers;

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Mutex;

use readers::Target;

/// The folder of this process, and how much has been fed to it.
struct Fed {
    folder: PathBuf,
    runs: u64,
    bytes: u64,
    /// Bytes after which the process ends, if the environment sets it.
    enough: Option<u64>,
}

static FED: Mutex<Option<Fed>> = Mutex::new(None);

/// Feeds `input` to a target: as a file or a folder, in the folder for temporary files.
pub fn run<E: Display>(target: &Target<E>, input: &[u8]) {
    let mut fed = FED.lock().expect("one thread");
    let fed = fed.get_or_insert_with(Fed::new);
    let on_disk = (target.frame)(input);
    let path = on_disk.put(&fed.folder).expect("an input as a file");
    let found = memory::limited(target.memory(on_disk.bytes()), || (target.read)(&path));
    if let Err(error) = found {
        let message = error.to_string();
        assert!(!message.contains('\n'), "{message:?}");
        assert!(message.contains(&*path.to_string_lossy()), "{message}");
    }
    fed.count(target.name, input.len() as u64);
}

impl Fed {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("kl-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for inputs");
        let enough = std::env::var("KL_FUZZ_BYTES").ok();
        Self {
            folder,
            runs: 0,
            bytes: 0,
            enough: enough.map(|n| n.parse().expect("KL_FUZZ_BYTES: a number")),
        }
    }

    /// Counts an input, and ends the process after enough of them.
    fn count(&mut self, target: &str, bytes: u64) {
        self.runs += 1;
        self.bytes += bytes;
        if self.enough.is_some_and(|enough| self.bytes >= enough) {
            let (runs, bytes) = (self.runs, self.bytes);
            println!("{target}: {runs} runs, {bytes} bytes, no finding");
            let _ = std::fs::remove_dir_all(&self.folder);
            // Not `exit`: libFuzzer counts that as a finding.
            // SAFETY: ends the process; what was printed is a whole line.
            unsafe { _exit(0) }
        }
    }
}

unsafe extern "C" {
    fn _exit(code: i32) -> !;
}
