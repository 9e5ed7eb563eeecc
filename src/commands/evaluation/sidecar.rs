//! The sidecar of an evaluation: its name is claimed before the model is loaded, then it is begun or
//! continued, grows with each window, and is finished, kept for `--resume` or discarded.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom};
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Error, Result, anyhow, bail};
use kl_formats::{
    BackendIdentity, CutOffSidecar, Fault, SidecarHeader, SidecarReader, SidecarWriter,
    TokenRecord, TokenTexts,
};

use super::held::HeldSidecar;
use crate::commands::folder::parts_of;
use crate::commands::observer::one_line;
use crate::commands::output::{Existing, PartialFile};
use crate::commands::resume::{check_same_run, keep_whole_call_records, nothing_to_resume};
use crate::commands::settings::{ResultSettings, Subject};
use crate::engine::Vocabulary;
use crate::pipeline::ReferenceRows;
use crate::report::number::count_of;
use crate::stats::KldSoFar;

/// A sidecar whose name and partial file are claimed, before the model is loaded.
pub struct ClaimedSidecar {
    pub path: PathBuf,
    output: PartialFile,
    /// True to continue what an earlier run left.
    resumes: bool,
    /// The finished one that has the name, which only the same measurement may replace; `None` if
    /// there is none, or with `--force`.
    pub finished: Option<HeldSidecar>,
    /// The remains of a run that was cut off, if it is continued.
    cut_off: Option<kl_formats::Result<CutOffSidecar>>,
    /// True if the model's file is newer than the sidecar that an earlier run has left: it may be
    /// another model, even if 64 samples of its bytes are the same.
    pub is_stale: bool,
    /// True if its rows were stored: nothing of it is kept to be resumed, and only the same values
    /// replace a finished one.
    is_stored: bool,
}

/// The records that an earlier run has measured of the same model.
#[derive(Default)]
pub struct Earlier {
    /// With `--until`, no more than a run needs.
    pub records: Vec<TokenRecord>,
    /// True if they are all that there are to measure, and in a finished file.
    is_whole: bool,
}

impl ClaimedSidecar {
    /// Claims the name that the settings give, if they want a sidecar. A finished one that has the name
    /// is there to be [checked](Self::finished); any other file is refused unless `--force`.
    pub fn claim(settings: &ResultSettings, subject: &Subject) -> Result<Option<Self>> {
        let Some(path) = settings.sidecar_path(subject) else {
            return Ok(None);
        };
        let (existing, mut finished) = (settings.existing, None);
        if existing != Existing::Replace {
            finished = HeldSidecar::at(&path)?;
        }
        let may_replace = existing == Existing::Replace || finished.is_some();
        let output =
            PartialFile::create(&path, may_replace, existing).map_err(|error| {
                match error.root_cause().downcast_ref() {
                    Some(cause) if is_of_place(cause) => {
                        anyhow!("{error:#}: name another file with --sidecar, or use --no-sidecar")
                    }
                    _ => error,
                }
            })?;
        let left = match &finished {
            Some(finished) => Some(finished.path.as_path()),
            None => output.is_resumed().then(|| output.path()),
        };
        let left = left.and_then(|left| fs::metadata(left).ok()?.modified().ok());
        let cut_off = output.is_resumed().then(|| output.path());
        Ok(Some(Self {
            is_stale: left.is_some_and(|left| modified(&subject.path) > Some(left)),
            cut_off: cut_off.map(SidecarReader::open_cut_off),
            resumes: existing == Existing::Resume,
            is_stored: false,
            output,
            path,
            finished,
        }))
    }

    /// The sidecar that the evaluation would replace or continue, to be checked before the model is
    /// loaded; `None` if there is none, or nothing whole.
    pub fn held(&self) -> Option<HeldSidecar> {
        let cut_off = || {
            Some(HeldSidecar {
                path: self.output.path().to_owned(),
                header: self.begun()?.clone(),
            })
        };
        self.finished.clone().or_else(cut_off)
    }

    /// The header of the run that was cut off.
    fn begun(&self) -> Option<&SidecarHeader> {
        let cut_off = self.cut_off.as_ref()?.as_ref().ok()?;
        Some(&cut_off.header)
    }

    /// Returns the backend with which an earlier run of this model against this reference computed
    /// rows, if it is to be resumed or replaced.
    pub fn backend_of_begun(&self, header: &SidecarHeader) -> Option<BackendIdentity> {
        let finished = self.finished.as_ref().map(|finished| &finished.header);
        let begun = self.begun().or(finished)?;
        let is_same = begun.model == header.model && begun.reference == header.reference;
        begun.backend.clone().filter(|_| is_same)
    }

    /// Reads the records of an earlier run of the same evaluation, as a finished one was found to be;
    /// none without `--resume`. The path of the model is the earlier run's in `header` from then on: the
    /// finished file has one path, and a model is known by its hashes.
    ///
    /// # Errors
    /// If a sidecar that was cut off belongs to another evaluation.
    pub fn earlier(&mut self, header: &mut SidecarHeader, mut until: KldSoFar) -> Result<Earlier> {
        if let Some(records) = self.finished_records(header, until.clone()) {
            let is_whole = true;
            return Ok(Earlier { records, is_whole });
        }
        let cut_off = match self.cut_off.take() {
            // Not even its header is whole.
            None => return Ok(Earlier::default()),
            Some(Err(error)) => match error.fault {
                Fault::Truncated { .. } => return Ok(Earlier::default()),
                Fault::NotASidecar(_) => bail!(nothing_to_resume(&self.output, &error)),
                _ => return Err(error.into()),
            },
            Some(Ok(cut_off)) => cut_off,
        };
        if cut_off.header.model == header.model {
            header.model_path.clone_from(&cut_off.header.model_path);
        }
        check_same_run(self.output.path(), &cut_off.header, header, "reference")?;
        if self.is_stale && self.finished.is_none() {
            return Ok(Earlier::default());
        }
        let n_seq = header.backend.as_ref().and_then(|backend| backend.n_seq);
        let mut records = cut_off.records;
        keep_whole_call_records(&mut records, n_seq.unwrap_or(1));
        records.truncate(until.replay(&records));
        let is_whole = false;
        Ok(Earlier { records, is_whole })
    }

    /// The records of the finished file, where they are all that the run would measure: under the same
    /// label, by the same version of `kl`, nothing is left to do. A damaged file is replaced.
    fn finished_records(
        &self,
        header: &SidecarHeader,
        mut until: KldSoFar,
    ) -> Option<Vec<TokenRecord>> {
        let finished = self.finished.as_ref()?;
        let there = &finished.header;
        let is_same = there.label == header.label && there.writer == header.writer;
        if !self.resumes || self.is_stale || !is_same {
            return None;
        }
        let records = finished.read_all().ok()?;
        // Only the stream shows whether its sidecar holds all that this run wants, unless the records
        // show that the run would stop early.
        until.replay(&records);
        let has_all = header.n_records == Some(records.len() as u64);
        let ends = header.until.is_none() && header.n_records.is_some();
        (ends || has_all || until.is_reached()).then_some(records)
    }

    /// Begins to write, after the first `n_kept` records of an earlier run.
    fn begin(&mut self, header: &SidecarHeader, n_kept: u64) -> Result<Writer> {
        self.is_stored = header.stored;
        let file = BufWriter::new(self.output.file()?);
        let path = self.output.path();
        let writer = if n_kept > 0 {
            let cut_to = |out: &mut BufWriter<File>, offset| {
                out.get_ref().set_len(offset)?;
                out.seek(SeekFrom::Start(offset)).map(drop)
            };
            SidecarWriter::resume(file, path, header, n_kept, cut_to)?
        } else {
            file.get_ref().set_len(0).map_err(Error::from)?;
            SidecarWriter::create(file, path, header)?
        };
        if !self.is_stored {
            self.output.keep_if_cut_off();
        }
        Ok(writer)
    }

    /// Keeps the `n` records that were written, for `--resume`, and describes them.
    fn keep(self, n: u64) -> Option<String> {
        if n == 0 || self.is_stored {
            self.output.discard();
            return None;
        }
        Some(format!(
            "{} keeps {}: --resume continues it",
            self.output.path().display(),
            count_of(n, "token")
        ))
    }

    /// Keeps what was written until an error came, and adds that to the error.
    fn keep_after(self, error: Error, n: u64) -> Error {
        match self.keep(n) {
            Some(kept) => anyhow!("{error:#}; {kept}"),
            None => error,
        }
    }

    /// Writes the end of the file and gives it its name. A finished one that could be of another model
    /// must have the same values.
    fn finish(
        self,
        writer: Writer,
        records: &[TokenRecord],
        texts: &TokenTexts,
    ) -> Result<PathBuf> {
        let finished = self.finished.as_ref();
        if let Some(finished) = finished.filter(|_| self.is_stale || self.is_stored)
            && let Err(error) = finished.check_values(records)
        {
            self.output.discard();
            return Err(error);
        }
        if let Err(error) = writer.finish(texts) {
            return Err(self.keep_after(error.into(), records.len() as u64));
        }
        self.output.commit()?;
        Ok(self.path)
    }
}

type Writer = SidecarWriter<BufWriter<File>>;

/// The records of an evaluation so far, those of an earlier run first: in memory, and in the sidecar.
#[derive(Default)]
pub struct TokenLog {
    pub records: Vec<TokenRecord>,
    /// The number of records that an earlier run has measured.
    pub n_resumed: usize,
    /// The time that writing has taken.
    pub in_writing: Duration,
    sidecar: SidecarState,
}

/// How far the sidecar of an evaluation is.
#[derive(Default)]
#[expect(clippy::large_enum_variant, reason = "an evaluation has one")]
enum SidecarState {
    /// None is wanted.
    #[default]
    Unwanted,
    /// An earlier run has finished it, and nothing is left to measure.
    Whole(PathBuf),
    /// It grows window by window, so that a run that is cut off keeps its records.
    Growing(ClaimedSidecar, Writer),
    /// It could not be written, as on a full disk: why, and what was kept. The records stay in memory.
    Failed(Error),
}

impl TokenLog {
    /// Opens a log that starts with an earlier run's records, and removes their windows from `rows`.
    ///
    /// # Errors
    /// If the earlier records have other positions than `rows`, or the reference cannot be read.
    pub fn open(
        mut sidecar: ClaimedSidecar,
        earlier: Earlier,
        header: &SidecarHeader,
        rows: &mut ReferenceRows<'_>,
    ) -> Result<Self> {
        let mut records = earlier.records;
        if !earlier.is_whole && !records.is_empty() {
            records.truncate(rows.resume_after(&records)?);
        }
        let n_kept = records.len() as u64;
        Ok(Self {
            n_resumed: records.len(),
            records,
            in_writing: Duration::ZERO,
            sidecar: if earlier.is_whole {
                SidecarState::Whole(sidecar.path)
            } else {
                match sidecar.begin(header, n_kept) {
                    Ok(writer) => SidecarState::Growing(sidecar, writer),
                    Err(error) => SidecarState::Failed(sidecar.keep_after(error, n_kept)),
                }
            },
        })
    }

    /// True if an earlier run has measured all, so that nothing is left to do.
    pub fn is_whole(&self) -> bool {
        matches!(self.sidecar, SidecarState::Whole(_))
    }

    /// Adds the records of the next window, and returns them.
    pub fn push(&mut self, records: Vec<TokenRecord>) -> &[TokenRecord] {
        let n_before = self.records.len();
        self.records.extend(records);
        let new = self.records.split_at(n_before).1;
        let started = Instant::now();
        if let SidecarState::Growing(_, writer) = &mut self.sidecar
            && let Err(error) = append(writer, new)
            && let SidecarState::Growing(sidecar, _) = mem::take(&mut self.sidecar)
        {
            self.sidecar = SidecarState::Failed(sidecar.keep_after(error, n_before as u64));
        }
        self.in_writing += started.elapsed();
        new
    }

    /// Completes the sidecar, if there is one, with the texts of its tokens, and returns its path.
    ///
    /// # Errors
    /// Why it could not be written.
    pub fn finish(&mut self, texts: &TokenTexts) -> Result<Option<PathBuf>> {
        let started = Instant::now();
        let path = match mem::take(&mut self.sidecar) {
            SidecarState::Unwanted => return Ok(None),
            SidecarState::Failed(error) => return Err(error),
            SidecarState::Whole(path) => path,
            SidecarState::Growing(sidecar, writer) => {
                sidecar.finish(writer, &self.records, texts)?
            }
        };
        self.in_writing += started.elapsed();
        Ok(Some(path))
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
                sidecar.keep(self.records.len() as u64)
            }
            SidecarState::Unwanted | SidecarState::Whole(_) => None,
        }
    }
}

/// Writes records, so that they are kept if the run is cut off.
fn append(writer: &mut Writer, records: &[TokenRecord]) -> Result<()> {
    for record in records {
        writer.push(record)?;
    }
    Ok(writer.flush()?)
}

/// The texts of all tokens that records name; none without a vocabulary.
pub fn texts_of(records: &[TokenRecord], vocabulary: Option<&dyn Vocabulary>) -> TokenTexts {
    let Some(vocabulary) = vocabulary else {
        return TokenTexts::default();
    };
    let named = |record: &TokenRecord| [record.token, record.ref_top, record.eval_top];
    let tokens: BTreeSet<u32> = records.iter().flat_map(named).collect();
    let text = |token| Some((token, vocabulary.token_bytes(token)?));
    tokens.into_iter().filter_map(text).collect()
}

/// The time at which a model was last changed; of a split one, any of its files.
fn modified(model: &Path) -> Option<SystemTime> {
    let files = parts_of(model).into_iter();
    let times = files.filter_map(|file| fs::metadata(file).and_then(|about| about.modified()).ok());
    times.max()
}

/// Whether the file cannot be where it was named: its name is too long, or its folder is not there or
/// not writable.
fn is_of_place(error: &io::Error) -> bool {
    use io::ErrorKind::{
        InvalidFilename, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    matches!(
        error.kind(),
        InvalidFilename | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem
    )
}
