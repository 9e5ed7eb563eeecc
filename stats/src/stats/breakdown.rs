//! Where a model's KLD comes from: by the reference's confidence, position, group, span,
//! special tokens.

use std::iter::repeat_n;

use serde::Serialize;

use super::clustered::ClusteredMean;
use super::columns::{CONFIDENCE_EDGES, Columns, PartNames};
use super::estimate::{Confidence, Estimate, finite};
use super::mean::Sum;
use super::windows::Cluster;

/// The mean of fewer tokens than this is a hint, no more: their KLDs differ by orders of magnitude,
/// and reports mark such a bin.
pub const FEW_TOKENS: u64 = 1000;

/// The mean KLD of parts of the counted tokens.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Breakdown {
    /// By the probability of the reference's top token. Empty where no token counts.
    pub by_confidence: Vec<Bin>,
    /// By position in the window, in powers of two: 0, 1, 2–3, 4–7 and so on.
    pub by_position: Vec<Bin>,
    /// By group; empty without groups.
    pub by_group: Vec<Bin>,
    /// By span, a part of the prompt or of the answer; a span without tokens is left out. Empty without
    /// spans.
    pub by_span: Vec<Bin>,
    /// Positions whose next token is a special one, and the others; empty if none is.
    pub special: Vec<Bin>,
}

/// Some of the counted tokens.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Bin {
    /// The trait that the tokens share, in words.
    pub label: String,
    /// The smallest value of a token in the bin; `None` where that has no number or no end.
    pub from: Option<f64>,
    /// The value that all tokens stay below; `None` where that has no number or no end.
    pub to: Option<f64>,
    /// The number of tokens in the bin.
    pub n_tokens: u64,
    /// Tokens of the bin whose KLD is infinite, which are left out of the mean.
    pub n_infinite: u64,
    /// The mean KLD of the bin's tokens, with its clustered interval; `None` without tokens.
    pub kld: Option<Estimate>,
    /// The bin's sum of KLDs over that of all tokens; `None` where that is 0.
    pub share_of_kld: Option<f64>,
    /// The share of the bin's tokens on which both models have the same top token; `None` without
    /// tokens.
    pub agreement: Option<f64>,
}

impl Breakdown {
    /// Sorts the counted tokens into bins, the `i`-th of which is in cluster `clusters[i]`, and among
    /// the tokens of its depth in `by_depth[i]`.
    pub(super) fn of(
        columns: &Columns,
        clusters: &[Cluster],
        by_depth: &[Cluster],
        names: PartNames<'_>,
        confidence: Confidence,
    ) -> Self {
        let same_top = columns.with(Columns::SAME_TOP);
        let klds = columns.kld.iter().copied();
        let sum_of_all = klds.filter(|kld| kld.is_finite()).collect::<Sum>().value();
        // The tokens of each named bin; a token of a bin beyond these is in none.
        let bins_by = |clusters: &[Cluster], names: Vec<Name>, bin_of: &dyn Fn(usize) -> usize| {
            let mut bins = vec![Inside::default(); names.len()];
            for (token, &kld) in columns.kld.iter().enumerate() {
                if let Some(inside) = bins.get_mut(bin_of(token)) {
                    inside.push(kld, clusters[token], same_top[token]);
                }
            }
            let bins = names.into_iter().zip(bins);
            bins.map(|(name, inside)| inside.bin(name, sum_of_all, confidence))
                .collect::<Vec<Bin>>()
        };
        let bins = |names, bin_of: &dyn Fn(usize) -> usize| bins_by(clusters, names, bin_of);
        let without_ends = |label: &str| (label.to_owned(), None, None);
        let power = |token| (u32::BITS - u32::leading_zeros(columns.position[token])) as usize;
        let mut by_position = bins_by(by_depth, position_names(), &power);
        by_position.retain(|bin| bin.n_tokens > 0);
        let of_parts = |names: &[String]| names.iter().map(|name| without_ends(name)).collect();
        let runs = columns.counted.iter();
        let spans = Vec::from_iter(runs.flat_map(|run| repeat_n(run.span as usize, run.n)));
        let mut by_span = bins(of_parts(names.spans), &|token| spans[token]);
        by_span.retain(|bin| bin.n_tokens > 0);
        let is_special = columns.with(Columns::SPECIAL);
        let special_names = match is_special.contains(&true) {
            true => ["special tokens", "other tokens"].map(without_ends).into(),
            false => Vec::new(),
        };
        Self {
            by_confidence: match columns.kld.is_empty() {
                true => Vec::new(),
                false => bins(confidence_names(), &|token| {
                    columns.confidence_bin[token].into()
                }),
            },
            by_position,
            by_group: bins(of_parts(names.groups), &|token| {
                clusters[token].stratum as usize
            }),
            by_span,
            special: bins(special_names, &|token| usize::from(!is_special[token])),
        }
    }
}

/// The label of a bin, and its ends.
type Name = (String, Option<f64>, Option<f64>);

fn confidence_names() -> Vec<Name> {
    let edges = [None].into_iter().chain(CONFIDENCE_EDGES.map(Some));
    let ends = CONFIDENCE_EDGES.map(Some).into_iter().chain([None]);
    let name = |(from, to): (Option<f64>, Option<f64>)| {
        let [low, high] = [from, to].map(|p| 100.0 * p.unwrap_or_default());
        let label = match (from, to) {
            (Some(_), Some(_)) => format!("{low:.0} to {high:.0} %"),
            (Some(_), None) => format!("{low:.0} % and above"),
            (None, _) => format!("below {high:.0} %"),
        };
        (label, from, to)
    };
    edges.zip(ends).map(name).collect()
}

fn position_names() -> Vec<Name> {
    let name = |power: u32| {
        let (from, to) = ((1_u64 << power) >> 1, 1_u64 << power);
        let label = match to - 1 {
            last if last == from => from.to_string(),
            last => format!("{from}–{last}"),
        };
        (label, Some(from as f64), Some(to as f64))
    };
    (0..=u32::BITS).map(name).collect()
}

/// The tokens of a bin.
#[derive(Clone, Default)]
struct Inside {
    n: usize,
    n_same_top: usize,
    /// The finite KLDs, and their clusters.
    klds: Vec<f64>,
    clusters: Vec<Cluster>,
}

impl Inside {
    fn push(&mut self, kld: f64, cluster: Cluster, same_top: bool) {
        self.n += 1;
        self.n_same_top += usize::from(same_top);
        if kld.is_finite() {
            self.klds.push(kld);
            self.clusters.push(cluster);
        }
    }

    fn bin(self, (label, from, to): Name, sum_of_all: f64, confidence: Confidence) -> Bin {
        let mean = ClusteredMean::of_positive(&self.clusters, &self.klds, confidence);
        let kld = mean.map(|mean| mean.by_cluster());
        let n_finite = self.klds.len();
        let sum: Sum = self.klds.iter().copied().collect();
        Bin {
            label,
            from,
            to,
            n_tokens: self.n as u64,
            n_infinite: (self.n - n_finite) as u64,
            kld,
            share_of_kld: finite(sum.value() / sum_of_all),
            agreement: finite(self.n_same_top as f64 / self.n as f64),
        }
    }
}

#[cfg(test)]
#[path = "tests/breakdown.rs"]
mod tests;
