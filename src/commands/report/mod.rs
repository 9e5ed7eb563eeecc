//! Compares the evaluations that sidecars hold, without a model and without the reference.

mod comparable;
mod files;
mod ranking;
mod row;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use kl_formats::TokenTexts;
use rayon::prelude::*;

use super::observer::one_line;
use super::observer::{Observer, Watch};
use super::parts::{StoredEvaluation, stored_evaluations};
use crate::report::comparison::{
    ComparedModel, ComparedReference, Comparison, InDepth, InDepthModel, InDepthToken, NotCompared,
    PairKind, PairedQuantile,
};
use crate::report::number::printable;
use crate::report::{Versions, Warning, doubts_of_models};
use crate::stats::{
    ClusterRule, Clustering, Clusters, Confidence, Paired, PairedComparison, PairedToken, SpanRatio,
};
use comparable::not_comparable;
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
    let mut comparer = Comparer {
        confidence,
        rule,
        near,
        rows: BTreeMap::new(),
    };
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
    Ok(if pair {
        Reported::Pair(Box::new(in_depth(&comparer, comparison)?))
    } else {
        Reported::Comparison(Box::new(comparison))
    })
}

/// Rows that are read at once: all numbers of each are in memory.
const N_AT_ONCE: usize = 2;

/// Evaluations, each measured as a row, that can be compared.
pub struct Comparer {
    pub confidence: Confidence,
    pub rule: ClusterRule,
    /// How many times as far as the best makes no difference.
    pub near: f64,
    /// The rows, by the indices of their models.
    pub rows: BTreeMap<usize, Row>,
}

impl Comparer {
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
        let measure = |stored: StoredEvaluation| {
            let path = stored.paths.first().cloned().unwrap_or_default();
            let n_records = usize::try_from(stored.n_records).unwrap_or(0);
            let measured = match watch.check() {
                Ok(()) => Row::measure(stored, confidence, rule, None, |of, each| of.read(each)),
                Err(error) => Err(error.into()),
            };
            on_records(n_records);
            measured.map_err(|error| NotCompared::new(&path, one_line(&error)))
        };
        let mut unreadable = Vec::new();
        while !stored.is_empty() {
            let rest = stored.split_off(stored.len().min(N_AT_ONCE));
            let measured: Vec<_> = stored.into_par_iter().map(measure).collect();
            stored = rest;
            for measured in measured {
                match measured {
                    Ok(row) => _ = self.rows.insert(self.rows.len(), row),
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
        let others = not_comparable(&self.rows);
        let is_alike = |index: &usize| !others.contains_key(index);
        let rows = self.rows.iter().filter(|(index, _)| is_alike(index));
        let clusters = self.clusters(&rows.map(|(_, row)| row).collect::<Vec<_>>());
        if let Some(Clustering { kind, .. }) = clusters.as_ref().map(|of| of.clustering) {
            let rows = self.rows.iter_mut().filter(|(index, _)| is_alike(index));
            let is_other = |row: &&mut Row| row.result.summary.clusters.kind != kind;
            let mut again: Vec<_> = rows.map(|(_, row)| row).filter(is_other).collect();
            for rows in again.chunks_mut(N_AT_ONCE) {
                let rows = rows.par_iter_mut();
                rows.try_for_each(|row| row.measure_by(kind, self.confidence, self.rule))?;
                watch.check()?;
            }
        }
        let rows = self.rows.iter().filter(|(index, _)| is_alike(index));
        let alike: Vec<&Row> = rows.map(|(_, row)| row).collect();
        let ranking = Ranking::of(&alike);
        let compared = match &clusters {
            Some(clusters) => self.compare_pairs(&ranking, clusters, watch)?,
            None => Vec::new(),
        };
        let not_compared = others.into_iter().filter_map(|(index, why)| {
            let sidecar = self.rows.get(&index)?.sidecar();
            Some(NotCompared { sidecar, why })
        });
        Ok(Comparison {
            not_compared: not_compared.collect(),
            ..self.table(&alike, ranking, compared, clusters.as_ref())
        })
    }

    /// The clusters of rows over the same tokens: chosen once, by the mean autocorrelation of the
    /// ranked ones. `None` without rows.
    fn clusters(&self, rows: &[&Row]) -> Option<Clusters> {
        let fewest = ranking::fewest_left_out(rows.iter().map(|row| &row.result))?;
        let is_ranked = |row: &Row| !row.result.is_noise_floor && row.result.n_left_out() == fewest;
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

    /// Compares rows on the same tokens, two at a time. Their KLDs are read again: the pairs come in an
    /// order in which each row is needed for a few pairs in turn.
    fn compare_pairs(
        &self,
        ranking: &Ranking<'_>,
        clusters: &Clusters,
        watch: &Watch<'_>,
    ) -> Result<Vec<Compared>> {
        let mut pairs: Vec<_> = ranking.pairs().into_iter().enumerate().collect();
        pairs.sort_by_key(|(_, (_, a, _))| ranking.size(*a));
        let shares = pairs.par_chunks(pairs.len().div_ceil(N_AT_ONCE).max(1));
        let compared = shares.map(|share| {
            let mut held = HeldKlds::default();
            let mut compared = Vec::new();
            for &(number, (kind, a, b)) in share {
                watch.check()?;
                let klds = [&*held.of(ranking, a)?, &*held.of(ranking, b)?];
                let pair = self.compare_pair(ranking.row(a), klds, kind, clusters);
                compared.extend(pair.map(|(paired, spans)| {
                    let compared = Compared {
                        kind,
                        a,
                        b,
                        paired,
                        spans,
                    };
                    (number, compared)
                }));
            }
            Ok(compared)
        });
        let compared = compared.collect::<Result<Vec<_>>>()?;
        let mut compared: Vec<_> = compared.into_iter().flatten().collect();
        compared.sort_by_key(|(number, _)| *number);
        Ok(compared.into_iter().map(|(_, of)| of).collect())
    }

    /// Compares a row with another on the same tokens, whose KLDs these are: over all tokens, and with the
    /// best in each span.
    fn compare_pair(
        &self,
        row: &Row,
        [a, b]: [&[f64]; 2],
        kind: PairKind,
        clusters: &Clusters,
    ) -> Option<(Paired, Vec<SpanRatio>)> {
        let paired = Paired::of(&row.runs, a, b, clusters, self.confidence)?;
        let names = &row.header().spans;
        let spans = match kind {
            PairKind::Best => SpanRatio::of_each(&row.runs, names, a, b, clusters, self.confidence),
            PairKind::Size | PairKind::Front => Vec::new(),
        };
        Some((paired, spans))
    }

    /// The rows beside each other, which are not compared, and why not.
    pub fn without_pairs(&self, why: &'static str) -> Comparison {
        let rows: Vec<&Row> = self.rows.values().collect();
        let mut table = self.table(&rows, Ranking::of(&rows), Vec::new(), None);
        let message = format!("no ratios on the same tokens: {why}");
        table.warnings.push(Warning::new("unpaired", message));
        table
    }

    /// The models of rows in their places, and the reference of all.
    fn table(
        &self,
        rows: &[&Row],
        ranking: Ranking<'_>,
        compared: Vec<Compared>,
        clusters: Option<&Clusters>,
    ) -> Comparison {
        let (models, pairs) = ranking.finished(compared, self.confidence, self.near);
        let reference = rows.first().map(|row| ComparedReference::of(row.header()));
        let reference = reference.unwrap_or_default();
        Comparison {
            versions: Versions::default(),
            confidence: self.confidence,
            near: self.near,
            clusters: clusters.map(|clusters| clusters.clustering),
            pairs,
            not_compared: Vec::new(),
            warnings: doubts_of_models(&models, reference.prompts),
            models,
            reference,
        }
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
                ranking.row(place).read_klds()?.into()
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
    let rows: Vec<&Row> = comparer.rows.values().collect();
    let [first, second] = rows[..] else {
        bail!(
            "--pair compares two models, and {} are given: name two sidecars",
            rows.len()
        );
    };
    let ((a, texts), (b, texts_b)) = (first.read_all()?, second.read_all()?);
    let clusters = comparer.clusters(&rows);
    let spans = &first.header().spans;
    let paired = clusters.as_ref().and_then(|clusters| {
        PairedComparison::of(&a, &b, spans, clusters, comparer.confidence, N_TOP)
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
    let label = &|model: &ComparedModel| printable(&model.label);
    Ok(InDepth {
        unranked: comparison.unranked(label),
        a: model(&comparison, first)?,
        b: model(&comparison, second)?,
        quantiles: PairedQuantile::of_each(&first.result.summary, &second.result.summary),
        conditions: Vec::new(),
        top: paired.top.iter().copied().map(describe).collect(),
        paired,
        versions: comparison.versions,
        reference: comparison.reference,
        clusters: comparison.clusters,
        confidence: comparison.confidence,
        warnings: comparison.warnings,
    })
}

/// A row's model, under the label that tells it from the other.
fn model(comparison: &Comparison, row: &Row) -> Result<InDepthModel> {
    let mut models = comparison.models.iter();
    let its = models.find(|model| model.sidecar == row.sidecar());
    let its = its.context("the sidecar is not among those compared")?;
    Ok(InDepthModel::of(its, comparison))
}

#[cfg(test)]
mod tests;
