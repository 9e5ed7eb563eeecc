//! Limits, as of a container: a run works with few threads, or one line says that there are too few; and without memory
//! that it may lock, with a warning.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::session::{Run, Session, can_run};

/// A session, and a user of its own without rights, whose threads a limit counts.
struct Limited {
    session: Session,
    user: u32,
}

impl Limited {
    /// `None` where there can be no such user: only root becomes another one. Users of tests that run side by side
    /// differ in `number`.
    fn new(number: u32) -> Option<Self> {
        let session = Session::with_reference("");
        let is_root = fs::metadata("/proc/self").ok()?.uid() == 0;
        if !is_root || !can_run("bash", &["-c", "ulimit -u 1"]) {
            return None;
        }
        let program = session.command("").get_program().to_owned();
        let folder = Path::new(&program).parent().unwrap();
        fs::copy(&program, session.path("kl")).unwrap();
        // Where backends are libraries, they lie beside the program.
        for entry in fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.starts_with("lib") && name.contains(".so") {
                fs::copy(folder.join(&name), session.path(&name)).unwrap();
            }
        }
        fs::copy(session.path("@q8"), session.path("q8.gguf")).unwrap();
        for name in [".", "kl", "ref.gz", "q8.gguf"] {
            let all = fs::Permissions::from_mode(0o777);
            fs::set_permissions(session.path(name), all).unwrap();
        }
        let user = 1_000_000 + 10 * (std::process::id() % 100_000) + number;
        Some(Self { session, user })
    }

    /// Runs `kl` with `n` threads in all.
    fn kl(&self, n: usize, line: &str) -> Run {
        self.kl_within(&format!("-u {n}"), line)
    }

    /// Runs `kl` within a limit, of `ulimit`.
    fn kl_within(&self, limit: &str, line: &str) -> Run {
        let mut shell = Command::new("bash");
        shell.args(["-c", "ulimit $0 && exec ./kl \"$@\"", limit]);
        let arguments = self.session.command(line);
        shell.args(arguments.get_args().filter(|word| *word != OsStr::new("")));
        shell.current_dir(self.session.path("."));
        shell.uid(self.user).gid(self.user);
        Run::from(shell.output().unwrap())
    }
}

#[test]
fn a_run_with_few_threads_works_or_says_what_it_lacks() {
    let Some(limited) = Limited::new(0) else {
        return;
    };
    let mut codes = Vec::new();
    for n in [1, 2, 3, 4, 5, 6, 9, 40] {
        for threads in [1, 2] {
            let line = format!("-m q8.gguf -r ref.gz --no-sidecar -q --threads {threads}");
            let run = limited.kl(n, &line);
            let what = format!("{n} threads, --threads {threads}: {}", run.stderr);
            if run.code != 0 {
                assert_eq!(run.code, 1, "{what}");
                run.warns(&["ulimit -u", "TasksMax"]);
                run.warns_not("internal error").warns_not("--device");
                let lines = run.stderr.lines();
                let faults = lines.filter(|line| !line.starts_with("kl: warning:"));
                assert_eq!(faults.count(), 1, "{what}");
            }
            codes.push(run.code);
        }
    }
    assert_eq!(codes[..2], [1, 1], "no thread decodes beside the first");
    assert_eq!(codes[codes.len() - 6..], [0; 6]);
}

#[test]
fn files_are_read_with_one_thread() {
    let Some(limited) = Limited::new(1) else {
        return;
    };
    for line in [
        "info ref.gz",
        "info --verify ref.gz",
        "info --verify q8.gguf",
        "doctor",
    ] {
        let run = limited.kl(1, line);
        assert_eq!(run.code, 0, "kl {line}: {}", run.stderr);
    }
}

#[test]
fn memory_that_may_not_be_locked_is_a_warning() {
    let Some(limited) = Limited::new(2) else {
        return;
    };
    let line = "-m q8.gguf -r ref.gz --no-sidecar -q --mlock";
    let run = limited.kl_within("-l 0", line);
    assert_eq!(run.code, 0, "{}", run.stderr);
    run.warns(&["--mlock has no effect", "ulimit -l"]);
}
