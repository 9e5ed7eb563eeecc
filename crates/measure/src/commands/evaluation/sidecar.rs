//! The sidecar of an evaluation: its name is claimed before the model is loaded, then it is begun or
//! continued, grows with each window, and is finished, kept for `--resume` or discarded.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom};
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Error, Result, anyhow};
use kl_engine::Model;
use kl_formats::{
    CutOffSidecar, SidecarHeader, SidecarReader, SidecarWriter, TokenRecord, TokenTexts,
};
use kl_report::number::count_of;
use kl_stats::stats::KldSoFar;

use super::existing::ExistingSidecar;
use crate::commands::folder::parts_of;
use crate::commands::observer::one_line;
use crate::commands::output::{Existing, PartialFile, with_kept};
use crate::commands::resume::{self, check_same_run};
use crate::commands::settings::{ResultSettings, Subject};
use crate::pipeline::ReferenceRows;

/// A sidecar whose name and partial file are claimed, before the model is loaded.
pub struct ClaimedSidecar {
    pub path: PathBuf,
    output: PartialFile,
    /// True to continue what an earlier run left.
    resumes: bool,
    /// The finished one that has the name, which only the same measurement may replace; `None` if
    /// there is none, or with `--force`.
    pub finished: Option<ExistingSidecar>,
    /// The remains of a run that was cut off, if it is continued.
    pub cut_off: Option<CutOffSidecar>,
    /// True if the model's file is newer than the sidecar that an earlier run has left: it may be
    /// another model, even if 64 samples of its bytes are the same.
    pub is_stale: bool,
}

impl ClaimedSidecar {
    /// Claims the name that the settings give, if they want a sidecar. [`finished`](Self::finished) is then
    /// a finished one of that name, if there is one; any other file is refused unless `--force`.
    pub fn claim(settings: &ResultSettings, subject: &Subject) -> Result<Option<Self>> {
        let Some(path) = settings.sidecar_path(subject) else {
            return Ok(None);
        };
        let existing = settings.existing;
        let finished = match existing {
            Existing::Replace => None,
            _ => ExistingSidecar::read(&path)?,
        };
        let may_replace = existing == Existing::Replace || finished.is_some();
        let output = PartialFile::create(&path, may_replace, existing).map_err(|error| {
            if error.root_cause().is::<io::Error>() {
                return anyhow!("{error:#}: name another file with --sidecar, or use --no-sidecar");
            }
            error
        })?;
        let earlier_path = match &finished {
            Some(finished) => Some(finished.path.as_path()),
            None => output.is_resumed.then(|| output.path()),
        };
        let begun_at = earlier_path.and_then(beginning_time);
        Ok(Some(Self {
            is_stale: begun_at
                .is_some_and(|begun_at| modification_time(&subject.path) > Some(begun_at)),
            cut_off: resume::cut_off(&output, SidecarReader::open_cut_off)?,
            resumes: existing == Existing::Resume,
            output,
            path,
            finished,
        }))
    }

    /// The sidecar that the evaluation would replace or continue, to be checked before the model is
    /// loaded; `None` if there is none, or nothing whole.
    pub fn existing(&self) -> Option<ExistingSidecar> {
        let cut_off = self.cut_off.as_ref().map(|cut_off| ExistingSidecar {
            path: self.output.path().to_owned(),
            header: cut_off.header.clone(),
        });
        self.finished.clone().or(cut_off)
    }

    /// Returns the header of an earlier run of this model against this reference, if it is to be resumed or
    /// replaced.
    pub fn begun_header(&self, header: &SidecarHeader) -> Option<&SidecarHeader> {
        let cut_off_header = self.cut_off.as_ref().map(|cut_off| &cut_off.header);
        let begun_header =
            cut_off_header.or(self.finished.as_ref().map(|finished| &finished.header))?;
        let is_same =
            begun_header.model == header.model && begun_header.reference == header.reference;
        is_same.then_some(begun_header)
    }

    /// Begins to write, or continues what an earlier run of the same evaluation has left, whose windows
    /// leave `rows`. `begins_anew` is asked whether the records that are there do not serve this run.
    ///
    /// # Errors
    /// If a sidecar that was cut off belongs to another evaluation, its records have other positions
    /// than `rows`, or the reference cannot be read.
    pub fn open(
        mut self,
        mut header: SidecarHeader,
        until: KldSoFar,
        rows: &mut ReferenceRows<'_>,
        begins_anew: impl FnOnce(&[TokenRecord], &ReferenceRows<'_>) -> Result<bool>,
    ) -> Result<TokenLog> {
        let finished_records = self.finished_records(&header, until.clone());
        let mut is_whole = finished_records.is_some();
        let mut records = match finished_records {
            Some(records) => records,
            None => self.begun_records(&mut header, until)?,
        };
        if !records.is_empty() && begins_anew(&records, rows)? {
            is_whole = false;
            records.clear();
        }
        if !is_whole && !records.is_empty() {
            records.truncate(rows.resume_after(&records)?);
        }
        let n_resumed = records.len();
        let sidecar = if is_whole {
            SidecarState::Whole(self.path)
        } else {
            match self.begin(&header, n_resumed as u64) {
                Ok(writer) => SidecarState::Growing(self, writer),
                Err(error) => {
                    let kept = self.keep(header.stored, n_resumed);
                    SidecarState::Failed(with_kept(error, kept))
                }
            }
        };
        Ok(TokenLog {
            records,
            n_resumed,
            writing_time: Duration::ZERO,
            is_stored: header.stored,
            sidecar,
        })
    }

    /// The records of the finished file, where they are all that the run would measure: under the same
    /// label, by the same version of `kl`, nothing is left to do. A damaged file is replaced.
    pub fn finished_records(
        &self,
        header: &SidecarHeader,
        mut until: KldSoFar,
    ) -> Option<Vec<TokenRecord>> {
        let finished = self.finished.as_ref()?;
        let is_same =
            finished.header.label == header.label && finished.header.writer == header.writer;
        // Speeds can only be added with the model at hand.
        let lacks_speed = header.speed.is_some() && finished.header.speed.is_none();
        if !self.resumes || self.is_stale || !is_same || lacks_speed {
            return None;
        }
        let records = finished.read_all().ok()?;
        // Only the stream shows whether its sidecar holds all that this run wants, unless the records
        // show that the run would stop early.
        until.replay(&records);
        let has_all = header.n_records == Some(records.len() as u64);
        let has_known_end = header.until.is_none() && header.n_records.is_some();
        (has_known_end || has_all || until.is_reached()).then_some(records)
    }

    /// The records of the run that was cut off, no more than `until` needs. `header` becomes that run's, which
    /// the file begins with.
    fn begun_records(
        &mut self,
        header: &mut SidecarHeader,
        mut until: KldSoFar,
    ) -> Result<Vec<TokenRecord>> {
        let Some(cut_off) = self.cut_off.take() else {
            return Ok(Vec::new());
        };
        check_same_run(self.output.path(), &cut_off.header, &*header, "reference")?;
        if self.is_stale && self.finished.is_none() {
            return Ok(Vec::new());
        }
        header.clone_from(&cut_off.header);
        let mut records = cut_off.records;
        if let Some(n_seq) = header.backend.as_ref().and_then(|backend| backend.n_seq) {
            let windows = TokenRecord::windows(&records);
            let lengths: Vec<usize> = windows.map(<[TokenRecord]>::len).collect();
            // The last may be cut.
            let n_kept = resume::windows_in_whole_calls(lengths.len().saturating_sub(1), n_seq);
            records.truncate(lengths.iter().take(n_kept).sum());
        }
        records.truncate(until.replay(&records));
        Ok(records)
    }

    /// Begins to write, after the first `n_kept` records of an earlier run.
    fn begin(&mut self, header: &SidecarHeader, n_kept: u64) -> Result<LogWriter> {
        let file = BufWriter::new(self.output.file()?);
        let path = self.output.path();
        let writer = if n_kept > 0 {
            SidecarWriter::resume(file, path, header, n_kept, |out, offset| {
                out.get_ref().set_len(offset)?;
                out.seek(SeekFrom::Start(offset)).map(drop)
            })?
        } else {
            file.get_ref().set_len(0).map_err(Error::from)?;
            SidecarWriter::create(file, path, header)?
        };
        if !header.stored {
            self.output.keep_if_cut_off();
        }
        Ok(writer)
    }

    /// Keeps the `n_records` that were written, for `--resume`, and says so; removes those of stored rows,
    /// which are quickly read again.
    fn keep(self, is_stored: bool, n_records: usize) -> Option<String> {
        let n_kept = if is_stored { 0 } else { n_records as u64 };
        self.output.keep(n_kept, &count_of(n_kept, "token"))
    }
}

type LogWriter = SidecarWriter<BufWriter<File>>;

/// The records of an evaluation so far, those of an earlier run first: in memory, and in the sidecar.
#[derive(Default)]
pub struct TokenLog {
    pub records: Vec<TokenRecord>,
    /// The number of records that an earlier run has measured.
    pub n_resumed: usize,
    /// The time that writing has taken.
    pub writing_time: Duration,
    /// True if the evaluated rows are read from a file.
    is_stored: bool,
    sidecar: SidecarState,
}

/// The sidecar of an evaluation, from its beginning to its end.
#[derive(Default)]
#[expect(clippy::large_enum_variant, reason = "an evaluation has one")]
enum SidecarState {
    /// None is wanted.
    #[default]
    Unwanted,
    /// An earlier run has finished it, and nothing is left to measure.
    Whole(PathBuf),
    /// It grows window by window, so that a run that is cut off keeps its records.
    Growing(ClaimedSidecar, LogWriter),
    /// It could not be written, as on a full disk: why, and what was kept. The records stay in memory.
    Failed(Error),
}

impl TokenLog {
    /// The records of an evaluation that an earlier run has finished.
    pub fn of_finished(records: Vec<TokenRecord>, sidecar: PathBuf) -> Self {
        Self {
            n_resumed: records.len(),
            records,
            sidecar: SidecarState::Whole(sidecar),
            ..Self::default()
        }
    }

    /// The records of an evaluation that an earlier run has stopped early, which stay in their file.
    pub fn of_stopped(records: Vec<TokenRecord>) -> Self {
        Self {
            n_resumed: records.len(),
            records,
            ..Self::default()
        }
    }

    /// The number of windows so far.
    pub fn n_windows(&self) -> u64 {
        TokenRecord::windows(&self.records).count() as u64
    }

    /// The texts of its tokens, where an earlier run has finished its sidecar.
    pub fn finished_texts(&self) -> Result<TokenTexts> {
        Ok(match &self.sidecar {
            SidecarState::Whole(path) => SidecarReader::open(path)?.texts()?,
            _ => TokenTexts::default(),
        })
    }

    /// True if an earlier run has measured all, so that nothing is left to do.
    pub fn is_whole(&self) -> bool {
        matches!(self.sidecar, SidecarState::Whole(_))
    }

    /// Adds the records of the next window, and returns them.
    pub fn push(&mut self, records: Vec<TokenRecord>) -> &[TokenRecord] {
        let n_before = self.records.len();
        let started = Instant::now();
        if let SidecarState::Growing(_, writer) = &mut self.sidecar {
            // What is on the disk is kept if the run is cut off.
            let written = records
                .iter()
                .try_for_each(|record| writer.push(record))
                .and_then(|()| writer.flush());
            if let Err(error) = written
                && let SidecarState::Growing(sidecar, _) = mem::take(&mut self.sidecar)
            {
                let kept = sidecar.keep(self.is_stored, n_before);
                self.sidecar = SidecarState::Failed(with_kept(error.into(), kept));
            }
        }
        self.writing_time += started.elapsed();
        self.records.extend(records);
        self.records.get(n_before..).unwrap_or_default()
    }

    /// Completes the sidecar, if there is one, with the texts of its tokens, and returns its path. A
    /// finished one that could be of another model must have the same values.
    ///
    /// # Errors
    /// Why it could not be written.
    pub fn finish(&mut self, texts: &TokenTexts) -> Result<Option<PathBuf>> {
        let started = Instant::now();
        let (sidecar, writer) = match mem::take(&mut self.sidecar) {
            SidecarState::Unwanted => return Ok(None),
            SidecarState::Failed(error) => return Err(error),
            SidecarState::Whole(path) => return Ok(Some(path)),
            SidecarState::Growing(sidecar, writer) => (sidecar, writer),
        };
        let is_doubtful = sidecar.is_stale || self.is_stored;
        if let Some(finished) = sidecar.finished.as_ref().filter(|_| is_doubtful)
            && let Err(error) = finished.check_values(&self.records)
        {
            sidecar.output.discard();
            return Err(error);
        }
        if let Err(error) = writer.finish(texts) {
            let kept = sidecar.keep(self.is_stored, self.records.len());
            return Err(with_kept(error.into(), kept));
        }
        sidecar.output.commit()?;
        self.writing_time += started.elapsed();
        Ok(Some(sidecar.path))
    }

    /// Removes the sidecar of a run that came to nothing.
    pub fn discard(&mut self) {
        if let SidecarState::Growing(sidecar, _) = mem::take(&mut self.sidecar) {
            sidecar.output.discard();
        }
    }

    /// Keeps the sidecar of a run that was cut off, for `--resume`, and describes what it holds.
    pub fn keep(&mut self) -> Option<String> {
        match mem::take(&mut self.sidecar) {
            SidecarState::Failed(error) => Some(one_line(&error)),
            SidecarState::Growing(sidecar, writer) => {
                drop(writer);
                sidecar.keep(self.is_stored, self.records.len())
            }
            SidecarState::Unwanted | SidecarState::Whole(_) => None,
        }
    }
}

/// The texts of all tokens that records name; none without a model.
pub fn texts_of(records: &[TokenRecord], model: Option<&dyn Model>) -> TokenTexts {
    let Some(model) = model else {
        return TokenTexts::default();
    };
    let tokens: BTreeSet<u32> = records
        .iter()
        .flat_map(|record| [record.token, record.ref_top, record.eval_top])
        .collect();
    tokens
        .into_iter()
        .filter_map(|token| Some((token, model.token_bytes(token)?)))
        .collect()
}

/// The time at which a sidecar was begun, or where the system does not know that, was written to last: a model
/// that has changed since may have changed between its windows.
fn beginning_time(sidecar: &Path) -> Option<SystemTime> {
    let metadata = fs::metadata(sidecar).ok()?;
    [metadata.created(), metadata.modified()]
        .into_iter()
        .flatten()
        .min()
}

/// The time at which a model was last changed; of a split one, any of its files.
fn modification_time(model: &Path) -> Option<SystemTime> {
    parts_of(model)
        .into_iter()
        .filter_map(|file| {
            let metadata = fs::metadata(file).ok()?;
            metadata.modified().ok()
        })
        .max()
}
