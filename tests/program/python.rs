//! The Python reader of sidecars, references and maps, tested by its own tests.

use std::path::Path;
use std::process::Command;

use crate::session::{Session, can_run, fixture, program};

#[test]
fn the_python_reader_reads_what_kl_writes() {
    if !can_run("python3", &["-c", "import numpy"]) {
        return;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/test_gguf_kl.py");
    let output = Command::new("python3")
        .args(["-B".as_ref(), tests.as_os_str()])
        .env("KL", program())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
}

/// Every snippet of the page, from the top; then what it states of a record without a next token.
#[cfg(unix)]
#[test]
fn the_notebooks_run_in_a_new_python() {
    const PAGE: &str = include_str!("../../docs/NOTEBOOKS.md");
    if !can_run("python3", &["-c", "import numpy"]) {
        return;
    }
    let session = Session::with_reference("");
    for (name, model) in [
        ("q2_K", "q2"),
        ("q4_0", "q4"),
        ("q4_K_M", "q4"),
        ("q5_K_M", "q8"),
        ("q8_0", "q8"),
    ] {
        let name = format!("tiny-{name}.gguf");
        std::os::unix::fs::symlink(fixture(model), session.path(&name)).unwrap();
        session.ok(&format!("-m {name} -r ref.gz -q"));
    }
    session.ok("sensitivity -m @f16 -t @eval -c 16 -n 32 -w tensors.jsonl -q");
    std::fs::create_dir(session.path("target")).unwrap();
    std::os::unix::fs::symlink(session.folder.path(), session.path("target/demo")).unwrap();
    // Where a plot is drawn does not matter.
    std::fs::create_dir(session.path("matplotlib")).unwrap();
    session.write("matplotlib/__init__.py", "");
    let stub = "def __getattr__(name):\n    return lambda *args, **named: None\n";
    session.write("matplotlib/pyplot.py", stub);
    let blocks = PAGE.split("```python\n").skip(1);
    let snippets: Vec<_> = blocks
        .map(|block| block.split("```").next().unwrap())
        .collect();
    let no_token = "none = sidecar.tokens[sidecar.tokens['token'] == 4294967295]\n\
        assert NO_TOKEN == 4294967295 and len(none) > 0 and np.isnan(none['ref_nll']).all()\n\
        assert np.isfinite(none['kld']).all()\n";
    let script = snippets.concat() + no_token;
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let output = Command::new("python3")
        .args(["-B", "-c", &script])
        .env("PYTHONPATH", format!("{}:.", reader.display()))
        .current_dir(session.folder.path())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
}
