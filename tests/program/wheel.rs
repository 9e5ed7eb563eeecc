//! The wheel that `scripts/wheel.py` makes, without llama.cpp's libraries, which take many minutes to compile.
//! `make wheel` checks the whole of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::session::{Session, can_run, fixture, short_text};

#[test]
fn a_wheel_installs_the_program_and_the_module() {
    let tools: [(&str, &[&str]); 2] = [
        ("python3", &["-m", "pip", "--version"]),
        ("readelf", &["--version"]),
    ];
    if cfg!(not(target_os = "linux")) || !tools.iter().all(|(tool, call)| can_run(tool, call)) {
        return;
    }
    let session = Session::new();
    let version = env!("CARGO_PKG_VERSION");
    let dist = format!("kl-{version}-{}-linux", std::env::consts::ARCH);
    fs::create_dir_all(session.path(&format!("{dist}/share/man/man1"))).unwrap();
    session.write(&format!("{dist}/share/man/man1/kl.1"), "a page");
    // The one of `make dist` would need its libraries.
    let program = env!("CARGO_BIN_EXE_kl");
    fs::copy(program, session.path(&format!("{dist}/kl"))).unwrap();
    let run = |command: &mut Command| {
        let output = command.current_dir(session.folder.path()).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/wheel.py");
    let printed = run(Command::new("python3").arg(script).arg(&dist));
    let wheel = printed.lines().find_map(|line| line.split_once(".whl: "));
    let wheel = format!("{}.whl", wheel.unwrap().0);
    let quiet = ["-m", "pip", "install", "-q", "--no-index", "--no-deps"];
    run(Command::new("python3")
        .args(quiet)
        .args(["--target", "here", &wheel]));
    for name in ["kl", "gguf-kl"] {
        let kl = session.path(&format!("here/bin/{name}"));
        assert_eq!(
            run(Command::new(kl).arg("--version")),
            format!("kl {version}\n")
        );
    }
    let quants = session.path("quants");
    fs::create_dir(&quants).unwrap();
    for (alias, name) in [("f16", "F16"), ("q4", "Q4_K_M"), ("q2", "Q2_K")] {
        fs::copy(fixture(alias), quants.join(format!("tiny-{name}.gguf"))).unwrap();
    }
    session.write("short.txt", short_text());
    let pick = "pick quants -t short.txt --window 64 -q";
    let kl = session.path("here/bin/gguf-kl");
    let picked = run(Command::new(kl).args(pick.split(' ')));
    assert!(picked.starts_with("Pick Q4_K_M: "), "{picked}");
    for file in ["gguf_kl.py", "share/man/man1/kl.1"] {
        assert!(session.path(&format!("here/{file}")).exists(), "{file}");
    }
}
