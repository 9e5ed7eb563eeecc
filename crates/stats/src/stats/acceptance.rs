//! Drafts of speculative decoding: the share of drafted tokens that are accepted, and the number that a
//! round accepts.

use std::ops::Range;

use serde::Serialize;

use super::clusters::Estimator;
use super::estimate::Estimate;
use super::mean::{Sum, Totals};
use super::spread::{Spread, by_cluster};
use super::table::TokenTable;
use super::token::TokenLocation;

/// The longest draft.
const MAX_DRAFTED: usize = 16;

/// The tokens of a draft, unless a user asks llama.cpp for others: the default of `--spec-draft-n-max`,
/// `common_params_speculative_draft::n_max` in its `common/common.h`.
pub const DEFAULT_DRAFTED: u32 = 3;

/// The acceptance of tokens that one model drafts and the other checks, by speculative sampling at
/// temperature 1.
///
/// A token drafted from q is accepted with the probability `min(1, p/q)`, whose mean is
/// `Σ min(p, q)`, one less the total variation distance (Leviathan et al. 2023, "Fast inference from
/// transformers via speculative decoding"). It is the same whichever of the two models drafts.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Acceptance {
    /// The mean of `Σ min(p, q)` over the counted tokens, with its clustered interval: the
    /// probability that a drafted token is accepted.
    pub mean: Estimate,
    /// Drafts of 1 to 16 tokens, or up to the longest for which there are positions.
    pub drafted: Vec<Drafted>,
}

/// The rounds of drafts of one length.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Drafted {
    /// The number of tokens in a draft.
    pub n_drafted: u32,
    /// The mean number of drafted tokens that a round accepts, with its clustered interval. The original
    /// adds one token of its own in each round.
    ///
    /// As in llama.cpp, a round accepts the drafted tokens before the first that is refused, in whose
    /// stead the original's own token comes; where all n are accepted, that token follows them. The next
    /// round drafts what comes after it. So with `a` the acceptances along the text, a round that starts
    /// at position s accepts `A(s) = Σ_k a_s a_{s+1} … a_{s+k−1}` tokens, k from 1 to n, and
    ///
    /// - j < n of them with the probability `a_s … a_{s+j−1} (1 − a_{s+j})`, n with `a_s … a_{s+n−1}`;
    /// - the next starts at `s + j + 1`.
    ///
    /// That gives the probability P(s) that a round starts at s, from P = 1 at the first scored position of
    /// each window or answer. The mean is `Σ P(s) A(s) / Σ P(s)`, over the positions that n scored ones
    /// begin at. It is below the mean of A over all positions where hard stretches are long, because
    /// rounds start after a token that was refused. The positions are of the actual text, not of what a
    /// model drafts.
    pub accepted: Estimate,
}

impl Acceptance {
    /// Summarises the counted tokens of an evaluation; `None` where no acceptance is known.
    pub(super) fn from_table(table: &TokenTable, estimator: &Estimator) -> Option<Self> {
        let [_, _, acceptances, ..] = &table.columns;
        let mean = estimator.mean(acceptances.iter().copied())?;
        let interval = mean.clustered.clamp(0.0, 1.0);
        let stretches = stretches(table, acceptances);
        let drafts =
            (1..=MAX_DRAFTED).map_while(|n| Drafted::along(n, &stretches, acceptances, estimator));
        Some(Self {
            mean: interval.around(mean.independent.value),
            drafted: drafts.collect(),
        })
    }

    /// The accepted tokens of drafts of `n_drafted`; `None` where no window has as many positions.
    pub fn of_drafted(&self, n_drafted: u32) -> Option<&Estimate> {
        let longer = (n_drafted as usize).checked_sub(1)?;
        Some(&self.drafted.get(longer)?.accepted)
    }
}

impl Drafted {
    /// Follows drafts of `n_drafted` tokens along stretches of adjacent positions; `None` where no stretch
    /// is as long as a draft.
    fn along(
        n_drafted: usize,
        stretches: &[Range<usize>],
        acceptances: &[f64],
        estimator: &Estimator,
    ) -> Option<Self> {
        let (mut clusters_of_starts, mut all) = (Vec::new(), Vec::new());
        // A round counts in the cluster that it starts in.
        for at in stretches {
            all.extend(starts(&acceptances[at.clone()], n_drafted));
            let clusters = &estimator.clusters[at.start..];
            clusters_of_starts.extend_from_slice(&clusters[..all.len() - clusters_of_starts.len()]);
        }
        all.first()?;
        let n_rounds: Sum = all.iter().map(|(probability, _)| *probability).collect();
        let accepted: Sum = all
            .iter()
            .map(|(probability, n_accepted)| probability * n_accepted)
            .collect();
        let value = accepted.value() / n_rounds.value();
        let residual = |(probability, n_accepted): &(f64, f64)| {
            Totals::of_powers(n_accepted - value, *probability)
        };
        let spread =
            Spread::of_clusters(&by_cluster(&clusters_of_starts, all.iter().map(residual)));
        let interval = spread.interval(value, estimator.confidence);
        Some(Self {
            n_drafted: n_drafted as u32,
            accepted: interval.clamp(0.0, n_drafted as f64).around(value),
        })
    }
}

/// The positions at which rounds of `n_drafted` tokens may start, along adjacent ones with these
/// acceptances: the probability of a start, and the mean number of tokens that a round from there accepts.
/// Positions with fewer than `n_drafted` from there on are left out.
fn starts(acceptances: &[f64], n_drafted: usize) -> Vec<(f64, f64)> {
    let mut probabilities = vec![0.0; acceptances.len() + 2];
    probabilities[0] = 1.0;
    let drafts = acceptances.windows(n_drafted).enumerate();
    let start = |(s, draft): (usize, &[f64])| {
        let probability = probabilities[s];
        let (mut accepted, mut all_so_far) = (0.0, 1.0);
        for (next, acceptance) in probabilities[s + 1..].iter_mut().zip(draft) {
            *next += probability * all_so_far * (1.0 - acceptance);
            all_so_far *= acceptance;
            accepted += all_so_far;
        }
        probabilities[s + n_drafted + 1] += probability * all_so_far;
        (probability, accepted)
    };
    drafts.map(start).collect()
}

/// The counted tokens in parts: at adjacent positions of one window, and of known acceptance.
fn stretches(table: &TokenTable, acceptances: &[f64]) -> Vec<Range<usize>> {
    let mut stretches: Vec<Range<usize>> = Vec::new();
    let tokens = table.locations().zip(acceptances).enumerate();
    let mut next = None;
    for (at, (of, _)) in tokens.filter(|(_, (_, acceptance))| !acceptance.is_nan()) {
        let TokenLocation {
            window, position, ..
        } = of;
        let is_next = next == Some((at, window, Some(position)));
        match stretches.last_mut().filter(|_| is_next) {
            Some(stretch) => stretch.end += 1,
            None => stretches.push(at..at + 1),
        }
        next = Some((at + 1, window, position.checked_add(1)));
    }
    stretches
}

#[cfg(test)]
#[path = "tests/acceptance.rs"]
mod tests;
