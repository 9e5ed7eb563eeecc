//! The share of drafted tokens that speculative sampling accepts, and the length of drafts that are
//! accepted.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::cluster::Cluster;
use super::columns::Columns;
use super::estimate::{Confidence, Estimate};
use super::mean::Powers;
use super::spread::Spread;

/// The longest draft.
const MAX_DRAFTED: usize = 16;

/// The acceptance of tokens that one model drafts and the other checks, by speculative sampling at
/// temperature 1.
///
/// A token drafted from q is accepted with the probability `min(1, p/q)`, whose mean is
/// `Σ min(p, q)`, one less the total variation distance (Leviathan et al. 2023, "Fast inference from
/// transformers via speculative decoding"). It is the same whichever of the two models drafts.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Acceptance {
    /// The mean of `Σ min(p, q)` over the counted tokens, with its clustered interval: the
    /// probability that a drafted token is accepted.
    pub mean: Estimate,
    /// Drafts of 1 to 16 tokens, or up to the longest for which there is a position.
    pub drafted: Vec<Drafted>,
}

/// The number of accepted tokens of drafts of one length.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Drafted {
    /// The number of tokens in a draft.
    pub n_drafted: u32,
    /// The mean number of tokens accepted before the first that is not, with its clustered interval.
    ///
    /// It is the mean of `a₁ + a₁a₂ + … + a₁a₂…a_n` over every stretch of n adjacent scored positions
    /// of a window, with `a` the acceptances there. The stretches are of the actual text, not of what
    /// a model drafts.
    pub accepted: Estimate,
}

impl Acceptance {
    /// Summarises the counted tokens of an evaluation, the `i`-th of which is in cluster
    /// `clusters[i]`; `None` where no acceptance is known.
    pub(super) fn of(
        columns: &Columns,
        clusters: &[Cluster],
        confidence: Confidence,
    ) -> Option<Self> {
        let stretches = stretches(columns);
        let about = expected(columns.acceptance[stretches.first()?.start]);
        let mut lengths = vec![Length::default(); MAX_DRAFTED];
        for stretch in stretches {
            let acceptances = &columns.acceptance[stretch.clone()];
            add(&mut lengths, about, &clusters[stretch], acceptances);
        }
        let lengths = lengths.iter().zip(about).zip(1..);
        let drafted: Vec<Drafted> = lengths
            .map_while(|((length, about), n_drafted)| {
                let accepted = length.estimate(about, f64::from(n_drafted), confidence)?;
                Some(Drafted {
                    n_drafted,
                    accepted,
                })
            })
            .collect();
        Some(Self {
            mean: drafted.first()?.accepted,
            drafted,
        })
    }

    /// The accepted tokens of drafts of `n_drafted`; `None` where no window has as many positions.
    pub fn of_drafted(&self, n_drafted: u32) -> Option<&Estimate> {
        let mut drafted = self.drafted.iter();
        let of_length = drafted.find(|of| of.n_drafted == n_drafted)?;
        Some(&of_length.accepted)
    }
}

/// The accepted tokens of each length of draft, if each token is accepted with this probability.
/// Sums are about these, so that they do not cancel where nearly all tokens are accepted.
fn expected(acceptance: f64) -> [f64; MAX_DRAFTED] {
    let (mut product, mut sum) = (1.0, 0.0);
    [(); MAX_DRAFTED].map(|()| {
        product *= acceptance;
        sum += product;
        sum
    })
}

/// The counted tokens in parts: at adjacent positions of one window, and of known acceptance.
fn stretches(columns: &Columns) -> Vec<Range<usize>> {
    let (positions, acceptances) = (&columns.position, &columns.acceptance);
    let mut stretches: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for window in columns
        .counted
        .chunk_by(|one, next| one.window == next.window)
    {
        let n: usize = window.iter().map(|run| run.n).sum();
        let tokens = start..start + n;
        start = tokens.end;
        let mut is_adjacent = false;
        for token in tokens {
            let is_known = !acceptances[token].is_nan();
            match stretches.last_mut() {
                Some(last) if is_adjacent && is_known => last.end = token + 1,
                _ if is_known => stretches.push(token..token + 1),
                _ => {}
            }
            let next = positions.get(token + 1).copied();
            is_adjacent = is_known && next == positions[token].checked_add(1);
        }
    }
    stretches
}

/// Adds every draft along `acceptances`, which are of adjacent positions. A draft is in the cluster
/// of its first position.
fn add(
    lengths: &mut [Length],
    about: [f64; MAX_DRAFTED],
    clusters: &[Cluster],
    acceptances: &[f64],
) {
    let mut products = vec![1.0; acceptances.len()];
    let mut accepted = vec![0.0; acceptances.len()];
    for (i, (length, about)) in lengths.iter_mut().zip(about).enumerate() {
        // The last token of each draft.
        let Some(last) = acceptances.get(i..) else {
            return;
        };
        let drafts = products.iter_mut().zip(&mut accepted).zip(last);
        let mut values = drafts.map(|((product, accepted), last)| {
            *product *= last;
            *accepted += *product;
            *accepted - about
        });
        for cluster in clusters[..last.len()].chunk_by(|one, next| one == next) {
            let values = values.by_ref().take(cluster.len());
            *length.0.entry(cluster[0]).or_default() += values.collect();
        }
    }
}

/// The accepted tokens of drafts of one length, about a number: the sums of each cluster.
#[derive(Clone, Default)]
struct Length(BTreeMap<Cluster, Powers>);

impl Length {
    /// The mean with its clustered interval, neither below 0 nor above `most`; `None` without drafts.
    fn estimate(&self, about: f64, most: f64, confidence: Confidence) -> Option<Estimate> {
        let all: Powers = self.0.values().copied().collect();
        if all.n == 0.0 {
            return None;
        }
        let residuals = self.0.iter();
        let residuals = residuals.map(|(cluster, sums)| (*cluster, sums.about(all.mean())));
        let spread = Spread::of_clusters(&residuals.collect());
        let value = (about + all.mean()).clamp(0.0, most);
        let interval = spread.interval(value, confidence);
        let interval = interval.not_below_0().not_above(most);
        Some(interval.around(value))
    }
}

#[cfg(test)]
#[path = "tests/acceptance.rs"]
mod tests;
