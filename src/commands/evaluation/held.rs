//! The sidecar that a run finds under the name of its own: only the same measurement may replace it.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::{
    Found, ModelIdentity, ReferenceSummary, SidecarHeader, SidecarReader, TokenRecord,
};

use crate::commands::resume::first_difference;
use crate::pipeline::Part;
use crate::report::number::{count_of, printable};
use crate::stats::KldSoFar;

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

    /// Refuses another model than that of `header`, and rows that are read from a file where these were
    /// computed, or the other way round.
    pub fn check_model(&self, header: &SidecarHeader) -> Result<()> {
        let [there, here] =
            [&self.header, header].map(|header| header.model.clone().unwrap_or_default());
        let is_same = match (&there.metadata_sha256, &here.metadata_sha256) {
            (None, None) => there == here,
            _ => there.is_same(&here),
        };
        if !is_same {
            let is_namesake = there.file_name == here.file_name;
            let named = if is_namesake {
                " that is also named"
            } else {
                ","
            };
            let name = name_of(&there);
            return self.refuse(format!("holds another model{named} {name}"));
        }
        match (self.header.stored, header.stored) {
            (true, false) => self.refuse("holds stored rows, as kl compare reads them"),
            (false, true) => self.refuse("holds rows that its model computed"),
            _ => Ok(()),
        }
    }

    /// Refuses another reference than that of `header`, which this run would write.
    pub fn check_reference(&self, header: &SidecarHeader) -> Result<()> {
        let (there, here) = (&self.header.reference, &header.reference);
        let difference = if self.is_before_reference(header) {
            difference_of_expected(&self.header, header)
        } else {
            let is_same = there.fingerprint == here.fingerprint
                && (here.fingerprint.is_some() || there == here);
            (!is_same).then_some("")
        };
        let Some(difference) = difference else {
            return Ok(());
        };
        let model = name_of(&self.header.model.clone().unwrap_or_default());
        let reference = described(there);
        self.refuse(format!(
            "holds {model} against another reference, {reference}{difference}"
        ))
    }

    /// Refuses another model, another reference, or other tokens of it than those of `header`.
    fn check_what(&self, header: &SidecarHeader) -> Result<()> {
        self.check_model(header)?;
        self.check_reference(header)?;
        let [held, wanted] = [&self.header, header].map(scope);
        let n_unknown = usize::from(self.is_before_reference(header));
        let mut both = held.into_iter().zip(wanted).take(3 - n_unknown);
        both.find(|(held, wanted)| held != wanted)
            .map_or(Ok(()), |(held, wanted)| {
                self.refuse(format!("holds {held}, not {wanted}"))
            })
    }

    /// Whether a model is still to compute the reference of `header`: it has no fingerprint yet, and how
    /// many of its tokens are scored is not known.
    fn is_before_reference(&self, header: &SidecarHeader) -> bool {
        self.header.reference.fingerprint.is_some() && header.reference.fingerprint.is_none()
    }

    /// Refuses what already differs before a model is loaded. Of the set-up, `header` has no more than
    /// what is settled by then.
    pub fn check_ahead(&self, header: &SidecarHeader) -> Result<()> {
        self.check_what(header)?;
        let mut expected = self.header.clone();
        if let (Some(expected), Some(known)) = (&mut expected.backend, &header.backend) {
            expected.llama_cpp.clone_from(&known.llama_cpp);
            expected.flash_attn.clone_from(&known.flash_attn);
            expected.type_k.clone_from(&known.type_k);
            expected.type_v.clone_from(&known.type_v);
            if known.n_batch.is_some() {
                (expected.n_batch, expected.n_ubatch) = (known.n_batch, known.n_ubatch);
                (expected.n_seq, expected.equal_calls) = (known.n_seq, known.equal_calls);
            }
        }
        self.check_set_up(&self.header, &expected)
    }

    /// Refuses any other evaluation than its own. The names of the files do not count, nor do the number
    /// of threads, which does not change a bit, and the versions of `kl` and of the sidecar.
    pub fn check(&self, header: &SidecarHeader) -> Result<()> {
        self.check_what(header)?;
        let mut held = self.header.clone();
        held.version = header.version;
        held.reference.clone_from(&header.reference);
        held.model.clone_from(&header.model);
        held.model_path.clone_from(&header.model_path);
        held.writer.clone_from(&header.writer);
        held.label.clone_from(&header.label);
        if let (Some(there), Some(here)) = (&mut held.backend, &header.backend) {
            there.threads = here.threads;
            // Earlier versions did not record it.
            there.kv_cache_bytes = here.kv_cache_bytes;
        }
        self.check_set_up(&held, header)
    }

    fn check_set_up(&self, held: &SidecarHeader, header: &SidecarHeader) -> Result<()> {
        first_difference(held, header).map_or(Ok(()), |difference| {
            self.refuse(format!("holds this model in another set-up ({difference})"))
        })
    }

    /// Refuses an evaluation that would stop elsewhere, as with another `--confidence`. One that
    /// needs more than these records is refused only if it `knows_end`: a stream may have ended
    /// there.
    pub fn check_end(&self, mut until: KldSoFar, knows_end: bool) -> Result<()> {
        let Ok(records) = self.read_all() else {
            return Ok(());
        };
        let is_all = self.header.n_records == Some(records.len() as u64);
        let needs_all = until.replay(&records) == records.len();
        if needs_all && (until.is_reached() || is_all || !knows_end) {
            return Ok(());
        }
        let held = count_of(records.len() as u64, "token");
        self.refuse(format!(
            "holds {held}, where --until stopped with another --confidence or --cluster"
        ))
    }

    /// Refuses values other than its own. Files of rows have no identity by which to tell them
    /// apart.
    pub fn check_values(&self, records: &[TokenRecord]) -> Result<()> {
        let values = |record: &TokenRecord| (record.window, record.position, record.kld.to_bits());
        match self.read_all() {
            Ok(held) if held.iter().map(values).eq(records.iter().map(values)) => Ok(()),
            _ => self.refuse("holds other values"),
        }
    }

    /// Fails with the reason why this file is not replaced.
    fn refuse(&self, why: impl Display) -> Result<()> {
        bail!("{}: {why}: {ADVICE}", self.path.display())
    }
}

/// The advice about a sidecar that is not replaced.
const ADVICE: &str = "name another file with --sidecar, or overwrite it with --force";

/// Returns by what the reference that `held` is against differs from the one that is expected, if what
/// is known of both shows it.
fn difference_of_expected(held: &SidecarHeader, expected: &SidecarHeader) -> Option<&'static str> {
    fn differ<T: PartialEq>(held: &Option<T>, known: &Option<T>) -> bool {
        held.is_some() && known.is_some() && held != known
    }
    let (there, here) = (&held.reference, &expected.reference);
    let text_of = |of: &ReferenceSummary| of.text.clone().unwrap_or_default();
    let (held_text, text) = (text_of(there), text_of(here));
    let n_ctx = Some(expected.n_ctx).filter(|&n| n > 0);
    if there.kind != here.kind {
        return Some(", which is of another kind");
    }
    if let (Some(held), Some(here)) = (&there.model, &here.model)
        && !held.is_same(here)
    {
        return Some(", which has another model");
    }
    if differ(&held_text.sha256, &text.sha256) {
        return Some(", which has another text");
    }
    if expected.prompts && there.sampling != here.sampling {
        return Some(", whose answers were chosen in another way");
    }
    let has_other_windows = differ(&held_text.n_tokens, &text.n_tokens)
        || differ(&Some(held.n_ctx), &n_ctx)
        || differ(&held.first_scored, &expected.first_scored);
    if has_other_windows {
        return Some(", whose windows are others");
    }
    let has_other_spans = !expected.spans.is_empty() && expected.spans != held.spans;
    has_other_spans.then_some(", which has other spans")
}

fn name_of(model: &ModelIdentity) -> String {
    let name = model.shown_name().map(printable);
    name.unwrap_or_else(|| "an unknown model".to_owned())
}

/// A reference by its name, its text and its model.
fn described(reference: &ReferenceSummary) -> String {
    let name = printable(reference.file_name.as_deref().unwrap_or("without a name"));
    let text = reference.text.as_ref().and_then(|text| text.name.as_ref());
    let text = text.map(|text| printable(text));
    let model = reference.model.as_ref();
    let model = model.map(|model| format!("by {}", name_of(model)));
    match [text, model].into_iter().flatten().collect::<Vec<_>>() {
        details if details.is_empty() => name,
        details => format!("{name} ({})", details.join(" ")),
    }
}

/// The tokens that an evaluation scores: of which part, until when, and how many of the whole.
fn scope(header: &SidecarHeader) -> [String; 3] {
    let part = header.shard.map(Part::from);
    let until = header.until;
    let until = until.map(|until| format!("tokens --until {}%", 100.0 * until));
    let all = || "all tokens".to_owned();
    let n_records = header.shard.map(|shard| shard.n_rows).or(header.n_records);
    [
        part.map_or_else(|| "all parts".to_owned(), |part| format!("part {part}")),
        until.unwrap_or_else(all),
        n_records.map_or_else(all, |n| count_of(n, "token")),
    ]
}
