//! Compares the evaluations that sidecars hold, without a model and without the reference.

mod comparable;
mod differences;
mod files;
mod pair;
mod ranking;
mod row;

use std::collections::{BTreeMap, HashMap};

use anyhow::{Result, bail};

use super::observer::one_line;
use super::observer::{Observer, Watch};
use super::parts::{StoredEvaluation, stored_evaluations};
use super::settings::ReportSettings;
use crate::report::comparison::{
    ComparedModel, ComparedPair, ComparedReference, Comparison, DifferenceToBest, InDepth,
    NotCompared, PairKind,
};
use crate::report::{Versions, Warning, doubts_of_models};
use crate::stats::{ClusterRule, Confidence};
use comparable::comparable;
use differences::{N_THREADS, Paired, in_parallel};
pub use files::is_listed;
pub use row::{Row, Scored, result_of};

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
    comparer.keeps_records = settings.pair;
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
    /// True if rows keep their records, which are large.
    keeps_records: bool,
    /// The row that was added last.
    last: Option<usize>,
    /// The differences that are known, by the keys of their rows; `None` where the rows have no token
    /// in common that both count.
    differences: HashMap<(usize, usize), Option<Paired>>,
    /// The KLDs of the rows that are in memory.
    klds: HashMap<usize, Vec<f64>>,
}

impl Comparer {
    /// Compares nothing yet.
    pub fn new(confidence: Confidence, rule: ClusterRule) -> Self {
        Self {
            confidence,
            rule,
            rows: BTreeMap::new(),
            keeps_records: false,
            last: None,
            differences: HashMap::new(),
            klds: HashMap::new(),
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
        let (confidence, rule, keeps_records) = (self.confidence, self.rule, self.keeps_records);
        let measure = |(key, stored): (usize, StoredEvaluation)| {
            let path = stored.paths.first().cloned().unwrap_or_default();
            let n_records = usize::try_from(stored.n_records).unwrap_or(0);
            let measured = match watch.check() {
                Ok(()) => Row::measure(stored, keeps_records, confidence, rule),
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
                    Ok((row, klds)) => self.push(key, row, klds, watch),
                    Err(why) => {
                        unreadable.insert(key, why);
                    }
                }
            }
            watch.check()?;
        }
        Ok(unreadable.into_values().collect())
    }

    /// Adds a row with the KLDs of its tokens, and compares it with the one before it and with the
    /// best so far: these stay in memory. `key` is its place among all.
    pub fn push(&mut self, key: usize, row: Row, klds: Vec<f64>, watch: &Watch<'_>) {
        self.klds.insert(key, klds);
        self.rows.insert(key, row);
        let last = self.last.replace(key).unwrap_or(key);
        let candidates = self.rows.iter();
        let candidates = candidates.filter(|(_, row)| row.model.is_candidate());
        let best = candidates.min_by(|(_, a), (_, b)| ranking::by_mean_kld(&a.model, &b.model));
        let best = best.map_or(key, |(best, _)| *best);
        let tokens = |key| self.rows.get(&key).map(|row| row.tokens);
        let mut pairs = vec![(key, last), (key, best)];
        pairs.retain(|&(_, other)| tokens(key) == tokens(other));
        // What is not compared now, as after an interrupt, is where all are.
        let _ = self.compare_pairs(&pairs, best, watch);
        self.klds.retain(|row, _| [best, key].contains(row));
    }

    /// Compares all rows so far.
    ///
    /// # Errors
    /// If a row can no longer be read, or the observer asks to stop.
    pub fn compare(&mut self, watch: &Watch<'_>) -> Result<Comparison> {
        let found = comparable(&self.rows);
        let mut ranked = self.ranked(&found.rows);
        let can_be_best = |(_, model): &&(usize, ComparedModel)| {
            model.is_candidate() && model.mean_kld().is_some()
        };
        let best = ranked.iter().find(can_be_best).map(|(key, _)| *key);
        let pairs = pairs(&ranked, best);
        if let Some(best) = best {
            let wanted: Vec<(usize, usize)> = pairs.iter().map(|(_, a, b)| (*a, *b)).collect();
            self.compare_pairs(&wanted, best, watch)?;
            for (key, model) in &mut ranked {
                if model.is_candidate() {
                    model.indistinguishable_from_best = best == *key;
                    let paired = self.difference(*key, best);
                    model.difference_to_best = paired.map(|paired| DifferenceToBest {
                        difference: paired.difference,
                        p_holm: None,
                    });
                }
            }
        }
        let (keys, mut models): (Vec<usize>, Vec<ComparedModel>) = ranked.into_iter().unzip();
        ranking::mark_indistinguishable(&mut models, self.confidence);
        let label = |key: usize| {
            let at = keys.iter().position(|other| *other == key)?;
            models.get(at).map(|model| model.label.clone())
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
        let pairs = pairs.collect();
        let not_compared = found.others.into_iter().filter_map(|(key, why)| {
            let sidecar = self.rows.get(&key)?.model.sidecar.clone();
            Some(NotCompared { sidecar, why })
        });
        Ok(Comparison {
            pairs,
            not_compared: not_compared.collect(),
            ..self.table(keys.first().copied(), models)
        })
    }

    /// The rows beside each other, without paired differences, and why there are none.
    pub fn without_pairs(&self, why: &'static str) -> Comparison {
        let all: Vec<usize> = self.rows.keys().copied().collect();
        let ranked = self.ranked(&all).into_iter();
        let models = ranked.map(|(_, model)| model).collect();
        let mut table = self.table(all.first().copied(), models);
        table.warnings.push(Warning::Unpaired(why));
        table
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The models of these rows by ascending mean KLD, with labels that differ.
    fn ranked(&self, keys: &[usize]) -> Vec<(usize, ComparedModel)> {
        let rows = keys.iter();
        let rows = rows.filter_map(|key| Some((*key, self.rows.get(key)?.model.clone())));
        let mut ranked: Vec<(usize, ComparedModel)> = rows.collect();
        ranking::mark_incomplete(ranked.iter_mut().map(|(_, model)| model));
        ranked.sort_by(|(_, a), (_, b)| ranking::by_mean_kld(a, b));
        let (keys, mut models): (Vec<usize>, Vec<ComparedModel>) = ranked.into_iter().unzip();
        ranking::make_distinct(&mut models);
        ranking::mark_pareto_front(&mut models);
        keys.into_iter().zip(models).collect()
    }

    /// The table of ranked models. `first`: a row with the reference of all.
    fn table(&self, first: Option<usize>, models: Vec<ComparedModel>) -> Comparison {
        let first = first.and_then(|key| self.rows.get(&key));
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

/// The pairs to compare, by the indices of their rows: each candidate with the best, and with the
/// next in size.
fn pairs(ranked: &[(usize, ComparedModel)], best: Option<usize>) -> Vec<(PairKind, usize, usize)> {
    let is_paired = |(_, model): &&(usize, ComparedModel)| model.is_candidate();
    let candidates: Vec<&(usize, ComparedModel)> = ranked.iter().filter(is_paired).collect();
    let size = |(_, model): &(usize, ComparedModel)| model.model.shown_bytes();
    let mut by_size: Vec<&(usize, ComparedModel)> = candidates.clone();
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
