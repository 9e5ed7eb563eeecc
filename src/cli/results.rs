//! Where results go: stdout and the JSON file. If one fails, the other still gets them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::commands::one_line;
use crate::commands::output::{Existing, PartialFile};
use crate::commands::settings::ResultSettings;
use crate::report::Report;

const NO_JSON: &str = "the result cannot be written as JSON";

/// The results of a run, printed and saved as they come; by default printed as text.
#[derive(Default)]
pub struct Results<'s> {
    /// Where the JSON goes; `-` is stdout, then nothing else goes there.
    json: Option<&'s Path>,
    /// Whether an existing file may be replaced: with `--force`, or because this run, or one that it
    /// resumes, wrote it.
    replaces_json: bool,
    shown: usize,
    /// Why stdout accepts no more. A reader that has stopped reading is not an error.
    stdout_closed: Option<io::Error>,
    /// True if a file could not be written.
    has_failed: bool,
}

impl<'s> Results<'s> {
    /// Results whose JSON goes to `json`, if anywhere.
    pub fn with_json(json: Option<&'s Path>) -> Self {
        Self {
            json,
            ..Self::default()
        }
    }

    /// Results as the settings ask for them. Checks, before any model is loaded, that the JSON can
    /// be written.
    pub fn new(settings: &'s ResultSettings) -> Result<Self> {
        let mut results = Self::with_json(settings.json.as_deref());
        if let Some(path) = results.json.filter(|_| !results.prints_json()) {
            results.replaces_json = match settings.existing {
                Existing::Refuse(_) => false,
                Existing::Replace => true,
                // The interrupted run has left its result.
                Existing::Resume => Remade::Json("").is_form_of(path),
            };
            drop(create_text(path, results.replaces_json)?);
        }
        Ok(results)
    }

    fn prints_json(&self) -> bool {
        self.json.is_some_and(|path| path.as_os_str() == "-")
    }

    /// Prints text, unless stdout is reserved for JSON.
    pub fn print_text(&mut self, text: &str) {
        if !self.prints_json() {
            self.print(text);
        }
    }

    /// Prints one of several texts, with an empty line between them.
    pub fn show(&mut self, text: &str) {
        let gap = if self.shown > 0 { "\n" } else { "" };
        self.print_text(&format!("{gap}{text}"));
        self.shown += 1;
    }

    /// The JSON file, unless it could not be written.
    pub fn json_file(&self) -> Option<&'s Path> {
        let is_written = !self.prints_json() && !self.has_failed;
        self.json.filter(|_| is_written)
    }

    /// Writes the JSON file again, with all models so far.
    pub fn save(&mut self, report: &Report) {
        let Some(path) = self.json.filter(|_| !self.prints_json()) else {
            return;
        };
        let output = create_text(path, self.replaces_json);
        match output.and_then(|output| write_text(output, &report.json().context(NO_JSON)?)) {
            Ok(()) => self.replaces_json = true,
            Err(error) => {
                say!("kl: {}", one_line(&error));
                self.has_failed = true;
            }
        }
    }

    /// Prints the JSON, if stdout is for JSON. `has_failed`: set if an output of the run could not
    /// be written.
    ///
    /// # Errors
    /// If any result of the run could not be written.
    pub fn finish(
        mut self,
        json: impl FnOnce() -> serde_json::Result<String>,
        has_failed: bool,
    ) -> Result<()> {
        if self.prints_json() {
            self.print(&json().context(NO_JSON)?);
        }
        if self.has_failed || has_failed {
            bail!("some results could not be written");
        }
        self.close()
    }

    /// Ends the results.
    ///
    /// # Errors
    /// If stdout could not be written.
    pub fn close(self) -> Result<()> {
        match self.stdout_closed {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).context("standard output: cannot be written")
            }
            _ => Ok(()),
        }
    }

    fn print(&mut self, text: &str) {
        if self.stdout_closed.is_none() {
            let mut stdout = io::stdout().lock();
            let printed = stdout.write_all(text.as_bytes());
            self.stdout_closed = printed.and_then(|()| stdout.flush()).err();
        }
    }
}

/// Creates the file for a text. `replace`: set if an existing one may be replaced.
pub fn create_text(path: &Path, replace: bool) -> Result<PartialFile> {
    PartialFile::create(path, replace, Existing::Replace)
}

/// Writes a text to the file that was created for it.
pub fn write_text(output: PartialFile, text: &str) -> Result<()> {
    let written = output.file()?.write_all(text.as_bytes());
    written.with_context(|| format!("{}: cannot be written", output.path().display()))?;
    output.commit()
}

/// A form in which `kl` writes what it makes of finished files. It is made again and again, so an earlier
/// one is replaced without `--force`.
#[derive(Clone, Copy)]
pub enum Remade {
    /// JSON that starts with this key, after the versions.
    Json(&'static str),
    /// CSV with these first columns.
    Csv(&'static str),
    /// A page.
    Page,
}

impl Remade {
    /// True if a file starts like a text in this form.
    pub fn is_form_of(self, path: &Path) -> bool {
        const GENERATOR_OF_PAGE: &str = "content=\"kl ";
        let start = start_of(path);
        match self {
            Self::Json(key) => {
                let start: String = start.split_whitespace().collect();
                let rest = start.strip_prefix(r#"{"kl_version":"#);
                let keys = rest.and_then(|rest| rest.split_once(r#""json_version":"#));
                let keys = keys.and_then(|(_, rest)| rest.split_once(','));
                keys.is_some_and(|(_, rest)| rest.starts_with(key))
            }
            Self::Csv(columns) => start.starts_with(columns),
            Self::Page => start.contains(GENERATOR_OF_PAGE),
        }
    }
}

/// The start of a file, as far as it is text; empty if it cannot be read.
fn start_of(path: &Path) -> String {
    const START_BYTES: u64 = 1024;
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(START_BYTES).read_to_end(&mut start));
    let start = read.map_or(Vec::new(), |_| start);
    String::from_utf8_lossy(&start).into_owned()
}
