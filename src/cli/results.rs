//! Where results go: stdout and the JSON file. If one fails, the other still gets them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Error, Result};
use serde::Serialize;

use super::print_result;
use crate::commands::one_line;
use crate::commands::output::{OnPartial, Overwrite, PartialFile};
use crate::commands::settings::ResultSettings;
use crate::report::{ModelReport, ReferenceInfo, Report, text_report};

/// The results of a run, printed and saved as they come.
pub struct Results<'s> {
    json: Json<'s>,
    shown: usize,
    /// Why stdout accepts no more. A reader that has stopped reading is not an error.
    stdout_closed: Option<io::Error>,
    /// Whether a file could not be written.
    has_failed: bool,
}

enum Json<'s> {
    None,
    Stdout,
    /// `replace`: whether an existing file may be replaced, as with `--force`, or because this run,
    /// or one that it resumes, wrote it.
    File {
        path: &'s Path,
        replace: bool,
    },
}

impl<'s> Results<'s> {
    /// Results that are printed as text.
    pub fn as_text() -> Self {
        Self::with(Json::None)
    }

    /// Results that are printed as JSON alone.
    pub fn as_json() -> Self {
        Self::with(Json::Stdout)
    }

    /// Results as the settings ask for them. Checks, before any model is loaded, that the JSON can
    /// be written.
    pub fn new(settings: &'s ResultSettings) -> Result<Self> {
        Ok(Self::with(match settings.json.as_deref() {
            None => Json::None,
            Some(path) if path.as_os_str() == "-" => Json::Stdout,
            Some(path) => {
                // The interrupted run has left its result.
                let replace = settings.force || (settings.resume == Some(true) && is_result(path));
                drop(create_json(path, replace)?);
                Json::File { path, replace }
            }
        }))
    }

    fn with(json: Json<'s>) -> Self {
        Self {
            json,
            shown: 0,
            stdout_closed: None,
            has_failed: false,
        }
    }

    /// Prints text, unless stdout is reserved for JSON.
    pub fn print_text(&mut self, text: &str) {
        if !matches!(self.json, Json::Stdout) {
            self.print(text);
        }
    }

    /// Prints one model's report.
    pub fn show(&mut self, model: &ModelReport, reference: &ReferenceInfo) {
        let gap = if self.shown > 0 { "\n" } else { "" };
        self.print_text(&format!("{gap}{}", text_report(model, reference)));
        self.shown += 1;
    }

    /// Prints the comparison of several models, after their reports if there are any.
    pub fn show_comparison(&mut self, text: &str) {
        let gap = if self.shown > 0 { "\n" } else { "" };
        self.print_text(&format!("{gap}{text}"));
    }

    /// The JSON file, if it was written.
    pub fn json_path(&self) -> Option<&'s Path> {
        match self.json {
            Json::File { path, .. } if !self.has_failed => Some(path),
            _ => None,
        }
    }

    /// Writes the JSON file again, with all models so far.
    pub fn save(&mut self, report: &Report) {
        if let Json::File { path, replace } = &mut self.json {
            match write_json(path, *replace, report) {
                Ok(()) => *replace = true,
                Err(error) => {
                    say!("kl: {}", one_line(&error));
                    self.has_failed = true;
                }
            }
        }
    }

    /// Prints what comes after the last model: the JSON on stdout.
    ///
    /// # Errors
    /// If any result of the run could not be written.
    pub fn finish(mut self, report: &Report) -> Result<()> {
        if let Json::Stdout = self.json {
            self.print(&report_json(report)?);
        }
        if self.has_failed || !report.unwritten.is_empty() {
            return Err(Error::msg("some results could not be written"));
        }
        self.close()
    }

    /// Prints a value as JSON, if stdout is for JSON.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn finish_json(mut self, value: &impl Serialize) -> Result<()> {
        if let Json::Stdout = self.json {
            let text = serde_json::to_string_pretty(value);
            self.print(&(text.context("the result cannot be written as JSON")? + "\n"));
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
            self.stdout_closed = print_result(text).err();
        }
    }
}

/// Whether a file starts like the JSON of a result.
fn is_result(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut start));
    let start = start
        .strip_prefix(b"{")
        .unwrap_or_default()
        .trim_ascii_start();
    read.is_ok() && start.starts_with(b"\"kl_version\"")
}

fn create_json(path: &Path, replace: bool) -> Result<PartialFile> {
    PartialFile::create(
        path,
        Overwrite {
            replace_target: replace,
            on_partial: OnPartial::Replace,
        },
    )
}

fn write_json(path: &Path, replace: bool, report: &Report) -> Result<()> {
    let output = create_json(path, replace)?;
    let text = report_json(report)?;
    let written = output.file()?.write_all(text.as_bytes());
    written.with_context(|| format!("{}: cannot be written", path.display()))?;
    output.commit()
}

fn report_json(report: &Report) -> Result<String> {
    report
        .json()
        .context("the result cannot be written as JSON")
}
