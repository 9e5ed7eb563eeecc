//! The place of each evaluation among the others: its rank, its label, its distance from the best, and the
//! Pareto front.

#![expect(
    clippy::indexing_slicing,
    reason = "a place is an index into the ranking that gave it"
)]

use std::collections::BTreeSet;

use kl_formats::BackendIdentity;
use kl_report::comparison::{
    ComparedModel, ComparedPair, ComparedReference, Comparison, PairKind, RatioToBest, Sizes,
};
use kl_report::set_up::{DISTINCTIONS, SettingValue};
use kl_report::{ModelResult, doubts_of_models, unknown_caches};
use kl_stats::stats::{Clustering, Confidence, Paired, Ratio, SpanRatio, holm};

use super::measured::MeasuredEvaluation;

/// Evaluations by rising mean KLD, and by size where that is equal. Those that leave out more tokens come last.
pub struct Ranking<'r> {
    /// The row in each place.
    pub rows: Vec<&'r MeasuredEvaluation>,
    /// The size of the row in each place, by which models are compared.
    pub sizes: Vec<Option<u64>>,
    /// The models in their places, which [`Ranking::finished`] completes.
    pub comparison: Comparison,
}

/// Two evaluations on the same tokens, by their places.
#[derive(Clone)]
pub struct Compared {
    pub kind: PairKind,
    pub a: usize,
    pub b: usize,
    pub paired: Paired,
    /// The ratio in each span; empty unless the second is the best.
    pub spans: Vec<SpanRatio>,
}

/// The smallest number of tokens that a row leaves out. The noise floor counts only where it is alone: at a
/// token where every quant has an infinite KLD, the original has none.
pub fn fewest_left_out<'r>(rows: impl Iterator<Item = &'r MeasuredEvaluation>) -> Option<u64> {
    rows.map(|row| (row.result.is_noise_floor, row.result.n_left_out()))
        .min()
        .map(|(_, n)| n)
}

impl<'r> Ranking<'r> {
    /// Ranks evaluations. `clusters` are those of their tokens.
    pub fn new(
        rows: Vec<&'r MeasuredEvaluation>,
        confidence: Confidence,
        near: f64,
        for_context: Option<u64>,
        clusters: Option<Clustering>,
    ) -> Self {
        let reference = rows
            .first()
            .map(|row| ComparedReference::of(&row.stored.header));
        let fewest = fewest_left_out(rows.iter().copied());
        // The mean of an incomplete evaluation lacks its worst tokens, and cannot be ranked.
        let is_incomplete =
            |model: &ModelResult| fewest.is_some_and(|fewest| model.n_left_out() > fewest);
        let is_dequantized = |set_up: &BackendIdentity| set_up.weights.is_some();
        let all_are_dequantized = rows.iter().all(|row| {
            let set_up = row.stored.header.backend.as_ref();
            set_up.is_some_and(is_dequantized)
        });
        let mut ranked: Vec<_> = rows
            .into_iter()
            .map(|row| {
                let compared = row.compared();
                let model = ComparedModel {
                    is_incomplete: is_incomplete(&compared),
                    is_weights_alone: !all_are_dequantized && is_dequantized(&compared.set_up),
                    ..compared
                };
                (row, model)
            })
            .collect();
        let sizes = Sizes::of(ranked.iter().map(|(_, model)| model), for_context);
        let mean =
            |model: &ComparedModel| model.mean_kld().map_or(f64::INFINITY, |mean| mean.value);
        let size = |model: &ComparedModel| sizes.of_model(model).unwrap_or(u64::MAX);
        ranked.sort_by(|(_, a), (_, b)| {
            a.is_incomplete
                .cmp(&b.is_incomplete)
                .then_with(|| mean(a).total_cmp(&mean(b)))
                .then_with(|| size(a).cmp(&size(b)))
        });
        let (rows, models): (Vec<_>, Vec<_>) = ranked.into_iter().unzip();
        let mut comparison = Comparison {
            reference: reference.unwrap_or_default(),
            confidence,
            near,
            for_context,
            clusters,
            models,
            ..Comparison::default()
        };
        make_distinct(&mut comparison.models);
        let of_prompts = comparison.reference.prompts;
        comparison.warnings = doubts_of_models(&comparison.models, of_prompts);
        let unknown = for_context.and_then(|n| unknown_caches(&comparison.models, n));
        comparison.warnings.extend(unknown);
        Self {
            sizes: (comparison.models.iter())
                .map(|model| sizes.of_model(model))
                .collect(),
            rows,
            comparison,
        }
    }

    /// The pairs to compare: each candidate with the best, with the next in size, and with the nearest
    /// model of at most its size, if that is another. With `every_two`, also each two candidates that are not
    /// among these.
    pub fn pairs(&self, every_two: bool) -> Vec<(PairKind, usize, usize)> {
        let (models, best) = (&self.comparison.models, self.comparison.best_place());
        let mut candidates = Vec::from_iter(0..models.len());
        candidates.retain(|&i| models[i].is_candidate());
        let mut pairs: Vec<_> = candidates
            .iter()
            .filter_map(|&i| {
                let best = best.filter(|&best| best != i)?;
                Some((PairKind::Best, i, best))
            })
            .collect();
        candidates.retain(|&i| self.sizes[i].is_some());
        candidates.sort_by_key(|&i| self.sizes[i]);
        pairs.extend(
            candidates
                .windows(2)
                .map(|neighbours| (PairKind::Size, neighbours[0], neighbours[1])),
        );
        let dominating = self.dominating().into_iter().enumerate();
        pairs.extend(dominating.filter_map(|(i, dominating)| {
            let dominating = dominating.filter(|place| best != Some(*place))?;
            Some((PairKind::Front, i, dominating))
        }));
        let places = 0..models.len();
        let weights_alone = places.clone().filter(|&i| models[i].is_weights_alone);
        pairs.extend(weights_alone.filter_map(|i| {
            let file = places.clone().find(|&file| self.is_dequantized(file, i))?;
            Some((PairKind::Weights, file, i))
        }));
        if every_two {
            let candidates = || places.clone().filter(|&i| models[i].is_candidate());
            for (a, b) in candidates().flat_map(|a| candidates().map(move |b| (a, b))) {
                let is_known =
                    |(_, i, j): &(PairKind, usize, usize)| (*i, *j) == (a, b) || (*i, *j) == (b, a);
                if b < a && !pairs.iter().any(is_known) {
                    pairs.push((PairKind::Other, a, b));
                }
            }
        }
        pairs
    }

    /// True if the second is the first model with its weights dequantized, in an equal set-up.
    fn is_dequantized(&self, file: usize, other: usize) -> bool {
        let headers = [file, other].map(|place| &self.rows[place].stored.header);
        let [file_weights, weights] =
            headers.map(|header| header.backend.as_ref()?.weights.as_ref());
        let [set_up, other_set_up] = headers.map(|header| {
            let mut set_up = header.backend.clone().unwrap_or_default();
            // Threads change no bit, and the cache's size follows from the rest.
            (set_up.threads, set_up.weights) = (None, None);
            (set_up.kv_cache_bytes, set_up.kv_cache_sizes) = (None, None);
            set_up.compute_sizes = None;
            set_up
        });
        let [model, other_model] = headers.map(|header| header.model.as_ref());
        let is_same_model = model
            .zip(other_model)
            .is_some_and(|(model, other_model)| model.is_same(other_model));
        is_same_model && file_weights.is_none() && weights.is_some() && set_up == other_set_up
    }

    /// For each place, that of the nearest candidate that dominates it: one that is at most as large and at
    /// most as far from the reference, and better in one of the two.
    fn dominating(&self) -> Vec<Option<usize>> {
        let points: Vec<Option<(u64, f64)>> = self
            .comparison
            .models
            .iter()
            .zip(&self.sizes)
            .map(|(model, size)| {
                let size = size.filter(|_| model.is_candidate())?;
                Some((size, model.mean_kld()?.value))
            })
            .collect();
        let dominating = |point: &Option<(u64, f64)>| {
            let (size, kld) = (*point)?;
            points.iter().position(|other| {
                other.is_some_and(|other| other != (size, kld) && other.0 <= size && other.1 <= kld)
            })
        };
        points.iter().map(dominating).collect()
    }

    /// The label of the first candidate above a place that has the same KLD at every token.
    fn same_as(&self, place: usize) -> Option<String> {
        let models = &self.comparison.models;
        let hash = |i: usize| models[i].is_candidate().then(|| self.rows[i].klds_hash);
        let same = (0..place).find(|&i| hash(i).is_some() && hash(i) == hash(place))?;
        Some(models[same].label.clone())
    }

    /// Keeps only the p-value of each ratio to a mean that is noise.
    fn forget_noise(&self, compared: &mut Compared) {
        let (second, noise) = (
            &self.comparison.models[compared.b],
            self.comparison.noise_kld(),
        );
        let is_noise = compared.kind != PairKind::Weights && self.comparison.is_noise(second);
        if is_noise {
            compared.paired.ratio = compared.paired.ratio.map(Ratio::p_alone);
        }
        for span in &mut compared.spans {
            let kld = second
                .breakdown
                .by_span
                .iter()
                .find(|bin| bin.label == span.label)
                .and_then(|bin| bin.kld);
            if kld.is_some_and(|kld| is_noise || kld.value <= noise) {
                span.ratio = span.ratio.map(Ratio::p_alone);
                span.to_others = None;
            }
        }
    }

    /// True for each model that you can leave out: the nearest one of at most its size is nearer than it, by a
    /// p-value that is adjusted for the number of models other than the best. If that model is the best,
    /// `p_holm`, the p-value of the ratio to it, must show it too.
    fn are_dominated(&self, compared: &[Compared], p_holm: &[Option<f64>]) -> Vec<bool> {
        let best = self.comparison.best_place();
        let p_of = |i: usize, dominating: Option<usize>| {
            let pair = compared.iter().find(|pair| {
                pair.kind != PairKind::Size && pair.a == i && Some(pair.b) == dominating
            })?;
            let ratio = pair.paired.ratio?;
            let p_shown = if best == dominating {
                p_holm[i]
            } else {
                ratio.p
            };
            // On the tokens that both count, it can be the nearer one.
            let is_farther = ratio.value > 1.0 && self.is_significant(p_shown);
            let is_noise = self.comparison.is_noise(&self.comparison.models[i]);
            ratio.p.filter(|_| is_farther && !is_noise)
        };
        let p_values = self
            .dominating()
            .into_iter()
            .enumerate()
            .map(|(i, dominating)| {
                to_best(compared, i).map(|_| p_of(i, dominating).unwrap_or(1.0))
            });
        adjusted(p_values)
            .into_iter()
            .map(|p| self.is_significant(p))
            .collect()
    }

    /// True if a p-value shows more than chance.
    fn is_significant(&self, p: Option<f64>) -> bool {
        p.is_some_and(|p| p < self.comparison.confidence.outside())
    }

    /// Completes the comparison.
    ///
    /// The best model on these data need not be the one that is really nearest. In at least the share
    /// `confidence` of texts, that one cannot be told from the best (docs/INTERVALS.md).
    pub fn finished(self, mut compared: Vec<Compared>) -> Comparison {
        for pair in &mut compared {
            self.forget_noise(pair);
        }
        let best = self.comparison.best_place();
        let is_noise = |model: &ComparedModel| self.comparison.is_noise(model);
        let best_is_noise = self.comparison.best().is_some_and(is_noise);
        let (places, dominating) = (0..self.rows.len(), self.dominating());
        let ratio = |i: usize| to_best(&compared, i)?.paired.ratio;
        let p_holm = adjusted(places.clone().map(|i| ratio(i)?.p));
        let are_dominated = self.are_dominated(&compared, &p_holm);
        let mut spans: Vec<_> = places
            .map(|i| {
                let pair = to_best(&compared, i);
                pair.map(|pair| pair.spans.clone()).unwrap_or_default()
            })
            .collect();
        SpanRatio::adjust(spans.iter_mut());
        let complete = |(i, spans): (usize, Vec<SpanRatio>)| {
            let (model, is_best) = (self.comparison.models[i].clone(), best == Some(i));
            let (to_best, p_holm) = (to_best(&compared, i), p_holm[i]);
            let are_noise = best_is_noise && model.is_candidate() && is_noise(&model);
            let upper = ratio(i).and_then(|ratio| ratio.upper);
            let is_pareto = self.sizes[i].is_some() && dominating[i].is_none();
            ComparedModel {
                same_as: self.same_as(i),
                ratio_to_best: ratio(i).map(|ratio| RatioToBest { ratio, p_holm }),
                ratio_to_best_by_span: spans,
                difference_to_best: to_best.map(|pair| pair.paired.difference),
                indistinguishable_from_best: is_best
                    || to_best.is_some() && (are_noise || !self.is_significant(p_holm)),
                is_as_near: is_best
                    || are_noise
                    || upper.is_some_and(|upper| upper <= self.comparison.near),
                pareto: is_pareto && model.is_candidate() && model.mean_kld().is_some(),
                is_dominated: are_dominated[i],
                ..model
            }
        };
        let models: Vec<_> = spans.into_iter().enumerate().map(complete).collect();
        let label = |place: usize| models[place].label.clone();
        let pairs = compared.iter().map(|pair| ComparedPair {
            kind: pair.kind,
            a: label(pair.a),
            b: label(pair.b),
            paired: pair.paired,
        });
        Comparison {
            pairs: pairs.collect(),
            models,
            ..self.comparison
        }
    }
}

/// The comparison of the model in a place with the best.
fn to_best(compared: &[Compared], place: usize) -> Option<&Compared> {
    compared
        .iter()
        .find(|pair| pair.kind == PairKind::Best && pair.a == place)
}

/// Adjusts the p-values that are given for their number, by Holm's method. A ratio without one, such as that of
/// one window, does not count.
fn adjusted(p_values: impl Iterator<Item = Option<f64>>) -> Vec<Option<f64>> {
    let p_values = Vec::from_iter(p_values);
    let mut adjusted = holm(&Vec::from_iter(p_values.iter().flatten().copied())).into_iter();
    p_values
        .iter()
        .map(|p| p.and_then(|_| adjusted.next()))
        .collect()
}

/// Makes all labels distinct: by what differs in their set-ups, else by the paths of their sidecars, or of
/// their models where they have none.
fn make_distinct(models: &mut [ComparedModel]) {
    let path = |model: &ComparedModel| match model.sidecar.as_str() {
        "" => model.model.path.clone(),
        sidecar => sidecar.to_owned(),
    };
    let names: Vec<String> = models.iter().map(|model| model.label.clone()).collect();
    for (i, name) in names.iter().enumerate() {
        let set_ups: Vec<_> = models
            .iter()
            .zip(&names)
            .filter(|(_, other_name)| *other_name == name)
            .map(|(model, _)| &model.set_up)
            .collect();
        if set_ups.len() < 2 {
            continue;
        }
        let tells_apart = |setting: &&SettingValue| {
            let values: BTreeSet<_> = set_ups
                .iter()
                .filter_map(|set_up| setting(set_up))
                .collect();
            values.len() == set_ups.len()
        };
        let distinction = DISTINCTIONS
            .iter()
            .find(tells_apart)
            .and_then(|setting| setting(&models[i].set_up))
            .unwrap_or_else(|| path(&models[i]));
        models[i].label = format!("{name} ({distinction})");
    }
    // The user may have given a label that another model got here.
    for i in 0..models.len() {
        let has_namesake = models
            .iter()
            .enumerate()
            .any(|(j, model)| j != i && model.label == models[i].label);
        if has_namesake {
            models[i].label = path(&models[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_p_value_is_not_adjusted() {
        // By hand: 0.001 · 3, 0.02 · 2, 0.03 (not below the one before).
        let p = adjusted([None, Some(0.03), Some(0.02), Some(0.001)].into_iter());
        assert_eq!(p, [None, Some(0.04), Some(0.04), Some(0.003)]);
    }
}
