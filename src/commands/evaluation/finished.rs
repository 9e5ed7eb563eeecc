//! The finished sidecar that a run finds under the name of its own: only the same measurement may
//! replace it.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow, bail};
use kl_formats::{
    About, BackendIdentity, ModelIdentity, ReferenceSummary, SidecarHeader, SidecarReader,
    TextIdentity, TokenRecord, is_sidecar,
};

use crate::commands::resume::first_difference;
use crate::pipeline::Part;
use crate::report::number::{count_of, printable};
use crate::stats::Until;

/// A finished sidecar.
#[derive(Debug, Clone)]
pub struct Finished {
    path: PathBuf,
    pub header: SidecarHeader,
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

    /// Refuses another model, and rows that are read from a file where these were computed, or the
    /// other way round.
    pub fn check_model(&self, model: &ModelIdentity, is_stored: bool) -> Result<()> {
        let there = self.header.model.clone().unwrap_or_default();
        let is_same = match (&there.metadata_sha256, &model.metadata_sha256) {
            (None, None) => there == *model,
            _ => there.is_same(model),
        };
        if !is_same {
            let named = match there.file_name == model.file_name {
                true => " that is also named",
                false => ",",
            };
            let name = name_of(&there);
            return Err(self.refused(format!("holds another model{named} {name}")));
        }
        match (self.header.stored, is_stored) {
            (true, false) => Err(self.refused("holds stored rows, as kl compare reads them")),
            (false, true) => Err(self.refused("holds rows that its model computed")),
            _ => Ok(()),
        }
    }

    /// Refuses another reference: one of another fingerprint or, where neither has one, one that is
    /// described in another way.
    pub fn check_reference(&self, reference: &ReferenceSummary) -> Result<()> {
        let there = &self.header.reference;
        let is_same = match (&there.fingerprint, &reference.fingerprint) {
            (None, None) => there == reference,
            (there, here) => there == here,
        };
        match is_same {
            true => Ok(()),
            false => Err(self.refused(self.against_another())),
        }
    }

    /// Refuses a reference that is already known to be another, before it has a fingerprint: its
    /// rows or their tokens are still to be computed. What is not known of it may be the same.
    pub fn check_expected_reference(&self, about: &About) -> Result<()> {
        fn differ<T: PartialEq>(held: &Option<T>, known: &Option<T>) -> bool {
            held.is_some() && known.is_some() && held != known
        }
        let held = &self.header.reference;
        let text = |of: &Option<TextIdentity>| of.clone().unwrap_or_default();
        let (held_text, text) = (text(&held.text), text(&about.text));
        let models = held.model.as_ref().zip(about.model.as_ref());
        let prompts = about.prompts.as_ref();
        let sampling = prompts.map(|prompts| prompts.sampling);
        let spans = prompts.map_or(&[][..], |prompts| &prompts.spans);
        let why = if held.kind.as_deref() != Some(about.kind.name()) {
            "which is of another kind"
        } else if models.is_some_and(|(held, here)| !held.is_same(here)) {
            "which has another model"
        } else if differ(&held_text.sha256, &text.sha256) {
            "which has another text"
        } else if sampling.is_some_and(|sampling| sampling != held.sampling) {
            "whose answers were chosen in another way"
        } else if differ(&held_text.n_tokens, &text.n_tokens)
            || differ(
                &Some(self.header.n_ctx),
                &Some(about.n_ctx).filter(|&n| n > 0),
            )
            || differ(&self.header.first_scored, &about.first_scored)
        {
            "whose windows are others"
        } else if !spans.is_empty() && *spans != self.header.spans {
            "which has other spans"
        } else {
            return Ok(());
        };
        Err(self.refused(format!("{}, {why}", self.against_another())))
    }

    fn against_another(&self) -> String {
        let model = name_of(&self.header.model.clone().unwrap_or_default());
        let reference = described(&self.header.reference);
        format!("holds {model} against another reference, {reference}")
    }

    /// Refuses the evaluation of other tokens.
    pub fn check_tokens(&self, header: &SidecarHeader) -> Result<()> {
        self.check_goal(header.shard.map(Part::from), header.until)?;
        let [held, wanted] = [&self.header, header].map(n_tokens_of);
        match held == wanted {
            true => Ok(()),
            false => Err(self.refused(format!("holds {held}, not {wanted}"))),
        }
    }

    /// Refuses the evaluation of another part, or one that is to stop elsewhere.
    pub fn check_goal(&self, part: Option<Part>, until: Option<f64>) -> Result<()> {
        let held = goal(self.header.shard.map(Part::from), self.header.until);
        let mut both = held.into_iter().zip(goal(part, until));
        match both.find(|(held, wanted)| held != wanted) {
            None => Ok(()),
            Some((held, wanted)) => Err(self.refused(format!("holds {held}, not {wanted}"))),
        }
    }

    /// Refuses a set-up that already differs in what is `known` of it before a model is loaded.
    pub fn check_settled(&self, known: &BackendIdentity) -> Result<()> {
        let mut settled = self.header.backend.clone().unwrap_or_default();
        settled.llama_cpp.clone_from(&known.llama_cpp);
        settled.flash_attn.clone_from(&known.flash_attn);
        settled.type_k.clone_from(&known.type_k);
        settled.type_v.clone_from(&known.type_v);
        if known.n_batch.is_some() {
            (settled.n_batch, settled.n_ubatch) = (known.n_batch, known.n_ubatch);
            (settled.n_seq, settled.equal_calls) = (known.n_seq, known.equal_calls);
        }
        let mut header = self.header.clone();
        header.backend = Some(settled);
        self.check_set_up(&self.header, &header)
    }

    /// Refuses an evaluation whose header differs from what is `held`.
    fn check_set_up(&self, held: &SidecarHeader, header: &SidecarHeader) -> Result<()> {
        match first_difference(held, header) {
            None => Ok(()),
            Some(difference) => {
                Err(self.refused(format!("holds this model in another set-up ({difference})")))
            }
        }
    }

    /// Refuses any other evaluation than its own. The names of the files do not count, nor do the number
    /// of threads, which does not change a bit, and the versions of `kl` and of the sidecar.
    pub fn check(&self, header: &SidecarHeader) -> Result<()> {
        let model = header.model.clone().unwrap_or_default();
        self.check_model(&model, header.stored)?;
        self.check_reference(&header.reference)?;
        self.check_tokens(header)?;
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
        let held = count_of(records.len() as u64, "token");
        Err(self.refused(format!(
            "holds {held}, where --until stopped with another --confidence or --cluster"
        )))
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
            false => Err(self.refused("holds other values")),
        }
    }

    /// The error that says why this file is not replaced.
    fn refused(&self, why: impl Display) -> Error {
        anyhow!("{}: {why}: {ADVICE}", self.path.display())
    }
}

/// The advice about a sidecar that is not replaced.
const ADVICE: &str = "name another file with --sidecar, or overwrite it with --force";

fn name_of(model: &ModelIdentity) -> String {
    let name = model.shown_name().map(printable);
    name.unwrap_or_else(|| "an unknown model".to_owned())
}

/// A reference by its name, its text and its model.
fn described(reference: &ReferenceSummary) -> String {
    let name = printable(reference.file_name.as_deref().unwrap_or("without a name"));
    let text = reference.text.as_ref().and_then(|text| text.name.as_ref());
    let text = text.map(|text| printable(text));
    let by = reference.model.as_ref();
    let by = by.map(|model| format!("by {}", name_of(model)));
    match [text, by].into_iter().flatten().collect::<Vec<_>>() {
        of if of.is_empty() => name,
        of => format!("{name} ({})", of.join(" ")),
    }
}

/// The number of tokens that an evaluation scores, of the whole where it is a part.
fn n_tokens_of(header: &SidecarHeader) -> String {
    let n_records = header.shard.map(|shard| shard.n_rows).or(header.n_records);
    n_records.map_or_else(|| "all tokens".to_owned(), |n| count_of(n, "token"))
}

/// The part of the tokens that an evaluation scores, and until when.
fn goal(part: Option<Part>, until: Option<f64>) -> [String; 2] {
    let until = until.map(|until| format!("tokens --until {}%", 100.0 * until));
    [
        part.map_or_else(|| "all parts".to_owned(), |part| format!("part {part}")),
        until.unwrap_or_else(|| "all tokens".to_owned()),
    ]
}
