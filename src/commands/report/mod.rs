//! Compares the evaluations that sidecars hold, without a model and without the reference.

mod comparable;
mod files;
mod pair;
mod ranking;
mod row;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use rayon::prelude::*;

use super::observer::one_line;
use super::observer::{Observer, Watch};
use super::parts::{StoredEvaluation, stored_evaluations};
use crate::report::comparison::{
    ComparedModel, ComparedPair, ComparedReference, Comparison, InDepth, NotCompared, PairKind,
    RatioToBest, Sizes,
};
use crate::report::{Versions, Warning, doubts_of_models};
use crate::stats::{ClusterRule, Clusters, Confidence, Paired, SpanRatio};
use comparable::not_comparable;
pub use files::is_listed;
pub use row::Row;

/// A report: of two models in depth, or of several side by side.
#[derive(Debug)]
pub enum Reported {
    /// Models side by side.
    Comparison(Box<Comparison>),
    /// Two models in depth.
    Pair(Box<InDepth>),
}

impl Reported {
    /// The warnings, to be read before the numbers are trusted.
    pub fn warnings(&self) -> &[Warning] {
        match self {
            Self::Comparison(comparison) => &comparison.warnings,
            Self::Pair(pair) => &pair.warnings,
        }
    }
}

/// Compares the evaluations in sidecars and folders of them; with `pair`, two in depth.
///
/// # Errors
/// If none of them can be used. A file that cannot be compared with the others is listed.
pub fn report(
    paths: &[PathBuf],
    confidence: Confidence,
    rule: ClusterRule,
    pair: bool,
    near: f64,
    observer: &dyn Observer,
) -> Result<Reported> {
    let watch = &Watch::new(observer);
    // The same build twice gives the same bytes twice, and is exactly as far from the reference.
    let (files, mut not_compared) = files::find(paths, pair)?;
    let (stored, unusable) = stored_evaluations(&files);
    let unusable = unusable.into_iter();
    not_compared.extend(unusable.map(|(path, why)| NotCompared::new(&path, why)));
    let mut comparer = Comparer::new(confidence, rule, near);
    let n_records = stored.iter().map(|stored| stored.n_records).sum();
    let phase = watch.begin("sidecars", None, Some(n_records));
    not_compared.extend(comparer.add(stored, watch, &|n| phase.rows(n))?);
    drop(phase);
    if comparer.rows.is_empty() {
        match not_compared.as_slice() {
            [] => bail!("no sidecars (.kls) in the folders given: evaluate a model with kl -r"),
            [only] => bail!("{}: {}", only.sidecar, only.why),
            [first, ..] => bail!(
                "none of {} files can be reported, the first of which is {}: {}",
                not_compared.len(),
                first.sidecar,
                first.why
            ),
        }
    }
    let mut comparison = comparer.compare(watch)?;
    not_compared.append(&mut comparison.not_compared);
    comparison.not_compared = not_compared;
    Ok(match pair {
        true => Reported::Pair(Box::new(pair::in_depth(&comparer, comparison)?)),
        false => Reported::Comparison(Box::new(comparison)),
    })
}

/// Rows that are read at once: all numbers of each are in memory.
const N_AT_ONCE: usize = 2;

/// Evaluations, each measured as a row, that can be compared.
pub struct Comparer {
    confidence: Confidence,
    rule: ClusterRule,
    /// How many times as far as the best makes no difference.
    near: f64,
    /// The rows, by the indices of their models.
    rows: BTreeMap<usize, Row>,
}

impl Comparer {
    /// Compares nothing yet.
    pub fn new(confidence: Confidence, rule: ClusterRule, near: f64) -> Self {
        Self {
            confidence,
            rule,
            near,
            rows: BTreeMap::new(),
        }
    }

    /// Measures evaluations, each as a row. Returns those that cannot be read. `on_records` gets the
    /// number of records of each, once it is done.
    ///
    /// # Errors
    /// If the observer asks to stop.
    pub fn add(
        &mut self,
        mut stored: Vec<StoredEvaluation>,
        watch: &Watch<'_>,
        on_records: &(dyn Fn(usize) + Sync),
    ) -> Result<Vec<NotCompared>> {
        let (confidence, rule) = (self.confidence, self.rule);
        let is_only = stored.len() == 1;
        let measure = |stored: StoredEvaluation| {
            let path = stored.paths.first().cloned().unwrap_or_default();
            let n_records = usize::try_from(stored.n_records).unwrap_or(0);
            let measured = match watch.check() {
                Ok(()) => Row::measure(stored, confidence, rule, is_only, |of, each| of.read(each)),
                Err(error) => Err(error.into()),
            };
            on_records(n_records);
            measured.map_err(|error| NotCompared::new(&path, one_line(&error)))
        };
        let mut unreadable = Vec::new();
        let mut index = 0;
        while !stored.is_empty() {
            let rest = stored.split_off(stored.len().min(N_AT_ONCE));
            let measured: Vec<_> = stored.into_par_iter().map(measure).collect();
            stored = rest;
            for measured in measured {
                match measured {
                    Ok(row) => self.push(index, row),
                    Err(why) => unreadable.push(why),
                }
                index += 1;
            }
            watch.check()?;
        }
        Ok(unreadable)
    }

    /// Adds the row of the model with this index among all.
    pub fn push(&mut self, index: usize, mut row: Row) {
        row.model.index = index;
        self.rows.insert(index, row);
    }

    /// Compares all rows.
    ///
    /// # Errors
    /// If the observer asks to stop.
    pub fn compare(&self, watch: &Watch<'_>) -> Result<Comparison> {
        let others = not_comparable(&self.rows);
        let rows = self.rows.iter();
        let alike = rows.filter(|(index, _)| !others.contains_key(index));
        let alike: Vec<&Row> = alike.map(|(_, row)| row).collect();
        let clusters = self.clusters(&alike);
        let mut comparison = self.table(&alike, clusters.as_ref());
        self.mark_same(&mut comparison.models);
        if let Some(clusters) = &clusters {
            self.compare_pairs(&mut comparison, clusters, watch)?;
        }
        ranking::mark_indistinguishable(&mut comparison);
        ranking::mark_dominated(&mut comparison);
        ranking::adjust_spans(&mut comparison.models);
        let not_compared = others.into_iter().filter_map(|(index, why)| {
            let sidecar = self.rows.get(&index)?.model.sidecar.clone();
            Some(NotCompared { sidecar, why })
        });
        comparison.not_compared = not_compared.collect();
        Ok(comparison)
    }

    /// The clusters of rows over the same tokens: chosen once, by the mean autocorrelation of the
    /// ranked ones. `None` without rows.
    fn clusters(&self, rows: &[&Row]) -> Option<Clusters> {
        let fewest = ranking::fewest_left_out(rows.iter().map(|row| &row.model))?;
        let is_ranked = |row: &Row| !row.model.is_noise_floor && row.model.n_left_out() == fewest;
        let has_ranked = rows.iter().any(|row| is_ranked(row));
        let ranked = rows.iter().filter(|row| is_ranked(row) || !has_ranked);
        let windows = Vec::from_iter(ranked.map(|row| &row.windows));
        let of_each = windows.iter().filter_map(|of| of.autocorrelation());
        let of_each = Vec::from_iter(of_each);
        let mean = of_each.iter().sum::<f64>() / of_each.len() as f64;
        let windows = windows.first()?;
        let mean = Some(mean).filter(|mean| mean.is_finite());
        Some(Clusters::chosen_by(windows, self.rule, mean))
    }

    /// Marks the models that have the same KLDs as one above them.
    fn mark_same(&self, models: &mut [ComparedModel]) {
        let klds = |model: &ComparedModel| {
            let row = self
                .rows
                .get(&model.index)
                .filter(|_| model.is_candidate())?;
            Some(row.klds.iter().map(|kld| kld.to_bits()))
        };
        let same_as = |(i, model): (usize, &ComparedModel)| {
            let mut above = models.iter().take(i);
            let same = above.find(|above| {
                let both = klds(above).zip(klds(model));
                both.is_some_and(|(above, klds)| above.eq(klds))
            });
            same.map(|same| same.label.clone())
        };
        let of_each: Vec<_> = models.iter().enumerate().map(same_as).collect();
        for (model, same_as) in models.iter_mut().zip(of_each) {
            model.same_as = same_as;
        }
    }

    /// Compares the models of a table on the same tokens, two at a time.
    fn compare_pairs(
        &self,
        comparison: &mut Comparison,
        clusters: &Clusters,
        watch: &Watch<'_>,
    ) -> Result<()> {
        let best = comparison.best().map(|best| best.index);
        let pairs = pairs(&comparison.models, best);
        let compared = pairs.into_par_iter().map(|(kind, a, b)| {
            watch.check()?;
            let rows = self.rows.get(&a).zip(self.rows.get(&b));
            let paired = rows.and_then(|(a, b)| {
                Paired::of(&a.runs, &a.klds, &b.klds, clusters, self.confidence)
            });
            let of_spans = rows.filter(|_| kind == PairKind::Best).map(|(a, b)| {
                let (tokens, names) = ((a.runs.as_slice(), &a.spans), &a.header().spans);
                SpanRatio::of_each(tokens, names, &a.klds, &b.klds, clusters, self.confidence)
            });
            Ok((kind, a, b, (paired, of_spans.unwrap_or_default())))
        });
        type Compared = (PairKind, usize, usize, (Option<Paired>, Vec<SpanRatio>));
        let compared: Vec<Compared> = compared.collect::<Result<_>>()?;
        for model in &mut comparison.models {
            let is_its = |(kind, a, ..): &&Compared| *kind == PairKind::Best && *a == model.index;
            model.indistinguishable_from_best = best == Some(model.index);
            let to_best = compared.iter().find(is_its);
            if let Some((Some(paired), of_spans)) = to_best.map(|(.., of)| of) {
                let p_holm = None;
                let ratio = paired.ratio;
                model.ratio_to_best = ratio.map(|ratio| RatioToBest { ratio, p_holm });
                model.ratio_to_best_by_span = of_spans.clone();
                model.difference_to_best = Some(paired.difference);
            }
        }
        let label = |index| {
            let mut models = comparison.models.iter();
            let model = models.find(|model| model.index == index);
            model.map(|model| model.label.clone())
        };
        let pairs = compared
            .into_iter()
            .filter_map(|(kind, a, b, (paired, _))| {
                let paired = paired?;
                Some(ComparedPair {
                    kind,
                    a: label(a)?,
                    b: label(b)?,
                    n_tokens: paired.n_tokens,
                    ratio: paired.ratio,
                    difference: paired.difference,
                    share_a_nearer: paired.share_a_nearer,
                })
            });
        comparison.pairs = pairs.collect();
        comparison.drop_multiples_of_noise();
        comparison.mark_as_near();
        Ok(())
    }

    /// The rows beside each other, which are not compared, and why not.
    pub fn without_pairs(&self, why: &'static str) -> Comparison {
        let mut table = self.table(&self.rows.values().collect::<Vec<_>>(), None);
        table.warnings.push(Warning::Unpaired(why));
        table.mark_as_near();
        table
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The models of rows by ascending mean KLD, with labels that differ, and the reference of all;
    /// with the intervals by these clusters, or by each row's own.
    fn table(&self, rows: &[&Row], clusters: Option<&Clusters>) -> Comparison {
        let models = rows.iter().map(|row| match clusters {
            Some(clusters) => row.by(clusters),
            None => row.model.clone(),
        });
        let mut models: Vec<ComparedModel> = models.collect();
        ranking::mark_incomplete(&mut models);
        ranking::sort(&mut models);
        ranking::make_distinct(&mut models);
        ranking::mark_pareto_front(&mut models);
        let reference = rows.first().map(|row| ComparedReference::of(row.header()));
        let reference = reference.unwrap_or_default();
        Comparison {
            versions: Versions::default(),
            confidence: self.confidence,
            near: self.near,
            clusters: clusters.map(|clusters| clusters.clustering),
            pairs: Vec::new(),
            not_compared: Vec::new(),
            warnings: doubts_of_models(&models, reference.prompts),
            models,
            reference,
        }
    }
}

#[cfg(test)]
mod tests;

/// The pairs to compare, by the indices of their models: each candidate with the best, with the next in
/// size, and with the nearest of those that are no larger, if that is another.
fn pairs(models: &[ComparedModel], best: Option<usize>) -> Vec<(PairKind, usize, usize)> {
    let candidates = models.iter().filter(|model| model.is_candidate());
    let mut by_size: Vec<&ComparedModel> = candidates.clone().collect();
    let sizes = Sizes::of(models);
    by_size.retain(|model| sizes.bytes(model).is_some());
    by_size.sort_by_key(|model| sizes.bytes(model));
    let to_best = candidates.filter_map(|model| {
        let best = best.filter(|best| *best != model.index)?;
        Some((PairKind::Best, model.index, best))
    });
    let to_next = by_size.iter().zip(by_size.iter().skip(1));
    let to_next = to_next.map(|(smaller, larger)| (PairKind::Size, smaller.index, larger.index));
    let dominating = ranking::dominating(models).into_iter();
    let to_front = models
        .iter()
        .zip(dominating)
        .filter_map(|(model, dominating)| {
            let front = models.get(dominating?)?.index;
            (best != Some(front)).then_some((PairKind::Front, model.index, front))
        });
    to_best.chain(to_next).chain(to_front).collect()
}
