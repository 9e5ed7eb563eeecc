//! The place of a row among the others: its rank, its label, and the Pareto front.

use crate::report::comparison::{ComparedModel, Comparison, PairKind, Sizes};
use crate::report::set_up::{DISTINCTIONS, SettingValue};
use crate::stats::{SpanRatio, holm};

/// Sorts by mean KLD, of equal ones by size. Those that leave out tokens come after the others.
pub fn sort(models: &mut [ComparedModel]) {
    let sizes = Sizes::of(models);
    let size = |model: &ComparedModel| sizes.bytes(model).unwrap_or(u64::MAX);
    models.sort_by(|a, b| {
        a.is_incomplete
            .cmp(&b.is_incomplete)
            .then_with(|| mean(a).total_cmp(&mean(b)))
            .then_with(|| size(a).cmp(&size(b)))
    });
}

/// Returns the fewest tokens that one of some models leaves out. The noise floor does not count unless
/// there is nothing else: an infinite KLD that every quant has, the original has not.
pub fn fewest_left_out<'m>(models: impl Iterator<Item = &'m ComparedModel>) -> Option<u64> {
    let (floors, others): (Vec<_>, Vec<_>) = models.partition(|model| model.is_noise_floor);
    let counted = if others.is_empty() { floors } else { others };
    counted.into_iter().map(ComparedModel::n_left_out).min()
}

/// Marks the models that leave out more tokens than the one that leaves out fewest. Their means lack
/// their worst tokens, and cannot be ranked.
pub fn mark_incomplete(models: &mut [ComparedModel]) {
    let fewest = fewest_left_out(models.iter());
    for model in models {
        model.is_incomplete = fewest.is_some_and(|fewest| model.n_left_out() > fewest);
    }
}

/// The mean KLD; infinite where there is none.
fn mean(model: &ComparedModel) -> f64 {
    model.mean_kld().map_or(f64::INFINITY, |mean| mean.value)
}

/// Marks the models that no other candidate dominates.
pub fn mark_pareto_front(models: &mut [ComparedModel]) {
    let (sizes, dominating) = (Sizes::of(models), dominating(models));
    for (model, dominating) in models.iter_mut().zip(dominating) {
        model.pareto = point(model, sizes).is_some() && dominating.is_none();
    }
}

/// Finds for each model the index in `models` of the first candidate that dominates it: it is at most as
/// large and at most as far from the reference, and better in one of the two. In a sorted list it is the
/// nearest such.
pub fn dominating(models: &[ComparedModel]) -> Vec<Option<usize>> {
    let sizes = Sizes::of(models);
    let points: Vec<Option<(u64, f64)>> = models.iter().map(|model| point(model, sizes)).collect();
    let of_each = points.iter().map(|point| {
        let (size, kld) = (*point)?;
        points.iter().position(|other| {
            other.is_some_and(|(other_size, other_kld)| {
                let is_better = other_size < size || other_kld < kld;
                other_size <= size && other_kld <= kld && is_better
            })
        })
    });
    of_each.collect()
}

/// Marks the models that the nearest of those that are no larger is nearer than, by more than chance. The
/// p-values of their ratios are adjusted for the number of models other than the best, whether dominated
/// or not; where it is the best that dominates, the set of those that cannot be told from it counts too.
pub fn mark_dominated(of: &mut Comparison) {
    let is_other = |model: &ComparedModel| model.difference_to_best.is_some();
    let dominating = dominating(&of.models);
    let p_of = |(model, dominating): (&ComparedModel, &Option<usize>)| {
        let dominating = of.models.get((*dominating)?)?;
        let mut pairs = of.pairs.iter().filter(|pair| pair.kind != PairKind::Size);
        let pair = pairs.find(|pair| pair.a == model.label && pair.b == dominating.label)?;
        let may_be_chance = of.may_be_chance(pair) || of.is_noise(model);
        // On the tokens that both count, the other way round is possible.
        pair.ratio
            .filter(|ratio| ratio.value > 1.0 && !may_be_chance)?
            .p
    };
    let others = of
        .models
        .iter()
        .zip(&dominating)
        .filter(|(model, _)| is_other(model));
    let p: Vec<f64> = others.map(|other| p_of(other).unwrap_or(1.0)).collect();
    let others = of.models.iter_mut().filter(|model| is_other(model));
    for (model, p) in others.zip(holm(&p)) {
        model.is_dominated = p < of.confidence.outside();
    }
}

/// The size and the mean KLD of a candidate, where both are known.
fn point(model: &ComparedModel, sizes: Sizes) -> Option<(u64, f64)> {
    let size = sizes.bytes(model).filter(|_| model.is_candidate())?;
    Some((size, model.mean_kld()?.value))
}

/// Adjusts the p-values of all ratios to the best for their number, and marks the models that cannot
/// be told from it. A ratio without a p-value, as from one window, tells nothing.
///
/// The best of these data need not be the one that is really nearest. That one is marked in at least
/// the share `confidence` of texts (docs/INTERVALS.md).
///
/// Models that are as near to the reference as can be measured differ by noise, whatever p says.
pub fn mark_indistinguishable(of: &mut Comparison) {
    let best_is_noise = of.best().is_some_and(|best| of.is_noise(best));
    let are_noise = |model| best_is_noise && of.is_noise(model);
    let are_noise: Vec<bool> = of.models.iter().map(are_noise).collect();
    let p_of = |model: &ComparedModel| model.ratio_to_best.as_ref()?.ratio.p;
    let p: Vec<f64> = of.models.iter().filter_map(p_of).collect();
    let mut adjusted = holm(&p).into_iter();
    let models = of.models.iter_mut().zip(are_noise);
    for (model, are_noise) in models.filter(|(model, _)| model.difference_to_best.is_some()) {
        let has_p = p_of(model).is_some();
        let p_holm = has_p.then(|| adjusted.next()).flatten();
        if let Some(to_best) = &mut model.ratio_to_best {
            to_best.p_holm = p_holm;
        }
        let is_told = p_holm.is_some_and(|p| p < of.confidence.outside());
        model.indistinguishable_from_best = are_noise || !is_told;
    }
}

/// Adjusts the p-values by which models lose more in one span than elsewhere for the number of models
/// and spans.
pub fn adjust_spans(models: &mut [ComparedModel]) {
    SpanRatio::adjust(
        models
            .iter_mut()
            .map(|model| &mut model.ratio_to_best_by_span),
    );
}

/// The path of a row's sidecar, or of its model where it has none.
fn path_of(model: &ComparedModel) -> &str {
    match model.sidecar.as_str() {
        "" => &model.model.path,
        sidecar => sidecar,
    }
}

/// Makes the labels of all rows distinct: by what differs in their set-ups, else by their paths.
pub fn make_distinct(models: &mut [ComparedModel]) {
    let names: Vec<String> = models.iter().map(|model| model.label.clone()).collect();
    for i in 0..models.len() {
        let Some(name) = names.get(i) else { continue };
        let alike: Vec<&ComparedModel> = models
            .iter()
            .zip(&names)
            .filter(|(_, other)| *other == name)
            .map(|(model, _)| model)
            .collect();
        if alike.len() < 2 {
            continue;
        }
        let tells_apart = |of: &&SettingValue| {
            let mut all: Vec<_> = alike.iter().map(|model| of(&model.set_up)).collect();
            all.sort();
            all.dedup();
            all.len() == alike.len() && all.iter().all(Option::is_some)
        };
        let distinction = DISTINCTIONS.iter().find(tells_apart);
        if let Some(model) = models.get_mut(i) {
            let what = distinction.and_then(|of| of(&model.set_up));
            let what = what.unwrap_or_else(|| path_of(model).to_owned());
            model.label = format!("{name} ({what})");
        }
    }
    // A label that was given may be what another was made into.
    for i in 0..models.len() {
        let is_taken = |model: &ComparedModel| {
            let same = models.iter().filter(|other| other.label == model.label);
            same.count() > 1
        };
        let taken = models.get(i).is_some_and(is_taken);
        if let Some(model) = models.get_mut(i).filter(|_| taken) {
            model.label = path_of(model).to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample::comparison;

    #[test]
    fn the_front_holds_what_nothing_dominates() {
        let mut models = comparison().models;
        models.iter_mut().for_each(|model| model.pareto = false);
        mark_pareto_front(&mut models);
        let front: Vec<&str> = models
            .iter()
            .filter(|model| model.pareto)
            .map(|model| model.label.as_str())
            .collect();
        assert_eq!(front, ["tiny-q4_K_M", "tiny-iq4_xs", "tiny-q2_K"]);
        // Of two that are equal, neither dominates.
        let mut twins = vec![models[1].clone(), models[1].clone()];
        mark_pareto_front(&mut twins);
        assert!(twins.iter().all(|twin| twin.pareto));
        // An unknown cache is not a small one, and one of several windows not a large one.
        let mut runs = vec![models[1].clone(), models[4].clone()];
        runs[1].model = runs[0].model.clone();
        for (bytes, n_seq) in [(None, None), (Some(500), Some(4))] {
            runs.iter_mut().for_each(|run| run.pareto = false);
            runs[0].set_up.kv_cache_bytes = Some(1000);
            runs[1].set_up.kv_cache_bytes = bytes;
            runs[1].set_up.n_seq = n_seq;
            mark_pareto_front(&mut runs);
            assert_eq!([runs[0].pareto, runs[1].pareto], [true, false]);
        }
        // A smaller cache of one model is on the front though it is farther, a larger one is not.
        let (worse, better) = (models[4].clone(), models[1].clone());
        for (bytes, is_on_front) in [(500, true), (1000, false), (2000, false)] {
            let mut runs = vec![better.clone(), worse.clone()];
            runs[1].model = better.model.clone();
            runs.iter_mut().for_each(|run| run.pareto = false);
            runs[0].set_up.kv_cache_bytes = Some(1000);
            runs[1].set_up.kv_cache_bytes = Some(bytes);
            mark_pareto_front(&mut runs);
            assert_eq!([runs[0].pareto, runs[1].pareto], [true, is_on_front]);
        }
    }

    #[test]
    fn holm_decides_what_cannot_be_told_from_the_best() {
        let mut of = comparison();
        let p = [None, None, Some(0.03), Some(0.02), Some(0.001), None];
        for (model, p) in of.models.iter_mut().zip(p) {
            model.indistinguishable_from_best = false;
            if let Some(to_best) = &mut model.ratio_to_best {
                to_best.ratio.p = p;
            }
        }
        mark_indistinguishable(&mut of);
        let models = of.models;
        let holm = |i: usize| models[i].ratio_to_best.unwrap().p_holm;
        // By hand: 0.001 · 3, 0.02 · 2, 0.03 (not below the one before).
        let expected = [0.04, 0.04, 0.003];
        for (i, expected) in (2..5).zip(expected) {
            assert!((holm(i).unwrap() - expected).abs() < 1e-15);
        }
        assert_eq!(holm(5), None);
        let marked: Vec<bool> = models
            .iter()
            .map(|model| model.indistinguishable_from_best)
            .collect();
        // The last has no p-value: one window, say.
        assert_eq!(marked, [false, false, false, false, false, true]);
    }
    #[test]
    fn a_mean_without_the_worst_tokens_has_no_rank() {
        let mut models = comparison().models;
        // The nearest model has lost a row.
        let nearest = models.iter().position(ComparedModel::is_candidate).unwrap();
        let label = models[nearest].label.clone();
        models[nearest].summary.n_excluded += 1;
        mark_incomplete(&mut models);
        let incomplete: Vec<&str> = models
            .iter()
            .filter(|model| model.is_incomplete)
            .map(|model| model.label.as_str())
            .collect();
        assert_eq!(incomplete, [label.as_str()]);
        sort(&mut models);
        assert_eq!(models.last().unwrap().label, label);
        models.iter_mut().for_each(|model| model.pareto = false);
        mark_pareto_front(&mut models);
        assert!(!models.last().unwrap().pareto);
        // What all lose, none loses alone.
        for model in &mut models {
            model.summary.n_excluded = 3;
        }
        mark_incomplete(&mut models);
        assert!(models.iter().all(|model| !model.is_incomplete));
    }
}
