//! `kl --generate`: what the shells make of the completions, and man of the page. What `make install`
//! installs.

#[cfg(unix)]
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::session::{Session, program};

/// Lines, and what completes their end: all of it, in a folder of some files.
const COMPLETED: [(&str, &str); 4] = [
    ("kl -m b", "b.gguf"),
    ("kl -m a.gguf -r ", "a.gguf a@ref.kls b.gguf quants ref.gz"),
    (
        "kl -m a.gguf --threads 9 --ref-",
        "--ref-device --ref-hf --ref-model --ref-ngl",
    ),
    ("kl convert a b --format kl", "kl kl.py"),
];

/// Whether a tool is installed; if not, the test says that it skips.
fn installed(tool: &str) -> bool {
    let mut version = Command::new(tool);
    let version = version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let is_installed = version.status().is_ok_and(|status| status.success());
    if !is_installed {
        eprintln!("skipped: {tool} is not installed");
    }
    is_installed
}

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
        if !installed(shell) {
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
    if !installed("groff") {
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

#[cfg(unix)]
#[test]
fn what_is_installed_lies_where_man_and_the_shells_look() {
    let session = Session::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let share = |kl: &OsStr| {
        let mut share = Command::new(root.join("scripts/share.sh"));
        let done = share
            .arg(kl)
            .args(["share", "share/doc/kl"])
            .current_dir(session.folder.path());
        assert!(done.status().unwrap().success());
    };
    share(&program());
    let files = [
        "man/man1/kl.1",
        "bash-completion/completions/kl",
        "zsh/site-functions/_kl",
        "fish/vendor_completions.d/kl.fish",
        "doc/kl/LICENSE",
        "doc/kl/THIRD-PARTY.txt",
        "doc/kl/README.md",
        "doc/kl/docs/GPU.md",
        "doc/kl/formats/SIDECAR.md",
    ];
    for file in files {
        assert!(session.length(&format!("share/{file}")) > 0, "{file}");
    }
    share(OsStr::new("--remove"));
    for file in files {
        assert!(!session.exists(&format!("share/{file}")), "{file}");
    }
}

#[test]
fn make_install_installs_what_cargo_has_built_elsewhere() {
    if !installed("make") {
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
