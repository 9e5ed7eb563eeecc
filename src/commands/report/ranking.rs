//! The place of each evaluation among the others: its rank, its label, its distance from the best, and the
//! Pareto front.

#![expect(
    clippy::indexing_slicing,
    reason = "a place is an index into the ranking that gave it"
)]

use super::row::Row;
use crate::report::ModelResult;
use crate::report::comparison::{
    ComparedModel, ComparedPair, Comparison, PairKind, RatioToBest, Sizes,
};
use crate::report::set_up::{DISTINCTIONS, SettingValue};
use crate::stats::{Paired, SpanRatio, holm};

/// Evaluations by rising mean KLD, of equal ones by size; those that leave out tokens come last.
pub struct Ranking<'r> {
    /// The row in each place.
    pub rows: Vec<&'r Row>,
    /// The size in each place by which models are compared.
    pub sizes: Vec<Option<u64>>,
    /// The models in their places, which [`Ranking::finished`] completes.
    pub comparison: Comparison,
}

/// Two evaluations on the same tokens, by their places.
pub struct Compared {
    pub kind: PairKind,
    pub a: usize,
    pub b: usize,
    pub paired: Paired,
    /// The ratio in each span; empty unless the second is the best.
    pub spans: Vec<SpanRatio>,
}

/// Returns the fewest tokens that one of some models leaves out. The noise floor does not count unless
/// there is nothing else: an infinite KLD that every quant has, the original has not.
pub fn fewest_left_out<'m>(results: impl Iterator<Item = &'m ModelResult>) -> Option<u64> {
    let (floors, others): (Vec<_>, Vec<_>) = results.partition(|of| of.is_noise_floor);
    let counted = if others.is_empty() { floors } else { others };
    counted.into_iter().map(ModelResult::n_left_out).min()
}

impl<'r> Ranking<'r> {
    /// Ranks evaluations, whose models `comparison` then has.
    pub fn new(rows: &[&'r Row], mut comparison: Comparison) -> Self {
        let fewest = fewest_left_out(rows.iter().map(|row| &row.model.result));
        let sizes = Sizes::of(rows.iter().map(|row| &row.model.set_up));
        let placed = rows.iter().map(|row| {
            let mut model = row.model.clone();
            // Its mean lacks its worst tokens, and cannot be ranked.
            model.is_incomplete = fewest.is_some_and(|fewest| model.n_left_out() > fewest);
            (*row, sizes.of_model(&model), model)
        });
        let mut placed = Vec::from_iter(placed);
        placed.sort_by(|(_, one_size, one), (_, other_size, other)| {
            let mean = |of: &ComparedModel| of.mean_kld().map_or(f64::INFINITY, |mean| mean.value);
            let size = |size: &Option<u64>| size.unwrap_or(u64::MAX);
            let by_mean = one.is_incomplete.cmp(&other.is_incomplete);
            let by_mean = by_mean.then_with(|| mean(one).total_cmp(&mean(other)));
            by_mean.then_with(|| size(one_size).cmp(&size(other_size)))
        });
        let rows = placed.iter().map(|(row, ..)| *row).collect();
        let sizes = placed.iter().map(|(_, size, _)| *size).collect();
        comparison.models = placed.into_iter().map(|(.., model)| model).collect();
        make_distinct(&mut comparison.models);
        Self {
            rows,
            sizes,
            comparison,
        }
    }

    fn models(&self) -> &[ComparedModel] {
        &self.comparison.models
    }

    /// The pairs to compare: each candidate with the best, with the next in size, and with the nearest
    /// model of at most its size, if that is another.
    pub fn pairs(&self) -> Vec<(PairKind, usize, usize)> {
        let best = self.comparison.best_place();
        let candidates = (0..self.rows.len()).filter(|&i| self.models()[i].is_candidate());
        let to_best = candidates.clone().filter_map(|i| {
            let best = best.filter(|&best| best != i)?;
            Some((PairKind::Best, i, best))
        });
        let mut by_size = Vec::from_iter(candidates.filter(|&i| self.sizes[i].is_some()));
        by_size.sort_by_key(|&i| self.sizes[i]);
        let to_next = by_size.windows(2).map(|of| (PairKind::Size, of[0], of[1]));
        let dominating = self.dominating().into_iter().enumerate();
        let to_front = dominating.filter_map(|(i, front)| {
            let front = front.filter(|front| best != Some(*front))?;
            Some((PairKind::Front, i, front))
        });
        to_best.chain(to_next).chain(to_front).collect()
    }

    /// The place of the nearest candidate that dominates each: it is at most as large and at most as far
    /// from the reference, and better in one of the two.
    fn dominating(&self) -> Vec<Option<usize>> {
        let points = self.models().iter().zip(&self.sizes).map(|(of, size)| {
            let size = size.filter(|_| of.is_candidate())?;
            Some((size, of.mean_kld()?.value))
        });
        let points: Vec<Option<(u64, f64)>> = points.collect();
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

    /// The label of the first candidate above a place that has the same KLD at every token.
    fn same_as(&self, place: usize) -> Option<String> {
        let is_candidate = |i: usize| self.models()[i].is_candidate();
        let hash = |i: usize| self.rows[i].klds_hash;
        let is_same = |i: &usize| is_candidate(*i) && hash(*i) == hash(place);
        let same = (0..place).find(is_same).filter(|_| is_candidate(place))?;
        Some(self.models()[same].label.clone())
    }

    /// Keeps the p-value alone of each ratio to a mean that is noise.
    fn without_noise(&self, mut compared: Compared) -> Compared {
        let second = &self.models()[compared.b];
        let noise = self.comparison.noise();
        let is_noise = self.comparison.is_noise(second);
        if is_noise {
            compared.paired.ratio = compared.paired.ratio.map(|ratio| ratio.p_alone());
        }
        for of in &mut compared.spans {
            let mut bins = second.breakdown.by_span.iter();
            let kld = bins
                .find(|bin| bin.label == of.label)
                .and_then(|bin| bin.kld);
            if kld.is_some_and(|kld| is_noise || kld.value <= noise) {
                of.ratio = of.ratio.map(|ratio| ratio.p_alone());
                of.to_others = None;
            }
        }
        compared
    }

    /// Whether leaving each model out costs nothing: the nearest model of at most its size is nearer, by a
    /// p-value that is adjusted for the number of models other than the best. Where the best dominates,
    /// `p_holm`, the p-value of the ratio to it, has to show it, too.
    fn is_dominated(&self, compared: &[Compared], p_holm: &[Option<f64>]) -> Vec<bool> {
        let best = self.comparison.best_place();
        let p_of = |i: usize, front: Option<usize>| {
            let is_its =
                |of: &&Compared| of.kind != PairKind::Size && of.a == i && Some(of.b) == front;
            let ratio = compared.iter().find(is_its)?.paired.ratio?;
            let p_shown = if best == front { p_holm[i] } else { ratio.p };
            // On the tokens that both count, the other way round is possible.
            let is_farther = ratio.value > 1.0 && self.is_told(p_shown);
            let is_noise = self.comparison.is_noise(&self.models()[i]);
            ratio.p.filter(|_| is_farther && !is_noise)
        };
        let places = self.dominating().into_iter().enumerate();
        let p =
            places.map(|(i, front)| to_best(compared, i).map(|_| p_of(i, front).unwrap_or(1.0)));
        let p_adjusted = adjusted(&Vec::from_iter(p));
        p_adjusted.into_iter().map(|p| self.is_told(p)).collect()
    }

    /// Whether a p-value shows more than chance.
    fn is_told(&self, p: Option<f64>) -> bool {
        p.is_some_and(|p| p < self.comparison.confidence.outside())
    }

    /// The comparison, complete.
    ///
    /// The best of these data need not be the one that is really nearest. That one cannot be told from the
    /// best in at least the share `confidence` of texts (docs/INTERVALS.md).
    pub fn finished(self, compared: Vec<Compared>) -> Comparison {
        let compared = compared.into_iter().map(|of| self.without_noise(of));
        let compared: Vec<Compared> = compared.collect();
        let best = self.comparison.best_place();
        let is_noise = |i: usize| self.comparison.is_noise(&self.models()[i]);
        let dominating = self.dominating();
        let ratio = |i: usize| to_best(&compared, i)?.paired.ratio;
        let p = (0..self.rows.len()).map(|i| ratio(i)?.p);
        let p_holm = adjusted(&Vec::from_iter(p));
        let is_dominated = self.is_dominated(&compared, &p_holm);
        let spans = |i: usize| Some(to_best(&compared, i)?.spans.clone());
        let spans = (0..self.rows.len()).map(|i| spans(i).unwrap_or_default());
        let mut spans: Vec<Vec<SpanRatio>> = spans.collect();
        SpanRatio::adjust(spans.iter_mut());
        let models = spans.into_iter().enumerate().map(|(i, spans)| {
            let (model, is_best) = (self.models()[i].clone(), best == Some(i));
            let are_noise = best.is_some_and(is_noise) && model.is_candidate() && is_noise(i);
            let is_near = |upper: f64| upper <= self.comparison.near;
            let is_pareto = self.sizes[i].is_some() && dominating[i].is_none();
            ComparedModel {
                same_as: self.same_as(i),
                ratio_to_best: ratio(i).map(|ratio| RatioToBest {
                    ratio,
                    p_holm: p_holm[i],
                }),
                ratio_to_best_by_span: spans,
                difference_to_best: to_best(&compared, i).map(|of| of.paired.difference),
                indistinguishable_from_best: is_best
                    || (to_best(&compared, i).is_some() && (are_noise || !self.is_told(p_holm[i]))),
                is_as_near: is_best
                    || are_noise
                    || ratio(i).and_then(|ratio| ratio.upper).is_some_and(is_near),
                pareto: is_pareto && model.is_candidate() && model.mean_kld().is_some(),
                is_dominated: is_dominated[i],
                ..model
            }
        });
        let models = Vec::from_iter(models);
        let label = |place: usize| models[place].label.clone();
        let pairs = compared.iter().map(|of| ComparedPair {
            kind: of.kind,
            a: label(of.a),
            b: label(of.b),
            paired: of.paired,
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
    let mut compared = compared.iter();
    compared.find(|of| of.kind == PairKind::Best && of.a == place)
}

/// Adjusts the p-values that are there for their number, by Holm's method. A ratio without one, as from
/// one window, tells nothing.
fn adjusted(p: &[Option<f64>]) -> Vec<Option<f64>> {
    let known: Vec<f64> = p.iter().flatten().copied().collect();
    let mut adjusted = holm(&known).into_iter();
    p.iter().map(|p| p.and_then(|_| adjusted.next())).collect()
}

/// Makes all labels distinct: by what differs in their set-ups, else by the paths of their sidecars, or of
/// their models where they have none.
fn make_distinct(models: &mut [ComparedModel]) {
    let path = |of: &ComparedModel| match of.sidecar.as_str() {
        "" => of.model.path.clone(),
        sidecar => sidecar.to_owned(),
    };
    let names: Vec<String> = models.iter().map(|of| of.label.clone()).collect();
    for (i, name) in names.iter().enumerate() {
        let alike = models
            .iter()
            .zip(&names)
            .filter(|(_, other)| *other == name);
        let alike: Vec<_> = alike.map(|(of, _)| &of.set_up).collect();
        if alike.len() < 2 {
            continue;
        }
        let tells_apart = |of: &&SettingValue| {
            let mut all: Vec<_> = alike.iter().map(|set_up| of(set_up)).collect();
            all.sort();
            all.dedup();
            all.len() == alike.len() && all.iter().all(Option::is_some)
        };
        let distinction = DISTINCTIONS.iter().find(tells_apart);
        let what = distinction.and_then(|of| of(&models[i].set_up));
        let what = what.unwrap_or_else(|| path(&models[i]));
        models[i].label = format!("{name} ({what})");
    }
    // A label that was given may be what another was made into.
    for i in 0..models.len() {
        let is_its = |of: &&ComparedModel| of.label == models[i].label;
        if models.iter().filter(is_its).count() > 1 {
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
        let p = adjusted(&[None, Some(0.03), Some(0.02), Some(0.001)]);
        assert_eq!(p, [None, Some(0.04), Some(0.04), Some(0.003)]);
    }
}
