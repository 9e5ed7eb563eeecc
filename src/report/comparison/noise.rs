//! Mean KLDs so small that a multiple of them says nothing.

use super::{ComparedModel, Comparison};
use crate::stats::Ratio;

/// The mean KLD in nats below which a model differs from the original by rounding alone.
const ROUNDING: f64 = 1e-9;

/// How many times the noise floor is noise: of a mean KLD that is twice the floor's, half is.
const AT_FLOOR: f64 = 2.0;

impl Comparison {
    /// Returns true if a model is as near to the original as can be measured.
    pub fn is_noise(&self, model: &ComparedModel) -> bool {
        model
            .mean_kld()
            .is_some_and(|mean| self.is_noise_kld(mean.value))
    }

    /// Returns true if a mean KLD is at the noise floor, or rounding.
    fn is_noise_kld(&self, mean: f64) -> bool {
        mean < ROUNDING || mean <= AT_FLOOR * self.floor()
    }

    /// The mean KLD of the noise floor, the highest if there are several; 0 without one.
    fn floor(&self) -> f64 {
        let floors = self.models.iter().filter(|model| model.is_noise_floor);
        let means = floors.filter_map(|floor| floor.mean_kld());
        means.map(|mean| mean.value).fold(0.0, f64::max)
    }

    /// Says why nothing nearer can be measured.
    pub(super) fn why_noise(&self) -> String {
        match AT_FLOOR * self.floor() >= ROUNDING {
            true => "the original, run again, is about as far from itself".to_owned(),
            false => format!("a mean KLD below {ROUNDING:e} nats is rounding"),
        }
    }

    /// Keeps the p-value alone of each ratio to a mean that is noise.
    pub fn drop_multiples_of_noise(&mut self) {
        let noise = self.models.iter().filter(|model| self.is_noise(model));
        let noise: Vec<String> = noise.map(|model| model.label.clone()).collect();
        let Some(best) = self.best() else { return };
        let best_is_noise = noise.contains(&best.label);
        let is_noise_there = |kld| best_is_noise || self.is_noise_kld(kld);
        let spans = best.breakdown.by_span.iter();
        let spans = spans.filter(|span| span.kld.is_some_and(|kld| is_noise_there(kld.value)));
        let spans: Vec<String> = spans.map(|span| span.label.clone()).collect();
        for pair in self.pairs.iter_mut().filter(|pair| noise.contains(&pair.b)) {
            pair.ratio = pair.ratio.map(Ratio::p_alone);
        }
        for model in &mut self.models {
            if let Some(to_best) = model.ratio_to_best.as_mut().filter(|_| best_is_noise) {
                to_best.ratio = to_best.ratio.p_alone();
            }
            let in_spans = model.ratio_to_best_by_span.iter_mut();
            for of in in_spans.filter(|of| spans.contains(&of.label)) {
                of.ratio = of.ratio.map(Ratio::p_alone);
                of.to_others = None;
            }
        }
    }
}
