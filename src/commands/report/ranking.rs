//! The place of each evaluation among the others: its rank, its label, its distance from the best, and the
//! Pareto front. From it every model of a comparison is made, complete.

#![expect(
    clippy::indexing_slicing,
    reason = "a place is an index into the ranking that gave it"
)]

use super::row::Row;
use crate::report::ModelResult;
use crate::report::comparison::{ComparedModel, ComparedPair, Noise, PairKind, RatioToBest, Sizes};
use crate::report::set_up::{DISTINCTIONS, SettingValue};
use crate::stats::{Confidence, Paired, SpanRatio, holm};

/// Evaluations by rising mean KLD, of equal ones by size; those that leave out tokens come last.
pub struct Ranking<'r> {
    placed: Vec<Placed<'r>>,
    noise: Noise,
}

/// An evaluation in its place.
struct Placed<'r> {
    row: &'r Row,
    /// Its numbers by the clusters of all, under a label that no other has.
    result: ModelResult,
    /// True if it leaves out more tokens than the one that leaves out fewest: its mean lacks its worst
    /// tokens, and cannot be ranked.
    is_incomplete: bool,
    size: Option<u64>,
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
    /// Ranks evaluations.
    pub fn of(rows: &[&'r Row]) -> Self {
        let fewest = fewest_left_out(rows.iter().map(|row| &row.result));
        let sizes = Sizes::of(rows.iter().map(|row| &row.set_up));
        let placed = rows.iter().map(|row| {
            let result = row.result.clone();
            Placed {
                row,
                is_incomplete: fewest.is_some_and(|fewest| result.n_left_out() > fewest),
                size: sizes.bytes(&result.model, &row.set_up),
                result,
            }
        });
        let mut placed: Vec<Placed<'r>> = placed.collect();
        placed.sort_by(|a, b| {
            let size = |of: &Placed<'_>| of.size.unwrap_or(u64::MAX);
            let by_mean = a.is_incomplete.cmp(&b.is_incomplete);
            let by_mean = by_mean.then_with(|| a.mean().total_cmp(&b.mean()));
            by_mean.then_with(|| size(a).cmp(&size(b)))
        });
        make_distinct(&mut placed);
        let noise = Noise::of(placed.iter().map(|of| &of.result));
        Self { placed, noise }
    }

    /// Returns the row in a place.
    pub fn row(&self, place: usize) -> &'r Row {
        self.placed[place].row
    }

    /// The size by which the row in a place is compared with others.
    pub fn size(&self, place: usize) -> Option<u64> {
        self.placed[place].size
    }

    /// The place of the lowest mean KLD; the noise floor does not count.
    pub fn best(&self) -> Option<usize> {
        let has_mean = |of: &Placed<'_>| of.is_candidate() && of.mean().is_finite();
        self.placed.iter().position(has_mean)
    }

    /// The pairs to compare: each candidate with the best, with the next in size, and with the nearest
    /// model of at most its size, if that is another.
    pub fn pairs(&self) -> Vec<(PairKind, usize, usize)> {
        let best = self.best();
        let candidates = (0..self.placed.len()).filter(|&i| self.placed[i].is_candidate());
        let to_best = candidates.clone().filter_map(|i| {
            let best = best.filter(|&best| best != i)?;
            Some((PairKind::Best, i, best))
        });
        let sized = candidates.filter(|&i| self.placed[i].size.is_some());
        let mut by_size: Vec<usize> = sized.collect();
        by_size.sort_by_key(|&i| self.placed[i].size);
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
        let point = |of: &Placed<'_>| {
            let size = of.size.filter(|_| of.is_candidate())?;
            Some((size, of.result.mean_kld()?.value))
        };
        let points: Vec<Option<(u64, f64)>> = self.placed.iter().map(point).collect();
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

    /// The place of the first candidate above each that has the same KLD at every token.
    fn same_as(&self) -> Vec<Option<usize>> {
        let is_same = |one: &Placed<'r>, other: &Placed<'r>| {
            let are_candidates = one.is_candidate() && other.is_candidate();
            are_candidates && one.row.klds_hash == other.row.klds_hash
        };
        let same_as = |(i, of): (usize, &Placed<'r>)| {
            let mut above = self.placed[..i].iter();
            above.position(|above| is_same(above, of))
        };
        self.placed.iter().enumerate().map(same_as).collect()
    }

    fn label(&self, place: usize) -> String {
        self.placed[place].result.label.clone()
    }

    fn pair(&self, of: &Compared) -> ComparedPair {
        ComparedPair {
            kind: of.kind,
            a: self.label(of.a),
            b: self.label(of.b),
            n_tokens: of.paired.n_tokens,
            ratio: of.paired.ratio,
            difference: of.paired.difference,
            share_a_nearer: of.paired.share_a_nearer,
        }
    }

    fn is_noise(&self, place: usize) -> bool {
        self.noise.has(&self.placed[place].result)
    }

    /// Keeps the p-value alone of each ratio to a mean that is noise.
    fn without_noise(&self, mut compared: Compared) -> Compared {
        let second = &self.placed[compared.b].result;
        let is_noise = self.is_noise(compared.b);
        if is_noise {
            compared.paired.ratio = compared.paired.ratio.map(|ratio| ratio.p_alone());
        }
        for of in &mut compared.spans {
            let mut bins = second.breakdown.by_span.iter();
            let bin = bins.find(|bin| bin.label == of.label);
            let kld = bin.and_then(|bin| bin.kld);
            if kld.is_some_and(|kld| is_noise || self.noise.has_kld(kld.value)) {
                of.ratio = of.ratio.map(|ratio| ratio.p_alone());
                of.to_others = None;
            }
        }
        compared
    }

    /// The p-values by which the nearest model of at most each one's size is nearer, adjusted for the number
    /// of models other than the best, dominated or not; `None` for the best, and for what is not ranked.
    /// Where the best dominates, `p_holm`, the p-value of the ratio to it, has to show it, too.
    fn p_dominated(
        &self,
        compared: &[Compared],
        p_holm: &[Option<f64>],
        is_told: impl Fn(Option<f64>) -> bool,
    ) -> Vec<Option<f64>> {
        let best = self.best();
        let p_of = |(i, front): (usize, Option<usize>)| {
            let is_its =
                |of: &&Compared| of.kind != PairKind::Size && of.a == i && Some(of.b) == front;
            let ratio = compared.iter().find(is_its)?.paired.ratio?;
            let p_shown = if best == front { p_holm[i] } else { ratio.p };
            // On the tokens that both count, the other way round is possible.
            let is_farther = ratio.value > 1.0 && is_told(p_shown) && !self.is_noise(i);
            ratio.p.filter(|_| is_farther)
        };
        let is_other = |i: usize| {
            compared
                .iter()
                .any(|of| of.kind == PairKind::Best && of.a == i)
        };
        let places = self.dominating().into_iter().enumerate();
        let p = places.map(|of| is_other(of.0).then(|| p_of(of).unwrap_or(1.0)));
        adjusted(&Vec::from_iter(p))
    }

    /// The models and the pairs, complete.
    ///
    /// The best of these data need not be the one that is really nearest. That one cannot be told from the
    /// best in at least the share `confidence` of texts (docs/INTERVALS.md).
    pub fn finished(
        self,
        compared: Vec<Compared>,
        confidence: Confidence,
        near: f64,
    ) -> (Vec<ComparedModel>, Vec<ComparedPair>) {
        let compared = compared.into_iter().map(|of| self.without_noise(of));
        let compared: Vec<Compared> = compared.collect();
        let places = 0..self.placed.len();
        let best = self.best();
        let best_is_noise = best.is_some_and(|best| self.is_noise(best));
        let (dominating, same_as) = (self.dominating(), self.same_as());
        let to_best = places.clone().map(|i| {
            let is_its = |of: &&Compared| of.kind == PairKind::Best && of.a == i;
            compared.iter().find(is_its)
        });
        let to_best: Vec<Option<&Compared>> = to_best.collect();
        let ratios = to_best.iter().map(|of| of.and_then(|of| of.paired.ratio));
        let ratios = Vec::from_iter(ratios);
        let p_holm = adjusted(&Vec::from_iter(
            ratios.iter().map(|of| of.and_then(|of| of.p)),
        ));
        let spans = to_best.iter().map(|of| of.map(|of| of.spans.clone()));
        let mut spans: Vec<Vec<SpanRatio>> = spans.map(Option::unwrap_or_default).collect();
        SpanRatio::adjust(spans.iter_mut());
        let is_told = |p: Option<f64>| p.is_some_and(|p| p < confidence.outside());
        let p_dominated = self.p_dominated(&compared, &p_holm, is_told);
        let pairs = compared.iter().map(|of| self.pair(of)).collect();
        let models = self
            .placed
            .iter()
            .zip(places)
            .zip(spans)
            .map(|((of, i), spans)| {
                let is_best = best == Some(i);
                let are_noise = best_is_noise && of.is_candidate() && self.is_noise(i);
                let upper = ratios[i].and_then(|ratio| ratio.upper);
                let (row, paths) = (of.row, &of.row.paths);
                ComparedModel {
                    result: of.result.clone(),
                    sidecar: row.sidecar(),
                    parts: if paths.len() > 1 {
                        paths.clone()
                    } else {
                        Vec::new()
                    },
                    set_up: row.set_up.clone(),
                    ccdf: row.ccdf.clone(),
                    by_window: row.by_window.clone(),
                    conditions: Vec::new(),
                    top: row.top.clone(),
                    is_incomplete: of.is_incomplete,
                    same_as: same_as[i].map(|place| self.label(place)),
                    ratio_to_best: ratios[i].map(|ratio| RatioToBest {
                        ratio,
                        p_holm: p_holm[i],
                    }),
                    ratio_to_best_by_span: spans,
                    difference_to_best: to_best[i].map(|of| of.paired.difference),
                    indistinguishable_from_best: is_best
                        || (to_best[i].is_some() && (are_noise || !is_told(p_holm[i]))),
                    is_as_near: is_best || are_noise || upper.is_some_and(|upper| upper <= near),
                    pareto: of.is_candidate()
                        && of.size.is_some()
                        && of.result.mean_kld().is_some()
                        && dominating[i].is_none(),
                    is_dominated: is_told(p_dominated[i]),
                }
            });
        (models.collect(), pairs)
    }
}

impl Placed<'_> {
    /// Whether it can be the best: the noise floor cannot, nor one that leaves out tokens.
    fn is_candidate(&self) -> bool {
        !self.result.is_noise_floor && !self.is_incomplete
    }

    /// The mean KLD; infinite where there is none.
    fn mean(&self) -> f64 {
        self.result
            .mean_kld()
            .map_or(f64::INFINITY, |mean| mean.value)
    }

    /// The path of its sidecar, or of its model where it has none.
    fn path(&self) -> &str {
        let sidecar = self.row.paths.first();
        sidecar.map_or(self.result.model.path.as_str(), String::as_str)
    }
}

/// Adjusts the p-values that are there for their number, by Holm's method. A ratio without one, as from
/// one window, tells nothing.
fn adjusted(p: &[Option<f64>]) -> Vec<Option<f64>> {
    let known: Vec<f64> = p.iter().flatten().copied().collect();
    let mut adjusted = holm(&known).into_iter();
    p.iter().map(|p| p.and_then(|_| adjusted.next())).collect()
}

/// Makes all labels distinct: by what differs in their set-ups, else by their paths.
fn make_distinct(placed: &mut [Placed<'_>]) {
    let names: Vec<String> = placed.iter().map(|of| of.result.label.clone()).collect();
    for (i, name) in names.iter().enumerate() {
        let alike = placed
            .iter()
            .zip(&names)
            .filter(|(_, other)| *other == name);
        let alike: Vec<_> = alike.map(|(of, _)| &of.row.set_up).collect();
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
        let what = distinction.and_then(|of| of(&placed[i].row.set_up));
        let what = what.unwrap_or_else(|| placed[i].path().to_owned());
        placed[i].result.label = format!("{name} ({what})");
    }
    // A label that was given may be what another was made into.
    for i in 0..placed.len() {
        let is_its = |of: &&Placed<'_>| of.result.label == placed[i].result.label;
        if placed.iter().filter(is_its).count() > 1 {
            placed[i].result.label = placed[i].path().to_owned();
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
