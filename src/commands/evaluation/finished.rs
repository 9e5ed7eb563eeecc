//! The finished sidecar that a run finds under the name of its own: only the same measurement may
//! replace it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::{
    ModelIdentity, ReferenceSummary, Shard, SidecarHeader, SidecarReader, TokenRecord, is_sidecar,
};
use serde_json::Value;

use crate::commands::resume::first_difference;
use crate::report::number::{count_of, printable};
use crate::stats::Until;

/// A finished sidecar.
#[derive(Debug)]
pub struct Finished {
    path: PathBuf,
    pub header: SidecarHeader,
}

/// An evaluation as far as it is known before its model is loaded.
pub struct Known<'a> {
    pub model: &'a ModelIdentity,
    /// `None`: a model computes the rows, which is not loaded yet.
    pub reference: Option<&'a ReferenceSummary>,
    /// True if its rows are read from a file.
    pub is_stored: bool,
    pub tokens: Option<ScoredTokens>,
}

/// The tokens that an evaluation scores.
#[derive(Clone, Copy)]
pub struct ScoredTokens {
    /// The most records; of a part, those of the whole. `None` where that is known only at the end.
    pub n_records: Option<u64>,
    pub shard: Option<Shard>,
    pub until: Option<f64>,
}

impl ScoredTokens {
    fn of(header: &SidecarHeader) -> Self {
        Self {
            n_records: header.of_whole().n_records,
            shard: header.shard,
            until: header.until,
        }
    }
}

impl Finished {
    /// Reads the header of the sidecar at `path`; `None` if there is none.
    ///
    /// # Errors
    /// A sidecar whose header is damaged: what it holds is unknown.
    pub fn at(path: &Path) -> Result<Option<Self>> {
        if !is_sidecar(path) {
            return Ok(None);
        }
        // A damaged one may still show what it is.
        let header = SidecarReader::open(path)
            .map(|reader| reader.header().clone())
            .or_else(|_| SidecarReader::open_cut_off(path).map(|sidecar| sidecar.header));
        match header {
            Ok(header) => Ok(Some(Self {
                path: path.to_owned(),
                header,
            })),
            Err(error) => bail!("{error}: {ADVICE}"),
        }
    }

    /// Reads its records.
    pub fn read_all(&self) -> kl_formats::Result<Vec<TokenRecord>> {
        SidecarReader::open(&self.path)?.read_all()
    }

    /// Returns true if it holds the same evaluation under the same label, by the same version of
    /// `kl`: then nothing is left to do.
    pub fn is_as_written_by(&self, header: &SidecarHeader) -> bool {
        let is_same_name = self.header.label == header.label;
        is_same_name && self.header.writer == header.writer && self.check(header).is_ok()
    }

    /// Refuses an evaluation of another model, against another reference or of other tokens.
    pub fn check_known(&self, known: &Known<'_>) -> Result<()> {
        let Some(difference) = self.difference(known) else {
            return Ok(());
        };
        bail!("{}: {difference}: {ADVICE}", self.path.display())
    }

    /// Refuses any other evaluation than its own. What the files are called does not count, nor
    /// do the number of threads, which moves no bits, and the version of `kl`.
    pub fn check(&self, header: &SidecarHeader) -> Result<()> {
        self.check_known(&Known {
            model: header.model.as_ref().unwrap_or(&ModelIdentity::default()),
            reference: Some(&header.reference),
            is_stored: header.stored,
            tokens: Some(ScoredTokens::of(header)),
        })?;
        match first_difference(&set_up(&self.header), &set_up(header)) {
            None => Ok(()),
            Some(difference) => bail!(
                "{}: holds this model with another set-up ({difference}): {ADVICE}",
                self.path.display()
            ),
        }
    }

    /// Refuses an evaluation that would stop elsewhere, as with another `--confidence`. One that
    /// needs more than these records is refused only if it `knows_end`: a stream may have ended
    /// there.
    pub fn check_end(&self, mut until: Until, knows_end: bool) -> Result<()> {
        let Ok(records) = self.read_all() else {
            return Ok(());
        };
        let is_all = self.header.n_records == Some(records.len() as u64);
        let needs_all = until.replay(&records) == records.len();
        if needs_all && (until.is_reached() || is_all || !knows_end) {
            return Ok(());
        }
        bail!(
            "{}: holds {}, where --until stopped with another --confidence or --cluster: {ADVICE}",
            self.path.display(),
            count_of(records.len() as u64, "token")
        )
    }

    /// Refuses values other than its own. Files of rows have no identity by which to tell them
    /// apart.
    pub fn check_values(&self, records: &[TokenRecord]) -> Result<()> {
        let values = |record: &TokenRecord| (record.window, record.position, record.kld.to_bits());
        let is_same = self
            .read_all()
            .is_ok_and(|held| held.iter().map(values).eq(records.iter().map(values)));
        match is_same {
            true => Ok(()),
            false => bail!("{}: holds other values: {ADVICE}", self.path.display()),
        }
    }

    fn difference(&self, known: &Known<'_>) -> Option<String> {
        let there = &self.header;
        let model = there.model.clone().unwrap_or_default();
        if !is_same_model(&model, known.model) {
            let name = name_of(&model);
            return Some(match model.file_name == known.model.file_name {
                true => format!("holds another model that is also named {name}"),
                false => format!("holds another model, {name}"),
            });
        }
        if let Some(reference) = known.reference
            && !is_same_reference(&there.reference, reference)
        {
            return Some(format!(
                "holds {} against another reference, {}",
                name_of(&model),
                described(&there.reference)
            ));
        }
        match (there.stored, known.is_stored) {
            (true, false) => return Some("holds stored rows, as kl compare reads them".to_owned()),
            (false, true) => return Some("holds rows that its model computed".to_owned()),
            _ => {}
        }
        let (held, here) = (ScoredTokens::of(there), known.tokens?);
        let what = match (held.n_records == here.n_records, held.shard == here.shard) {
            (true, true) if held.until == here.until => return None,
            (true, true) => format!("{}, not {}", until(held.until), until(here.until)),
            (true, false) => format!("{}, not {}", part(held.shard), part(here.shard)),
            (false, _) => format!("{}, not {}", tokens(held.n_records), tokens(here.n_records)),
        };
        Some(format!("holds {what}"))
    }
}

/// The advice about a sidecar that is not replaced.
const ADVICE: &str = "name another file with --sidecar, or overwrite it with --force";

/// Compares two models by their hashes; without any, by all that is known.
fn is_same_model(there: &ModelIdentity, here: &ModelIdentity) -> bool {
    match (&there.metadata_sha256, &here.metadata_sha256) {
        (None, None) => there == here,
        _ => there.is_same(here),
    }
}

/// Compares two references by their fingerprints; without any, by all that is known.
fn is_same_reference(there: &ReferenceSummary, here: &ReferenceSummary) -> bool {
    match (&there.fingerprint, &here.fingerprint) {
        (None, None) => there == here,
        (there, here) => there == here,
    }
}

/// The rest of the header, without what moves no number.
fn set_up(header: &SidecarHeader) -> Value {
    let mut header = header.clone();
    header.model = None;
    header.reference = ReferenceSummary::default();
    header.label = None;
    header.model_path = None;
    header.writer = None;
    if let Some(backend) = &mut header.backend {
        backend.threads = None;
    }
    let mut value = serde_json::to_value(header).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("version");
    }
    value
}

fn name_of(model: &ModelIdentity) -> String {
    let name = model.shown_name().map(printable);
    name.unwrap_or_else(|| "an unknown model".to_owned())
}

/// A reference by its name, its text and its model.
fn described(reference: &ReferenceSummary) -> String {
    let name = printable(reference.file_name.as_deref().unwrap_or("without a name"));
    let text = reference
        .text
        .as_ref()
        .and_then(|text| text.name.as_deref());
    let text = text.map(printable);
    match (text, &reference.model) {
        (Some(text), Some(model)) => format!("{name} ({text} by {})", name_of(model)),
        (Some(text), None) => format!("{name} ({text})"),
        (None, Some(model)) => format!("{name} (by {})", name_of(model)),
        (None, None) => name,
    }
}

fn tokens(n: Option<u64>) -> String {
    match n {
        Some(n) => count_of(n, "token"),
        None => "all tokens".to_owned(),
    }
}

fn part(shard: Option<Shard>) -> String {
    match shard {
        Some(shard) => format!("part {} of {}", shard.index, shard.count),
        None => "all parts".to_owned(),
    }
}

fn until(target: Option<f64>) -> String {
    match target {
        Some(target) => format!("the tokens that --until {}% took", 100.0 * target),
        None => "all tokens".to_owned(),
    }
}
