//! The per-token file of an evaluation, which grows with each window.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::{
    BackendIdentity, Error, ModelIdentity, ReferenceSummary, SidecarHeader, SidecarReader,
    SidecarWriter, TokenRecord, TokenTexts, is_sidecar,
};

use super::until::Until;
use crate::commands::output::{Overwrite, PartialFile, flushed};
use crate::commands::resume::{
    check_same_run, first_difference, keep_whole_call_records, nothing_to_resume,
};
use crate::commands::settings::ResultSettings;
use crate::report::number::count_of;

/// A sidecar, whose file is created before the model is loaded.
pub struct SidecarFile {
    output: PartialFile,
    path: PathBuf,
    /// Present once the header is known.
    writer: Option<SidecarWriter<BufWriter<File>>>,
    n_records: u64,
    /// Whether to continue what an earlier run left.
    resume: bool,
}

/// What an earlier run has measured of the same model.
pub enum Earlier {
    /// Every record.
    Whole(Vec<TokenRecord>),
    /// The first records.
    CutOff(Vec<TokenRecord>),
}

impl Earlier {
    /// The records that a run with this `until`, which has seen none, needs. `n_most` is the most
    /// records that the run can have, if known. `None` if the earlier run stopped where this one
    /// does not, as with another `--confidence`.
    pub fn needed(self, mut until: Until, n_most: Option<u64>) -> Option<Self> {
        match self {
            Self::Whole(records) => {
                let n_needed = until.replay(&records);
                let is_all = until.is_reached() || n_most == Some(n_needed as u64);
                let is_needed = n_needed == records.len() && is_all;
                is_needed.then_some(Self::Whole(records))
            }
            Self::CutOff(mut records) => {
                records.truncate(until.replay(&records));
                Some(Self::CutOff(records))
            }
        }
    }
}

impl SidecarFile {
    /// Creates the file that the settings name, if they want one. A whole sidecar of an earlier run
    /// is replaced; any other file is refused unless `--force`.
    pub fn create(settings: &ResultSettings, model: &Path) -> Result<Option<Self>> {
        let Some(path) = settings.sidecar_path(model) else {
            return Ok(None);
        };
        let overwrite = Overwrite {
            replace_target: settings.force || is_sidecar(&path),
            ..Overwrite::asked(settings.force, settings.resume)
        };
        Ok(Some(Self {
            output: PartialFile::create(&path, overwrite)?,
            path,
            writer: None,
            n_records: 0,
            resume: settings.resume == Some(true),
        }))
    }

    /// How an earlier run of this model against this reference computed rows, if it is to be resumed.
    pub fn begun(
        &self,
        model: &ModelIdentity,
        reference: &ReferenceSummary,
    ) -> Option<BackendIdentity> {
        let path = match (self.output.is_resumed(), self.resume) {
            (true, _) => self.output.path(),
            (false, true) => &self.path,
            (false, false) => return None,
        };
        let header = SidecarReader::open_cut_off(path).ok()?.header;
        let is_same = header.model.as_ref() == Some(model) && header.reference == *reference;
        header.backend.filter(|_| is_same)
    }

    /// Reads the records of an earlier run of the same evaluation; `None` without `--resume`.
    ///
    /// # Errors
    /// If a sidecar that was cut off belongs to another evaluation.
    pub fn earlier(&self, header: &SidecarHeader) -> Result<Option<Earlier>> {
        if self.output.is_resumed() {
            let cut_off = match SidecarReader::open_cut_off(self.output.path()) {
                // Not even its header is whole.
                Err(Error::Truncated { .. }) => return Ok(None),
                Err(error @ Error::NotASidecar { .. }) => {
                    bail!(nothing_to_resume(&self.output, &error))
                }
                opened => opened?,
            };
            check_same_run(self.output.path(), &cut_off.header, header, "reference")?;
            let n_seq = header.backend.as_ref().and_then(|backend| backend.n_seq);
            let mut records = cut_off.records;
            keep_whole_call_records(&mut records, n_seq.unwrap_or(1));
            return Ok(Some(Earlier::CutOff(records)));
        }
        // Only the stream shows whether its sidecar holds all that this run wants, unless the run is
        // to stop early: then the records show it.
        let is_undecided = header.n_records.is_none() && header.until.is_none();
        if !self.resume || is_undecided || !is_sidecar(&self.path) {
            return Ok(None);
        }
        // A sidecar of another run, or a damaged one, is replaced.
        let same = SidecarReader::open(&self.path)
            .ok()
            .filter(|reader| first_difference(reader.header(), header).is_none());
        let records = same.and_then(|reader| reader.read_all().ok());
        Ok(records.map(Earlier::Whole))
    }

    /// The sidecar's path, for messages.
    pub fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// Begins to write, after the first `n_kept` records of an earlier run.
    pub fn begin(&mut self, header: &SidecarHeader, n_kept: u64) -> Result<()> {
        let file = BufWriter::new(self.output.file()?);
        let path = self.output.path();
        let writer = if n_kept > 0 {
            let cut_to = |out: &mut BufWriter<File>, offset| {
                out.get_ref().set_len(offset)?;
                out.seek(SeekFrom::Start(offset)).map(drop)
            };
            SidecarWriter::resume(file, path, header, n_kept, cut_to)?
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

    /// Completes the file, gives it its name, and returns the name.
    pub fn finish(self, texts: &TokenTexts) -> Result<PathBuf> {
        if let Some(writer) = self.writer {
            flushed(writer.finish(texts)?, &self.path)?;
            self.output.commit()?;
        }
        Ok(self.path)
    }

    /// Removes what was written, and returns the path it was for.
    pub fn discard(self) -> PathBuf {
        drop(self.writer);
        self.output.discard();
        self.path
    }

    /// Keeps what was written, for `--resume`, and describes it.
    pub fn keep(self) -> Option<String> {
        if self.n_records == 0 {
            self.discard();
            return None;
        }
        Some(format!(
            "{} keeps {}: --resume continues it",
            self.output.path().display(),
            count_of(self.n_records, "token")
        ))
    }
}
