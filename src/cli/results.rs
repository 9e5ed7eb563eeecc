//! Where results go: stdout, and files in several forms. If one fails, the others still get them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::say_wrote;
use crate::commands::output::{Existing, PartialFile};

/// The results of a run, printed and saved as they come; by default printed as text.
#[derive(Default)]
pub struct Results<'p> {
    /// The files, each with its form, and whether one that exists may be replaced.
    files: Vec<(&'p Path, Form, bool)>,
    /// The form that is printed in place of the text, once the result is complete.
    pub printed: Option<Form>,
    shown: usize,
    /// Why stdout accepts no more. A reader that has stopped reading is not an error.
    stdout_closed: Option<io::Error>,
    /// Set once a file could not be written.
    pub has_failed: bool,
}

/// A form in which `kl` writes what it makes of finished files. It is made again and again, so an earlier
/// one is replaced without `--force`.
#[derive(Clone, Copy)]
pub enum Form {
    /// JSON that starts with this key, after the versions.
    Json(&'static str),
    /// CSV with these first columns.
    Csv(&'static str),
    /// A page.
    Page,
}

/// The error of a page.
pub const NO_PAGE: &str = "cannot render the page";

/// The files that a result goes to, each in its form; `-` is stdout.
#[derive(Debug)]
pub struct Outputs {
    pub json: Option<PathBuf>,
    pub csv: Option<PathBuf>,
    pub html: Option<PathBuf>,
    /// The treatment of those that are there.
    pub existing: Existing,
}

impl Outputs {
    /// The results that go to these files, of which the JSON and the CSV are known by how they start.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn results(&self, json: &'static str, csv: &'static str) -> Result<Results<'_>> {
        let wanted = [
            (&self.json, Form::Json(json)),
            (&self.csv, Form::Csv(csv)),
            (&self.html, Form::Page),
        ];
        Results::new(wanted, self.existing)
    }
}

/// The treatment of files that `kl` makes again: such a file is replaced, and with `force` any.
pub fn made_again(force: bool) -> Existing {
    Existing::by_flags(force, Some(!force))
}

impl<'p> Results<'p> {
    /// Results in these forms; the path `-` is stdout. Checks, before the work is done, that each file can
    /// be written: with [`Existing::Resume`], one that exists must be in its form.
    pub fn new<const N: usize>(
        wanted: [(&'p Option<PathBuf>, Form); N],
        existing: Existing,
    ) -> Result<Self> {
        let mut results = Self::default();
        for (path, form) in wanted {
            match path.as_deref() {
                Some(path) if path.as_os_str() == "-" => results.printed = Some(form),
                Some(path) => {
                    let may_replace = match existing {
                        Existing::Refuse(_) => false,
                        Existing::Replace => true,
                        Existing::Resume => form.is_form_of(path),
                    };
                    drop(PartialFile::create(path, may_replace, Existing::Replace)?);
                    results.files.push((path, form, may_replace));
                }
                None => {}
            }
        }
        Ok(results)
    }

    /// Prints text, unless stdout is reserved for another form.
    pub fn print_text(&mut self, text: &str) {
        if self.printed.is_none() {
            self.print(text);
        }
    }

    /// Prints one of several texts, with an empty line between them.
    pub fn show(&mut self, text: &str) {
        let gap = if self.shown > 0 { "\n" } else { "" };
        self.print_text(&format!("{gap}{text}"));
        self.shown += 1;
    }

    /// Writes each file, or writes it again, where it has the result so far.
    pub fn save(&mut self, in_form: impl Fn(Form) -> Result<String>) -> Result<()> {
        for (path, form, may_replace) in &mut self.files {
            let output = PartialFile::create(path, *may_replace, Existing::Replace)?;
            let written = output.file()?.write_all(in_form(*form)?.as_bytes());
            written.with_context(|| format!("{}: cannot be written", output.path().display()))?;
            output.commit()?;
            *may_replace = true;
        }
        Ok(())
    }

    /// Prints the result as text, or in the form for stdout, and writes the files.
    pub fn write(
        mut self,
        text: impl FnOnce() -> String,
        in_form: impl Fn(Form) -> Result<String>,
        quiet: bool,
    ) -> Result<()> {
        self.print(&self.printed.map_or_else(|| Ok(text()), &in_form)?);
        self.save(in_form)?;
        self.close(quiet)
    }

    /// Prints the JSON, if stdout is for JSON, and ends the results.
    ///
    /// # Errors
    /// If any of them could not be written.
    pub fn finish(
        mut self,
        json: impl FnOnce() -> serde_json::Result<String>,
        quiet: bool,
    ) -> Result<()> {
        if self.printed.is_some() {
            self.print(&json()?);
        }
        self.close(quiet)
    }

    /// Ends the results, whose files were written.
    ///
    /// # Errors
    /// If any of them could not be written.
    pub fn close(self, quiet: bool) -> Result<()> {
        if self.has_failed {
            bail!("some results could not be written");
        }
        for (path, ..) in &self.files {
            say_wrote(&path.display().to_string(), quiet);
        }
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

impl Form {
    /// True if a file starts like a text in this form.
    fn is_form_of(self, path: &Path) -> bool {
        const START_BYTES: u64 = 1024;
        const GENERATOR_OF_PAGE: &str = "content=\"kl ";
        let mut start = Vec::new();
        // Opening a pipe would wait for its writer.
        if !path.is_file() {
            return false;
        }
        let file = File::open(path);
        if file.is_ok_and(|file| file.take(START_BYTES).read_to_end(&mut start).is_err()) {
            return false;
        }
        let text = String::from_utf8_lossy(&start);
        match self {
            Self::Json(key) => {
                let compact: String = text.split_whitespace().collect();
                let rest = compact.strip_prefix(r#"{"kl_version":"#);
                let version = rest.and_then(|rest| rest.split_once(r#""json_version":"#));
                let keys = version.and_then(|(_, rest)| rest.split_once(','));
                keys.is_some_and(|(_, rest)| rest.starts_with(key))
            }
            Self::Csv(columns) => text.starts_with(columns),
            Self::Page => text.contains(GENERATOR_OF_PAGE),
        }
    }
}
