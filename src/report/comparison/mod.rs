//! Several evaluations against one reference, side by side: [`Comparison`], from which every output
//! of `kl report` is made. Its fields are the keys of the JSON.

pub(super) mod breakdown;
mod caches;
mod csv;
mod in_depth;
mod in_use;
mod markdown;
mod model;
mod names;
mod noise;
mod sentence;
mod sizes;
mod spans;
mod text;
mod unranked;

use std::path::Path;

use kl_formats::{BackendIdentity, Sampling, SidecarHeader, TextIdentity};
use serde::Serialize;

use super::number::{SizeUnit, sampled_answers};
use super::result::{ModelInfo, PromptsInfo, ReferenceInfo, Versions, unit};
use super::warning::Warning;
use crate::stats::{Clustering, Confidence};

/// How many times as far as the best a model may be for that to make no difference, unless said
/// otherwise.
pub const NEAR: f64 = 1.1;

pub use csv::CSV_START;
pub(super) use csv::csv_text;
pub use in_depth::{InDepth, InDepthModel, InDepthToken, PairedQuantile};
pub use model::{ComparedModel, ComparedPair, PairKind, RatioToBest};
pub(super) use names::Names;
pub use sizes::Sizes;
pub use text::clusters as clusters_text;

/// Evaluations of several models on the same tokens, compared.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Comparison {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The reference that the models were evaluated against.
    pub reference: ComparedReference,
    /// The level of every interval.
    pub confidence: Confidence,
    /// The clusters of every interval, chosen once for all models; null where the models are not over
    /// the same tokens, and each has its own.
    pub clusters: Option<Clustering>,
    /// The bound below which a ratio to the best makes no difference.
    pub near: f64,
    /// The models, by ascending mean KLD; those without any come last.
    pub models: Vec<ComparedModel>,
    /// Models compared two at a time: each with the best, with its neighbour in size, and with the nearest
    /// of those that are no larger.
    pub pairs: Vec<ComparedPair>,
    /// The files that are not among the models, and why.
    pub not_compared: Vec<NotCompared>,
    /// Warnings to read before you trust the numbers.
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
    /// The hash that distinguishes the file from others of its kind.
    pub fingerprint: Option<String>,
    /// The set-up that computed its rows, if the sidecars record it.
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
    /// True if the windows are prompts; false where the sidecars do not record it.
    pub prompts: bool,
    /// The way its model chose the tokens of answers by chance; absent if it did not, or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
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
    /// The models' names, for lines of at most `width`.
    fn names(&self, width: usize) -> Names {
        let labels = self.models.iter().map(|model| model.label.as_str());
        Names::of(&Vec::from_iter(labels), width)
    }

    /// The model with the lowest mean KLD; the noise floor does not count.
    pub fn best(&self) -> Option<&ComparedModel> {
        self.models
            .iter()
            .find(|model| model.is_candidate() && model.mean_kld().is_some())
    }

    /// The sizes by which the models are compared.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes::of(&self.models)
    }

    /// The unit that suits the models' sizes.
    pub(super) fn size_unit(&self) -> SizeUnit {
        let sizes = self.sizes();
        let of_each = self.models.iter().filter_map(|model| sizes.bytes(model));
        SizeUnit::for_sizes(of_each.max().unwrap_or(0))
    }

    /// The p-value that a pair is judged by: its own, or Holm's where one of the two is the best, so
    /// that a pair has the same wherever it is shown.
    pub fn p_of(&self, pair: &ComparedPair) -> Option<f64> {
        let is_best = |label: &String| self.best().is_some_and(|best| best.label == *label);
        let other = match (is_best(&pair.a), is_best(&pair.b)) {
            (false, true) => &pair.a,
            (true, false) => &pair.b,
            _ => return pair.ratio?.p,
        };
        let mut models = self.models.iter();
        let other = models.find(|model| model.label == *other)?;
        other.ratio_to_best?.p_holm
    }

    /// Returns true if a pair's difference may be chance.
    pub fn may_be_chance(&self, pair: &ComparedPair) -> bool {
        let is_told = |p: f64| p < self.confidence.outside();
        !self.p_of(pair).is_some_and(is_told)
    }

    /// Explains why p and an interval differ about a pair; `None` where none do.
    pub(super) fn why_p_differs(&self) -> Option<String> {
        let is_without_1 = |pair: &&ComparedPair| {
            let ends = pair.ratio.and_then(|ratio| ratio.lo.zip(ratio.hi));
            ends.is_some_and(|(lo, hi)| lo > 1.0 || hi < 1.0)
        };
        let mut without_1 = self.pairs.iter().filter(is_without_1);
        without_1.any(|pair| self.p_of(pair).is_some() && self.may_be_chance(pair)).then(|| {
            // Rounded because 1 - 0.95 is not quite 0.05.
            let outside = (self.confidence.outside() * 1e10).round() / 1e10;
            format!(
                "With p of {outside} or more, a ratio may be chance, though its interval does not \
                 hold 1: the interval is of that pair alone, and Holm's p allows for the number of \
                 models."
            )
        })
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
}

impl ComparedReference {
    /// The reference, as far as a sidecar records it, as the report of an evaluation shows it.
    fn info(&self) -> ReferenceInfo {
        ReferenceInfo {
            path: self.shown_name().to_owned(),
            kind: self.kind.clone().unwrap_or_default(),
            n_ctx: self.n_ctx,
            n_vocab: self.n_vocab,
            model: self.model.clone(),
            first_scored: Some(self.first_scored),
            text: self.text.clone(),
            backend: self.backend.clone(),
            groups: Some(self.groups.clone()),
            prompts: self.prompts.then(|| PromptsInfo {
                sampling: self.sampling,
                ..PromptsInfo::default()
            }),
            ..ReferenceInfo::default()
        }
    }

    /// Reads what a sidecar records of its reference.
    pub fn of(header: &SidecarHeader) -> Self {
        let reference = &header.reference;
        Self {
            file_name: reference.file_name.clone(),
            kind: reference.kind.clone(),
            model: reference.model.as_ref().map(ModelInfo::of_reference),
            text: reference.text.clone(),
            fingerprint: reference.fingerprint.clone(),
            backend: reference.backend.clone(),
            n_ctx: header.n_ctx,
            n_vocab: header.n_vocab,
            first_scored: header.first_scored.unwrap_or(0),
            groups: header.groups.clone(),
            prompts: header.prompts,
            sampling: reference.sampling,
        }
    }

    /// Its file's name, or words for a reference of unknown name.
    fn shown_name(&self) -> &str {
        self.file_name.as_deref().unwrap_or("one reference")
    }

    /// Says how the answers were sampled, and what is missing for that; `None` unless they were.
    pub(super) fn sampled_answers(&self) -> Option<String> {
        Some(sampled_answers(self.sampling.as_ref()?))
    }

    /// The word for a window.
    pub fn unit(&self) -> &'static str {
        unit(self.prompts)
    }

    /// Returns the name of its model: the one that it records, else its file's.
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
    use crate::report::tests::{FULL, sample};
    use crate::stats::Ratio;

    /// A pair that the table marks as equal to the best is called different nowhere.
    #[test]
    fn a_pair_has_one_p_value() {
        let mut of = sample::comparison();
        let (best, near) = ("tiny-q4_K_M", "tiny-q4_0");
        assert_eq!(of.why_p_differs(), None);
        let model = of
            .models
            .iter_mut()
            .find(|model| model.label == near)
            .unwrap();
        let to_best = model.ratio_to_best.as_mut().unwrap();
        to_best.p_holm = Some(0.125);
        model.indistinguishable_from_best = true;
        let ratio = Ratio {
            p: Some(0.0375),
            lo: Some(1.01),
            ..to_best.ratio
        };
        let mut pair = of.pairs.remove(0);
        of.pairs.retain(|pair| pair.a != near || pair.b != best);
        pair.ratio = Some(ratio);
        for (kind, a, b) in [(PairKind::Best, near, best), (PairKind::Size, best, near)] {
            let (a, b) = (a.to_owned(), b.to_owned());
            of.pairs.push(ComparedPair {
                kind,
                a,
                b,
                ..pair.clone()
            });
        }
        let (text, markdown) = (of.text(FULL), of.markdown(false));
        assert_eq!(text.matches(" 0.125").count(), 2, "{text}");
        assert_eq!(markdown.matches(" 0.125 ").count(), 2, "{markdown}");
        for shown in [text, markdown] {
            assert!(
                !shown.contains("0.037") && !shown.contains("0.038"),
                "{shown}"
            );
            let shown = shown.replace('\n', " ");
            assert!(
                shown.contains("With p of 0.05 or more, a ratio may be chance"),
                "{shown}"
            );
        }
    }

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
