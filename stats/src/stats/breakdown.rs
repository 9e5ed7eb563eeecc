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
        let finite_klds = columns.kld.iter().copied().filter(|kld| kld.is_finite());
        let sum_of_all = finite_klds.collect::<Sum>().value();
        let bin = |clusters: &[Cluster], (label, from, to): Name, tokens: Vec<u32>| {
            let places = || tokens.iter().map(|token| *token as usize);
            let counted = places().map(|token| (clusters[token], columns.kld[token]));
            let counted = counted.filter(|(_, kld)| kld.is_finite());
            let (clusters, klds): (Vec<Cluster>, Vec<f64>) = counted.unzip();
            let mean = ClusteredMean::of_positive(&clusters, &klds, confidence);
            let sum: Sum = klds.iter().copied().collect();
            let n_same_top = places().filter(|token| same_top[*token]).count();
            Bin {
                label,
                from,
                to,
                n_tokens: tokens.len() as u64,
                n_infinite: (tokens.len() - klds.len()) as u64,
                kld: mean.map(|mean| mean.by_cluster()),
                share_of_kld: finite(sum.value() / sum_of_all),
                agreement: finite(n_same_top as f64 / tokens.len() as f64),
            }
        };
        // The tokens of each named bin, as u32, since those of a long text fill much memory; a token of a bin
        // beyond these is in none.
        let bins_by = |clusters: &[Cluster], names: Vec<Name>, bin_of: &dyn Fn(usize) -> usize| {
            let mut tokens = vec![Vec::new(); names.len()];
            for token in 0..columns.kld.len() {
                if let Some(tokens) = tokens.get_mut(bin_of(token)) {
                    tokens.push(token as u32);
                }
            }
            let bins = names.into_iter().zip(tokens);
            bins.map(|(name, tokens)| bin(clusters, name, tokens))
                .collect::<Vec<Bin>>()
        };
        let bins = |names, bin_of: &dyn Fn(usize) -> usize| bins_by(clusters, names, bin_of);
        let without_ends = |label: &str| (label.to_owned(), None, None);
        let power = |token| (u32::BITS - u32::leading_zeros(columns.position[token])) as usize;
        let confidence_names = if columns.kld.is_empty() {
            Vec::new()
        } else {
            confidence_names()
        };
        let mut by_position = bins_by(by_depth, position_names(), &power);
        by_position.retain(|bin| bin.n_tokens > 0);
        let of_parts = |names: &[String]| names.iter().map(|name| without_ends(name)).collect();
        let runs = columns.counted.iter();
        let spans = Vec::from_iter(runs.flat_map(|run| repeat_n(run.span, run.n)));
        let mut by_span = bins(of_parts(names.spans), &|token| spans[token] as usize);
        by_span.retain(|bin| bin.n_tokens > 0);
        let is_special = columns.with(Columns::SPECIAL);
        let special_names = if is_special.contains(&true) {
            ["special tokens", "other tokens"].map(without_ends).into()
        } else {
            Vec::new()
        };
        Self {
            by_confidence: bins(confidence_names, &|token| {
                columns.confidence_bin[token].into()
            }),
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

#[cfg(test)]
#[path = "tests/breakdown.rs"]
mod tests;
