//! Calls of the program, one readable line each, in a folder of their own.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::documents;

/// Short names of fixtures: `@q4` in a call stands for `fixtures/tiny-q4_K_M.gguf`.
const ALIASES: [(&str, &str); 13] = [
    ("f16", "tiny-f16.gguf"),
    ("q8", "tiny-q8_0.gguf"),
    ("q4", "tiny-q4_K_M.gguf"),
    ("q2", "tiny-q2_K.gguf"),
    ("gpt2", "architectures/gpt2.gguf"),
    ("mamba", "architectures/mamba.gguf"),
    ("eval", "eval.txt"),
    ("prompts", "prompts.txt"),
    ("chats", "prompts.jsonl"),
    ("klpy", "peers/kl_py-f16-c128.gz"),
    ("base", "peers/llama-perplexity-f16-c128.kld"),
    ("npz", "peers/mlx-kld-f16.npz"),
    ("safetensors", "peers/safetensors-f16"),
];

/// The path of a file in `fixtures/`, given its name there or its alias.
pub fn fixture(name: &str) -> PathBuf {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(alias.map_or(name, |(_, path)| path))
}

/// The first lines of the held-out text: enough for some windows of 64 tokens.
pub fn short_text() -> String {
    let text = fs::read_to_string(fixture("eval")).unwrap();
    text.chars().take(1500).collect()
}

/// A folder to run the program in.
pub struct Session {
    pub folder: TempDir,
}

impl Session {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A file of the session's folder, or `@name`: a fixture.
    pub fn path(&self, name: &str) -> PathBuf {
        match name.strip_prefix('@') {
            Some(name) => fixture(name),
            None => self.folder.path().join(name),
        }
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// A document of the program, which has to be as its schema states.
    #[track_caller]
    pub fn read_json(&self, name: &str) -> Value {
        documents::parse(&self.read(name))
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    pub fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// The length of a file, 0 if there is none.
    pub fn length(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).map_or(0, |metadata| metadata.len())
    }

    /// The names in the folder, sorted.
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// `kl` with the arguments in `line`: `@name` is a fixture, and an argument that contains
    /// spaces stands in single quotes.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(program());
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        let words = split(line);
        for word in &words {
            match word.starts_with('@') {
                true => command.arg(self.path(word)),
                false => command.arg(word),
            };
        }
        // Tests run side by side: several decode threads each would only wait for each other.
        if words.contains(&"-m") && !words.contains(&"--threads") {
            command.args(["--threads", "1"]);
        }
        command
    }

    /// Starts `kl`, its stdout and stderr piped.
    pub fn spawn(&self, line: &str) -> Child {
        let mut command = self.command(line);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().unwrap()
    }

    /// Starts `kl`, and sends it a signal once it is time. Returns what it did, or `None` if it was done
    /// before. SIGINT will not do: a shell's background jobs ignore it.
    pub fn cut_off(&self, line: &str, signal: &str, is_time: impl Fn() -> bool) -> Option<Run> {
        let mut child = self.spawn(line);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_time() && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "kl {line}: does not get on");
            std::thread::sleep(Duration::from_millis(1));
        }
        let id = child.id().to_string();
        let mut kill = Command::new("kill");
        let _ = kill.args([signal, &id]).stderr(Stdio::null()).status();
        let run = Run::from(child.wait_with_output().unwrap());
        (run.code != 0).then_some(run)
    }

    pub fn kl(&self, line: &str) -> Run {
        Run::from(self.command(line).output().unwrap())
    }

    /// Runs `kl`, which has to succeed.
    #[track_caller]
    pub fn ok(&self, line: &str) -> Run {
        let run = self.kl(line);
        assert_eq!(run.code, 0, "kl {line}: {}", run.stderr);
        run
    }

    /// Runs `kl`, which has to exit with `code` and one line on stderr that contains all of `what`,
    /// warnings apart.
    #[track_caller]
    pub fn fails(&self, line: &str, code: i32, what: &[&str]) -> Run {
        let run = self.kl(line);
        assert_eq!(run.code, code, "kl {line}: {}", run.stderr);
        let lines = run.stderr.lines();
        let errors: Vec<_> = lines.filter(|e| !e.starts_with("kl: warning")).collect();
        assert_eq!(errors.len(), 1, "kl {line}: one line, not {errors:#?}");
        for what in what {
            let error = errors[0];
            assert!(error.contains(what), "kl {line}: '{error}' lacks '{what}'");
        }
        run
    }

    /// Runs `kl` with each of these lines: `LINE => WORDS | WORDS ...`, the call's end and what its one
    /// line on stderr contains. `start` is how all of them begin, and `code` how they exit.
    #[track_caller]
    pub fn fails_each(&self, code: i32, start: &str, cases: &str) {
        for case in cases.trim().lines() {
            let (line, what) = case.split_once("=>").expect(case);
            let what: Vec<&str> = what.split(" | ").map(str::trim).collect();
            self.fails(&format!("{start} {}", line.trim()), code, &what);
        }
    }

    /// The JSON of an evaluation or a comparison.
    #[track_caller]
    pub fn json(&self, line: &str) -> Value {
        self.ok(&format!("{line} --json - -q")).json()
    }

    /// The result of the only model of an evaluation, or of the first.
    #[track_caller]
    pub fn result(&self, line: &str) -> Value {
        self.json(line)["models"][0].take()
    }

    /// The JSON of `kl info`.
    #[track_caller]
    pub fn info(&self, line: &str) -> Value {
        self.ok(&format!("info {line} --json -q")).json()
    }

    /// Writes `ref.gz`: the short text's logits of the f16 model, in windows of 64 tokens.
    #[track_caller]
    pub fn reference(&self, more: &str) {
        self.reference_of("@f16", "ref.gz", more);
    }

    /// Writes a reference of the short text with another model, or with other windows (`-c`).
    #[track_caller]
    pub fn reference_of(&self, model: &str, name: &str, more: &str) {
        self.write("short.txt", short_text());
        let n_ctx = if more.contains("-c ") { "" } else { "-c 64" };
        self.ok(&format!(
            "-m {model} -t short.txt -w {name} {n_ctx} -q {more}"
        ));
    }
}

/// The labels of a document's models, in their order.
pub fn labels(json: &Value) -> Vec<&str> {
    let models = json["models"].as_array().unwrap().iter();
    models
        .map(|model| model["label"].as_str().unwrap())
        .collect()
}

/// The program to test: `KL_TEST_BIN`, or the one that cargo has built.
pub fn program() -> OsString {
    std::env::var_os("KL_TEST_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_kl").into())
}

/// Splits at spaces, but for those between single quotes.
fn split(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace()),
            _ => words.push(part),
        }
    }
    words
}

/// What a call printed, and its exit code: -1 if a signal ended it.
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The document on stdout, which has to be as its schema states.
    #[track_caller]
    pub fn json(&self) -> Value {
        documents::parse(self.stdout.as_bytes())
    }

    /// Checks that stdout contains all of `what`, be it over the end of a line.
    #[track_caller]
    pub fn prints(&self, what: &[&str]) {
        let words: Vec<&str> = self.stdout.split_whitespace().collect();
        let unwrapped = words.join(" ");
        for what in what {
            let is_there = self.stdout.contains(what) || unwrapped.contains(what);
            assert!(is_there, "no '{what}': {}", self.stdout);
        }
    }

    #[track_caller]
    pub fn prints_not(&self, what: &str) {
        assert!(!self.stdout.contains(what), "'{what}': {}", self.stdout);
    }

    #[track_caller]
    pub fn warns_not(&self, what: &str) {
        assert!(!self.stderr.contains(what), "'{what}': {}", self.stderr);
    }

    /// Checks that one line on stderr contains all of `what`.
    #[track_caller]
    pub fn warns(&self, what: &[&str]) {
        let mut lines = self.stderr.lines();
        let is_there = lines.any(|line| what.iter().all(|what| line.contains(what)));
        assert!(is_there, "no {what:?}: {}", self.stderr);
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}
