//! `kl --generate`: what the shells make of the completions, and man of the page.

#[cfg(unix)]
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::session::Session;
#[cfg(unix)]
use crate::session::program;

/// Lines, and what completes their end: all of it, in a folder with the files of [`folder`].
const COMPLETED: [(&str, &str); 4] = [
    ("kl -m b", "b.gguf"),
    ("kl -m a.gguf -r ", "a.gguf a@ref.kls b.gguf quants ref.gz"),
    (
        "kl -m a.gguf --threads 9 --ref-",
        "--ref-device --ref-model --ref-ngl",
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

/// A script in `tests/shells`.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/shells")
        .join(name)
}

/// A folder of files to choose from.
fn folder() -> Session {
    let session = Session::new();
    for file in ["a.gguf", "a@ref.kls", "b.gguf", "ref.gz"] {
        session.write(file, "");
    }
    fs::create_dir(session.path("quants")).unwrap();
    session
}

/// A folder with a shell's completions, under the name that the shell looks for.
fn completions(shell: &str, name: &str) -> Session {
    let session = Session::new();
    let script = session.ok(&format!("--generate complete-{shell}")).stdout;
    session.write(name, script);
    session
}

/// Asserts that a shell completes all lines as listed; `command` completes one.
fn assert_completes(command: impl Fn(&str) -> Command) {
    let session = folder();
    for (line, expected) in COMPLETED {
        let output = command(line)
            .current_dir(session.folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let matches = String::from_utf8_lossy(&output.stdout).into_owned();
        // fish describes a match after a tab, and ends folders with a slash.
        let matches = matches.lines().filter_map(|line| line.split('\t').next());
        let mut matches: Vec<&str> = matches.map(|name| name.trim_end_matches('/')).collect();
        matches.sort_unstable();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(matches.join(" "), expected, "{line}: {errors}");
    }
}

#[test]
fn bash_completes_flags_and_files() {
    if !installed("bash") {
        return;
    }
    let scripts = completions("bash", "kl");
    assert_completes(|line| {
        let mut bash = Command::new("bash");
        bash.arg(script("completions.bash"));
        bash.arg(scripts.path("kl")).arg(line);
        bash
    });
}

#[test]
fn zsh_completes_flags_and_files() {
    if !installed("zsh") {
        return;
    }
    let scripts = completions("zsh", "_kl");
    assert_completes(|line| {
        let mut zsh = Command::new("zsh");
        zsh.arg("-f").arg(script("completions.zsh"));
        zsh.arg(scripts.folder.path()).arg(line);
        zsh
    });
}

#[test]
fn fish_completes_flags_and_files() {
    if !installed("fish") {
        return;
    }
    let scripts = completions("fish", "kl.fish");
    assert_completes(|line| {
        let mut fish = Command::new("fish");
        // A home of its own: fish writes to it.
        fish.env("HOME", scripts.folder.path());
        fish.args(["--no-config", "-c"]);
        let script = scripts.path("kl.fish");
        fish.arg(format!(
            "source '{}'; complete -C '{line}'",
            script.display()
        ));
        fish
    });
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

#[test]
fn a_kind_that_does_not_exist_is_wrong_usage() {
    let session = Session::new();
    session.fails(
        "--generate complete-tcsh",
        2,
        &["complete-tcsh", "complete-fish"],
    );
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
