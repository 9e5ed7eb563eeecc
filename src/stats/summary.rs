//! The statistics of one evaluation, from its per-token records alone.

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::breakdown::Breakdown;
use super::cluster::{ClusterRule, Clustering, Clusters};
use super::clustered_mean::macro_mean;
use super::columns::Columns;
use super::curves::{self, Point};
use super::delta_p::DeltaP;
use super::distribution::Distribution;
use super::estimate::{Confidence, Estimate};
use super::exclusion::ExcludedToken;
use super::mean::Sum;
use super::perplexity::Perplexity;
use super::proportion::Share;
use super::strata::Cluster;

/// The statistics of one evaluated model.
///
/// A part is `None` (null) without tokens to compute it from: counted ones for all parts, ones
/// with a finite divergence for `kld` and `reverse_kld`, and ones whose next token has a known
/// probability for `perplexity` and `delta_p`.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// The mean of the groups' mean KLDs, with its clustered interval: each group counts the same,
    /// however many tokens it has. Absent with fewer than two groups; without ends where a group has
    /// only one cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kld_macro: Option<Estimate>,
    /// KL(q‖p), in nats.
    pub reverse_kld: Option<Distribution>,
    /// The agreement of the top tokens.
    pub agreement: Option<Agreement>,
    /// The perplexity of both models on the actual next tokens.
    pub perplexity: Option<Perplexity>,
    /// The change in the actual next tokens' probability.
    pub delta_p: Option<DeltaP>,
    /// The most probability that the entries that a base file does not record can have; null if the
    /// reference records all.
    pub unknown_p: Option<UnknownP>,
    /// The first tokens that are left out, at most 100; `n_excluded` counts all.
    pub excluded: Vec<ExcludedToken>,
}

/// The agreement of the two models' top tokens, as shares of the counted tokens.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Computes all statistics from records in any order.
    ///
    /// Their order decides the last bits of the sums, and which of the excluded tokens are listed.
    pub fn from_records(
        records: &[TokenRecord],
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Self {
        Statistics::of_records(records, &[], confidence, rule).summary
    }

    /// Counted tokens whose KLD is infinite.
    pub fn n_infinite(&self) -> u64 {
        self.kld
            .as_ref()
            .map_or(self.n_tokens, |kld| kld.n_infinite)
    }
}

/// All that the records of an evaluation give, in one pass over them.
#[derive(Clone, Debug)]
pub struct Statistics {
    pub summary: Summary,
    pub breakdown: Breakdown,
    /// The share of counted tokens (y) with at least a KLD in nats (x).
    pub ccdf: Vec<Point>,
    /// The mean KLD in nats (y) along the text, by the number of the window (x).
    pub by_window: Vec<Point>,
}

impl Statistics {
    /// Measures records in any order. `group_names[i]` is group `i`'s; empty without groups.
    pub fn of_records(
        records: &[TokenRecord],
        group_names: &[String],
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Self {
        Self::of(&Columns::of(records), group_names, confidence, rule)
    }

    /// Measures the columns of records.
    pub fn of(
        columns: &Columns,
        group_names: &[String],
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Self {
        let means = columns.window_means();
        let clusters = Clusters::of_means(&means, rule);
        let numbers = columns.clusters(&clusters);
        let n_windows = clusters.n_windows() as u64;
        let divergence =
            |of: &[f64]| Distribution::of(columns, &numbers, of, n_windows, confidence);
        let (kld, sorted) = divergence(&columns.kld).unzip();
        let (perplexity, delta_p) = next_token(columns, &numbers, confidence);
        let summary = Summary {
            n_tokens: columns.n_counted() as u64,
            n_excluded: columns.n_excluded() as u64,
            n_windows,
            confidence,
            clusters: clusters.clustering(),
            kld,
            kld_macro: macro_mean(columns, &numbers, confidence),
            reverse_kld: divergence(&columns.reverse_kld).map(|(of, _)| of),
            agreement: Agreement::of(columns, &numbers, confidence),
            perplexity,
            delta_p,
            unknown_p: columns.unknown_p.summary(),
            excluded: columns.excluded.clone(),
        };
        Self {
            breakdown: Breakdown::of(columns, &numbers, group_names, confidence),
            ccdf: curves::ccdf(&sorted.unwrap_or_default(), columns.n_counted()),
            by_window: curves::by_window(&means),
            summary,
        }
    }
}

impl Agreement {
    fn of(columns: &Columns, numbers: &[Cluster], confidence: Confidence) -> Option<Self> {
        let share = |bit: u8| Share::of(numbers, &columns.with(bit), confidence);
        Some(Self {
            ref_top1: share(Columns::SAME_TOP)?,
            ref_top5: share(Columns::REF_TOP_5)?,
            ref_top10: share(Columns::REF_TOP_10)?,
            eval_top5: share(Columns::EVAL_TOP_5)?,
            eval_top10: share(Columns::EVAL_TOP_10)?,
        })
    }
}

/// The statistics of the actual next token, over the tokens that have one whose probability is
/// known and not 0.
fn next_token(
    columns: &Columns,
    numbers: &[Cluster],
    confidence: Confidence,
) -> (Option<Perplexity>, Option<DeltaP>) {
    let is_known = columns.with(Columns::KNOWN);
    let known = numbers.iter().zip(is_known).filter(|(_, is)| *is);
    let numbers: Vec<Cluster> = known.map(|(number, _)| *number).collect();
    let perplexity = Perplexity::of(&numbers, &columns.ref_nll, &columns.eval_nll, confidence);
    let perplexity = perplexity.map(|perplexity| Perplexity {
        n_infinite: columns.n_nll_infinite,
        n_unknown: columns.n_nll_unknown,
        ..perplexity
    });
    (
        perplexity,
        DeltaP::of(&numbers, &columns.delta_p, confidence),
    )
}

#[cfg(test)]
#[path = "tests/summary_pinned.rs"]
mod pinned;
#[cfg(test)]
#[path = "tests/summary.rs"]
mod tests;

/// The probability that the entries that a base file floors could have.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnknownP {
    /// The mean over counted tokens.
    pub mean: f64,
    /// The largest of any token.
    pub max: f64,
}

/// The weights of the counted tokens so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnknownWeights {
    n: u64,
    sum: Sum,
    max: f64,
}

impl UnknownWeights {
    /// Adds a token.
    pub fn push(&mut self, weight: f64) {
        if weight.is_finite() {
            self.n += 1;
            self.sum.add(weight);
            self.max = self.max.max(weight);
        }
    }

    /// Summarises the tokens; `None` if the reference knows every probability.
    pub fn summary(&self) -> Option<UnknownP> {
        (self.max > 0.0).then(|| UnknownP {
            mean: self.sum.value() / self.n as f64,
            max: self.max,
        })
    }
}
