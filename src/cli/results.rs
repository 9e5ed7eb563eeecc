//! Where results go: stdout and the JSON. One that fails does not keep the others from it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Error, Result};

use super::output::{Existing, Leftover, PartialFile};
use super::print_result;
use super::settings::ResultSettings;
use crate::report::{ModelReport, ReferenceInfo, Report, summary_table, text_report};

/// Results on their way out.
pub struct Results<'s> {
    json: Json<'s>,
    shown: usize,
    /// Why stdout takes no more; whoever reads it may have stopped, which is no error.
    stdout_closed: Option<io::Error>,
    /// What went wrong first with a file.
    failure: Option<Error>,
}

enum Json<'s> {
    None,
    Stdout,
    /// `ours`: written by this run, and so to be overwritten by it.
    File {
        path: &'s Path,
        ours: bool,
    },
}

impl<'s> Results<'s> {
    /// Checks that the JSON can be written before any model is loaded.
    pub fn new(settings: &'s ResultSettings) -> Result<Self> {
        let json = match settings.json.as_deref() {
            None => Json::None,
            Some(path) if path.as_os_str() == "-" => Json::Stdout,
            Some(path) => {
                // What is gone on with has left its result.
                let ours = settings.force || (settings.resume == Some(true) && is_result(path));
                drop(create_json(path, ours)?);
                Json::File { path, ours }
            }
        };
        Ok(Self {
            json,
            shown: 0,
            stdout_closed: None,
            failure: None,
        })
    }

    /// Prints one model's report, unless stdout is the JSON's.
    pub fn show(&mut self, model: &ModelReport, reference: &ReferenceInfo) {
        if !matches!(self.json, Json::Stdout) {
            let gap = if self.shown > 0 { "\n" } else { "" };
            self.print(&format!("{gap}{}", text_report(model, reference)));
            self.shown += 1;
        }
    }

    /// Writes the JSON file anew, with all models so far.
    pub fn write(&mut self, report: &Report) {
        if let Json::File { path, ours } = &mut self.json {
            match write_json(path, *ours, report) {
                Ok(()) => *ours = true,
                Err(error) => self.fail(error),
            }
        }
    }

    /// Says what went wrong with a file, and goes on; the run ends with it.
    pub fn fail(&mut self, error: Error) {
        say!("kl: {}", super::one_line(&error));
        self.failure.get_or_insert(error);
    }

    /// What comes after the last model: the JSON on stdout, or the table of several models.
    pub fn finish(mut self, report: &Report) -> Result<()> {
        match self.json {
            Json::Stdout => self.print(&json_text(report)?),
            _ if self.shown > 1 => self.print(&format!("\n{}", summary_table(&report.models))),
            _ => {}
        }
        let closed = self
            .stdout_closed
            .filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
        match (self.failure, closed) {
            (Some(_), _) => Err(Error::msg("not every result could be written")),
            (None, Some(error)) => Err(error).context("standard output: cannot be written"),
            (None, None) => Ok(()),
        }
    }

    fn print(&mut self, text: &str) {
        if self.stdout_closed.is_none() {
            self.stdout_closed = print_result(text).err();
        }
    }
}

/// Whether a file begins as a result's JSON does.
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
        Existing {
            replace_target: replace,
            leftover: Leftover::Replace,
        },
    )
}

fn write_json(path: &Path, replace: bool, report: &Report) -> Result<()> {
    let output = create_json(path, replace)?;
    let written = output.file()?.write_all(json_text(report)?.as_bytes());
    written.with_context(|| format!("{}: cannot be written", path.display()))?;
    output.commit()
}

fn json_text(report: &Report) -> Result<String> {
    // A line for every number of every token would serve nobody.
    let has_tokens = report.models.iter().any(|model| model.tokens.is_some());
    let text = if has_tokens {
        serde_json::to_string(report)
    } else {
        serde_json::to_string_pretty(report)
    };
    Ok(text.context("the result cannot be put into JSON")? + "\n")
}
