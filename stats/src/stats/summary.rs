//! The statistics of one evaluation, from its per-token records alone.

use serde::Serialize;

use super::acceptance::Acceptance;
use super::breakdown::Breakdown;
use super::clustered::Share;
use super::clusters::{ClusterRule, Clustering, Clusters};
use super::columns::{Columns, PartNames};
use super::distribution::{self, DeltaP, Distribution, Point};
use super::estimate::Confidence;
use super::identical_output::IdenticalOutput;
use super::mean::MeanMax;
use super::perplexity::Perplexity;
use super::quantile;
use super::token::ExcludedToken;
use super::windows::Cluster;
use super::windows::{Run, Windows};

/// The quantiles of the divergences: the upper tail is where quantizations differ.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

/// The statistics of one evaluated model.
///
/// A part is `None` (null) without tokens to compute it from: counted ones for all parts, ones
/// with a finite divergence for `kld` and `reverse_kld`, and ones whose next token has a known
/// probability for `perplexity` and `delta_p`.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Counted tokens: the scored ones that the statistics are computed from.
    pub n_tokens: u64,
    /// Scored tokens that are left out: a row has a NaN or +inf, or no finite logit, or a score is
    /// NaN.
    pub n_excluded: u64,
    /// Windows that the counted tokens are from.
    pub n_windows: u64,
    /// The level of every interval.
    pub confidence: Confidence,
    /// The tokens that count as one observation in the clustered intervals.
    pub clusters: Clustering,
    /// KL(p‖q), in nats: p is the reference's distribution, q the evaluated model's.
    pub kld: Option<Distribution>,
    /// KL(q‖p), in nats.
    pub reverse_kld: Option<Distribution>,
    /// The agreement of the top tokens.
    pub agreement: Option<Agreement>,
    /// The share of tokens that one model accepts where the other drafts them; null where no token's
    /// is known, as in sidecars of version 1.
    pub acceptance: Option<Acceptance>,
    /// The perplexity of both models on the actual next tokens.
    pub perplexity: Option<Perplexity>,
    /// The change in the actual next tokens' probability.
    pub delta_p: Option<DeltaP>,
    /// How many of the model's greedy answers are the reference's, and up to which token; absent where
    /// the reference's model has not answered greedily.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identical_output: Option<IdenticalOutput>,
    /// The most probability that the entries that a base file does not record can have; null if the
    /// reference records all.
    pub unknown_p: Option<MeanMax>,
    /// The first tokens that are left out, at most 100; `n_excluded` counts all.
    pub excluded: Vec<ExcludedToken>,
}

/// The agreement of the two models' top tokens, as shares of the counted tokens.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Agreement {
    /// Both models have the same top token.
    pub ref_top1: Share,
    /// The reference's top token is among the evaluated model's top 5.
    pub ref_top5: Share,
    /// The reference's top token is among the evaluated model's top 10.
    pub ref_top10: Share,
    /// The evaluated model's top token is among the reference's top 5.
    pub eval_top5: Share,
    /// The evaluated model's top token is among the reference's top 10.
    pub eval_top10: Share,
}

impl Summary {
    /// Counted tokens whose KLD is infinite.
    pub fn n_infinite(&self) -> u64 {
        self.kld
            .as_ref()
            .map_or(self.n_tokens, |kld| kld.n_infinite)
    }
}

/// The tokens of an evaluation, ready to be summarised with any clusters.
pub struct Tokens<'c> {
    columns: &'c Columns,
    /// The windows of all tokens.
    pub windows: Windows,
    /// The finite KLDs of the counted tokens, which ascend.
    klds: Vec<f64>,
}

impl<'c> Tokens<'c> {
    /// Sorts the numbers of tokens. The records' order decides the last bits of the sums, and which of the
    /// excluded tokens are listed.
    pub fn of(columns: &'c Columns) -> Self {
        let mut windows = Windows::of(&columns.counted, &columns.kld);
        windows.add_empty(&columns.runs);
        Self {
            columns,
            windows,
            klds: quantile::sorted(&columns.kld),
        }
    }

    /// The share of counted tokens (y) with at least a KLD in nats (x).
    pub fn ccdf(&self) -> Vec<Point> {
        distribution::ccdf(&self.klds, self.columns.kld.len())
    }

    /// The mean KLD in nats (y) along the text, by the number of the window (x).
    pub fn by_window(&self) -> Vec<Point> {
        distribution::by_window(&self.windows)
    }

    /// Estimates everything with intervals by the clusters that a rule chooses.
    pub fn summarise_by(
        &self,
        rule: ClusterRule,
        names: PartNames<'_>,
        confidence: Confidence,
    ) -> (Summary, Breakdown) {
        self.summarise(&Clusters::of(&self.windows, rule), names, confidence)
    }

    /// Estimates everything with intervals by these clusters of all windows.
    pub fn summarise(
        &self,
        clusters: &Clusters,
        names: PartNames<'_>,
        confidence: Confidence,
    ) -> (Summary, Breakdown) {
        let columns = self.columns;
        let of_tokens = clusters.of_tokens(&columns.counted);
        let divergence = |of: &[f64], sorted: &[f64]| {
            Distribution::of(columns, &of_tokens, of, sorted, &QUANTILES, confidence)
        };
        let with_next = of_tokens.iter().zip(columns.with(Columns::KNOWN));
        let with_next: Vec<Cluster> = with_next
            .filter_map(|(cluster, is_known)| is_known.then_some(*cluster))
            .collect();
        let perplexity =
            Perplexity::of(&with_next, &columns.ref_nll, &columns.eval_nll, confidence);
        let summary = Summary {
            n_tokens: columns.kld.len() as u64,
            n_excluded: columns.n_excluded,
            n_windows: Run::n_windows(&columns.counted),
            confidence,
            clusters: clusters.clustering,
            kld: divergence(&columns.kld, &self.klds),
            reverse_kld: divergence(
                &columns.reverse_kld,
                &quantile::sorted(&columns.reverse_kld),
            ),
            agreement: Agreement::of(columns, &of_tokens, confidence),
            acceptance: Acceptance::of(columns, &of_tokens, confidence),
            perplexity: perplexity.map(|perplexity| Perplexity {
                n_infinite: columns.n_nll_infinite,
                n_unknown: columns.n_nll_unknown,
                ..perplexity
            }),
            delta_p: DeltaP::of(
                &with_next,
                &columns.delta_p,
                &quantile::sorted(&columns.delta_p),
                confidence,
            ),
            identical_output: IdenticalOutput::of(&columns.answers, clusters, confidence),
            unknown_p: columns.unknown_p.value().filter(|p| p.max > 0.0),
            excluded: columns.excluded.clone(),
        };
        let by_depth = clusters.of_tokens_by_depth(&self.windows, &columns.counted);
        let breakdown = Breakdown::of(columns, &of_tokens, &by_depth, names, confidence);
        (summary, breakdown)
    }
}

impl Agreement {
    fn of(columns: &Columns, clusters: &[Cluster], confidence: Confidence) -> Option<Self> {
        let share = |bit: u8| Share::of(clusters, &columns.with(bit), confidence);
        Some(Self {
            ref_top1: share(Columns::SAME_TOP)?,
            ref_top5: share(Columns::REF_TOP_5)?,
            ref_top10: share(Columns::REF_TOP_10)?,
            eval_top5: share(Columns::EVAL_TOP_5)?,
            eval_top10: share(Columns::EVAL_TOP_10)?,
        })
    }
}

#[cfg(test)]
#[path = "tests/summary_pinned.rs"]
mod pinned;
#[cfg(test)]
#[path = "tests/summary.rs"]
mod tests;
