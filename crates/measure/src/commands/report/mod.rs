//! Compares stored evaluations, without a model and without the reference.

mod comparable;
mod files;
mod measured;
mod ranking;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use kl_formats::TokenTexts;
use kl_report::check::Floor;
use kl_report::comparison::{Comparison, InDepth, InDepthToken, NotCompared, PairKind};
use kl_report::{Verdict, Warning, judge, judge_pair};
use kl_stats::stats::{
    ClusterRule, Clustering, Clusters, Confidence, Paired, PairedComparison, PairedToken, Run,
    SpanRatio, TokenTable,
};
use rayon::prelude::*;
use serde_json::Value;

use super::observer::{Observer, Watch, one_line};
use super::parts::{StoredEvaluation, stored_evaluations};
use super::settings::ReportSettings;
use crate::whole_file::read_json;
use comparable::tell_apart;
pub use files::is_listed;
use measured::text_around;
pub use measured::{MeasuredEvaluation, model_of_header};
use ranking::{Compared, Ranking};

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

    /// The sidecar of each model and the outcomes of its conditions. A pair is listed under its first sidecar.
    pub fn conditions(&self) -> Vec<(&str, &[Verdict])> {
        match self {
            Self::Comparison(comparison) => comparison
                .models
                .iter()
                .map(|model| (&*model.sidecar, &*model.conditions))
                .collect(),
            Self::Pair(pair) => vec![(&pair.a.sidecar, &pair.conditions)],
        }
    }
}

/// Compares the evaluations in sidecars and folders, or two of them in depth, and judges them by the
/// conditions.
///
/// # Errors
/// If none of them can be used. A file that cannot be compared with the others is listed.
pub fn report(settings: &ReportSettings, observer: &dyn Observer) -> Result<Reported> {
    let watch = &Watch::new(observer);
    let floor = settings.floor.as_deref().map(read_floor).transpose()?;
    let (files, mut not_compared) = files::find(&settings.paths)?;
    let (stored, mut unusable) = stored_evaluations(&files);
    not_compared.append(&mut unusable);
    let mut comparer = Comparer::new(settings.confidence, settings.cluster, settings.near);
    comparer.for_context = settings.for_context;
    comparer.compares_every_two = settings.compares_every_two;
    not_compared.append(&mut comparer.add(stored, settings.pair, watch)?);
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
    (comparison.not_compared, comparison.floor) = (not_compared, floor);
    let (conditions, allow_excluded) = (&settings.fail_if, settings.allow_excluded);
    if settings.pair {
        let mut pair = comparer.in_depth(&comparison)?;
        pair.conditions = judge_pair(conditions, &pair, &pair.paired, allow_excluded);
        return Ok(Reported::Pair(Box::new(pair)));
    }
    for model in &mut comparison.models {
        model.conditions = judge(conditions, model, allow_excluded);
    }
    Ok(Reported::Comparison(Box::new(comparison)))
}

/// Reads the noise floor that `kl check` found.
fn read_floor(path: &Path) -> Result<Floor> {
    const ADVICE: &str = "give the file that kl check --json wrote, of settings that could be run";
    let shown_path = path.display();
    let document = read_json(path, "kl check --json")?;
    match document.get("floor") {
        None | Some(Value::Null) => bail!("{shown_path}: holds no floor: {ADVICE}"),
        Some(floor) => serde::Deserialize::deserialize(floor)
            .map_err(|error| anyhow!("{shown_path}: its floor cannot be used ({error}): {ADVICE}")),
    }
}

/// Rows that are read at once: all numbers of each are in memory. The next rows use the same memory again,
/// because not all memory that is freed and allocated anew is used again.
const N_AT_ONCE: usize = 2;

/// The number of listed tokens: those on which two models differ most.
const N_TOP: usize = 10;

/// Evaluations, each measured as a row, that can be compared.
pub struct Comparer {
    confidence: Confidence,
    rule: ClusterRule,
    /// A model whose KLD is at most this many times the best's counts as equally near.
    near: f64,
    /// The tokens of the context for which weights and cache are compared by size together; `None` without
    /// such a context.
    pub for_context: Option<u64>,
    /// True if every two models are compared, and not only with the best and their neighbours.
    pub compares_every_two: bool,
    /// The rows, in the order of their models.
    pub rows: Vec<MeasuredEvaluation>,
}

/// The tokens that rows are compared on, and their clusters.
type ComparedTokens = (Vec<Run>, Clusters);

impl Comparer {
    /// A comparer without rows.
    pub fn new(confidence: Confidence, rule: ClusterRule, near: f64) -> Self {
        Self {
            confidence,
            rule,
            near,
            for_context: None,
            compares_every_two: false,
            rows: Vec::new(),
        }
    }

    /// Measures evaluations, each as a row, and returns those that cannot be read. A copy of an evaluation adds
    /// nothing: it is left out, unless `with_copies`.
    ///
    /// # Errors
    /// If the observer asks to stop.
    fn add(
        &mut self,
        mut stored: Vec<StoredEvaluation>,
        with_copies: bool,
        watch: &Watch<'_>,
    ) -> Result<Vec<NotCompared>> {
        let n_records = stored.iter().map(|stored| stored.n_records).sum();
        let phase = watch.begin("sidecars", None, Some(n_records));
        let (confidence, rule) = (self.confidence, self.rule);
        let measure = |(stored, table): (StoredEvaluation, &mut TokenTable)| {
            let path = stored.shown_paths().next().unwrap_or_default();
            let n_records = usize::try_from(stored.n_records).unwrap_or(0);
            let measured = watch.check().map_err(Into::into).and_then(|()| {
                MeasuredEvaluation::measure(
                    stored,
                    confidence,
                    rule,
                    None,
                    table,
                    |stored, on_window| stored.read(on_window),
                )
            });
            phase.rows(n_records);
            measured.map_err(|error| NotCompared::new(path.as_ref(), one_line(&error)))
        };
        let mut unreadable = Vec::new();
        let mut tables = [(); N_AT_ONCE].map(|()| TokenTable::default());
        while !stored.is_empty() {
            let later = stored.split_off(stored.len().min(N_AT_ONCE));
            let rows = stored.into_par_iter().zip(&mut tables).map(measure);
            for measured in rows.collect::<Vec<_>>() {
                match measured {
                    Err(not_compared) => unreadable.push(not_compared),
                    Ok(row)
                        if !with_copies && self.rows.iter().any(|other| other.is_copy_of(&row)) => {
                    }
                    Ok(mut row) => {
                        if let Some(n) = self.for_context {
                            row.add_memory(n);
                        }
                        self.rows.push(row);
                    }
                }
            }
            watch.check()?;
            stored = later;
        }
        Ok(unreadable)
    }

    /// Compares all rows. A row whose own clusters are of another kind than the comparison's is measured
    /// again.
    ///
    /// # Errors
    /// If a file can no longer be read, or the observer asks to stop.
    pub fn compare(&mut self, watch: &Watch<'_>) -> Result<Comparison> {
        tell_apart(&mut self.rows);
        let tokens = self.tokens()?;
        let (confidence, rule) = (self.confidence, self.rule);
        if let Some((_, Clusters { clustering, .. })) = &tokens {
            let kind = clustering.kind;
            let mut rows_of_other_kind: Vec<_> = self
                .rows
                .iter_mut()
                .filter(|row| row.why_not.is_none() && row.result.summary.clusters.kind != kind)
                .collect();
            let mut tables = [(); N_AT_ONCE].map(|()| TokenTable::default());
            for rows in rows_of_other_kind.chunks_mut(N_AT_ONCE) {
                rows.par_iter_mut()
                    .zip(&mut tables)
                    .try_for_each(|(row, table)| row.measure_by(kind, confidence, rule, table))?;
                watch.check()?;
            }
        }
        let clusters = tokens.as_ref().map(|(_, clusters)| clusters.clustering);
        let ranking = self.ranking(self.comparable_rows().collect(), clusters);
        let compared = match &tokens {
            Some(tokens) => self.compare_pairs(&ranking, tokens, watch)?,
            None => Vec::new(),
        };
        let mut comparison = ranking.finished(compared);
        comparison.not_compared = self
            .rows
            .iter()
            .filter_map(|row| {
                let (sidecar, why) = (row.sidecar(), row.why_not.clone()?);
                Some(NotCompared { sidecar, why })
            })
            .collect();
        Ok(comparison)
    }

    fn ranking<'r>(
        &self,
        rows: Vec<&'r MeasuredEvaluation>,
        clusters: Option<Clustering>,
    ) -> Ranking<'r> {
        Ranking::new(rows, self.confidence, self.near, self.for_context, clusters)
    }

    /// The rows that can be compared.
    fn comparable_rows(&self) -> impl Iterator<Item = &MeasuredEvaluation> {
        self.rows.iter().filter(|row| row.why_not.is_none())
    }

    /// The tokens that all rows that can be compared have. Their clusters are chosen once, by the mean
    /// autocorrelation of the ranked rows. `None` without rows.
    ///
    /// # Errors
    /// If a file can no longer be read.
    fn tokens(&self) -> Result<Option<ComparedTokens>> {
        let fewest_left_out = ranking::fewest_left_out(self.comparable_rows());
        let mut rows: Vec<&MeasuredEvaluation> = self
            .comparable_rows()
            .filter(|row| {
                !row.result.is_noise_floor && Some(row.result.n_left_out()) == fewest_left_out
            })
            .collect();
        if rows.is_empty() {
            rows.extend(self.comparable_rows());
        }
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let autocorrelations: Vec<f64> = rows
            .iter()
            .filter_map(|row| row.result.summary.clusters.autocorrelation)
            .collect();
        let mean = autocorrelations.iter().sum::<f64>() / autocorrelations.len() as f64;
        let autocorrelation = Some(mean).filter(|mean| mean.is_finite());
        let (runs, windows) = first.read_windows()?;
        let clusters = Clusters::new(&windows, self.rule, None, autocorrelation);
        Ok(Some((runs, clusters)))
    }

    /// Compares rows on the same tokens, two at a time: over all tokens, and with the best in each span. Their
    /// KLDs are read again, and the pairs are sorted so that those of one row follow each other.
    fn compare_pairs(
        &self,
        ranking: &Ranking<'_>,
        (runs, clusters): &ComparedTokens,
        watch: &Watch<'_>,
    ) -> Result<Vec<Compared>> {
        let estimator = &clusters.estimator(runs, self.confidence);
        let pairs = ranking.pairs(self.compares_every_two);
        let mut pairs: Vec<_> = pairs.into_iter().enumerate().collect();
        pairs.sort_by_key(|(_, (_, a, _))| ranking.sizes.get(*a));
        let shares = pairs.par_chunks(pairs.len().div_ceil(N_AT_ONCE).max(1));
        let compared_shares = shares.map(|share| {
            let (mut cache, mut compared) = (KldCache::default(), Vec::new());
            for &(number, (kind, a, b)) in share {
                watch.check()?;
                let (klds_a, klds_b) = (cache.klds(ranking, a)?, cache.klds(ranking, b)?);
                let Some(paired) = Paired::compare(estimator, &klds_a, &klds_b) else {
                    continue;
                };
                let row = ranking.rows.get(a).filter(|_| kind == PairKind::Best);
                let spans = row.map(|row| {
                    let names = &row.stored.header.spans;
                    SpanRatio::of_each(estimator, runs, names, &klds_a, &klds_b)
                });
                let pair = Compared {
                    kind,
                    a,
                    b,
                    paired,
                    spans: spans.unwrap_or_default(),
                };
                compared.push((number, pair));
            }
            Ok(compared)
        });
        let mut compared = compared_shares.collect::<Result<Vec<_>>>()?.concat();
        compared.sort_by_key(|(number, _)| *number);
        Ok(compared.into_iter().map(|(_, pair)| pair).collect())
    }

    /// The rows side by side, without comparing them, and a warning that states why.
    pub fn without_pairs(&self, reason: &'static str) -> Comparison {
        let rows = self.rows.iter().collect();
        let ranking = self.ranking(rows, None);
        let mut comparison = ranking.finished(Vec::new());
        let message = format!("no ratios on the same tokens: {reason}");
        comparison.warnings.push(Warning::new("unpaired", message));
        comparison
    }

    /// Compares the two rows of a comparison in depth, in the order in which they were given.
    ///
    /// # Errors
    /// If there are not two, or if one cannot be read again.
    fn in_depth(&self, comparison: &Comparison) -> Result<InDepth> {
        if let Some(file) = comparison.not_compared.first() {
            bail!(
                "--pair needs two models that can be compared: {}: {}",
                file.sidecar,
                file.why
            );
        }
        let [first, second] = &self.rows[..] else {
            bail!(
                "--pair compares two models, and {} are given: name two sidecars",
                self.rows.len()
            );
        };
        let ((a, texts), (b, texts_b)) = (first.read_all()?, second.read_all()?);
        let (spans, confidence) = (&first.stored.header.spans, self.confidence);
        let paired = self
            .tokens()?
            .and_then(|(_, clusters)| {
                PairedComparison::in_depth(&a, &b, spans, &clusters, confidence, N_TOP)
            })
            .context("no token has a finite KLD under both models")?;
        let token_text =
            |texts: &TokenTexts, id| texts.get(id).is_some().then(|| texts.text(&[id]));
        let describe = |token: &PairedToken| {
            let location = (token.location.window, token.location.position);
            let index = a.iter().position(|r| (r.window, r.position) == location);
            InDepthToken {
                text: index.and_then(|index| text_around(&a, index, &texts)),
                ref_top_text: token_text(&texts, token.ref_top),
                top_a_text: token_text(&texts, token.top_a),
                top_b_text: token_text(&texts_b, token.top_b),
                token: *token,
            }
        };
        let top = paired.top.iter().map(describe).collect();
        let model = |row: &MeasuredEvaluation| {
            comparison
                .models
                .iter()
                .find(|model| model.sidecar == row.sidecar())
                .context("the sidecar is not among those compared")
        };
        let models = [model(first)?, model(second)?];
        Ok(InDepth::new(comparison, models, paired, top))
    }
}

/// The KLDs of the rows that were needed last, by their places: as many as a row's pairs need, which are with
/// the best, with the next by size, and with the one that dominates it.
#[derive(Default)]
struct KldCache(VecDeque<(usize, Arc<[f64]>)>);

impl KldCache {
    const MAX_ROWS: usize = 4;

    /// The KLDs of the row in a place, which are read unless the cache has them.
    fn klds(&mut self, ranking: &Ranking<'_>, place: usize) -> Result<Arc<[f64]>> {
        let index = self
            .0
            .iter()
            .position(|(cached_place, _)| *cached_place == place);
        let klds = match index.and_then(|index| self.0.remove(index)) {
            Some((_, klds)) => klds,
            None => {
                self.0.truncate(Self::MAX_ROWS - 1);
                let row = ranking.rows.get(place).context("no such place")?;
                row.read_klds()?.into()
            }
        };
        self.0.push_front((place, klds.clone()));
        Ok(klds)
    }
}

#[cfg(test)]
mod tests;
