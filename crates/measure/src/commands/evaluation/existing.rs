//! The sidecar that a run finds under the name of its own: only the same measurement may replace it.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::{
    Aspect, Difference, Effect, Found, ModelIdentity, RunKey, Setting, SidecarHeader,
    SidecarReader, TokenRecord,
};
use kl_report::number::{count_of, printable};
use kl_stats::stats::KldSoFar;

/// The advice about a sidecar that is not replaced.
const ADVICE: &str = "name another file with --sidecar, or overwrite it with --force";

/// A sidecar that is there already.
#[derive(Debug, Clone)]
pub struct ExistingSidecar {
    pub path: PathBuf,
    pub header: SidecarHeader,
}

impl ExistingSidecar {
    /// Reads the header of the sidecar at `path`; `None` if there is none.
    ///
    /// # Errors
    /// A sidecar whose header is damaged: what it holds is unknown.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        if Found::look(path) != Found::Sidecar {
            return Ok(None);
        }
        // A damaged one may still show what it is.
        let header = SidecarReader::open(path)
            .map(|reader| reader.header.clone())
            .or_else(|_| SidecarReader::open_cut_off(path).map(|sidecar| sidecar.header));
        let path = path.to_owned();
        match header {
            Ok(header) => Ok(Some(Self { path, header })),
            Err(error) => bail!("{error}: {ADVICE}"),
        }
    }

    /// Reads its records.
    pub fn read_all(&self) -> kl_formats::Result<Vec<TokenRecord>> {
        SidecarReader::open(&self.path)?.read_all()
    }

    /// Refuses any other evaluation than that of `header`. The names of the files do not count, nor do
    /// the versions of `kl` and of the sidecar, and the number of threads, which does not change a bit.
    /// `is_ahead`: before the run is planned, when what `header` does not hold is not known yet.
    pub fn check(&self, header: &SidecarHeader, is_ahead: bool) -> Result<()> {
        let mut this_run = RunKey::from(header);
        if is_ahead {
            this_run.forget_unplanned();
            // A part's header counts the records of the whole; with a reference that a model computes, or evaluated
            // rows that are stored, it counts none.
            let counts_records = header.reference.fingerprint.is_some() && !header.stored;
            if header.shard.is_some() || !counts_records {
                this_run.windows.n_rows = None;
            }
        }
        let makes_another = |difference: &Difference| {
            let is_of_set_up = matches!(difference.what, Aspect::SetUp(_));
            let changes_rows = is_of_set_up || difference.effect == Effect::Numbers;
            changes_rows && difference.what != Aspect::SetUp(Setting::Threads)
        };
        let Some(difference) = this_run
            .diff(&RunKey::from(&self.header))
            .into_iter()
            .find(makes_another)
        else {
            return Ok(());
        };
        let model = self
            .header
            .model
            .as_ref()
            .and_then(ModelIdentity::shown_name);
        let reference = self.header.reference.file_name.as_deref();
        let [model, reference] = [model, reference].map(|name| printable(name.unwrap_or("a file")));
        self.refuse(format!(
            "holds another evaluation, of {model} against {reference} ({difference})"
        ))
    }

    /// Refuses an evaluation that would stop elsewhere, as with another `--confidence`. One that
    /// needs more than these records is refused only if it `knows_end`: a stream may have ended
    /// there.
    pub fn check_end(&self, mut until: KldSoFar, knows_end: bool) -> Result<()> {
        let Ok(records) = self.read_all() else {
            return Ok(());
        };
        let n = records.len();
        let is_all = self.header.n_records == Some(n as u64);
        if until.replay(&records) == n && (until.is_reached() || is_all || !knows_end) {
            return Ok(());
        }
        let tokens = count_of(n as u64, "token");
        self.refuse(format!(
            "holds {tokens}, where --until stopped with another --confidence or --cluster"
        ))
    }

    /// Refuses values other than its own. Files of rows have no identity by which to tell them
    /// apart.
    pub fn check_values(&self, records: &[TokenRecord]) -> Result<()> {
        let Ok(own_records) = self.read_all() else {
            // A damaged one may be replaced.
            return Ok(());
        };
        let values = |record: &TokenRecord| (record.window, record.position, record.kld.to_bits());
        if own_records
            .iter()
            .map(values)
            .eq(records.iter().map(values))
        {
            return Ok(());
        }
        self.refuse("holds other values")
    }

    /// Refuses rows that come through a pipe: that they are others would be known only at its end.
    ///
    /// # Errors
    /// Always.
    pub fn refuse_pipe(&self, pipe: &Path) -> Result<()> {
        self.refuse(format!(
            "is there already, and may hold other rows than those that come through {}",
            pipe.display()
        ))
    }

    /// Fails with the reason why this file is not replaced.
    fn refuse(&self, reason: impl Display) -> Result<()> {
        bail!("{}: {reason}: {ADVICE}", self.path.display())
    }
}
