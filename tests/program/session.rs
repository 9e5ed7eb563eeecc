//! Calls of the program, one readable line each, in a folder of their own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
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
    /// The address of the hub that the program knows, if it is to know one; its cache is `hf/` then.
    pub hub: Option<String>,
}

/// The bytes of the references that tests have written, by what wrote them: most tests need the same few.
static REFERENCES: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());

impl Session {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            hub: None,
        }
    }

    /// A session with the short text in `short.txt`.
    pub fn with_text() -> Self {
        let session = Self::new();
        session.write("short.txt", short_text());
        session
    }

    /// A session with the short text, and its reference `ref.gz`: see [`Session::reference`].
    #[track_caller]
    pub fn with_reference(more: &str) -> Self {
        let session = Self::new();
        session.reference(more);
        session
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

    pub fn read_text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// Writes a changed copy of a file.
    pub fn change(&self, from: &str, to: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.read(from);
        change(&mut bytes);
        self.write(to, bytes);
    }

    /// Writes a copy of the first part of a file: this share of its bytes.
    pub fn cut(&self, from: &str, to: &str, share: f64) {
        self.change(from, to, |bytes| {
            bytes.truncate((bytes.len() as f64 * share) as usize);
        });
    }

    /// Writes a copy of a file with one bit changed, so far into it.
    pub fn flip(&self, from: &str, to: &str, share: f64) {
        self.change(from, to, |bytes| {
            let at = (bytes.len() as f64 * share) as usize;
            bytes[at] ^= 1;
        });
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
        // Nothing is asked outside this machine.
        let hub = self.hub.as_deref().unwrap_or("http://127.0.0.1:9");
        command
            .env("HF_ENDPOINT", hub)
            .env("HF_HOME", self.path("hf"));
        let words = split(line);
        for word in &words {
            if word.starts_with('@') {
                command.arg(self.path(word));
            } else {
                command.arg(word);
            }
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
        wait_until(&mut child, is_time);
        send(signal, child.id());
        let run = Run::from(child.wait_with_output().unwrap());
        (run.code != 0).then_some(run)
    }

    /// Runs a script with `sh`, in which `"$@"` is `kl` with the arguments in `line`.
    pub fn in_shell(&self, script: &str, line: &str) -> Run {
        let kl = self.command(line);
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(kl.get_program());
        shell.args(kl.get_args()).current_dir(self.folder.path());
        Run::from(shell.stdin(Stdio::null()).output().unwrap())
    }

    pub fn kl(&self, line: &str) -> Run {
        Run::from(self.command(line).output().unwrap())
    }

    /// Runs `kl`, which has to exit with `code`.
    #[track_caller]
    pub fn ends(&self, line: &str, code: i32) -> Run {
        let run = self.kl(line);
        assert_eq!(run.code, code, "kl {line}: {}", run.stderr);
        run
    }

    /// Runs `kl`, which has to succeed.
    #[track_caller]
    pub fn ok(&self, line: &str) -> Run {
        self.ends(line, 0)
    }

    /// Runs `kl`, which has to exit with `code` and one line on stderr that contains all of `what`,
    /// warnings apart. A run that is refused (1, 2) creates no file and removes none.
    #[track_caller]
    pub fn fails(&self, line: &str, code: i32, what: &[&str]) -> Run {
        let before = self.files();
        let run = self.ends(line, code);
        let lines = run.stderr.lines();
        let errors: Vec<_> = lines.filter(|e| !e.starts_with("kl: warning")).collect();
        assert_eq!(errors.len(), 1, "kl {line}: one line, not {errors:#?}");
        for what in what {
            let error = errors[0];
            assert!(error.contains(what), "kl {line}: '{error}' lacks '{what}'");
        }
        if code <= 2 {
            assert_eq!(self.files(), before, "kl {line}");
        }
        run
    }

    /// Runs `kl` with each of these lines: `LINE => WORDS | WORDS ...`, the call's end and what its one
    /// line on stderr contains. `start` is how all of them begin, and `code` how they exit, except those
    /// with `=> exit 2 | WORDS ...`.
    #[track_caller]
    pub fn fails_each(&self, code: i32, start: &str, cases: &str) {
        for (line, what) in table(cases) {
            let line = format!("{start} {line}");
            match what.split_first() {
                Some((&"exit 2", what)) => self.fails(&line, 2, what),
                _ => self.fails(&line, code, &what),
            };
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

    /// Writes a reference of the short text with another model, or with other windows (`-c`). What another
    /// test has written with the same flags is copied.
    #[track_caller]
    pub fn reference_of(&self, model: &str, name: &str, more: &str) {
        self.write("short.txt", short_text());
        let n_ctx = if more.contains("-c ") { "" } else { "-c 64" };
        let written_by = format!("{model} {}", more.replace("--force", ""));
        let written = REFERENCES.lock().unwrap().get(&written_by).cloned();
        if let Some(bytes) = written.filter(|_| !more.contains("--resume")) {
            return self.write(name, bytes);
        }
        let line = format!("-m {model} -t short.txt -w {name} {n_ctx} -q {more}");
        self.ok(&line);
        let mut references = REFERENCES.lock().unwrap();
        references.insert(written_by, self.read(name));
    }
}

/// The lines of a table, `CALL => WORDS | WORDS ...`.
pub fn table(lines: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    lines.trim().lines().map(|line| {
        let (call, words) = line.split_once("=>").expect(line);
        (call.trim(), words.split(" | ").map(str::trim).collect())
    })
}

/// Whether a command that a test needs succeeds; if not, the test says that it is skipped.
pub fn can_run(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    let can_run = output.is_ok_and(|output| output.status.success());
    if !can_run {
        eprintln!("skipped: {program} {} fails", args.join(" "));
    }
    can_run
}

/// Checks that a document has all that is expected: the keys, and their values. A key that is expected to
/// be null may be missing.
#[track_caller]
pub fn has(found: &Value, expected: &Value) {
    match expected {
        Value::Object(fields) => fields.iter().for_each(|(key, of)| has(&found[key], of)),
        Value::Array(elements) => {
            assert_eq!(found.as_array().map(Vec::len), Some(elements.len()));
            elements
                .iter()
                .enumerate()
                .for_each(|(i, of)| has(&found[i], of));
        }
        Value::Number(number) => assert_eq!(found.as_f64(), number.as_f64()),
        other => assert_eq!(found, other),
    }
}

/// Waits until it is time, or until a process has ended.
pub fn wait_until(child: &mut Child, is_time: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(600);
    while !is_time() && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it does not get on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal, such as `-TERM`, to a process, unless it has ended.
pub fn send(signal: &str, process: u32) {
    let mut kill = Command::new("kill");
    let kill = kill.args([signal, &process.to_string()]);
    kill.stderr(Stdio::null()).status().unwrap();
}

/// The labels of a document's models, in their order.
pub fn labels(json: &Value) -> Vec<&str> {
    let models = json["models"].as_array().unwrap().iter();
    models
        .map(|model| model["label"].as_str().unwrap())
        .collect()
}

/// Copies the program, with the libraries beside it that it loads if it was built so.
pub fn copy_program(to: &Path) {
    let program = PathBuf::from(program());
    fs::copy(&program, to).unwrap();
    for file in fs::read_dir(program.parent().unwrap()).unwrap() {
        let library = file.unwrap().path();
        let name = library.file_name().unwrap();
        let text = name.to_string_lossy();
        if text.starts_with("lib") && text.contains(".so") {
            fs::copy(&library, to.with_file_name(name)).unwrap();
        }
    }
}

/// The program to test: `KL_TEST_BIN`, whose file is called `kl`, or the one that cargo has built.
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
    pub fn prints(&self, what: &[&str]) -> &Self {
        let words: Vec<&str> = self.stdout.split_whitespace().collect();
        let unwrapped = words.join(" ");
        for what in what {
            let is_there = self.stdout.contains(what) || unwrapped.contains(what);
            assert!(is_there, "no '{what}': {}", self.stdout);
        }
        self
    }

    #[track_caller]
    pub fn prints_not(&self, what: &str) -> &Self {
        assert!(!self.stdout.contains(what), "'{what}': {}", self.stdout);
        self
    }

    #[track_caller]
    pub fn warns_not(&self, what: &str) -> &Self {
        assert!(!self.stderr.contains(what), "'{what}': {}", self.stderr);
        self
    }

    /// Checks that one line on stderr contains all of `what`.
    #[track_caller]
    pub fn warns(&self, what: &[&str]) -> &Self {
        let mut lines = self.stderr.lines();
        let is_there = lines.any(|line| what.iter().all(|what| line.contains(what)));
        assert!(is_there, "no {what:?}: {}", self.stderr);
        self
    }
}

impl From<Output> for Run {
    /// What `kl` tells of the machine comes and goes, and is left out: other work on it, and a library of ggml for
    /// less than its CPU.
    fn from(output: Output) -> Self {
        let without = |bytes: Vec<u8>, what: &str| {
            let text = String::from_utf8(bytes).unwrap();
            let lines = text.split_inclusive('\n');
            lines.filter(|line| !line.contains(what)).collect()
        };
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: without(output.stdout, "busy elsewhere"),
            stderr: without(output.stderr, "warning: ggml was compiled without"),
        }
    }
}
