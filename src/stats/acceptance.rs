//! The share of drafted tokens that speculative sampling accepts, and the length of drafts that are
//! accepted.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::cluster::Cluster;
use super::columns::Columns;
use super::estimate::{Confidence, Estimate};
use super::mean::{Powers, Sum};
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
    /// It is the sum over k, from 1 to n, of the mean of `a₁a₂…a_k` over every stretch of k adjacent
    /// scored positions of a window, with `a` the acceptances there: the k-th token counts if it and all
    /// before it are accepted. The stretches are of the actual text, not of what a model drafts.
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
        let of_stretch = |stretch: &Range<usize>| &columns.acceptance[stretch.clone()];
        let mut products = [(); MAX_DRAFTED].map(|()| Products::default());
        for stretch in &stretches {
            each_length(of_stretch(stretch), |k, of_length| {
                of_length
                    .iter()
                    .for_each(|product| products[k].push(*product));
            });
        }
        let mut lengths = vec![BTreeMap::new(); MAX_DRAFTED];
        for stretch in &stretches {
            add(
                &mut lengths,
                &products,
                &clusters[stretch.clone()],
                of_stretch(stretch),
            );
        }
        let mut value = 0.0;
        let drafts = products.iter().zip(&lengths).zip(1..);
        let drafted: Vec<Drafted> = drafts
            .map_while(|((products, residuals), n_drafted)| {
                value += products.mean()?;
                let spread = Spread::of_clusters(residuals);
                let interval = spread.interval(value, confidence);
                let interval = interval.not_below_0().not_above(f64::from(n_drafted));
                Some(Drafted {
                    n_drafted,
                    accepted: interval.around(value),
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

/// The probabilities that all tokens of drafts of one length are accepted: how many there are, and
/// their sum.
#[derive(Clone, Copy, Default)]
struct Products {
    n: u64,
    sum: Sum,
}

impl Products {
    fn push(&mut self, product: f64) {
        self.n += 1;
        self.sum.add(product);
    }

    fn mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum.value() / self.n as f64)
    }
}

/// Calls `of_length` for each length of draft, as an index from 0, with the products of `acceptances`,
/// which are of adjacent positions, over every stretch of that length: none where it is too long.
fn each_length(acceptances: &[f64], mut of_length: impl FnMut(usize, &[f64])) {
    let mut products = vec![1.0; acceptances.len()];
    for k in 0..MAX_DRAFTED {
        let last = acceptances.get(k..).unwrap_or_default();
        products.truncate(last.len());
        let stretches = products.iter_mut().zip(last);
        stretches.for_each(|(product, last)| *product *= last);
        of_length(k, &products);
    }
}

/// Adds the residual of each of these adjacent positions to its cluster, for each length of draft. A sum of
/// means over different numbers of stretches has the residuals `Σ_k (product − mean_k) n_1 / n_k`, each at
/// the stretch's first position.
fn add(
    lengths: &mut [BTreeMap<Cluster, Powers>],
    products: &[Products],
    clusters: &[Cluster],
    acceptances: &[f64],
) {
    let n = products.first().map_or(0, |of| of.n) as f64;
    let mut residuals = vec![0.0; acceptances.len()];
    each_length(acceptances, |k, of_length| {
        let (Some(mean), n_k) = (products[k].mean(), products[k].n as f64) else {
            return;
        };
        for (residual, product) in residuals.iter_mut().zip(of_length) {
            *residual += (product - mean) * n / n_k;
        }
        let mut values = residuals.iter().copied();
        for cluster in clusters.chunk_by(|one, next| one == next) {
            let values = values.by_ref().take(cluster.len());
            *lengths[k].entry(cluster[0]).or_default() += values.collect();
        }
    });
}

#[cfg(test)]
#[path = "tests/acceptance.rs"]
mod tests;
