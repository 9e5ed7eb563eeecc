//! The statistics of one evaluation, from its per-token records alone.

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::delta_p::DeltaP;
use super::distribution::Distribution;
use super::estimate::{Confidence, Estimate};
use super::perplexity::Perplexity;
use super::proportion;

/// A broken model may give no finite row at all: list enough of them to look into, not all.
const MAX_EXCLUDED_LISTED: usize = 100;

/// The statistics of one evaluated model; the fields are the JSON's keys.
///
/// A part is `None` (null) without tokens to compute it from: counted ones for all parts, and ones
/// that have a next token for `perplexity` and `delta_p`.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Summary {
    /// Counted tokens: the scored ones that the statistics are computed from.
    pub n_tokens: u64,
    /// Scored tokens that are left out: a row, or a score computed from it, is not finite.
    pub n_excluded: u64,
    /// Windows that the counted tokens are from.
    pub n_windows: u64,
    /// The level of every interval.
    pub confidence: Confidence,
    /// KL(p‖q), in nats: p is the reference's distribution, q the evaluated model's.
    pub kld: Option<Distribution>,
    /// KL(q‖p), in nats.
    pub reverse_kld: Option<Distribution>,
    /// How often the top tokens agree.
    pub agreement: Option<Agreement>,
    /// The perplexity of both models on the actual next tokens.
    pub perplexity: Option<Perplexity>,
    /// The change in the actual next tokens' probability.
    pub delta_p: Option<DeltaP>,
    /// The first tokens that are left out, at most 100; `n_excluded` counts all.
    pub excluded: Vec<ExcludedToken>,
}

/// How often the two models' top tokens agree, as shares of the counted tokens.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Both models have the same top token.
    pub ref_top1: Estimate,
    /// The reference's top token is among the evaluated model's top 5.
    pub ref_top5: Estimate,
    /// The reference's top token is among the evaluated model's top 10.
    pub ref_top10: Estimate,
    /// The evaluated model's top token is among the reference's top 5.
    pub eval_top5: Estimate,
    /// The evaluated model's top token is among the reference's top 10.
    pub eval_top10: Estimate,
}

/// A scored token that was left out, and why.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExcludedToken {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window.
    pub position: u32,
    /// Why it was left out.
    pub which: ExclusionReason,
}

/// Why a scored token is left out: what is not finite.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ExclusionReason {
    /// The reference's row.
    Ref,
    /// The evaluated model's row.
    Eval,
    /// Both rows.
    Both,
    /// A score, though both rows are finite.
    Score,
}

impl ExclusionReason {
    /// Why `record` is left out; `None` if it is counted.
    pub fn of(record: &TokenRecord) -> Option<Self> {
        let flag = |bit| record.flags & bit != 0;
        match (
            flag(TokenRecord::REF_NOT_FINITE),
            flag(TokenRecord::EVAL_NOT_FINITE),
        ) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Ref),
            (false, true) => Some(Self::Eval),
            (false, false) => {
                let divergences = record.kld.is_finite() && record.reverse_kld.is_finite();
                let next = record.ref_nll.is_finite()
                    && record.eval_nll.is_finite()
                    && delta_p(record).is_finite();
                let complete = divergences && (next || record.next_token().is_none());
                (!complete).then_some(Self::Score)
            }
        }
    }
}

/// Whether the statistics count `record`: its rows and all of its scores are finite.
pub fn is_counted(record: &TokenRecord) -> bool {
    ExclusionReason::of(record).is_none()
}

/// `q(next) − p(next)`.
pub(super) fn delta_p(record: &TokenRecord) -> f64 {
    (-record.eval_nll).exp() - (-record.ref_nll).exp()
}

impl Summary {
    /// Computes all statistics from records in any order.
    ///
    /// Their order decides the last bits of the sums, and which of the excluded tokens are listed.
    pub fn from_records(records: &[TokenRecord], confidence: Confidence) -> Self {
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
        let windows: Vec<u32> = counted.iter().map(|r| r.window).collect();
        let (perplexity, delta_p) = next_token(&counted, confidence);
        Self {
            n_tokens: counted.len() as u64,
            n_excluded: (records.len() - counted.len()) as u64,
            n_windows: distinct(&windows),
            confidence,
            kld: Distribution::of(&counted, &windows, |r| r.kld, confidence),
            reverse_kld: Distribution::of(&counted, &windows, |r| r.reverse_kld, confidence),
            agreement: Agreement::of(&counted, confidence),
            perplexity,
            delta_p,
            excluded,
        }
    }
}

impl Agreement {
    fn of(counted: &[&TokenRecord], confidence: Confidence) -> Option<Self> {
        let share = |holds: fn(&TokenRecord) -> bool| {
            let successes = counted.iter().filter(|r| holds(r)).count();
            proportion::estimate(successes as u64, counted.len() as u64, confidence)
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

/// The statistics of the actual next token, over the records that have one.
fn next_token(
    counted: &[&TokenRecord],
    confidence: Confidence,
) -> (Option<Perplexity>, Option<DeltaP>) {
    let with_next = || counted.iter().filter(|r| r.next_token().is_some());
    let ref_nll: Vec<f64> = with_next().map(|r| r.ref_nll).collect();
    let eval_nll: Vec<f64> = with_next().map(|r| r.eval_nll).collect();
    let perplexity = Perplexity::of(&ref_nll, &eval_nll);
    let windows: Vec<u32> = with_next().map(|r| r.window).collect();
    let changes = with_next().map(|r| delta_p(r)).collect();
    (perplexity, DeltaP::of(&windows, changes, confidence))
}

/// How many different windows there are.
fn distinct(windows: &[u32]) -> u64 {
    let mut windows = windows.to_vec();
    windows.dedup();
    windows.sort_unstable();
    windows.dedup();
    windows.len() as u64
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
