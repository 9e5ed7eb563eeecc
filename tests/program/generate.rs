//! `kl --generate`: what the shells make of the completions, and man of the page. What `make install`
//! installs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::session::{Run, Session, can_run, copy_program, program};

/// Lines, and what completes their end: all of it, in a folder of some files.
const COMPLETED: [(&str, &str); 4] = [
    ("kl -m b", "b.gguf"),
    ("kl -m a.gguf -r ", "a.gguf a@ref.kls b.gguf quants ref.gz"),
    (
        "kl -q --ref-",
        "--ref-device --ref-hf --ref-model --ref-ngl",
    ),
    ("kl convert a b --format kl", "kl kl.py"),
];

/// A shell, the file that it looks for its completions in, and the command that completes the line in
/// `$1`, with that file's folder in `$2`.
const SHELLS: [(&str, &str, &str); 3] = [
    ("bash", "kl", r#"bash "$3/completions.bash" "$2/kl" "$1""#),
    ("zsh", "_kl", r#"zsh -f "$3/completions.zsh" "$2" "$1""#),
    // A home of its own: fish writes to it.
    (
        "fish",
        "kl.fish",
        r#"HOME="$2" fish --no-config -c "source '$2/kl.fish'; complete -C '$1'""#,
    ),
];

#[cfg(unix)]
#[test]
fn shells_complete_flags_and_files() {
    let session = Session::new();
    for file in ["a.gguf", "a@ref.kls", "b.gguf", "ref.gz"] {
        session.write(file, "");
    }
    fs::create_dir(session.path("quants")).unwrap();
    let shells = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shells");
    for (shell, name, command) in SHELLS {
        if !can_run(shell, &["--version"]) {
            continue;
        }
        let scripts = Session::new();
        let script = session.ok(&format!("--generate complete-{shell}")).stdout;
        scripts.write(name, script);
        for (line, expected) in COMPLETED {
            let mut sh = Command::new("sh");
            sh.args(["-c", command, "sh", line]).stdin(Stdio::null());
            sh.arg(scripts.folder.path()).arg(&shells);
            let output = sh.current_dir(session.folder.path()).output().unwrap();
            let matches = String::from_utf8_lossy(&output.stdout).into_owned();
            // fish describes a match after a tab, and ends folders with a slash.
            let matches = matches.lines().filter_map(|line| line.split('\t').next());
            let mut matches: Vec<&str> = matches.map(|name| name.trim_end_matches('/')).collect();
            matches.sort_unstable();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(matches.join(" "), expected, "{shell}: {line}: {errors}");
        }
    }
}

#[test]
fn the_man_page_renders_without_warnings() {
    if !can_run("groff", &["--version"]) {
        return;
    }
    let session = Session::new();
    session.write("kl.1", session.ok("--generate man").stdout);
    let mut groff = Command::new("groff");
    groff.args(["-ww", "-man", "-Tutf8", "-rLL=80n", "kl.1"]);
    let output = groff.current_dir(session.folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
    assert!(!output.stdout.is_empty());
}

/// What cargo has built elsewhere is installed, where man and the shells look, and removed again.
#[test]
fn make_installs_and_uninstalls() {
    if !can_run("make", &["--version"]) {
        return;
    }
    let session = Session::new();
    fs::create_dir_all(session.path("target/release")).unwrap();
    copy_program(&session.path("target/release/kl"));
    let make = |target: &str| {
        let mut make = Command::new("make");
        // Nothing is to be built.
        make.args(["-o", "build", target, "PREFIX=/usr"]);
        make.arg(format!("DESTDIR={}", session.path("root").display()));
        make.env("CARGO_TARGET_DIR", session.path("target"));
        make.current_dir(env!("CARGO_MANIFEST_DIR"));
        let run = Run::from(make.output().unwrap());
        assert_eq!(run.code, 0, "{}", run.stderr);
    };
    make("install");
    assert!(session.read("root/usr/bin/kl") == fs::read(program()).unwrap());
    let files = "bin/kl share/man/man1/kl.1 share/bash-completion/completions/kl \
        share/zsh/site-functions/_kl share/fish/vendor_completions.d/kl.fish share/doc/kl/LICENSE \
        share/doc/kl/THIRD-PARTY.txt share/doc/kl/README.md share/doc/kl/docs/GPU.md \
        share/doc/kl/formats/SIDECAR.md";
    let files = || {
        files
            .split_whitespace()
            .map(|file| format!("root/usr/{file}"))
    };
    assert!(files().all(|file| session.length(&file) > 0));
    make("uninstall");
    assert!(!files().any(|file| session.exists(&file)));
}
