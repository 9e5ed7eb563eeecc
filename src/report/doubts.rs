//! Doubts: the warnings that the numbers of a result give reason for, or of several side by side.

use super::comparison::ComparedModel;
use super::number::printable;
use super::result::{ModelResult, unit};
use super::warning::Warning;
use crate::stats::{ClusterKind, Clustering, Perplexity, Summary};

/// The reference perplexity from which `kl` doubts the text: base models on prose stay far below.
const DOUBTFUL_PERPLEXITY: f64 = 100.0;

/// The mean KLD in nats from which, and the share of equal top tokens below which, `kl` doubts that
/// one model is a quant of the other. They are chosen, not measured: a worse quant is of no use either.
const FAR_KLD: f64 = 1.0;
const FAR_AGREEMENT: f64 = 0.5;

/// `kl` warns if the entries that a base file does not record may have this probability together: far
/// more than its 16 bits cost a KLD.
const NOTABLE_UNKNOWN: f64 = 0.001;

/// The warnings that a result deserves. `of_prompts` is true if windows are prompts, `is_part` if the
/// windows are those of one part (`--shard`).
pub fn doubts_of_model(model: &ModelResult, of_prompts: bool, is_part: bool) -> Vec<Warning> {
    let summary = &model.summary;
    let path = || model.model.path.clone();
    let mut doubts = left_out_tokens(summary);
    if is_doubtfully_identical(model) {
        doubts.push(Warning::IdenticalRows { path: path() });
    }
    if let (Some(mean), Some(top1)) = (model.mean_kld(), model.same_top())
        && mean.value >= FAR_KLD
        && top1 < FAR_AGREEMENT
    {
        doubts.push(Warning::FarApart {
            path: path(),
            mean_kld: mean.value,
            top1,
        });
    }
    if !is_part {
        doubts.extend(few_windows_of(summary, of_prompts));
        let groups = model.breakdown.by_group.iter();
        let empty = groups.filter(|group| group.n_tokens == 0);
        doubts.extend(empty_groups(empty.map(|group| &group.label)));
    }
    if let Some(unknown) = summary.unknown_p.filter(|p| p.mean >= NOTABLE_UNKNOWN) {
        doubts.push(Warning::UnknownProbability(unknown.mean));
    }
    let n_unknown = summary.perplexity.map_or(0, |of| of.n_unknown);
    if n_unknown > 0 {
        doubts.push(Warning::UnknownTokens(n_unknown));
    }
    let perplexity = summary.perplexity;
    doubts.extend(perplexity.and_then(|of| high_perplexity(&of, of_prompts)));
    doubts
}

/// The warnings that models of a comparison deserve; those that all models share are given once.
pub fn doubts_of_models(models: &[ComparedModel], of_prompts: bool) -> Vec<Warning> {
    let mut doubts = Vec::new();
    for model in models {
        let label = printable(&model.label);
        if model.is_incomplete {
            doubts.push(Warning::LeftOutTokens {
                label: label.clone(),
                n_excluded: model.summary.n_excluded,
                n_infinite: model.summary.n_infinite(),
            });
        }
        if is_doubtfully_identical(model) {
            doubts.push(Warning::IdenticalRows { path: label });
        }
    }
    // The tokens that all leave out: a ranked model has only these.
    let ranked = models.iter().find(|model| model.is_candidate());
    if let Some(model) = ranked.or(models.first()) {
        doubts.extend(left_out_tokens(&model.summary));
    }
    let few = models.iter().filter_map(|model| {
        let summary = &model.summary;
        Some((summary.n_windows, few_windows_of(summary, of_prompts)?))
    });
    doubts.extend(few.min_by_key(|(n, _)| *n).map(|(_, warning)| warning));
    let mut known = models.iter().filter_map(|model| model.summary.perplexity);
    doubts.extend(known.next().and_then(|of| high_perplexity(&of, of_prompts)));
    doubts
}

/// Returns true if all KLDs are 0, though the model is not known to be the reference's.
fn is_doubtfully_identical(model: &ModelResult) -> bool {
    let kld = model.summary.kld.as_ref();
    let is_0 = kld.is_some_and(|kld| kld.max == 0.0 && kld.n_infinite == 0);
    is_0 && !model.is_reference_model
}

/// The warnings about the tokens that every statistic leaves out, and those with an infinite KLD.
fn left_out_tokens(summary: &Summary) -> Vec<Warning> {
    let (excluded, infinite) = (summary.n_excluded, summary.n_infinite());
    let excluded = (excluded > 0).then_some(Warning::ExcludedTokens(excluded));
    let infinite = (infinite > 0).then_some(Warning::InfiniteKld(infinite));
    excluded.into_iter().chain(infinite).collect()
}

fn few_windows_of(summary: &Summary, of_prompts: bool) -> Option<Warning> {
    few_windows(&summary.clusters, summary.n_windows, unit(of_prompts))
}

/// The warning about groups without a scored token, if there are any.
pub fn empty_groups<'n>(names: impl Iterator<Item = &'n String>) -> Option<Warning> {
    let names: Vec<String> = names.map(|name| printable(name)).collect();
    (!names.is_empty()).then_some(Warning::EmptyGroups(names))
}

/// The warning about too few windows for their intervals; `unit` is the word for one.
pub fn few_windows(clusters: &Clustering, n: u64, unit: &'static str) -> Option<Warning> {
    let is_few = n > 0 && clusters.worth(n) < clusters.min_windows();
    is_few.then(|| Warning::FewWindows {
        n,
        worth: clusters.worth_notably_less(n),
        n_blocks: (clusters.kind == ClusterKind::Block).then_some(clusters.n),
        n_parts: (clusters.kind == ClusterKind::Part).then_some(clusters.n),
        needed: clusters.min_windows(),
        unit,
    })
}

fn high_perplexity(of: &Perplexity, of_prompts: bool) -> Option<Warning> {
    (of.reference >= DOUBTFUL_PERPLEXITY).then_some(Warning::HighPerplexity {
        perplexity: of.reference,
        of_prompts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_few_below_30_and_those_in_blocks_below_100() {
        let message = |kind, n_windows, n| {
            let clusters = Clustering {
                kind,
                n,
                n_effective: n as f64,
                ..Clustering::default()
            };
            let summary = Summary {
                n_windows,
                clusters,
                ..Summary::default()
            };
            few_windows_of(&summary, false).map(|warning| warning.to_string())
        };
        let by_window = |n| message(ClusterKind::Window, n, n);
        assert_eq!(
            by_window(29).unwrap(),
            "the intervals rest on 29 windows: they are too narrow if neighbouring windows \
             resemble each other; use at least 30"
        );
        assert_eq!(
            by_window(1).unwrap(),
            "no intervals: there is only 1 window; use at least 30"
        );
        assert_eq!((by_window(0), by_window(30)), (None, None));
        let in_blocks = |n| message(ClusterKind::Block, n, 10);
        assert_eq!(
            in_blocks(99).unwrap(),
            "the intervals rest on 10 blocks, of 99 windows in all: from so few they are often \
             too narrow; use at least 100 windows"
        );
        assert_eq!(in_blocks(100), None);
        // One long answer among 29 short ones: (1000 + 29 * 20)^2 / (1000^2 + 29 * 20^2) = 2.47.
        let of_lengths = |lengths: &[u32]| {
            let clusters = Clustering::of_windows(lengths.iter().copied());
            few_windows(&clusters, clusters.n, "prompt").map(|warning| warning.to_string())
        };
        assert_eq!(of_lengths(&[&[63; 30][..], &[5]].concat()), None);
        let uneven = of_lengths(&[&[20; 29][..], &[1000]].concat()).unwrap();
        assert!(
            uneven.contains("30 prompts that are worth 3 of equal length"),
            "{uneven}"
        );
        assert_eq!(
            message(ClusterKind::Part, 1, 10).unwrap(),
            "the intervals rest on 10 parts of 1 window: they do not show how much other texts differ; use at \
             least 30 windows, of different texts"
        );
    }
}
