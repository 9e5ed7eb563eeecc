//! A model's per-token file, which grows with each window.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::sidecar::TokenRecord;
use kl_formats::{Error, SidecarHeader, SidecarReader, SidecarWriter, is_sidecar};

use super::output::{Existing, PartialFile, flushed};
use super::paths::sidecar_path;
use super::resume::{first_difference, not_begun};
use super::settings::ResultSettings;
use crate::report::number::count;

/// A sidecar, created before its model is loaded.
pub struct SidecarFile {
    output: PartialFile,
    path: PathBuf,
    /// Once the header is known.
    writer: Option<SidecarWriter<BufWriter<File>>>,
    n_records: u64,
    /// Whether what an earlier run has left is to be taken up.
    resume: bool,
}

/// What an earlier run has measured of a model.
pub enum Remains {
    /// Every record.
    Whole(Vec<TokenRecord>),
    /// The first ones.
    CutOff(Vec<TokenRecord>),
}

impl SidecarFile {
    /// Creates it where the settings say. A whole sidecar of an earlier run is replaced; any other
    /// file is refused unless `--force`.
    pub fn create(settings: &ResultSettings, model: &Path) -> Result<Option<Self>> {
        let Some(path) = sidecar_path(settings, model) else {
            return Ok(None);
        };
        let existing = Existing {
            replace_target: settings.force || is_sidecar(&path),
            ..Existing::asked(settings.force, settings.resume)
        };
        Ok(Some(Self {
            output: PartialFile::create(&path, existing)?,
            path,
            writer: None,
            n_records: 0,
            resume: settings.resume == Some(true),
        }))
    }

    /// What an earlier run has left that measured the same; nothing unless `--resume` is given.
    ///
    /// # Errors
    /// A sidecar that was cut off in measuring something else.
    pub fn remains(&self, header: &SidecarHeader) -> Result<Option<Remains>> {
        if self.output.is_leftover() {
            let cut_off = match SidecarReader::open_cut_off(self.output.path()) {
                // Not even its header is whole.
                Err(Error::Truncated { .. }) => return Ok(None),
                Err(error @ Error::NotASidecar { .. }) => bail!(not_begun(&self.output, &error)),
                opened => opened?,
            };
            return match first_difference(&cut_off.header, header) {
                Some(difference) => bail!(
                    "{}: is of another run ({difference}): give the same model, reference and settings, or start anew with --force",
                    self.output.path().display()
                ),
                None => Ok(Some(Remains::CutOff(cut_off.records))),
            };
        }
        if !self.resume || !is_sidecar(&self.path) {
            return Ok(None);
        }
        // Another run's, or a damaged one: it is replaced.
        let same = SidecarReader::open(&self.path)
            .ok()
            .filter(|reader| first_difference(reader.header(), header).is_none());
        let records = same.and_then(|reader| reader.read_all().ok());
        Ok(records.map(Remains::Whole))
    }

    /// What messages call it.
    pub fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// Begins to write, behind the first `n_kept` records that an earlier run has left.
    pub fn begin(&mut self, header: &SidecarHeader, n_kept: u64) -> Result<()> {
        let file = BufWriter::new(self.output.file()?);
        let path = self.output.path();
        let writer = if n_kept > 0 {
            let place = |out: &mut BufWriter<File>, offset| {
                out.get_ref().set_len(offset)?;
                out.seek(SeekFrom::Start(offset)).map(drop)
            };
            SidecarWriter::resume(file, path, header, n_kept, place)?
        } else {
            file.get_ref().set_len(0).map_err(anyhow::Error::from)?;
            SidecarWriter::create(file, path, header)?
        };
        self.output.keep_if_cut_off();
        self.writer = Some(writer);
        self.n_records = n_kept;
        Ok(())
    }

    /// Writes the records of a window, so that they are kept if the run is cut off.
    pub fn push(&mut self, records: &[TokenRecord]) -> Result<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        for record in records {
            writer.push(record)?;
        }
        writer.flush()?;
        self.n_records += records.len() as u64;
        Ok(())
    }

    /// Whether records are written as they come.
    pub fn has_begun(&self) -> bool {
        self.writer.is_some()
    }

    /// Gives it its name, and tells it.
    pub fn finish(self) -> Result<PathBuf> {
        if let Some(writer) = self.writer {
            flushed(writer.finish()?, &self.path)?;
            self.output.commit()?;
        }
        Ok(self.path)
    }

    /// Removes what was written; its path.
    pub fn discard(self) -> PathBuf {
        drop(self.writer);
        self.output.discard();
        self.path
    }

    /// Keeps what was written, for `--resume`; says where it is.
    pub fn keep(self) -> Option<String> {
        if self.n_records == 0 {
            self.discard();
            return None;
        }
        Some(format!(
            "{} keeps {} tokens: --resume goes on with it",
            self.output.path().display(),
            count(self.n_records)
        ))
    }
}
