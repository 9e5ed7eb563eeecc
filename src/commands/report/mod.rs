//! Compares the evaluations that sidecars hold, without a model and without the reference.

mod comparable;
mod files;
mod ranking;
mod row;

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use kl_formats::TokenTexts;
use rayon::prelude::*;

use super::observer::one_line;
use super::observer::{Observer, Watch};
use super::parts::{StoredEvaluation, stored_evaluations};
use super::settings::ReportSettings;
use crate::report::check::Floor;
use crate::report::comparison::{
    ComparedReference, Comparison, InDepth, InDepthToken, NotCompared, PairKind,
};
use crate::report::{Verdict, Versions, Warning, doubts_of_models, judge, judge_pair};
use crate::stats::{
    ClusterRule, Clusters, Confidence, Estimator, Paired, PairedComparison, PairedToken, Run,
    SpanRatio, TokenTable,
};
use comparable::why_not_compared;
pub use files::is_listed;
use ranking::{Compared, Ranking};
pub use row::Row;
use row::around;

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

    /// The outcomes of the conditions for each model, with its sidecar; with the first one for a pair.
    pub fn conditions(&self) -> Vec<(&str, &[Verdict])> {
        match self {
            Self::Comparison(comparison) => {
                let models = comparison.models.iter();
                let of_each = models.map(|of| (&*of.sidecar, &*of.conditions));
                of_each.collect()
            }
            Self::Pair(pair) => vec![(&pair.a.sidecar, &pair.conditions)],
        }
    }
}

/// Compares the evaluations in sidecars and folders of them, or two of them in depth, and judges them by
/// the conditions.
///
/// # Errors
/// If none of them can be used. A file that cannot be compared with the others is listed.
pub fn report(settings: &ReportSettings, observer: &dyn Observer) -> Result<Reported> {
    let watch = &Watch::new(observer);
    let floor = settings.floor.as_deref().map(floor_of).transpose()?;
    let (files, mut not_compared) = files::find(&settings.paths)?;
    let (stored, unusable) = stored_evaluations(&files);
    let unusable = unusable.into_iter();
    not_compared.extend(unusable.map(|(path, why)| NotCompared::new(&path, why)));
    let mut comparer = Comparer::new(settings.confidence, settings.cluster, settings.near);
    let n_records = stored.iter().map(|stored| stored.n_records).sum();
    let phase = watch.begin("sidecars", None, Some(n_records));
    not_compared.extend(comparer.add(stored, watch, &|n| phase.rows(n))?);
    drop(phase);
    if !settings.pair {
        // A copy is exactly as far from the reference: it says nothing new.
        let mut rows: Vec<Row> = Vec::new();
        for row in comparer.rows {
            if !rows.iter().any(|other| row.is_copy_of(other)) {
                rows.push(row);
            }
        }
        comparer.rows = rows;
    }
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
    comparison.floor = floor;
    let (conditions, allow_excluded) = (&settings.fail_if, settings.allow_excluded);
    if settings.pair {
        let mut pair = in_depth(&comparer, comparison)?;
        pair.conditions = judge_pair(conditions, &pair, &pair.paired, allow_excluded);
        return Ok(Reported::Pair(Box::new(pair)));
    }
    for model in &mut comparison.models {
        model.conditions = judge(conditions, model, allow_excluded);
    }
    Ok(Reported::Comparison(Box::new(comparison)))
}

/// Reads the floor that `kl check` has found.
fn floor_of(path: &Path) -> Result<Floor> {
    #[derive(serde::Deserialize)]
    struct Checked {
        floor: Floor,
    }
    let shown = path.display();
    let json = fs::read(path).with_context(|| format!("{shown}: cannot be read"))?;
    let checked: Checked = serde_json::from_slice(&json).map_err(|_| {
        anyhow!("{shown}: holds no floor: give the file that kl check --json wrote, of settings that could be run")
    })?;
    Ok(checked.floor)
}

/// Rows that are read at once: all numbers of each are in memory.
const N_AT_ONCE: usize = 2;

/// Evaluations, each measured as a row, that can be compared.
pub struct Comparer {
    confidence: Confidence,
    rule: ClusterRule,
    /// How many times as far as the best makes no difference.
    near: f64,
    /// The rows, in the order of their models.
    pub rows: Vec<Row>,
}

/// The tokens that rows are compared on.
struct ComparedTokens {
    runs: Vec<Run>,
    clusters: Clusters,
    estimator: Estimator,
}

impl Comparer {
    /// No rows yet.
    pub fn new(confidence: Confidence, rule: ClusterRule, near: f64) -> Self {
        Self {
            confidence,
            rule,
            near,
            rows: Vec::new(),
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
        let measure = |(stored, table): (StoredEvaluation, &mut TokenTable)| {
            let path = stored.paths.first().cloned().unwrap_or_default();
            let n_records = usize::try_from(stored.n_records).unwrap_or(0);
            let measured = match watch.check() {
                Ok(()) => Row::measure(stored, confidence, rule, None, table, |of, each| {
                    of.read(each)
                }),
                Err(error) => Err(error.into()),
            };
            on_records(n_records);
            measured.map_err(|error| NotCompared::new(&path, one_line(&error)))
        };
        let mut unreadable = Vec::new();
        // Memory that is given back and taken again for each row would not all be used again.
        let mut tables = [(); N_AT_ONCE].map(|()| TokenTable::default());
        while !stored.is_empty() {
            let rest = stored.split_off(stored.len().min(N_AT_ONCE));
            let measured: Vec<_> = stored
                .into_par_iter()
                .zip(&mut tables)
                .map(measure)
                .collect();
            stored = rest;
            for measured in measured {
                match measured {
                    Ok(row) => self.rows.push(row),
                    Err(why) => unreadable.push(why),
                }
            }
            watch.check()?;
        }
        Ok(unreadable)
    }

    /// Compares all rows. One whose own clusters are of another kind than the comparison's is measured
    /// again.
    ///
    /// # Errors
    /// If a file can no longer be read, or the observer asks to stop.
    pub fn compare(&mut self, watch: &Watch<'_>) -> Result<Comparison> {
        let reasons = why_not_compared(&self.rows);
        let not_compared = self.rows.iter().zip(&reasons).filter_map(|(row, why)| {
            let (sidecar, why) = (row.model.sidecar.clone(), why.clone()?);
            Some(NotCompared { sidecar, why })
        });
        let not_compared = not_compared.collect();
        let alike: Vec<&Row> = self.alike(&reasons).collect();
        let tokens = self.tokens_of(&alike)?;
        let (confidence, rule) = (self.confidence, self.rule);
        if let Some(kind) = tokens.as_ref().map(|of| of.clusters.clustering.kind) {
            let rows = self.rows.iter_mut().zip(&reasons);
            let again =
                rows.filter(|(row, why)| why.is_none() && row.model.summary.clusters.kind != kind);
            let mut again: Vec<_> = again.map(|(row, _)| row).collect();
            let mut tables = [(); N_AT_ONCE].map(|()| TokenTable::default());
            for rows in again.chunks_mut(N_AT_ONCE) {
                let rows = rows.par_iter_mut().zip(&mut tables);
                rows.try_for_each(|(row, table)| row.measure_by(kind, confidence, rule, table))?;
                watch.check()?;
            }
        }
        let alike: Vec<&Row> = self.alike(&reasons).collect();
        let ranking = self.ranking(&alike, tokens.as_ref());
        let compared = match &tokens {
            Some(tokens) => self.compare_pairs(&ranking, tokens, watch)?,
            None => Vec::new(),
        };
        Ok(Comparison {
            not_compared,
            ..ranking.finished(compared)
        })
    }

    /// The rows without a reason not to compare them.
    fn alike(&self, reasons: &[Option<String>]) -> impl Iterator<Item = &Row> {
        let rows = self.rows.iter().zip(reasons);
        rows.filter(|(_, why)| why.is_none()).map(|(row, _)| row)
    }

    /// The tokens of rows that are all over the same ones. Their clusters are chosen once, by the mean
    /// autocorrelation of the ranked rows. `None` without rows.
    ///
    /// # Errors
    /// If a file can no longer be read.
    fn tokens_of(&self, rows: &[&Row]) -> Result<Option<ComparedTokens>> {
        let fewest = ranking::fewest_left_out(rows.iter().map(|row| &row.model.result));
        let is_ranked =
            |row: &Row| !row.model.is_noise_floor && Some(row.model.n_left_out()) == fewest;
        let has_ranked = rows.iter().any(|row| is_ranked(row));
        let mut ranked = rows.iter().filter(|row| is_ranked(row) || !has_ranked);
        let of_each = ranked.clone().filter_map(|row| row.autocorrelation);
        let of_each = Vec::from_iter(of_each);
        let mean = of_each.iter().sum::<f64>() / of_each.len() as f64;
        let mean = Some(mean).filter(|mean| mean.is_finite());
        let Some(first) = ranked.next() else {
            return Ok(None);
        };
        let (runs, windows) = first.read_windows()?;
        let clusters = Clusters::new(&windows, self.rule, None, mean);
        Ok(Some(ComparedTokens {
            estimator: clusters.estimator(&runs, self.confidence),
            runs,
            clusters,
        }))
    }

    /// Compares rows on the same tokens, two at a time. Their KLDs are read again: the pairs come in an
    /// order in which each row is needed for a few pairs in turn.
    fn compare_pairs(
        &self,
        ranking: &Ranking<'_>,
        tokens: &ComparedTokens,
        watch: &Watch<'_>,
    ) -> Result<Vec<Compared>> {
        let mut pairs: Vec<_> = ranking.pairs().into_iter().enumerate().collect();
        pairs.sort_by_key(|(_, (_, a, _))| ranking.sizes.get(*a));
        let shares = pairs.par_chunks(pairs.len().div_ceil(N_AT_ONCE).max(1));
        let compared = shares.map(|share| {
            let mut held = HeldKlds::default();
            let mut compared = Vec::new();
            for &(number, (kind, a, b)) in share {
                watch.check()?;
                let klds = [&*held.of(ranking, a)?, &*held.of(ranking, b)?];
                let pair = self.compare_pair(ranking, tokens, klds, (kind, a, b));
                compared.extend(pair.map(|pair| (number, pair)));
            }
            Ok(compared)
        });
        let compared = compared.collect::<Result<Vec<_>>>()?;
        let mut compared: Vec<_> = compared.into_iter().flatten().collect();
        compared.sort_by_key(|(number, _)| *number);
        Ok(compared.into_iter().map(|(_, of)| of).collect())
    }

    /// Compares two rows on the same tokens, whose KLDs these are: over all tokens, and with the best in
    /// each span.
    fn compare_pair(
        &self,
        ranking: &Ranking<'_>,
        ComparedTokens {
            runs, estimator, ..
        }: &ComparedTokens,
        [klds_a, klds_b]: [&[f64]; 2],
        (kind, a, b): (PairKind, usize, usize),
    ) -> Option<Compared> {
        let names = &ranking.rows.get(a)?.header().spans;
        let spans = if kind == PairKind::Best {
            SpanRatio::of_each(estimator, runs, names, klds_a, klds_b)
        } else {
            Vec::new()
        };
        Some(Compared {
            kind,
            a,
            b,
            paired: Paired::compare(estimator, klds_a, klds_b)?,
            spans,
        })
    }

    /// The rows beside each other, which are not compared, and why not.
    pub fn without_pairs(&self, why: &'static str) -> Comparison {
        let rows: Vec<&Row> = self.rows.iter().collect();
        let mut comparison = self.ranking(&rows, None).finished(Vec::new());
        let message = format!("no ratios on the same tokens: {why}");
        let warning = Warning::new("unpaired", message);
        comparison.warnings.push(warning);
        comparison
    }

    /// The models of rows in their places, and the reference of all.
    fn ranking<'r>(&self, rows: &[&'r Row], tokens: Option<&ComparedTokens>) -> Ranking<'r> {
        let reference = rows.first().map(|row| ComparedReference::of(row.header()));
        let mut ranking = Ranking::new(
            rows,
            Comparison {
                versions: Versions::default(),
                reference: reference.unwrap_or_default(),
                confidence: self.confidence,
                near: self.near,
                floor: None,
                clusters: tokens.map(|tokens| tokens.clusters.clustering),
                models: Vec::new(),
                pairs: Vec::new(),
                not_compared: Vec::new(),
                warnings: Vec::new(),
            },
        );
        let of = &mut ranking.comparison;
        of.warnings = doubts_of_models(&of.models, of.reference.prompts);
        ranking
    }
}

/// The KLDs of the rows that were needed last, by their places: a row, the best, the next by size, and the
/// one that dominates it.
#[derive(Default)]
struct HeldKlds(VecDeque<(usize, Arc<[f64]>)>);

impl HeldKlds {
    const N: usize = 4;

    fn of(&mut self, ranking: &Ranking<'_>, place: usize) -> Result<Arc<[f64]>> {
        let known = self.0.iter().position(|(of, _)| *of == place);
        let klds = match known.and_then(|index| self.0.remove(index)) {
            Some((_, klds)) => klds,
            None => {
                self.0.truncate(Self::N - 1);
                let row = ranking.rows.get(place).context("no such place")?;
                row.read_klds()?.into()
            }
        };
        self.0.push_front((place, klds.clone()));
        Ok(klds)
    }
}

/// The number of tokens that are listed, those on which two models differ most.
const N_TOP: usize = 10;

/// Compares the two rows of a comparison in depth, in the order in which they were given.
///
/// # Errors
/// If there are not two, or if one cannot be read again.
fn in_depth(comparer: &Comparer, comparison: Comparison) -> Result<InDepth> {
    if let Some(file) = comparison.not_compared.first() {
        bail!(
            "--pair needs two models that can be compared: {}: {}",
            file.sidecar,
            file.why
        );
    }
    let rows: Vec<&Row> = comparer.rows.iter().collect();
    let [first, second] = rows[..] else {
        bail!(
            "--pair compares two models, and {} are given: name two sidecars",
            rows.len()
        );
    };
    let ((a, texts), (b, texts_b)) = (first.read_all()?, second.read_all()?);
    let tokens = comparer.tokens_of(&rows)?;
    let spans = &first.header().spans;
    let paired = tokens.and_then(|of| {
        PairedComparison::in_depth(&a, &b, spans, &of.clusters, comparer.confidence, N_TOP)
    });
    let paired = paired.context("no token has a finite KLD under both models")?;
    let describe = |token: PairedToken| {
        let one = |texts: &TokenTexts, id| texts.get(id).is_some().then(|| texts.text(&[id]));
        let at = token.location;
        let index = a
            .iter()
            .position(|r| (r.window, r.position) == (at.window, at.position));
        InDepthToken {
            text: index.and_then(|index| around(&a, index, &texts)),
            ref_top_text: one(&texts, token.ref_top),
            top_a_text: one(&texts, token.top_a),
            top_b_text: one(&texts_b, token.top_b),
            token,
        }
    };
    let top = paired.top.iter().copied().map(describe).collect();
    let model = |row: &Row| {
        let mut models = comparison.models.iter();
        let its = models.find(|model| model.sidecar == row.model.sidecar);
        its.context("the sidecar is not among those compared")
    };
    let models = [model(first)?, model(second)?];
    Ok(InDepth::new(&comparison, models, paired, top))
}

#[cfg(test)]
mod tests;
