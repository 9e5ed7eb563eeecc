//! `make install`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::session::program;

#[test]
fn make_install_installs_what_cargo_has_built_elsewhere() {
    if Command::new("make").arg("--version").output().is_err() {
        eprintln!("skipped: make is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    fs::create_dir_all(target.join("release")).unwrap();
    fs::copy(program(), target.join("release/kl")).unwrap();
    let root = folder.path().join("root");
    let output = Command::new("make")
        // Nothing is to be built.
        .args(["-o", "build", "install", "PREFIX=/usr"])
        .arg(format!("DESTDIR={}", root.display()))
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let installed = fs::read(root.join("usr/bin/kl")).unwrap();
    assert!(installed == fs::read(program()).unwrap());
    assert!(root.join("usr/share/man/man1/kl.1").exists());
}
