//! The models of a comparison, and pairs of them.

use std::ops::{Deref, DerefMut};

use kl_formats::BackendIdentity;
use serde::Serialize;

use crate::report::Verdict;
use crate::report::result::{ModelResult, WorstToken};
use crate::stats::{Estimate, Point, Ratio, SpanRatio};

/// An evaluated model, as a row of the table.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComparedModel {
    /// Its result.
    #[serde(flatten)]
    pub result: ModelResult,
    /// Its index among the models that were given.
    #[serde(skip)]
    pub index: usize,
    /// The path of its sidecar; of one in parts, of the first part.
    pub sidecar: String,
    /// The paths of all parts, in order; absent if the sidecar is whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// The set-up in which the model was run, as far as the sidecar records it.
    pub set_up: BackendIdentity,
    /// True if it leaves out tokens that other models count, because a row is not finite or the KLD
    /// is infinite. Its mean is over the tokens that are left, so it is not ranked.
    pub is_incomplete: bool,
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
    /// True if no other model is at most as large and at most as far from the reference. KV caches count
    /// as part of the size where they differ and the size of each is recorded. False for what is not ranked, and where the size is not known.
    pub pareto: bool,
    /// True if the nearest of the models that are no larger is nearer than this one, after Holm's adjustment
    /// for the number of models: leaving this one out costs nothing.
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RatioToBest {
    /// The ratio on the same tokens.
    #[serde(flatten)]
    pub ratio: Ratio,
    /// The p-value after Holm's adjustment for the number of other models.
    pub p_holm: Option<f64>,
}

impl ComparedModel {
    /// Returns true if it is ranked, and can be the best: the noise floor cannot, nor a model that
    /// leaves out tokens that others count.
    pub fn is_candidate(&self) -> bool {
        !self.is_noise_floor && !self.is_incomplete
    }

    /// Returns true if both are runs of one file, as far as it is recorded.
    pub(super) fn is_of_same_file(&self, other: &Self) -> bool {
        let file = |of: &Self| {
            let model = &of.model;
            let hashes = [&model.metadata_sha256, &model.sample_sha256].map(Option::clone);
            (hashes, model.default_label().to_owned())
        };
        file(self) == file(other)
    }

    /// Returns true if it was compared with the best, and cannot be told from it.
    pub fn is_near_best(&self) -> bool {
        self.indistinguishable_from_best && self.difference_to_best.is_some()
    }

    /// Counts the tokens that its mean KLD leaves out: those with a row that is not finite, and
    /// those with an infinite KLD.
    pub fn n_left_out(&self) -> u64 {
        self.summary.n_excluded + self.summary.n_infinite()
    }
}

/// Why two models are compared.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PairKind {
    /// The second is the best model.
    Best,
    /// The second is the next model by size, which may be as large.
    Size,
    /// The second is the nearest of those that are no larger, and has no higher a mean KLD. Not listed where it
    /// is the best.
    Front,
}

/// Two models on the same tokens.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComparedPair {
    /// Why the two are compared.
    pub kind: PairKind,
    /// The label of the first model.
    pub a: String,
    /// The label of the second model.
    pub b: String,
    /// The number of tokens that both count.
    pub n_tokens: u64,
    /// The mean KLD of `a` over that of `b`; null where both are 0.
    pub ratio: Option<Ratio>,
    /// The mean KLD of `a` less that of `b`, in nats.
    pub difference: Estimate,
    /// Of the tokens whose KLDs differ, the share on which `a` is nearer to the reference; null if
    /// none differs.
    pub share_a_nearer: Option<f64>,
}
