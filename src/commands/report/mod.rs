//! Compares the evaluations that sidecars hold, without a model and without the reference.

mod comparable;
mod differences;
mod files;
mod pair;
mod ranking;
mod row;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use anyhow::{Result, bail};
use rayon::prelude::*;

use super::observer::one_line;
use super::observer::{Observer, Watch};
use super::parts::{StoredEvaluation, stored_evaluations};
use crate::report::comparison::{
    ComparedModel, ComparedPair, ComparedReference, Comparison, DifferenceToBest, InDepth,
    NotCompared, PairKind,
};
use crate::report::{Versions, Warning, doubts_of_models};
use crate::stats::{ClusterRule, Confidence};
use comparable::not_comparable;
use differences::{N_AT_ONCE, Paired};
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
    observer: &dyn Observer,
) -> Result<Reported> {
    let watch = &Watch::new(observer);
    let (files, mut not_compared) = files::find(paths)?;
    let (stored, unusable) = stored_evaluations(&files);
    let unusable = unusable.into_iter();
    not_compared.extend(unusable.map(|(path, why)| NotCompared::new(&path, why)));
    let mut comparer = Comparer::new(confidence, rule);
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

/// Rows and their differences, which are kept as rows are added.
#[derive(Default)]
pub struct Comparer {
    confidence: Confidence,
    rule: ClusterRule,
    /// The rows, by the indices of their models.
    rows: BTreeMap<usize, Row>,
    /// The index of the row that was added last.
    last: Option<usize>,
    /// The differences that are known, by the indices of their rows; `None` where the rows have no
    /// token in common that both count.
    differences: HashMap<(usize, usize), Option<Paired>>,
}

impl Comparer {
    /// Compares nothing yet.
    pub fn new(confidence: Confidence, rule: ClusterRule) -> Self {
        Self {
            confidence,
            rule,
            ..Self::default()
        }
    }

    /// Measures evaluations, each as a row. Returns those that cannot be read. `on_records` gets the
    /// number of records of each, once it is done.
    ///
    /// The largest model is measured first: it is mostly the best, with which all are compared, so
    /// that hardly a row is read again for its differences.
    ///
    /// # Errors
    /// If the observer asks to stop.
    pub fn add(
        &mut self,
        stored: Vec<StoredEvaluation>,
        watch: &Watch<'_>,
        on_records: &(dyn Fn(usize) + Sync),
    ) -> Result<Vec<NotCompared>> {
        let (confidence, rule) = (self.confidence, self.rule);
        let measure = |(index, stored): (usize, StoredEvaluation)| {
            let path = stored.paths.first().cloned().unwrap_or_default();
            let n_records = usize::try_from(stored.n_records).unwrap_or(0);
            let measured = match watch.check() {
                Ok(()) => Row::measure(stored, confidence, rule, |of, each| of.read(each)),
                Err(error) => Err(error.into()),
            };
            on_records(n_records);
            let measured = measured.map_err(|error| NotCompared::new(&path, one_line(&error)));
            (index, measured)
        };
        let mut unreadable = BTreeMap::new();
        let mut waiting: Vec<(usize, StoredEvaluation)> = stored.into_iter().enumerate().collect();
        let model_bytes = |stored: &StoredEvaluation| stored.header.model.as_ref()?.shown_bytes();
        waiting.sort_by_key(|(_, stored)| model_bytes(stored).unwrap_or(0));
        while !waiting.is_empty() {
            let batch = waiting.split_off(waiting.len().saturating_sub(N_AT_ONCE));
            let measured: Vec<_> = batch.into_par_iter().rev().map(measure).collect();
            for (index, measured) in measured {
                match measured {
                    Ok(row) => self.push(index, row, watch),
                    Err(why) => {
                        unreadable.insert(index, why);
                    }
                }
            }
            watch.check()?;
        }
        Ok(unreadable.into_values().collect())
    }

    /// Adds the row of the model with this index among all, and compares it with the one before it
    /// and with the best so far: the KLDs of these stay in memory.
    pub fn push(&mut self, index: usize, mut row: Row, watch: &Watch<'_>) {
        row.model.index = index;
        let tokens = row.tokens;
        self.rows.insert(index, row);
        let last = self.last.replace(index).unwrap_or(index);
        let models = self.rows.values().map(|row| &row.model);
        let candidates = models.filter(|model| model.is_candidate());
        let best = candidates.min_by(|a, b| ranking::by_mean_kld(a, b));
        let best = best.map_or(index, |best| best.index);
        let tokens_of = |index| self.rows.get(&index).map(|row| row.tokens);
        let mut pairs = vec![(index, last), (index, best)];
        pairs.retain(|&(_, other)| tokens_of(other) == Some(tokens));
        // What is not compared now, as after an interrupt, is where all are.
        let _ = self.compare_pairs(&pairs, best, watch);
        self.forget_klds_except(&[best, index]);
    }

    /// Compares all rows so far.
    ///
    /// # Errors
    /// If a row can no longer be read, or the observer asks to stop.
    pub fn compare(&mut self, watch: &Watch<'_>) -> Result<Comparison> {
        let others = not_comparable(&self.rows);
        let mut comparison = self.table(|index| !others.contains_key(index));
        let best = comparison.best().map(|best| best.index);
        let pairs = pairs(&comparison.models, best);
        if let Some(best) = best {
            let wanted: Vec<(usize, usize)> = pairs.iter().map(|(_, a, b)| (*a, *b)).collect();
            self.compare_pairs(&wanted, best, watch)?;
            let models = comparison.models.iter_mut();
            for model in models.filter(|model| model.is_candidate()) {
                model.indistinguishable_from_best = best == model.index;
                let paired = self.difference(model.index, best);
                model.difference_to_best = paired.map(|paired| DifferenceToBest {
                    difference: paired.difference,
                    p_holm: None,
                });
            }
        }
        ranking::mark_indistinguishable(&mut comparison.models, self.confidence);
        let label = |index| {
            let mut models = comparison.models.iter();
            let model = models.find(|model| model.index == index);
            model.map(|model| model.label.clone())
        };
        let pairs = pairs.into_iter().filter_map(|(kind, a, b)| {
            let paired = self.difference(a, b)?;
            Some(ComparedPair {
                kind,
                a: label(a)?,
                b: label(b)?,
                difference: paired.difference,
                share_a_nearer: paired.share_nearer,
            })
        });
        comparison.pairs = pairs.collect();
        let not_compared = others.into_iter().filter_map(|(index, why)| {
            let sidecar = self.rows.get(&index)?.model.sidecar.clone();
            Some(NotCompared { sidecar, why })
        });
        comparison.not_compared = not_compared.collect();
        Ok(comparison)
    }

    /// The rows beside each other, without paired differences, and why there are none.
    pub fn without_pairs(&self, why: &'static str) -> Comparison {
        let mut table = self.table(|_| true);
        table.warnings.push(Warning::Unpaired(why));
        table
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The models with these indices by ascending mean KLD, with labels that differ, and the
    /// reference of all.
    fn table(&self, is_wanted: impl Fn(&usize) -> bool) -> Comparison {
        let rows = self.rows.iter().filter(|(index, _)| is_wanted(index));
        let mut models: Vec<ComparedModel> = rows.map(|(_, row)| row.model.clone()).collect();
        ranking::mark_incomplete(&mut models);
        models.sort_by(ranking::by_mean_kld);
        ranking::make_distinct(&mut models);
        ranking::mark_pareto_front(&mut models);
        let first = models.first().and_then(|model| self.rows.get(&model.index));
        let reference = first.map(|row| ComparedReference::of(row.header()));
        let reference = reference.unwrap_or_default();
        Comparison {
            versions: Versions::default(),
            confidence: self.confidence,
            pairs: Vec::new(),
            not_compared: Vec::new(),
            warnings: doubts_of_models(&models, reference.prompts),
            models,
            reference,
        }
    }
}

/// The pairs to compare, by the indices of their models: each candidate with the best, and with the
/// next in size.
fn pairs(models: &[ComparedModel], best: Option<usize>) -> Vec<(PairKind, usize, usize)> {
    let candidates = models.iter().filter(|model| model.is_candidate());
    let size = |model: &&ComparedModel| model.model.shown_bytes();
    let mut by_size: Vec<&ComparedModel> = candidates.clone().collect();
    by_size.retain(|model| size(model).is_some());
    by_size.sort_by_key(size);
    let to_best = candidates.filter_map(|model| {
        let best = best.filter(|best| *best != model.index)?;
        Some((PairKind::Best, model.index, best))
    });
    let to_next = by_size.iter().zip(by_size.iter().skip(1));
    let to_next = to_next.map(|(smaller, larger)| (PairKind::Size, smaller.index, larger.index));
    let mut pairs: Vec<_> = to_best.chain(to_next).collect();
    // Rows are read in the order of their sizes.
    let rank = |index: usize| by_size.iter().position(|model| model.index == index);
    pairs.sort_by_key(|(_, a, _)| rank(*a));
    pairs
}
