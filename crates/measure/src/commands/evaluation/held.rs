//! The sidecar that a run finds under the name of its own: only the same measurement may replace it.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::{
    Found, ModelIdentity, ReferenceSummary, SidecarHeader, SidecarReader, TokenRecord,
};
use kl_report::number::{count_of, printable};
use kl_stats::stats::KldSoFar;
use serde_json::Value;

use crate::commands::resume::first_difference;

/// The advice about a sidecar that is not replaced.
const ADVICE: &str = "name another file with --sidecar, or overwrite it with --force";

/// A sidecar that is there already.
#[derive(Debug, Clone)]
pub struct HeldSidecar {
    pub path: PathBuf,
    pub header: SidecarHeader,
}

impl HeldSidecar {
    /// Reads the header of the sidecar at `path`; `None` if there is none.
    ///
    /// # Errors
    /// A sidecar whose header is damaged: what it holds is unknown.
    pub fn at(path: &Path) -> Result<Option<Self>> {
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
        let (mut there, mut here) = (self.header.clone(), header.clone());
        here.version = there.version;
        here.model_path.clone_from(&there.model_path);
        here.writer.clone_from(&there.writer);
        here.label.clone_from(&there.label);
        take_if_same(&mut here.model, there.model.as_ref());
        take_reference_if_same(&mut here.reference, &there.reference);
        if let (Some(here), Some(there)) = (&mut here.backend, &mut there.backend) {
            here.threads = there.threads;
            // Earlier versions did not record it.
            here.kv_cache_bytes = there.kv_cache_bytes;
            here.kv_cache_sizes.clone_from(&there.kv_cache_sizes);
            // Earlier versions recorded a batch without these: they decoded one window a call.
            for backend in [here, there] {
                let is_known = backend.n_batch.is_some();
                backend.n_seq = backend.n_seq.or(is_known.then_some(1));
                backend.equal_calls = backend.equal_calls.or(is_known.then_some(false));
            }
        }
        // Ahead, a part's header counts the records of the whole; with a reference that a model computes,
        // or evaluated rows that are stored, it counts none.
        let counts_records = here.reference.fingerprint.is_some() && !here.stored;
        if is_ahead && (here.shard.is_some() || !counts_records) {
            here.n_records = there.n_records;
        }
        let there = serde_json::to_value(there)?;
        let mut here = serde_json::to_value(here)?;
        if is_ahead {
            fill_unknown(&mut here, &there);
        }
        first_difference(&there, &here).map_or(Ok(()), |difference| {
            let model = self
                .header
                .model
                .as_ref()
                .and_then(ModelIdentity::shown_name);
            let reference = self.header.reference.file_name.as_deref();
            let [model, reference] = [model, reference].map(|of| printable(of.unwrap_or("a file")));
            self.refuse(format!(
                "holds another evaluation, of {model} against {reference} ({difference})"
            ))
        })
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
        let held = count_of(n as u64, "token");
        self.refuse(format!(
            "holds {held}, where --until stopped with another --confidence or --cluster"
        ))
    }

    /// Refuses values other than its own. Files of rows have no identity by which to tell them
    /// apart.
    pub fn check_values(&self, records: &[TokenRecord]) -> Result<()> {
        let Ok(held) = self.read_all() else {
            // A damaged one may be replaced.
            return Ok(());
        };
        let values = |record: &TokenRecord| (record.window, record.position, record.kld.to_bits());
        if held.iter().map(values).eq(records.iter().map(values)) {
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
    fn refuse(&self, why: impl Display) -> Result<()> {
        bail!("{}: {why}: {ADVICE}", self.path.display())
    }
}

/// Replaces a model by the `held` one, which may have other names, if hashes show that they are the same.
fn take_if_same(model: &mut Option<ModelIdentity>, held: Option<&ModelIdentity>) {
    if let (Some(model), Some(held)) = (model, held)
        && model.is_same(held)
    {
        model.clone_from(held);
    }
}

/// Replaces a reference by the one that is `held`, if they are the same. One that a model is still to
/// compute has no fingerprint yet, and is known by its model and its text.
fn take_reference_if_same(reference: &mut ReferenceSummary, held: &ReferenceSummary) {
    if held.fingerprint.is_some() && reference.fingerprint == held.fingerprint {
        reference.clone_from(held);
    } else if reference.fingerprint.is_none() && held.fingerprint.is_some() {
        reference.file_name.clone_from(&held.file_name);
        take_if_same(&mut reference.model, held.model.as_ref());
        if let (Some(text), Some(held)) = (&mut reference.text, &held.text) {
            text.name.clone_from(&held.name);
        }
    }
}

/// The keys for which null means "none" also before anything is loaded, and not "unknown yet".
const ALWAYS_KNOWN: [&str; 5] = ["sampling", "until", "shard", "n_records", "weights"];

/// Takes what is not known here, which is null or a count of 0, from there.
fn fill_unknown(here: &mut Value, there: &Value) {
    let (Value::Object(here), Value::Object(there)) = (here, there) else {
        return;
    };
    for (key, known) in there {
        let value = here.entry(key).or_insert(Value::Null);
        let is_unknown = value.is_null() && !ALWAYS_KNOWN.contains(&key.as_str());
        if is_unknown || (key.starts_with("n_") && *value == 0) {
            value.clone_from(known);
        }
        fill_unknown(value, known);
    }
}
