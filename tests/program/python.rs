//! The Python reader of sidecars and references, tested by its own tests.

use std::path::Path;
use std::process::Command;

use crate::session::program;

#[test]
fn the_python_reader_reads_what_kl_writes() {
    let numpy = Command::new("python3")
        .args(["-c", "import numpy"])
        .output();
    if !numpy.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no python3 with numpy is installed");
        return;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/test_kl_files.py");
    let output = Command::new("python3")
        .args(["-B".as_ref(), tests.as_os_str()])
        .env("KL", program())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
}
