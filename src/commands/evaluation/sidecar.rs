//! The per-token file of an evaluation, which grows with each window.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, anyhow, bail};
use kl_formats::{
    BackendIdentity, CutOffSidecar, Fault, SidecarHeader, SidecarReader, SidecarWriter,
    TokenRecord, TokenTexts,
};

use super::finished::Finished;
use crate::commands::folder::parts_of;
use crate::commands::output::{Existing, PartialFile};
use crate::commands::resume::{check_same_run, keep_whole_call_records, nothing_to_resume};
use crate::commands::settings::ResultSettings;
use crate::commands::subject::Subject;
use crate::report::number::count_of;
use crate::stats::Until;

/// A sidecar, whose file is created before the model is loaded.
pub struct SidecarFile {
    pub output: PartialFile,
    pub path: PathBuf,
    /// Present once records are written.
    pub writer: Option<SidecarWriter<BufWriter<File>>>,
    n_records: u64,
    /// True to continue what an earlier run left.
    resume: bool,
    /// The remains of a run that was cut off, if it is continued.
    cut_off: Option<kl_formats::Result<CutOffSidecar>>,
    /// True if the model's file is newer than the sidecar that an earlier run has left: it may be
    /// another model, even if 64 samples of its bytes are the same.
    pub is_stale: bool,
    /// The finished one that has the name, which only the same measurement may replace; `None` if
    /// there is none, or with `--force`.
    pub finished: Option<Finished>,
}

/// The records that an earlier run has measured of the same model.
pub struct Earlier {
    /// With `--until`, no more than a run needs.
    pub records: Vec<TokenRecord>,
    /// True if they are all that there are to measure, and in a finished file.
    pub is_whole: bool,
}

impl SidecarFile {
    /// Creates the file that the settings name, if they want one. A finished sidecar that has the
    /// name is there to be [checked](Self::finished); any other file is refused unless `--force`.
    pub fn create(settings: &ResultSettings, subject: &Subject) -> Result<Option<Self>> {
        let Some(path) = settings.sidecar_path(subject) else {
            return Ok(None);
        };
        let finished = match settings.existing {
            Existing::Replace => None,
            _ => Finished::at(&path)?,
        };
        let may_replace = settings.existing == Existing::Replace || finished.is_some();
        let output = PartialFile::create(&path, may_replace, settings.existing).map_err(
            |error| match error.root_cause().downcast_ref().is_some_and(is_of_place) {
                true => anyhow!("{error:#}: name another file with --sidecar, or use --no-sidecar"),
                false => error,
            },
        )?;
        let left = match finished {
            Some(_) => path.as_path(),
            None => output.path(),
        };
        let left = fs::metadata(left).and_then(|about| about.modified()).ok();
        let has_left = finished.is_some() || output.is_resumed();
        Ok(Some(Self {
            is_stale: has_left
                && modified(&subject.path)
                    .zip(left)
                    .is_some_and(|(model, left)| model > left),
            cut_off: None,
            output,
            path,
            writer: None,
            n_records: 0,
            resume: settings.existing == Existing::Resume,
            finished,
        }))
    }

    /// Reads the header of what the evaluation would replace or continue, to be checked before the
    /// model is loaded; `None` if there is nothing, or nothing whole.
    pub fn held(&self) -> Option<Finished> {
        let cut_off = || Finished::at(self.output.path()).ok().flatten();
        let cut_off = || self.output.is_resumed().then(cut_off).flatten();
        self.finished.clone().or_else(cut_off)
    }

    /// Reads what an earlier run has left, if this one resumes it.
    pub fn read_cut_off(&mut self) {
        let path = self.output.path();
        let cut_off = self.output.is_resumed();
        self.cut_off = cut_off.then(|| SidecarReader::open_cut_off(path));
    }

    /// Returns the backend with which an earlier run of this model against this reference computed
    /// rows, if it is to be resumed or replaced.
    pub fn begun(&self, header: &SidecarHeader) -> Option<BackendIdentity> {
        let begun = match &self.cut_off {
            Some(cut_off) => &cut_off.as_ref().ok()?.header,
            None => &self.finished.as_ref()?.header,
        };
        let is_same = begun.model == header.model && begun.reference == header.reference;
        begun.backend.clone().filter(|_| is_same)
    }

    /// Writes the model's path into `header` as the run wrote it that was cut off, if that ran the same
    /// model: a model is known by its hashes, and the finished file has one path.
    pub fn keep_model_path(&self, header: &mut SidecarHeader) {
        if let Some(Ok(begun)) = &self.cut_off
            && begun.header.model == header.model
        {
            header.model_path.clone_from(&begun.header.model_path);
        }
    }

    /// Reads the records of an earlier run of the same evaluation, as a finished one was found to be;
    /// `None` without `--resume`.
    ///
    /// # Errors
    /// If a sidecar that was cut off belongs to another evaluation.
    pub fn earlier(
        &mut self,
        header: &SidecarHeader,
        until: Option<Until>,
    ) -> Result<Option<Earlier>> {
        // Under the same label, by the same version of `kl`, nothing is left to do.
        let finished = self
            .finished
            .as_ref()
            .filter(|Finished { header: there, .. }| {
                self.resume
                    && !self.is_stale
                    && there.label == header.label
                    && there.writer == header.writer
            });
        // A damaged one is replaced.
        let records = finished.and_then(|finished| finished.read_all().ok());
        // Only the stream shows whether its sidecar holds all that this run wants, unless the records
        // show that the run would stop early.
        let is_whole = |records: &Vec<TokenRecord>| match until.clone() {
            None => header.n_records.is_some(),
            Some(mut until) => {
                until.replay(records);
                until.is_reached() || header.n_records == Some(records.len() as u64)
            }
        };
        if let Some(records) = records.filter(is_whole) {
            let is_whole = true;
            return Ok(Some(Earlier { records, is_whole }));
        }
        let cut_off = match self.cut_off.take() {
            // Not even its header is whole.
            None => return Ok(None),
            Some(Err(error)) => match error.fault {
                Fault::Truncated { .. } => return Ok(None),
                Fault::NotASidecar(_) => bail!(nothing_to_resume(&self.output, &error)),
                _ => return Err(error.into()),
            },
            Some(Ok(cut_off)) => cut_off,
        };
        check_same_run(self.output.path(), &cut_off.header, header, "reference")?;
        if self.is_stale && self.finished.is_none() {
            return Ok(None);
        }
        let n_seq = header.backend.as_ref().and_then(|backend| backend.n_seq);
        let mut records = cut_off.records;
        keep_whole_call_records(&mut records, n_seq.unwrap_or(1));
        if let Some(mut until) = until {
            records.truncate(until.replay(&records));
        }
        let is_whole = false;
        Ok(Some(Earlier { records, is_whole }))
    }

    /// Begins to write, after the first `n_kept` records of an earlier run.
    pub fn begin(&mut self, header: &SidecarHeader, n_kept: u64) -> Result<()> {
        self.n_records = n_kept;
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

    /// Completes the file; then it can have its name.
    pub fn complete(&mut self, texts: &TokenTexts) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.finish(texts)?;
        }
        Ok(())
    }

    /// Keeps what was written, for `--resume`, and describes it.
    pub fn keep(self) -> Option<String> {
        if self.n_records == 0 {
            self.output.discard();
            return None;
        }
        Some(format!(
            "{} keeps {}: --resume continues it",
            self.output.path().display(),
            count_of(self.n_records, "token")
        ))
    }
}

/// The time at which a model was last changed; of a split one, any of its files.
fn modified(model: &Path) -> Option<SystemTime> {
    let files = parts_of(model).into_iter();
    let times = files.filter_map(|file| fs::metadata(file).and_then(|about| about.modified()).ok());
    times.max()
}

/// Returns true if the file cannot be where it was named: its name is too long, or its folder is
/// not there or not writable.
fn is_of_place(error: &io::Error) -> bool {
    use io::ErrorKind::{
        InvalidFilename, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    matches!(
        error.kind(),
        InvalidFilename | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem
    )
}
