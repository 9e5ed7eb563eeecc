//! The data of the charts.

use serde::Serialize;

use super::pareto::Step;
use crate::report::comparison::{ComparedModel, Comparison};
use crate::report::number::{SizeUnit, finite};
use crate::report::page::data::on_log_scale;
use crate::stats::{Bin, FEW_TOKENS, Point};

/// The number of models that are in colour at once: as many as there are colours.
const MAX_SHOWN: usize = 8;

/// The data of all charts; `charts.js` and `page.js` read it.
#[derive(Serialize, Debug)]
pub(super) struct ChartData<'c> {
    /// The unit of sizes.
    unit: &'static str,
    /// The word for a window.
    window: &'static str,
    best: Option<&'c str>,
    /// The mean of a bin with fewer tokens is marked.
    few: u64,
    /// The labels of the models that are in colour at first.
    shown: Vec<&'c str>,
    models: Vec<ChartModel<'c>>,
}

/// A model in the charts, which leave out what is null: a number that is not finite is written so.
#[derive(Serialize, Debug)]
struct ChartModel<'c> {
    label: &'c str,
    floor: bool,
    front: bool,
    near: bool,
    size: Option<f64>,
    kld: Option<f64>,
    lo: Option<f64>,
    hi: Option<f64>,
    /// Times as far as the best.
    ratio: Option<f64>,
    ratio_lo: Option<f64>,
    ratio_hi: Option<f64>,
    ccdf: &'c [Point],
    windows: &'c [Point],
    confidence: &'c [Bin],
    position: &'c [Bin],
    groups: &'c [Bin],
    #[serde(skip_serializing_if = "<[Bin]>::is_empty")]
    spans: &'c [Bin],
    /// The size of its file, if it could draft for the original.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<f64>,
    /// The share of drafted tokens that are accepted.
    accepted: Option<f64>,
    accepted_lo: Option<f64>,
    accepted_hi: Option<f64>,
    /// The tokens that a round accepts of drafts of 1, 2, 3 and so on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drafted: Vec<f64>,
    /// The share of greedy answers that are still the same: points of tokens, share, and its ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    identical: Vec<(u32, f64, Option<f64>, Option<f64>)>,
}

impl<'c> ChartData<'c> {
    /// `front`: the steps of the Pareto front.
    pub fn of(comparison: &'c Comparison, front: &[Step<'c>], unit: SizeUnit) -> Self {
        let sizes = comparison.sizes();
        let drafts = comparison.drafts();
        let model = |model: &'c ComparedModel| {
            let is_draft = drafts.iter().any(|draft| draft.label == model.label);
            ChartModel::of(model, sizes.bytes(model), unit.bytes, is_draft)
        };
        Self {
            unit: unit.symbol,
            window: comparison.reference.unit(),
            best: comparison.best().map(|best| best.label.as_str()),
            few: FEW_TOKENS,
            shown: shown(comparison, front),
            models: comparison.models.iter().map(model).collect(),
        }
    }

    /// Returns true if there is a quant to draw in the chart of sizes.
    pub fn has_sizes(&self) -> bool {
        let mut quants = self.models.iter().filter(|model| !model.floor);
        quants.any(|model| model.size > Some(0.0) && model.kld > Some(0.0))
    }
}

impl<'c> ChartModel<'c> {
    fn of(model: &'c ComparedModel, size: Option<u64>, unit_bytes: f64, is_draft: bool) -> Self {
        let mean = model.mean_kld();
        let ratio = model.ratio_to_best.map(|to_best| to_best.ratio);
        let in_units = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / unit_bytes);
        let acceptance = model.summary.acceptance.as_ref().filter(|_| is_draft);
        let accepted = acceptance.map(|of| of.mean);
        let drafted = acceptance.iter().flat_map(|of| &of.drafted);
        let identical = model.summary.identical_output.as_ref();
        let identical = identical.into_iter().flat_map(|of| &of.curve);
        Self {
            label: &model.label,
            floor: model.is_noise_floor,
            front: model.pareto,
            near: model.indistinguishable_from_best,
            size: in_units(size),
            kld: mean.and_then(|mean| finite(mean.value)),
            lo: mean.and_then(|mean| on_log_scale(mean.lo)),
            hi: mean.and_then(|mean| on_log_scale(mean.hi)),
            ratio: ratio.and_then(|ratio| on_log_scale(Some(ratio.value))),
            ratio_lo: ratio.and_then(|ratio| on_log_scale(ratio.lo)),
            ratio_hi: ratio.and_then(|ratio| on_log_scale(ratio.hi)),
            ccdf: &model.ccdf,
            windows: &model.by_window,
            confidence: &model.breakdown.by_confidence,
            position: &model.breakdown.by_position,
            groups: &model.breakdown.by_group,
            spans: &model.breakdown.by_span,
            file: in_units(model.model.shown_bytes().filter(|_| is_draft)),
            accepted: accepted.map(|of| of.value),
            accepted_lo: accepted.and_then(|of| of.lo),
            accepted_hi: accepted.and_then(|of| of.hi),
            drafted: drafted.map(|of| of.accepted.value).collect(),
            identical: identical
                .map(|point| (point.tokens, point.share, point.lo, point.hi))
                .collect(),
        }
    }
}

/// The labels of the models that are in colour: every quant if there are enough colours, or the noise
/// floor if there are no quants. If there are too many quants, the best comes first, then some from all
/// along the Pareto front, then those with the lowest mean KLD.
fn shown<'c>(comparison: &'c Comparison, front: &[Step<'c>]) -> Vec<&'c str> {
    let has_quants = comparison.models.iter().any(|model| model.is_candidate());
    let models = comparison.models.iter();
    let quants = models.filter(|model| model.is_candidate() || !has_quants);
    let labels = quants.map(|model| model.label.as_str());
    let best = comparison.best().map(|best| best.label.as_str());
    let steps: Vec<&str> = front.iter().rev().map(|step| step.label).collect();
    let n = steps.len().min(MAX_SHOWN - 1);
    let spread = (0..n).filter_map(|i| steps.get(i * (steps.len() - 1) / (n - 1).max(1)).copied());
    let mut chosen: Vec<&str> = Vec::with_capacity(MAX_SHOWN);
    for label in best.into_iter().chain(spread).chain(labels.clone()) {
        if chosen.len() < MAX_SHOWN && !chosen.contains(&label) {
            chosen.push(label);
        }
    }
    // In the order of the table.
    labels.filter(|label| chosen.contains(label)).collect()
}
