//! Several evaluations against one reference, side by side: [`Comparison`], from which every output
//! of `kl report` is made. Its fields are the keys of the JSON.
//!
//! The columns of the models: `tables` for text and Markdown, `csv`, "All numbers" in `page/comparison/page.html`, and
//! `markdown` for a model card.

mod csv;
mod in_depth;
mod markdown;
mod rounding;
mod sentence;
mod sizes;
pub(super) mod tables;
mod text;

use std::ops::{Deref, DerefMut};
use std::path::Path;

use kl_formats::{BackendIdentity, Kind, Sampling, SidecarHeader, TextIdentity};
use kl_stats::stats::{Bin, Clustering, Confidence, Estimate, Paired, Point, Ratio, SpanRatio};
use serde::Serialize;

use super::check::Floor;
use super::condition::Verdict;
use super::names::Names;
use super::number::{SizeUnit, sampled_answers};
use super::result::{
    ModelInfo, ModelResult, PromptsInfo, ReferenceInfo, Versions, WorstToken, unit,
};
use super::warning::Warning;

/// The bound below which a ratio to the best makes no difference, unless the user gives another.
pub const DEFAULT_NEAR: f64 = 1.1;

/// The mean KLD in nats up to which a model differs from the original by rounding alone.
pub(super) const ROUNDING_KLD: f64 = 1e-9;

/// A mean KLD of up to this multiple of the noise floor counts as noise: half of it or more is.
const NOISE_MULTIPLE: f64 = 2.0;

pub use csv::CSV_START;
pub use in_depth::{InDepth, InDepthToken};
pub(crate) use sentence::same_kld;
pub use sizes::Sizes;

pub(super) use tables::ShownName;
pub use tables::clusters_text;

/// Evaluations of several models on the same tokens, compared.
#[derive(Serialize, Debug, Clone, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
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
    /// The tokens of the context for which models are compared by the size of their weights and their cache; absent
    /// unless the user names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_context: Option<u64>,
    /// The effect of rounding alone on the set-up, from `kl check`; null if that is not given.
    pub floor: Option<Floor>,
    /// The models, by ascending mean KLD; those without any come last.
    pub models: Vec<ComparedModel>,
    /// Models compared two at a time: each with the best, with its neighbour in size, with the nearest
    /// model of at most its size, and with itself with its weights dequantized.
    pub pairs: Vec<ComparedPair>,
    /// The files that are not among the models, and why.
    pub not_compared: Vec<NotCompared>,
    /// Warnings to read before you trust the numbers.
    pub warnings: Vec<Warning>,
}

/// The reference of all rows, as the sidecars record it.
#[derive(Serialize, Debug, Clone, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ComparedReference {
    /// The file's name, without its folder.
    pub file_name: Option<String>,
    /// `kl`, `kl.py`, `llama.cpp`, `safetensors` or `npz`; `model` where a model ran beside the
    /// evaluated ones.
    #[cfg_attr(any(test, feature = "testing"), schemars(with = "Option<String>"))]
    pub kind: Option<Kind>,
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
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct NotCompared {
    /// Its path.
    pub sidecar: String,
    /// The reason, and what to do, in one line.
    pub why: String,
}

impl Comparison {
    /// The models' names, for lines of at most `width`.
    fn names(&self, width: usize) -> Names {
        let labels: Vec<&str> = self.models.iter().map(|model| &*model.label).collect();
        Names::of(&labels, width)
    }

    /// The place of the model with the lowest mean KLD; the noise floor does not count.
    pub fn best_place(&self) -> Option<usize> {
        self.models
            .iter()
            .position(|model| model.is_candidate() && model.mean_kld().is_some())
    }

    /// The model with the lowest mean KLD.
    pub fn best(&self) -> Option<&ComparedModel> {
        self.models.get(self.best_place()?)
    }

    /// The sizes by which the models are compared.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes::of(self.models.iter(), self.for_context)
    }

    /// The unit that suits the models' sizes.
    pub(super) fn size_unit(&self) -> SizeUnit {
        let sizes = self.sizes();
        let largest = self
            .models
            .iter()
            .filter_map(|model| sizes.of_model(model))
            .max();
        SizeUnit::for_sizes(largest.unwrap_or(0))
    }

    /// The p-value that a pair is judged by: its own, or Holm's where one of the two is the best, so
    /// that a pair has the same wherever it is shown.
    pub fn p_of(&self, pair: &ComparedPair) -> Option<f64> {
        let best = self.best().map(|best| &best.label);
        let other_label = match [&pair.a, &pair.b].map(|label| best == Some(label)) {
            [false, true] => &pair.a,
            [true, false] => &pair.b,
            _ => return pair.paired.ratio?.p,
        };
        let other = self
            .models
            .iter()
            .find(|model| model.label == *other_label)?;
        other.ratio_to_best?.p_holm
    }

    /// True if a pair's difference may be chance.
    pub fn may_be_chance(&self, pair: &ComparedPair) -> bool {
        !self
            .p_of(pair)
            .is_some_and(|p| p < self.confidence.outside())
    }

    /// Explains why p and an interval differ about a pair; `None` where none do.
    pub(super) fn why_p_differs(&self) -> Option<String> {
        let differs = |pair: &ComparedPair| {
            let interval = pair.paired.ratio.and_then(|ratio| ratio.lo.zip(ratio.hi));
            let excludes_1 = interval.is_some_and(|(lo, hi)| lo > 1.0 || hi < 1.0);
            excludes_1 && self.p_of(pair).is_some() && self.may_be_chance(pair)
        };
        self.pairs.iter().any(differs).then(|| {
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

    /// The mean KLD in nats up to which a multiple of the best says nothing: that of rounding, or that of the noise
    /// floor, the highest if there are several.
    pub fn noise_kld(&self) -> f64 {
        self.models
            .iter()
            .filter(|model| model.is_noise_floor)
            .filter_map(|floor| Some(floor.mean_kld()?.value))
            .chain(self.floor.map(|floor| floor.kld))
            .map(|floor_kld| NOISE_MULTIPLE * floor_kld)
            .fold(ROUNDING_KLD, f64::max)
    }

    /// True if a model is as near to the original as can be measured.
    pub fn is_noise(&self, model: &ComparedModel) -> bool {
        model
            .mean_kld()
            .is_some_and(|mean| mean.value <= self.noise_kld())
    }

    /// The spans of the models' tokens, in order; empty unless there are several.
    pub(super) fn spans(&self) -> &[Bin] {
        let mut spans = self.models.iter().map(|model| &*model.breakdown.by_span);
        spans.find(|spans| spans.len() > 1).unwrap_or_default()
    }

    /// True if a model was compared with the best by span.
    pub(super) fn has_span_ratios(&self) -> bool {
        self.models
            .iter()
            .any(|model| !model.ratio_to_best_by_span.is_empty())
    }

    /// True if a model loses more in this span than elsewhere, compared with the best, and the data show
    /// that it is more than chance.
    pub(super) fn loses_more(&self, ratio: &SpanRatio) -> bool {
        ratio.to_others.is_some_and(|times| times.value > 1.0)
            && ratio.p_holm.is_some_and(|p| p < self.confidence.outside())
    }
}

impl ComparedReference {
    /// The reference as the report of an evaluation shows it, by what a sidecar records.
    fn info(&self) -> ReferenceInfo {
        ReferenceInfo {
            path: self.shown_name().to_owned(),
            kind: self.kind,
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
            kind: reference.kind,
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

    /// Says how the answers were sampled, and which numbers are missing therefore; `None` unless they were.
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
        let mut names = model.name.iter().chain([&model.path]);
        Some(names.find(|name| !name.trim().is_empty())?)
    }
}

impl NotCompared {
    /// Lists the file at `path`. Where `why` starts with the path, as errors do, that is left out.
    pub fn new(path: &Path, why: impl Into<String>) -> Self {
        Self {
            sidecar: path.display().to_string(),
            why: without_path(path, &why.into()).to_owned(),
        }
    }
}

/// An error without the path of its file, with which errors start.
pub(super) fn without_path<'e>(path: &Path, error: &'e str) -> &'e str {
    let start = format!("{}: ", path.display());
    error.strip_prefix(&start).unwrap_or(error)
}

/// An evaluated model, as a row of the table.
#[derive(Serialize, Debug, Clone, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ComparedModel {
    /// Its result.
    #[serde(flatten)]
    pub result: ModelResult,
    /// The path of its sidecar; of one in parts, of the first part.
    pub sidecar: String,
    /// The paths of all parts, in order; absent if the sidecar is whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// The set-up in which the model was run, by what the sidecar records.
    pub set_up: BackendIdentity,
    /// True if it leaves out tokens that other models count, because a row is not finite or the KLD
    /// is infinite. Its mean is over the tokens that are left, so it is not ranked.
    pub is_incomplete: bool,
    /// True if its weights are dequantized, and those of others are as in their files: it shows what the weights
    /// of a file lose, and is not ranked.
    pub is_weights_alone: bool,
    /// The label of the first model in the list that has the same KLD at every token, as a copy of its file
    /// has; null if none above it has.
    pub same_as: Option<String>,
    /// The ratio of its mean KLD to the best model's; null for the best itself, for what is not
    /// ranked, and where both are exactly the reference's equals.
    pub ratio_to_best: Option<RatioToBest>,
    /// The ratio of its mean KLD to the best model's on the tokens of each span; empty for the best
    /// itself, for what is not ranked, and unless several spans have tokens.
    pub ratio_to_best_by_span: Vec<SpanRatio>,
    /// Its mean KLD less the best model's, in nats; null for the best itself, and for what is not
    /// ranked.
    pub difference_to_best: Option<Estimate>,
    /// True if the data cannot tell it from the best, after Holm's adjustment for the number of
    /// other models, or if both are as near to the reference as can be measured; true for the best
    /// itself, false for what is not ranked.
    pub indistinguishable_from_best: bool,
    /// True if it is as near as the best as makes no difference: the one-sided upper end of its ratio to
    /// the best is at most the bound `near`, or both are as near to the reference as can be measured. True
    /// for the best itself, false for what is not ranked.
    pub is_as_near: bool,
    /// True if no other model is at most as large and at most as far from the reference. Where KV caches
    /// differ and the size of each is recorded, they count as part of the size; among runs of one file they
    /// are the size. With `for_context` the size is that of `memory`. False for what is not ranked, and where
    /// the size is not known.
    pub pareto: bool,
    /// True if the nearest model of at most its size is nearer than this one, after Holm's adjustment for the
    /// number of models: leaving this one out costs nothing.
    pub is_dominated: bool,
    /// The share of tokens with at least a KLD: points of KLD (nats) and share, by ascending KLD.
    pub ccdf: Vec<Point>,
    /// Means along the text: points of the number of the first window, and the mean KLD (nats) from
    /// it up to the next point.
    pub by_window: Vec<Point>,
    /// The outcome of each `--fail-if`; absent without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Verdict>,
    /// The tokens with the largest KLD, the largest first.
    pub top: Vec<WorstToken>,
}

impl Deref for ComparedModel {
    type Target = ModelResult;

    fn deref(&self) -> &ModelResult {
        &self.result
    }
}

impl DerefMut for ComparedModel {
    fn deref_mut(&mut self) -> &mut ModelResult {
        &mut self.result
    }
}

/// A model's mean KLD over the best model's.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct RatioToBest {
    /// The ratio on the same tokens.
    #[serde(flatten)]
    pub ratio: Ratio,
    /// The p-value after Holm's adjustment for the number of other models.
    pub p_holm: Option<f64>,
}

impl ComparedModel {
    /// True if it is ranked, and can be the best: the noise floor cannot, nor a model that
    /// leaves out tokens that others count, or shows its weights alone.
    pub fn is_candidate(&self) -> bool {
        !self.is_noise_floor && !self.is_incomplete && !self.is_weights_alone
    }

    /// True if both are runs of one file, by what is recorded of it.
    pub(super) fn is_of_same_file(&self, other: &Self) -> bool {
        let (own, other) = (&self.model, &other.model);
        own.default_label() == other.default_label()
            && own.metadata_sha256 == other.metadata_sha256
            && own.sample_sha256 == other.sample_sha256
    }

    /// True if it was compared with the best, and cannot be told from it.
    pub fn is_near_best(&self) -> bool {
        self.indistinguishable_from_best && self.difference_to_best.is_some()
    }
}

/// The reason to compare two models.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PairKind {
    /// The second is the best model.
    Best,
    /// The second is the next model by size, which may be as large.
    Size,
    /// The second is the nearest model of at most this size, and has no higher a mean KLD. Not listed where it
    /// is the best.
    Front,
    /// The second is the same model with its weights dequantized, in an equal set-up.
    Weights,
    /// Neither of these; the first is at least as far. Listed where every two models are compared.
    Other,
}

/// Two models on the same tokens.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ComparedPair {
    /// The reason to compare the two.
    pub kind: PairKind,
    /// The label of the first model.
    pub a: String,
    /// The label of the second model.
    pub b: String,
    /// The comparison of the two.
    #[serde(flatten)]
    pub paired: Paired,
}

#[cfg(test)]
mod tests {
    use kl_stats::stats::Ratio;

    use super::*;
    use crate::testing::sample;
    use crate::tests::FULL;

    /// A pair that the table marks as equal to the best is called different nowhere.
    #[test]
    fn a_pair_has_one_p_value() {
        let mut comparison = sample::comparison();
        let (best, near) = ("tiny-q4_K_M", "tiny-q4_0");
        assert_eq!(comparison.why_p_differs(), None);
        let model = comparison
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
        let mut pair = comparison.pairs.remove(0);
        comparison
            .pairs
            .retain(|pair| pair.a != near || pair.b != best);
        pair.paired.ratio = Some(ratio);
        for (kind, a, b) in [(PairKind::Best, near, best), (PairKind::Size, best, near)] {
            let (a, b) = (a.to_owned(), b.to_owned());
            comparison.pairs.push(ComparedPair {
                kind,
                a,
                b,
                ..pair.clone()
            });
        }
        let (text, markdown) = (comparison.text(FULL), comparison.markdown(false));
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

    #[test]
    fn a_model_that_is_much_worse_in_a_span_is_named() {
        let mut comparison = sample::comparison();
        let said = |comparison: &Comparison| comparison.sentences(str::to_owned).join(" ");
        // Too few tokens to be named.
        assert!(
            !said(&comparison).contains("In the span"),
            "{}",
            said(&comparison)
        );
        for model in &mut comparison.models {
            for ratio in &mut model.ratio_to_best_by_span {
                ratio.n_tokens = 1000;
            }
        }
        let text = said(&comparison);
        let expected = "In the span \"tool call\", tiny-q4_0 is 3.60 [3.24, 4.00] times as far as \
                        tiny-q4_K_M; elsewhere, 1.80 times.";
        assert!(text.contains(expected), "{text}");
        // What may be chance is not.
        for model in &mut comparison.models {
            for ratio in &mut model.ratio_to_best_by_span {
                ratio.p_holm = Some(0.06);
            }
        }
        assert!(!said(&comparison).contains("In the span"));
        assert!(!comparison.text(FULL).contains("+ loses more"));
    }
}
