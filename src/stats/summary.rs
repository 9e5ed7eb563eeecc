//! The statistics of one evaluation, from its per-token records alone.

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::cluster::{ClusterRule, Clustering, Clusters};
use super::delta_p::{DeltaP, delta_p};
use super::distribution::Distribution;
use super::estimate::{Confidence, Estimate};
use super::exclusion::{ExcludedToken, ExclusionReason};
use super::macro_mean::macro_mean;
use super::perplexity::Perplexity;
use super::proportion::Share;
use super::unknown::UnknownP;

/// A broken model may give no finite row at all: list enough of them to look into, not all.
const MAX_EXCLUDED_LISTED: usize = 100;

/// The statistics of one evaluated model.
///
/// A part is `None` (null) without tokens to compute it from: counted ones for all parts, ones
/// with a finite divergence for `kld` and `reverse_kld`, and ones whose next token has a known
/// probability for `perplexity` and `delta_p`.
#[derive(Serialize, Clone, Debug, PartialEq)]
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
    /// Which tokens count as one observation in the clustered intervals.
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
    /// How often the top tokens agree.
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

/// How often the two models' top tokens agree, as shares of the counted tokens.
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
        let clusters = Clusters::of_records(records, rule);
        let mut counted = Vec::with_capacity(records.len());
        let mut excluded = Vec::new();
        for record in records {
            match ExclusionReason::of(record) {
                None => counted.push(record),
                Some(which) if excluded.len() < MAX_EXCLUDED_LISTED => {
                    excluded.push(ExcludedToken {
                        window: record.window,
                        position: record.position,
                        which,
                    });
                }
                Some(_) => {}
            }
        }
        let (perplexity, delta_p) = next_token(&counted, &clusters, confidence);
        let divergence =
            |of: fn(&TokenRecord) -> f64| Distribution::of(&counted, &clusters, of, confidence);
        Self {
            n_tokens: counted.len() as u64,
            n_excluded: (records.len() - counted.len()) as u64,
            n_windows: clusters.n_windows() as u64,
            confidence,
            clusters: clusters.clustering(),
            kld: divergence(|r| r.kld),
            kld_macro: macro_mean(&counted, &clusters, |r| r.kld, confidence),
            reverse_kld: divergence(|r| r.reverse_kld),
            agreement: Agreement::of(&counted, &clusters, confidence),
            perplexity,
            delta_p,
            unknown_p: UnknownP::of(&counted),
            excluded,
        }
    }

    /// Counted tokens whose KLD is infinite.
    pub fn n_infinite(&self) -> u64 {
        self.kld
            .as_ref()
            .map_or(self.n_tokens, |kld| kld.n_infinite)
    }
}

impl Agreement {
    fn of(counted: &[&TokenRecord], clusters: &Clusters, confidence: Confidence) -> Option<Self> {
        let numbers = clusters.of_each(counted);
        let share = |holds: fn(&TokenRecord) -> bool| {
            let hits: Vec<bool> = counted.iter().map(|r| holds(r)).collect();
            Share::of(&numbers, &hits, confidence)
        };
        Some(Self {
            ref_top1: share(|r| r.ref_top == r.eval_top)?,
            ref_top5: share(|r| r.ref_top_rank <= 5)?,
            ref_top10: share(|r| r.ref_top_rank <= 10)?,
            eval_top5: share(|r| r.eval_top_rank <= 5)?,
            eval_top10: share(|r| r.eval_top_rank <= 10)?,
        })
    }
}

/// The statistics of the actual next token, over the records that have one whose probability is
/// known and not 0.
fn next_token(
    counted: &[&TokenRecord],
    clusters: &Clusters,
    confidence: Confidence,
) -> (Option<Perplexity>, Option<DeltaP>) {
    let with_next = || counted.iter().filter(|r| r.next_token().is_some());
    let is_unknown = |r: &TokenRecord| r.ref_nll.is_nan() || r.eval_nll.is_nan();
    let n_unknown = with_next().filter(|r| is_unknown(r)).count();
    let known: Vec<&TokenRecord> = with_next()
        .filter(|r| r.ref_nll.is_finite() && r.eval_nll.is_finite())
        .copied()
        .collect();
    let numbers = clusters.of_each(&known);
    let of_each = |value: fn(&TokenRecord) -> f64| -> Vec<f64> {
        known.iter().map(|record| value(record)).collect()
    };
    let (ref_nll, eval_nll) = (of_each(|r| r.ref_nll), of_each(|r| r.eval_nll));
    let perplexity = Perplexity::of(&numbers, &ref_nll, &eval_nll, confidence);
    let perplexity = perplexity.map(|perplexity| Perplexity {
        n_infinite: (with_next().count() - known.len() - n_unknown) as u64,
        n_unknown: n_unknown as u64,
        ..perplexity
    });
    let changes = of_each(delta_p);
    (perplexity, DeltaP::of(&numbers, &changes, confidence))
}

#[cfg(test)]
#[path = "summary_pinned.rs"]
mod pinned;
#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
