//! Compares the evaluations that sidecars hold, without a model and without the reference.

mod comparable;
mod differences;
mod files;
mod label;
mod pair;
mod ranking;
mod row;
mod run;
mod warnings;

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::observer::{Observer, Watch};
use super::one_line;
use super::parts::{StoredEvaluation, stored_evaluations};
use super::settings::ReportSettings;
use crate::report::comparison::{
    ComparedPair, ComparedReference, Comparison, DifferenceToBest, InDepth, NotCompared, PairKind,
};
use crate::report::{Versions, Warning};
use crate::stats::{ClusterRule, Confidence};
use comparable::comparable;
use differences::{Differences, N_THREADS, in_parallel};
pub use files::is_listed;
use row::Row;
pub use run::compare_run;

/// What a report is.
#[derive(Debug)]
pub enum Reported {
    /// Models side by side.
    Comparison(Box<Comparison>),
    /// Two models in depth.
    Pair(Box<InDepth>),
}

impl Reported {
    /// What the user should know before trusting the numbers.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        match self {
            Self::Comparison(comparison) => &comparison.warnings,
            Self::Pair(pair) => &pair.warnings,
        }
    }
}

/// Compares the evaluations in the files and folders of the settings.
///
/// # Errors
/// If none of them can be used. A file that cannot be compared with the others is listed.
pub fn report(settings: &ReportSettings, observer: &dyn Observer) -> Result<Reported> {
    let watch = &Watch::new(observer);
    let (files, mut not_compared) = files::find(&settings.paths)?;
    let (stored, unusable) = stored_evaluations(&files);
    let unusable = unusable.into_iter();
    not_compared.extend(unusable.map(|(path, why)| NotCompared::new(&path, why)));
    let mut comparer = Comparer::new(settings.confidence, settings.clusters);
    let n_records = stored.iter().map(StoredEvaluation::n_records).sum();
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
    Ok(match settings.pair {
        true => Reported::Pair(Box::new(pair::in_depth(&comparer, comparison)?)),
        false => Reported::Comparison(Box::new(comparison)),
    })
}

/// Rows and their differences, which are kept as rows are added.
pub struct Comparer {
    confidence: Confidence,
    rule: ClusterRule,
    /// The rows, by their place among what is compared.
    rows: BTreeMap<usize, Row>,
    /// The row that was added last.
    last: Option<usize>,
    differences: Differences,
}

impl Comparer {
    /// Compares nothing yet.
    pub fn new(confidence: Confidence, rule: ClusterRule) -> Self {
        Self {
            confidence,
            rule,
            rows: BTreeMap::new(),
            last: None,
            differences: Differences::default(),
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
        let measure = |(key, stored): (usize, StoredEvaluation)| {
            let path = stored.paths().first().cloned().unwrap_or_default();
            let n_records = usize::try_from(stored.n_records()).unwrap_or(0);
            let measured = match watch.check() {
                Ok(()) => Row::measure(stored, confidence, rule),
                Err(error) => Err(error.into()),
            };
            on_records(n_records);
            let measured = measured.map_err(|error| NotCompared::new(&path, one_line(&error)));
            (key, measured)
        };
        let mut unreadable = BTreeMap::new();
        let mut waiting: Vec<(usize, StoredEvaluation)> = stored.into_iter().enumerate().collect();
        waiting.sort_by_key(|(_, stored)| stored.model_bytes());
        while !waiting.is_empty() {
            let batch = waiting.split_off(waiting.len().saturating_sub(N_THREADS));
            for (key, measured) in in_parallel(batch.into_iter().rev().collect(), measure) {
                match measured {
                    Ok((row, klds)) => self.push(key, row, klds, watch)?,
                    Err(why) => {
                        unreadable.insert(key, why);
                    }
                }
            }
            watch.check()?;
        }
        Ok(unreadable.into_values().collect())
    }

    /// Adds a row, which is as large as the one before it or smaller, and compares it with that and
    /// with the best so far.
    fn push(&mut self, key: usize, row: Row, klds: Vec<f64>, watch: &Watch<'_>) -> Result<()> {
        self.differences.hold(key, klds);
        self.rows.insert(key, row);
        let last = self.last.replace(key).unwrap_or(key);
        let candidates = self.rows.iter();
        let candidates = candidates.filter(|(_, row)| row.model.is_candidate());
        let best = candidates.min_by(|(_, a), (_, b)| ranking::by_mean_kld(&a.model, &b.model));
        let best = best.map_or(key, |(best, _)| *best);
        let tokens = |key| self.rows.get(&key).map(|row| row.tokens);
        let pairs = [(key, last), (key, best)];
        let pairs = pairs
            .into_iter()
            .filter(|&(_, other)| tokens(key) == tokens(other));
        let pairs: Vec<(usize, usize)> = pairs.collect();
        let how = (self.confidence, self.rule);
        self.differences.add(&pairs, best, &self.rows, how, watch)?;
        self.differences.release_all_but(&[best, key]);
        Ok(())
    }

    /// Compares all rows so far.
    ///
    /// # Errors
    /// If a row can no longer be read, or the observer asks to stop.
    pub fn compare(&mut self, watch: &Watch<'_>) -> Result<Comparison> {
        let found = comparable(&self.rows);
        let not_compared = found.others.into_iter().filter_map(|(index, why)| {
            let row = self.rows.get(&index)?;
            Some(NotCompared {
                sidecar: row.model.sidecar.clone(),
                why,
            })
        });
        let not_compared = not_compared.collect();
        let is_compared = |index: &usize| found.rows.contains(index);
        let compared = self.rows.iter_mut();
        let compared = compared.filter(|(index, _)| is_compared(index));
        ranking::mark_incomplete(compared.map(|(_, row)| &mut row.model));
        let mut ranked: Vec<(usize, &Row)> = found
            .rows
            .iter()
            .filter_map(|&index| Some((index, self.rows.get(&index)?)))
            .collect();
        ranked.sort_by(|(_, a), (_, b)| ranking::by_mean_kld(&a.model, &b.model));
        let can_be_best =
            |(_, row): &&(usize, &Row)| row.model.is_candidate() && row.model.mean_kld().is_some();
        let best = ranked.iter().find(can_be_best).map(|(index, _)| *index);
        let pairs = pairs(&ranked, best);
        if let Some(best) = best {
            let wanted: Vec<(usize, usize)> = pairs.iter().map(|(_, a, b)| (*a, *b)).collect();
            let how = (self.confidence, self.rule);
            self.differences
                .add(&wanted, best, &self.rows, how, watch)?;
        }

        let order: Vec<usize> = ranked.iter().map(|(index, _)| *index).collect();
        let mut models: Vec<_> = ranked.iter().map(|(_, row)| row.model.clone()).collect();
        label::make_distinct(&mut models);
        for (index, model) in order.iter().zip(&mut models) {
            let Some(best) = best.filter(|_| model.is_candidate()) else {
                continue;
            };
            model.indistinguishable_from_best = best == *index;
            let paired = self.differences.get(*index, best);
            model.difference_to_best = paired.map(|paired| DifferenceToBest {
                difference: paired.difference,
                p_holm: None,
            });
        }
        ranking::mark_indistinguishable(&mut models, self.confidence);
        ranking::mark_pareto_front(&mut models);
        let label = |index: usize| {
            let mut labels = order.iter().zip(&models);
            labels.find_map(|(row, model)| (*row == index).then(|| model.label.clone()))
        };
        let pairs = pairs.into_iter().filter_map(|(kind, a, b)| {
            let paired = self.differences.get(a, b)?;
            Some(ComparedPair {
                kind,
                a: label(a)?,
                b: label(b)?,
                difference: paired.difference,
                share_a_nearer: paired.share_nearer,
            })
        });
        let reference = ranked.first().map(|(_, row)| row.header());
        let reference = reference.map(ComparedReference::of).unwrap_or_default();
        Ok(Comparison {
            versions: Versions::default(),
            confidence: self.confidence,
            pairs: pairs.collect(),
            not_compared,
            warnings: warnings::of(&models, reference.prompts),
            models,
            reference,
        })
    }
}

/// The pairs to compare, by the indices of their rows: each candidate with the best, and with the
/// next in size.
fn pairs(ranked: &[(usize, &Row)], best: Option<usize>) -> Vec<(PairKind, usize, usize)> {
    let is_paired = |(_, row): &&(usize, &Row)| row.model.is_candidate();
    let candidates: Vec<&(usize, &Row)> = ranked.iter().filter(is_paired).collect();
    let size = |(_, row): &(usize, &Row)| row.model.model.shown_bytes();
    let mut by_size: Vec<&(usize, &Row)> = candidates.clone();
    by_size.retain(|row| size(row).is_some());
    by_size.sort_by_key(|row| size(row));
    let to_best = candidates.iter().filter_map(|(index, _)| {
        let best = best.filter(|best| best != index)?;
        Some((PairKind::Best, *index, best))
    });
    let to_next = by_size.windows(2).filter_map(|two| match two {
        [(smaller, _), (larger, _)] => Some((PairKind::Size, *smaller, *larger)),
        _ => None,
    });
    let mut pairs: Vec<_> = to_best.chain(to_next).collect();
    // Rows are read in the order of their sizes.
    let rank = |index: usize| by_size.iter().position(|(row, _)| *row == index);
    pairs.sort_by_key(|(_, a, _)| rank(*a));
    pairs
}
