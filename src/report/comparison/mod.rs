//! Several evaluations against one reference, side by side: [`Comparison`], from which every output
//! of `kl report` is made. Its fields are the keys of the JSON.

mod breakdown;
mod csv;
mod in_depth;
mod markdown;
mod model;
mod model_card;
mod names;
mod pair;
#[cfg(test)]
pub mod sample;
mod set_up;
mod text;
mod words;
mod worst;

use std::path::Path;

use kl_formats::{BackendIdentity, SidecarHeader, TextIdentity};
use serde::Serialize;

use super::result::ModelInfo;
use super::versions::Versions;
use super::warning::Warning;
use crate::stats::Confidence;

pub use csv::CSV_START;
pub use in_depth::{InDepth, InDepthModel, InDepthToken};
pub use model::{ComparedModel, DifferenceToBest, Point};
pub use pair::{ComparedPair, PairKind};
pub use worst::{WorstText, WorstToken, WorstTop};

/// Evaluations of several models on the same tokens, compared.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Comparison {
    /// What wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// What the models were evaluated against.
    pub reference: ComparedReference,
    /// The level of every interval.
    pub confidence: Confidence,
    /// The models, by ascending mean KLD; those without any come last.
    pub models: Vec<ComparedModel>,
    /// The paired differences: of each model to the best, and to its neighbour in size.
    pub pairs: Vec<ComparedPair>,
    /// The files that are not among the models, and why.
    pub not_compared: Vec<NotCompared>,
    /// What to know before you trust the numbers.
    pub warnings: Vec<Warning>,
}

/// The reference of all rows, as the sidecars record it.
#[derive(Serialize, Debug, Clone, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComparedReference {
    /// The file's name, without its folder.
    pub file_name: Option<String>,
    /// `kl`, `kl.py`, `llama.cpp`, `safetensors` or `npz`; `model` where a model ran beside the
    /// evaluated ones.
    pub kind: Option<String>,
    /// The model that wrote it.
    pub model: Option<ModelInfo>,
    /// The text that it was written for.
    pub text: Option<TextIdentity>,
    /// What distinguishes the file from others of its kind.
    pub fingerprint: Option<String>,
    /// How its rows were computed, if the sidecars record it.
    pub backend: Option<BackendIdentity>,
    /// Tokens in a window.
    pub n_ctx: u32,
    /// Entries in a row.
    pub n_vocab: u32,
    /// The first scored position of a full window.
    pub first_scored: u32,
    /// The names of the groups of windows, in the order in which records number them; empty without
    /// groups.
    pub groups: Vec<String>,
}

/// A file that is not among the models.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NotCompared {
    /// Its path.
    pub sidecar: String,
    /// Why, and what to do, in one line.
    pub why: String,
}

impl Comparison {
    /// The model with the lowest mean KLD; the noise floor does not count.
    #[must_use]
    pub fn best(&self) -> Option<&ComparedModel> {
        self.models
            .iter()
            .find(|model| model.is_candidate() && model.mean_kld().is_some())
    }

    /// The models that cannot be told from the best, by ascending mean KLD.
    pub fn near_best(&self) -> impl Iterator<Item = &ComparedModel> {
        self.models.iter().filter(|model| {
            let is_compared = model.is_candidate() && model.difference_to_best.is_some();
            is_compared && model.indistinguishable_from_best
        })
    }

    /// The smallest of the models that cannot be told from the best, if it is smaller than the best.
    #[must_use]
    pub fn smallest_near_best(&self) -> Option<&ComparedModel> {
        let size = |model: &ComparedModel| model.model.shown_bytes().unwrap_or(u64::MAX);
        let smallest = self.near_best().min_by_key(|model| size(model))?;
        (size(smallest) < size(self.best()?)).then_some(smallest)
    }

    /// The files that are not among the models, together where the reason is the same: of one other
    /// reference, say.
    pub(super) fn not_compared_by_reason(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for NotCompared { sidecar, why } in &self.not_compared {
            match groups.iter_mut().find(|(reason, _)| reason == why) {
                Some((_, files)) => files.push(sidecar),
                None => groups.push((why, vec![sidecar])),
            }
        }
        groups
    }

    /// The comparison as JSON, which ends with a line feed.
    ///
    /// # Errors
    /// If a value cannot be written as JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl ComparedReference {
    /// What a sidecar records of its reference.
    #[must_use]
    pub fn of(header: &SidecarHeader) -> Self {
        let reference = &header.reference;
        let model = reference.model.as_ref().map(|model| {
            let name = model.file_name.as_deref().unwrap_or_default();
            ModelInfo::new(Path::new(name), model)
        });
        Self {
            file_name: reference.file_name.clone(),
            kind: reference.kind.clone(),
            model,
            text: reference.text.clone(),
            fingerprint: reference.fingerprint.clone(),
            backend: reference.backend.clone(),
            n_ctx: header.n_ctx,
            n_vocab: header.n_vocab,
            first_scored: header.first_scored,
            groups: header.groups.clone(),
        }
    }

    /// What its model is called: the name that it records, else its file's.
    #[must_use]
    pub fn model_name(&self) -> Option<&str> {
        let model = self.model.as_ref()?;
        let names = model.name.iter().chain([&model.path]);
        names
            .map(String::as_str)
            .find(|name| !name.trim().is_empty())
    }
}

impl NotCompared {
    /// Lists the file at `path`. Where `why` starts with the path, as errors do, that is left out.
    #[must_use]
    pub fn new(path: &Path, why: impl Into<String>) -> Self {
        let (sidecar, why) = (path.display().to_string(), why.into());
        let after_path = why.strip_prefix(&sidecar);
        let after_path = after_path.and_then(|rest| rest.strip_prefix(": "));
        Self {
            why: after_path.map(str::to_owned).unwrap_or(why),
            sidecar,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_not_repeated() {
        let why = |why| NotCompared::new(Path::new("a.kls"), why).why;
        assert_eq!(why("a.kls: not a sidecar"), "not a sidecar");
        assert_eq!(
            why("part 1 is missing beside a.kls"),
            "part 1 is missing beside a.kls"
        );
        assert_eq!(why("a.kls.partial: x"), "a.kls.partial: x");
    }
}
