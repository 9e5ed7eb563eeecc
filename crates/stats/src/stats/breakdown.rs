//! Where a model's KLD comes from: by the reference's confidence, position, group, span,
//! special tokens.

use std::iter::repeat_n;

use serde::Serialize;

use super::clusters::Estimator;
use super::estimate::{Estimate, finite};
use super::mean::Sum;
use super::table::{CONFIDENCE_EDGES, PartNames, TokenTable};

/// The mean of fewer tokens than this is a hint, no more: their KLDs differ by orders of magnitude,
/// and reports mark such a bin.
pub const FEW_TOKENS: u64 = 1000;

/// The mean KLD of parts of the counted tokens.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Breakdown {
    /// Bins by the probability of the reference's top token. Empty where no token counts.
    pub by_confidence: Vec<Bin>,
    /// Bins by position in the window, in powers of two: 0, 1, 2–3, 4–7 and so on.
    pub by_position: Vec<Bin>,
    /// Bins by group; empty without groups.
    pub by_group: Vec<Bin>,
    /// Bins by span, a part of the prompt or of the answer; a span without tokens is left out. Empty
    /// without spans.
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
    /// Sorts the counted tokens into bins. `by_depth` has their clusters among the tokens of one depth.
    pub(super) fn from_table(
        table: &TokenTable,
        estimator: &Estimator,
        by_depth: &Estimator,
        names: PartNames<'_>,
    ) -> Self {
        let tokens = &table.tokens[..];
        let bins = |names: Vec<BinName>, bin_of: &dyn Fn(usize) -> usize| {
            bins(table, estimator, names, bin_of)
        };
        let power = |at: usize| (u32::BITS - tokens[at].position.leading_zeros()) as usize;
        let without_ends = |label: &str| (label.to_owned(), None, None);
        let bin_names = |names: &[String]| names.iter().map(|name| without_ends(name)).collect();
        let runs = table.counted.iter();
        let spans = Vec::from_iter(runs.flat_map(|run| repeat_n(run.span, run.n)));
        let special_names = ["special tokens", "other tokens"].map(without_ends);
        let mut breakdown = Self {
            by_confidence: bins(confidence_names(), &|at| tokens[at].confidence_bin.into()),
            by_position: self::bins(table, by_depth, position_names(), &power),
            by_group: bins(bin_names(names.groups), &|at| {
                estimator.clusters[at].stratum as usize
            }),
            by_span: bins(bin_names(names.spans), &|at| spans[at] as usize),
            special: bins(special_names.into(), &|at| {
                usize::from(!tokens[at].is_special)
            }),
        };
        if tokens.is_empty() {
            breakdown.by_confidence.clear();
        }
        breakdown.by_position.retain(|bin| bin.n_tokens > 0);
        breakdown.by_span.retain(|bin| bin.n_tokens > 0);
        if !tokens.iter().any(|token| token.is_special) {
            breakdown.special.clear();
        }
        breakdown
    }
}

/// The named bins of counted tokens. Token `i` belongs to bin `bin_of(i)`; it is left out if that number has
/// no name.
fn bins(
    table: &TokenTable,
    estimator: &Estimator,
    names: Vec<BinName>,
    bin_of: &dyn Fn(usize) -> usize,
) -> Vec<Bin> {
    let sum = |klds: &mut dyn Iterator<Item = f64>| {
        klds.filter(|kld| kld.is_finite()).collect::<Sum>().value()
    };
    let all_klds = table.klds();
    let sum_of_all = sum(&mut all_klds.iter().copied());
    // As u32, since the tokens of a long text fill much memory.
    let mut members = vec![Vec::<u32>::new(); names.len()];
    for token in 0..all_klds.len() {
        if let Some(members) = members.get_mut(bin_of(token)) {
            members.push(token as u32);
        }
    }
    let mut estimator_of_bin = Estimator::new([], estimator.confidence);
    let bin = |((label, from, to), members): (BinName, Vec<u32>)| {
        let n_tokens = members.len();
        let indices = members.iter().map(|index| *index as usize);
        let klds = indices.clone().map(|at| all_klds[at]);
        estimator_of_bin.clusters.clear();
        let clusters = indices.clone().map(|at| estimator.clusters[at]);
        estimator_of_bin.clusters.extend(clusters);
        let mean = estimator_of_bin.mean_of_positive(klds.clone());
        let n_same_top = indices.filter(|at| table.tokens[*at].has_same_top).count();
        Bin {
            label,
            from,
            to,
            n_tokens: n_tokens as u64,
            n_infinite: klds.clone().filter(|kld| kld.is_infinite()).count() as u64,
            kld: mean.map(|mean| mean.estimate()),
            share_of_kld: finite(sum(&mut klds.clone()) / sum_of_all),
            agreement: finite(n_same_top as f64 / n_tokens as f64),
        }
    };
    names.into_iter().zip(members).map(bin).collect()
}

/// The label of a bin, and its ends.
type BinName = (String, Option<f64>, Option<f64>);

fn confidence_names() -> Vec<BinName> {
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

fn position_names() -> Vec<BinName> {
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
