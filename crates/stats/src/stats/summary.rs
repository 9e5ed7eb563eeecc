//! The statistics of one evaluation, from its per-token records alone.

use serde::Serialize;

use super::acceptance::Acceptance;
use super::breakdown::Breakdown;
use super::clustered::Share;
use super::clusters::{Clustering, Clusters, Estimator};
use super::distribution::{self, DeltaP, Distribution, Point};
use super::estimate::Confidence;
use super::identical_output::IdenticalOutput;
use super::mean::MeanMax;
use super::perplexity::Perplexity;
use super::quantile;
use super::table::{PartNames, Token, TokenTable};
use super::token::{ExcludedToken, ExcludedTokens, delta_p};
use super::windows::Run;

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
    /// Those of them at which the reference's row is not finite.
    pub n_excluded_ref: u64,
    /// Those of them at which the evaluated model's row is not finite.
    pub n_excluded_eval: u64,
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
    /// The agreement of the model's greedy answers with the reference's; absent where the reference's model
    /// has not answered greedily.
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
    /// The tokens that are left out, by side.
    pub fn all_excluded(&self) -> ExcludedTokens {
        ExcludedTokens {
            n: self.n_excluded,
            n_ref: self.n_excluded_ref,
            n_eval: self.n_excluded_eval,
        }
    }

    /// Counted tokens whose KLD is infinite.
    pub fn n_infinite(&self) -> u64 {
        self.kld
            .as_ref()
            .map_or(self.n_tokens, |kld| kld.n_infinite)
    }
}

/// All that the tokens of an evaluation give.
#[derive(Clone, Debug)]
pub struct Statistics {
    pub summary: Summary,
    pub breakdown: Breakdown,
    /// The share of counted tokens (y) with at least a KLD in nats (x).
    pub ccdf: Vec<Point>,
}

impl TokenTable {
    /// Estimates everything with intervals by these clusters of all windows.
    pub fn summarise(
        &self,
        clusters: &Clusters,
        names: PartNames<'_>,
        confidence: Confidence,
    ) -> Statistics {
        let estimator = &clusters.estimator(&self.counted, confidence);
        let [klds, reverse_klds, _, ref_nlls, eval_nlls] = &self.columns;
        let divergence = |values: &[f64]| {
            let sorted = quantile::sorted(values);
            let distribution =
                Distribution::from_values(self, estimator, values, &sorted, &QUANTILES);
            (distribution, distribution::ccdf(&sorted, values.len()))
        };
        let (kld, ccdf) = divergence(klds);
        let (reverse_kld, _) = divergence(reverse_klds);
        let nlls = ref_nlls.iter().zip(eval_nlls);
        let changes: Vec<f64> = nlls.map(|(r, e)| delta_p(*r, *e)).collect();
        let summary = Summary {
            n_tokens: self.tokens.len() as u64,
            n_excluded: self.all_excluded.n,
            n_excluded_ref: self.all_excluded.n_ref,
            n_excluded_eval: self.all_excluded.n_eval,
            n_windows: Run::n_windows(&self.counted),
            confidence,
            clusters: clusters.clustering,
            kld,
            reverse_kld,
            agreement: Agreement::from_table(self, estimator),
            acceptance: Acceptance::from_table(self, estimator),
            perplexity: Perplexity::from_nlls(estimator, ref_nlls, eval_nlls, self.n_left_out),
            delta_p: DeltaP::from_changes(estimator, &changes),
            identical_output: IdenticalOutput::from_answers(&self.answers, clusters, confidence),
            unknown_p: self.unknown_p.value().filter(|p| p.max > 0.0),
            excluded: self.excluded.clone(),
        };
        let by_depth = clusters.estimator_by_depth(&self.counted, confidence);
        Statistics {
            summary,
            breakdown: Breakdown::from_table(self, estimator, &by_depth, names),
            ccdf,
        }
    }
}

impl Agreement {
    fn from_table(table: &TokenTable, estimator: &Estimator) -> Option<Self> {
        let share = |is_hit: fn(&Token) -> bool| {
            estimator.share(table.tokens.iter().map(|token| Some(is_hit(token))))
        };
        Some(Self {
            ref_top1: share(|token| token.has_same_top)?,
            ref_top5: share(|token| token.ref_top_rank <= 5)?,
            ref_top10: share(|token| token.ref_top_rank <= 10)?,
            eval_top5: share(|token| token.eval_top_rank <= 5)?,
            eval_top10: share(|token| token.eval_top_rank <= 10)?,
        })
    }
}

#[cfg(test)]
#[path = "tests/summary.rs"]
mod tests;
