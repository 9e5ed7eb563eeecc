//! Doubts: the warnings that the numbers of a result give reason for, or of several side by side.

use kl_stats::stats::{ClusterKind, Clustering, ExcludedTokens, Summary};

use super::comparison::ComparedModel;
use super::layout::list;
use super::number::{count_of, kld, left_out, percent, printable};
use super::result::{ModelResult, unit};
use super::warning::Warning;

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
    let (summary, path) = (&model.summary, &model.model.path);
    let mut doubts = left_out_tokens(summary.all_excluded(), summary.n_infinite());
    doubts.extend(identical_rows(model, path));
    if let (Some(mean), Some(same_top)) = (model.mean_kld(), model.same_top())
        && mean.value >= FAR_KLD
        && same_top < FAR_AGREEMENT
    {
        let (mean, same_top) = (kld(mean.value), percent(same_top));
        let message = format!(
            "{path}: the mean KLD is {mean} nats, and the top tokens agree in only {same_top}: this is a quant of another model (a fine-tune?), or a broken one"
        );
        doubts.push(Warning::new("far_apart", message));
    }
    if !is_part {
        let (clusters, n) = (&summary.clusters, summary.n_windows);
        doubts.extend(few_windows(clusters, n, unit(of_prompts)));
        let empty_labels = model
            .breakdown
            .by_group
            .iter()
            .filter(|group| group.n_tokens == 0)
            .map(|group| &group.label);
        doubts.extend(empty_groups(empty_labels));
    }
    if let Some(unknown) = summary.unknown_p.filter(|p| p.mean >= NOTABLE_UNKNOWN) {
        let message = format!(
            "the reference's base file does not record the probability of its least probable entries, which together could have up to {} on average: statistics are over the others",
            percent(unknown.mean)
        );
        doubts.push(Warning::new("unknown_probability", message));
    }
    if let Some(perplexity) = summary
        .perplexity
        .filter(|perplexity| perplexity.n_unknown > 0)
    {
        let message = format!(
            "perplexity and the change in the actual token's probability leave out {}, the least probable ones, which the base file does not know: both perplexities are too low, and llama-perplexity's differ",
            count_of(perplexity.n_unknown, "token")
        );
        doubts.push(Warning::new("unknown_tokens", message));
    }
    doubts.extend(high_perplexity(summary, of_prompts));
    doubts
}

/// The warning that the memory of some models at a context of `n_tokens` is not known.
pub fn unknown_caches(models: &[ComparedModel], n_tokens: u64) -> Option<Warning> {
    let names = list(
        models
            .iter()
            .filter(|model| model.memory.is_none())
            .map(|model| printable(&model.label))
            .collect(),
    );
    let message = format!(
        "{names}: no size at {}, because the sidecar does not record the sizes of the KV cache: evaluate again with --force",
        count_of(n_tokens, "token")
    );
    Some(Warning::new("unknown_cache", message)).filter(|_| !names.is_empty())
}

/// The warnings that models of a comparison deserve; those that all models share are given once.
pub fn doubts_of_models(models: &[ComparedModel], of_prompts: bool) -> Vec<Warning> {
    let mut doubts = Vec::new();
    for model in models {
        let label = printable(&model.label);
        if model.is_incomplete {
            let tokens = left_out([
                (model.summary.n_excluded, "without a finite row"),
                (model.summary.n_infinite(), "with an infinite KLD"),
            ]);
            let message =
                format!("{label}: {tokens} left out of its mean, but not of other models'");
            doubts.push(Warning::new("left_out_tokens", message));
        }
        doubts.extend(identical_rows(model, &label));
    }
    // The tokens that all leave out: a ranked model has only these.
    let ranked = models.iter().find(|model| model.is_candidate());
    if let Some(model) = ranked.or(models.first()) {
        let summary = &model.summary;
        doubts.extend(left_out_tokens(
            summary.all_excluded(),
            summary.n_infinite(),
        ));
    }
    let fewest_windows = models
        .iter()
        .filter_map(|model| {
            let (clusters, n) = (&model.summary.clusters, model.summary.n_windows);
            Some((n, few_windows(clusters, n, unit(of_prompts))?))
        })
        .min_by_key(|(n, _)| *n);
    doubts.extend(fewest_windows.map(|(_, warning)| warning));
    let with_perplexity = models
        .iter()
        .find(|model| model.summary.perplexity.is_some());
    doubts.extend(with_perplexity.and_then(|model| high_perplexity(&model.summary, of_prompts)));
    doubts
}

/// The warning that all KLDs are 0, though the model is not known to be the reference's.
fn identical_rows(model: &ModelResult, name: &str) -> Option<Warning> {
    let kld = model.summary.kld.as_ref()?;
    let message = format!(
        "{name}: the KLD is exactly 0 at every token, though this is not known to be the reference's own model: did you pass the same model twice?"
    );
    let is_doubtful = kld.max == 0.0 && kld.n_infinite == 0 && !model.is_reference_model;
    is_doubtful.then(|| Warning::new("identical_rows", message))
}

/// The warnings about the tokens that every statistic leaves out, and those with an infinite KLD.
pub fn left_out_tokens(excluded: ExcludedTokens, n_infinite: u64) -> Vec<Warning> {
    let excluded_message = format!(
        "{} left out of every statistic: {} (--json locates them)",
        left_out([(excluded.n, ""), (0, "")]),
        faulty_rows(excluded)
    );
    let infinite_message = format!(
        "the KLD of {} is infinite, because the model gives a probability of 0 where the reference does not: the mean and the quantiles leave out such tokens",
        count_of(n_infinite, "token")
    );
    let excluded = (excluded.n > 0).then(|| Warning::new("excluded_tokens", excluded_message));
    let infinite = (n_infinite > 0).then(|| Warning::new("infinite_kld", infinite_message));
    excluded.into_iter().chain(infinite).collect()
}

/// Says whose rows leave tokens out, and what is wrong with them.
pub fn faulty_rows(excluded: ExcludedTokens) -> String {
    const FAULT: &str = "NaN or +infinity, or no finite logit";
    match (excluded.n_ref, excluded.n_eval) {
        (0, 0) => "a score cannot be right".to_owned(),
        (0, _) => format!("the evaluated model's row holds {FAULT}, the reference's does not"),
        (_, 0) => format!(
            "the reference's row holds {FAULT}, the evaluated model's does not: its original gave it, so make the reference again with another original or on another device"
        ),
        (n_ref, n_eval) => format!(
            "a row holds {FAULT}, the reference's at {} and the evaluated model's at {}",
            count_of(n_ref, "token"),
            count_of(n_eval, "token")
        ),
    }
}

/// The warning about groups without a scored token, if there are any.
pub fn empty_groups<'n>(names: impl Iterator<Item = &'n String>) -> Option<Warning> {
    let names = Vec::from_iter(names.map(|name| printable(name))).join(" or ");
    let message = format!(
        "no token of {names} is scored: -n chooses whole windows at random, and none of these is there; raise -n, or leave it out"
    );
    (!names.is_empty()).then(|| Warning::new("empty_groups", message))
}

/// The warning about too few windows for their intervals; `unit` is the word for one.
pub fn few_windows(clusters: &Clustering, n: u64, unit: &str) -> Option<Warning> {
    let (needed, worth) = (clusters.min_windows(), clusters.worth_notably_less(n));
    if n == 0 || worth.unwrap_or(n) >= needed {
        return None;
    }
    let (windows, is_block) = (count_of(n, unit), clusters.kind == ClusterKind::Block);
    let n_clusters = |thing| count_of(clusters.n, thing);
    let message = if clusters.kind == ClusterKind::Part {
        format!(
            "the intervals rest on {} of {windows}: they do not show how much other texts differ; use at least {needed} {unit}s, of different texts",
            n_clusters("part")
        )
    } else if let Some(worth) = worth {
        format!(
            "the intervals rest on {windows} that are worth {worth} of equal length, as a few long ones decide: use more, worth at least {needed}"
        )
    } else if n == 1 {
        format!("no intervals: there is only {windows}; use at least {needed}")
    } else if is_block && clusters.n == 1 {
        format!("no intervals: {windows} make only one block; use at least {needed} {unit}s")
    } else if is_block {
        format!(
            "the intervals rest on {}, of {windows} in all: from so few they are often too narrow; use at least {needed} {unit}s",
            n_clusters("block")
        )
    } else {
        format!(
            "the intervals rest on {windows}: they are too narrow if neighbouring {unit}s resemble each other; use at least {needed}"
        )
    };
    Some(Warning::new("few_windows", message))
}

/// The warning about a text that the reference model finds improbable.
fn high_perplexity(summary: &Summary, of_prompts: bool) -> Option<Warning> {
    let perplexity = summary.perplexity?.reference;
    let unfit = if of_prompts {
        "these prompts (are they in its own chat template?)"
    } else {
        "this text (an instruct model on raw text? --prompts runs it on chats)"
    };
    let message = format!(
        "the reference's own perplexity is {perplexity:.0}: its model was not made for {unfit}, and divergences on it may mean little"
    );
    (perplexity >= DOUBTFUL_PERPLEXITY).then(|| Warning::new("high_perplexity", message))
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
            few_windows(&clusters, n_windows, "window").map(|warning| warning.to_string())
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
        // Six groups of 17 windows each, in blocks of up to 11: nobody is told to use the 100 that there are.
        let uneven = Clustering {
            kind: ClusterKind::Block,
            n: 12,
            n_effective: 11.2,
            ..Clustering::default()
        };
        assert_eq!(few_windows(&uneven, 102, "window"), None);
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
