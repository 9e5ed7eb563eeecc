//! The program as a person runs it: in a folder of its own, on the fixtures.
#![allow(dead_code)] // each test binary uses its part

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kl_formats::{Header, NativeReader, NativeWriter, WindowEncoder};
use tempfile::TempDir;

/// A file of `fixtures/`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

pub const F16: &str = "tiny-f16.gguf";
pub const Q8_0: &str = "tiny-q8_0.gguf";
pub const Q4_K_M: &str = "tiny-q4_K_M.gguf";
pub const Q2_K: &str = "tiny-q2_K.gguf";

/// A folder to work in.
pub struct Session {
    pub folder: TempDir,
}

/// What a call did.
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Session {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Names in the folder, sorted.
    pub fn files(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kl"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        for arg in args {
            // `@name` is a fixture.
            match arg.strip_prefix('@') {
                Some(name) => command.arg(fixture(name)),
                None => command.arg(arg),
            };
        }
        // Tests run side by side: decode threads that wait for each other would take turns.
        if !matches!(args.first(), Some(&"info" | &"convert" | &"compare")) {
            command.args(["--threads", "1"]);
        }
        command
    }

    /// Runs `kl` with these arguments.
    pub fn kl(&self, args: &[&str]) -> Run {
        Run::from(self.command(args).output().unwrap())
    }

    /// Runs `kl`, which has to succeed.
    pub fn ok(&self, args: &[&str]) -> Run {
        let run = self.kl(args);
        assert_eq!(run.code, 0, "kl {args:?}: {}", run.stderr);
        run
    }

    /// Runs `kl`, which has to fail with this code and one line on stderr that says `what`.
    pub fn fails(&self, args: &[&str], code: i32, what: &[&str]) -> Run {
        let run = self.kl(args);
        assert_eq!(run.code, code, "kl {args:?}: {}", run.stderr);
        let errors: Vec<&str> = run
            .stderr
            .lines()
            .filter(|line| !line.starts_with("kl: warning"))
            .collect();
        assert_eq!(errors.len(), 1, "kl {args:?}: one line, not {errors:#?}");
        for what in what {
            assert!(
                errors[0].contains(what),
                "kl {args:?}: '{}' lacks '{what}'",
                errors[0]
            );
        }
        run
    }

    /// A JSON file that a run has written.
    pub fn read_json(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }

    /// The result of evaluating `model` against `reference`, as JSON.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let args = [args, &["--json", "-", "-q"]].concat();
        serde_json::from_str(&self.ok(&args).stdout).unwrap()
    }

    /// Writes `ref.gz` of the first `n_tokens` scored tokens of a short text with the f16 model.
    pub fn reference(&self, more: &[&str]) -> PathBuf {
        self.reference_of("@tiny-f16.gguf", "ref.gz", more)
    }

    /// Writes a reference of the short text with another model.
    pub fn reference_of(&self, model: &str, name: &str, more: &[&str]) -> PathBuf {
        let args = ["-m", model, "-t", "short.txt", "-w", name, "-c", "64", "-q"];
        self.write("short.txt", short_text());
        self.ok(&[&args, more].concat());
        self.path(name)
    }

    /// All rows of a native reference, one after the other.
    pub fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        all_rows(&NativeReader::open(&self.path(name)).unwrap()).concat()
    }
}

/// Writes the native reference `from` again as `to`, each row as `change` makes it of its window,
/// its number there and its logits; all rows of one length, that of the new vocabulary.
pub fn rewrite(
    session: &Session,
    from: &str,
    to: &str,
    change: impl Fn(u32, usize, Vec<f32>) -> Vec<f32>,
) {
    let reader = NativeReader::open(&session.path(from)).unwrap();
    let n_vocab = change(u32::MAX, 0, vec![0.0; reader.header().n_vocab as usize]).len();
    let header = Header {
        n_vocab: n_vocab as u32,
        ..reader.header().clone()
    };
    let path = session.path(to);
    let mut writer = NativeWriter::create(File::create(&path).unwrap(), &path, &header).unwrap();
    for (place, rows) in all_rows(&reader).into_iter().enumerate() {
        let head = reader.head(place).unwrap();
        let (mut window, piece) = WindowEncoder::new(&header, &head).unwrap();
        writer.append(piece.compress()).unwrap();
        for (row, logits) in rows.into_iter().enumerate() {
            let logits = change(head.window, row, logits);
            let (bytes, _) = window.reserve_rows(1, || None);
            header.encoding.encode(&logits, bytes);
            if let Some(piece) = window.commit() {
                writer.append(piece.compress()).unwrap();
            }
        }
        window.finish().unwrap();
    }
    writer.finish().unwrap();
}

/// The logits of a native reference: windows of rows.
pub fn all_rows(reader: &NativeReader) -> Vec<Vec<Vec<f32>>> {
    let rows = |place| {
        let blocks = (0..reader.n_pieces(place)).map(move |piece| reader.piece(place, piece, None));
        blocks.flat_map(|block| {
            let block = block.unwrap();
            let decode = |row: kl_formats::Row<'_>| {
                let mut logits = vec![0.0; row.len()];
                row.decode_into(&mut logits);
                logits
            };
            block.rows().map(decode).collect::<Vec<_>>()
        })
    };
    (0..reader.windows().len())
        .map(|place| rows(place).collect())
        .collect()
}

/// The first lines of the held-out text: enough for some windows of 64 tokens.
pub fn short_text() -> String {
    let text = fs::read_to_string(fixture("eval.txt")).unwrap();
    text.chars().take(1500).collect()
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
