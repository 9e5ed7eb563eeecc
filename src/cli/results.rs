//! Where results go: stdout, the JSON, the sidecars.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kl_formats::sidecar::TokenRecord;
use kl_formats::{SidecarHeader, SidecarWriter, is_sidecar};

use super::output::PartialFile;
use super::print_result;
use super::settings::{ReadSettings, Sidecar};
use crate::report::{ModelReport, ReferenceInfo, Report, summary_table, text_report};

/// Results on their way out.
pub struct Results<'s> {
    json: Json<'s>,
    shown: usize,
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
    pub fn new(settings: &'s ReadSettings) -> Result<Self> {
        let json = match settings.json.as_deref() {
            None => Json::None,
            Some(path) if path.as_os_str() == "-" => Json::Stdout,
            Some(path) => {
                let ours = settings.run.force;
                drop(PartialFile::create(path, ours)?);
                Json::File { path, ours }
            }
        };
        Ok(Self { json, shown: 0 })
    }

    /// Prints one model's report, unless stdout is the JSON's.
    pub fn show(&mut self, model: &ModelReport, reference: &ReferenceInfo) -> Result<()> {
        if !matches!(self.json, Json::Stdout) {
            let gap = if self.shown > 0 { "\n" } else { "" };
            print_result(&format!("{gap}{}", text_report(model, reference)))?;
            self.shown += 1;
        }
        Ok(())
    }

    /// Writes the JSON file anew, with all models so far.
    pub fn write(&mut self, report: &Report) -> Result<()> {
        if let Json::File { path, ours } = &mut self.json {
            let output = PartialFile::create(path, *ours)?;
            let written = output.file()?.write_all(json_text(report)?.as_bytes());
            written.with_context(|| format!("{}: cannot be written", path.display()))?;
            output.commit()?;
            *ours = true;
        }
        Ok(())
    }

    /// What comes after the last model: the JSON on stdout, or the table of several models.
    pub fn finish(self, report: &Report) -> Result<()> {
        match self.json {
            Json::Stdout => print_result(&json_text(report)?)?,
            _ if self.shown > 1 => print_result(&format!("\n{}", summary_table(&report.models)))?,
            _ => {}
        }
        Ok(())
    }
}

fn json_text(report: &Report) -> Result<String> {
    Ok(serde_json::to_string_pretty(report).context("the result cannot be put into JSON")? + "\n")
}

/// A model's per-token file, created before the model is loaded.
pub struct SidecarFile {
    output: PartialFile,
    path: PathBuf,
}

impl SidecarFile {
    /// Creates it where the settings say. A sidecar of an earlier run is replaced; any other file
    /// is refused unless `--force`.
    pub fn create(settings: &ReadSettings, model: &Path) -> Result<Option<Self>> {
        let path = match &settings.sidecar {
            Sidecar::None => return Ok(None),
            Sidecar::At(path) => path.clone(),
            Sidecar::ByModel => {
                let Some(name) = model.file_name() else {
                    bail!("{}: names no file", model.display());
                };
                let mut name = name.to_owned();
                name.push(".kls");
                name.into()
            }
        };
        let force = settings.run.force || is_sidecar(&path);
        Ok(Some(Self {
            output: PartialFile::create(&path, force)?,
            path,
        }))
    }

    /// Writes it whole; its path.
    pub fn write(self, header: &SidecarHeader, records: &[TokenRecord]) -> Result<PathBuf> {
        let file = BufWriter::new(self.output.file()?);
        let mut writer = SidecarWriter::create(file, self.output.path(), header)?;
        for record in records {
            writer.push(record)?;
        }
        let flushed = writer
            .finish()?
            .into_inner()
            .map_err(std::io::IntoInnerError::into_error);
        flushed.with_context(|| format!("{}: cannot be written", self.path.display()))?;
        self.output.commit()?;
        Ok(self.path)
    }
}
