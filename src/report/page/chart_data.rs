//! The data of the charts, as JSON that is as small as it can be.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter};

use super::pareto::Step;
use crate::report::comparison::{ComparedModel, Comparison};
use crate::report::number::{SizeUnit, finite};
use crate::stats::{Bin, Point};

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
    /// The labels of the models that are in colour at first.
    shown: Vec<&'c str>,
    forest: ForestScale,
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
    difference: Option<f64>,
    difference_lo: Option<f64>,
    difference_hi: Option<f64>,
    ccdf: &'c [Point],
    windows: &'c [Point],
    confidence: &'c [Bin],
    position: &'c [Bin],
    groups: &'c [Bin],
}

/// The scale of the forest plot, which shows each model's difference to the best: linear up to
/// `constant`, logarithmic beyond.
#[derive(Serialize, Debug)]
struct ForestScale {
    constant: f64,
    domain: [f64; 2],
    ticks: Vec<f64>,
}

/// Writes numbers with five significant digits, and whole ones without a decimal point.
struct Short;

impl Formatter for Short {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let rounded: f64 = format!("{value:.4e}").parse().unwrap_or(value);
        match rounded.fract() == 0.0 && rounded.abs() < 1e9 {
            true => write!(writer, "{}", rounded as i64),
            false => CompactFormatter.write_f64(writer, rounded),
        }
    }
}

impl<'c> ChartData<'c> {
    /// `front`: the steps of the Pareto front.
    pub fn of(comparison: &'c Comparison, front: &[Step<'c>], unit: SizeUnit) -> Self {
        let model = |model| ChartModel::of(model, unit.bytes);
        Self {
            unit: unit.symbol,
            window: comparison.reference.unit(),
            best: comparison.best().map(|best| best.label.as_str()),
            shown: shown(comparison, front),
            forest: ForestScale::of(comparison),
            models: comparison.models.iter().map(model).collect(),
        }
    }

    /// The data for a script element, which ends at the first `</script`, wherever it is.
    pub fn json(&self) -> serde_json::Result<String> {
        let mut json = Vec::new();
        self.serialize(&mut Serializer::with_formatter(&mut json, Short))?;
        Ok(String::from_utf8_lossy(&json).replace('<', "\\u003c"))
    }

    /// Returns true if there is a quant to draw in the chart of sizes.
    pub fn has_sizes(&self) -> bool {
        let mut quants = self.models.iter().filter(|model| !model.floor);
        quants.any(|model| model.size > Some(0.0) && model.kld > Some(0.0))
    }
}

impl<'c> ChartModel<'c> {
    fn of(model: &'c ComparedModel, unit_bytes: f64) -> Self {
        let (size, mean) = (model.model.shown_bytes(), model.mean_kld());
        let difference = model.difference_to_best.map(|to_best| to_best.difference);
        Self {
            label: &model.label,
            floor: model.is_noise_floor,
            front: model.pareto,
            near: model.indistinguishable_from_best,
            size: size.map(|size| size as f64 / unit_bytes),
            kld: mean.and_then(|mean| finite(mean.value)),
            lo: mean.and_then(|mean| on_log_scale(mean.lo)),
            hi: mean.and_then(|mean| on_log_scale(mean.hi)),
            difference: difference.and_then(|d| finite(d.value)),
            difference_lo: difference.and_then(|d| finite(d.lo?)),
            difference_hi: difference.and_then(|d| finite(d.hi?)),
            ccdf: &model.ccdf,
            windows: &model.by_window,
            confidence: &model.breakdown.by_confidence,
            position: &model.breakdown.by_position,
            groups: &model.breakdown.by_group,
        }
    }
}

impl ForestScale {
    /// A scale on which both the smallest interval and the largest difference can be read.
    fn of(comparison: &Comparison) -> Self {
        let differences = comparison.models.iter().filter_map(|model| {
            let difference = model.difference_to_best?.difference;
            let value = finite(difference.value)?;
            let or_value = |end: Option<f64>| end.and_then(finite).unwrap_or(value);
            Some((or_value(difference.lo), or_value(difference.hi)))
        });
        let (mut min, mut max, mut narrowest) = (0.0_f64, 0.0_f64, f64::INFINITY);
        for (lo, hi) in differences {
            (min, max) = (min.min(lo), max.max(hi));
            if hi > lo {
                narrowest = narrowest.min(hi - lo);
            }
        }
        let largest = max.max(-min);
        if largest == 0.0 {
            return Self {
                constant: 1.0,
                domain: [-1.0, 1.0],
                ticks: vec![0.0],
            };
        }
        // Four decades are the most that can be read.
        let constant = narrowest.min(largest / 10.0).max(largest / 1e4);
        let powers = constant.log10().floor() as i32..=largest.log10().floor() as i32;
        let steps = powers.flat_map(|power| [1.0, 3.0].map(|digit| digit * 10_f64.powi(power)));
        let ticks = steps.filter(|tick| *tick >= constant);
        let mut ticks: Vec<f64> = ticks.flat_map(|tick| [-tick, tick]).chain([0.0]).collect();
        ticks.retain(|tick| (1.1 * min..=1.1 * max).contains(tick));
        ticks.sort_by(f64::total_cmp);
        Self {
            constant,
            domain: [1.1 * min - 0.2 * constant, 1.1 * max],
            ticks,
        }
    }
}

/// The labels of the models that are drawn: every quant if there are enough colours, or the noise floor
/// if there are no quants. Otherwise the best model, models from the whole Pareto front, and then those
/// with the lowest mean KLD.
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

/// The end of an interval, if a logarithmic scale has it.
fn on_log_scale(end: Option<f64>) -> Option<f64> {
    end.filter(|end| *end > 0.0).and_then(finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let json = |x: f64| {
            let mut json = Vec::new();
            x.serialize(&mut Serializer::with_formatter(&mut json, Short))
                .unwrap();
            String::from_utf8(json).unwrap()
        };
        assert_eq!(json(0.000_473_471_92), "0.00047347");
        assert_eq!(json(575.0), "575");
        assert_eq!(json(0.0), "0");
        assert_eq!(json(f64::INFINITY), "null");
        assert_eq!(json(3.123e-9), "3.123e-9");
    }

    #[test]
    fn what_is_not_finite_is_not_drawn() {
        assert_eq!(on_log_scale(Some(f64::INFINITY)), None);
        assert_eq!(on_log_scale(Some(-0.5)), None);
    }
}
