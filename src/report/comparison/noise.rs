//! Mean KLDs so small that a multiple of them says nothing.

use super::{ComparedModel, Comparison};

/// The mean KLD in nats below which a model differs from the original by rounding alone.
pub(super) const ROUNDING: f64 = 1e-9;

/// How many times the noise floor is noise: of a mean KLD that is twice the floor's, half is.
const AT_FLOOR: f64 = 2.0;

impl Comparison {
    /// Returns true if a model is as near to the original as can be measured: its mean KLD is at the noise
    /// floor, or rounding.
    pub fn is_noise(&self, model: &ComparedModel) -> bool {
        model
            .mean_kld()
            .is_some_and(|mean| self.is_noise_kld(mean.value))
    }

    /// Returns true if a mean KLD is at the noise floor, or rounding.
    pub fn is_noise_kld(&self, mean: f64) -> bool {
        mean < ROUNDING || mean <= AT_FLOOR * self.floor()
    }

    /// Returns true if noise is what the noise floor says, not rounding alone.
    pub(super) fn is_floor_noise(&self) -> bool {
        AT_FLOOR * self.floor() >= ROUNDING
    }

    /// The mean KLD of the noise floor, the highest if there are several; 0 without one.
    fn floor(&self) -> f64 {
        let floors = self.models.iter().filter(|model| model.is_noise_floor);
        let means = floors.filter_map(|floor| floor.mean_kld());
        means.map(|mean| mean.value).fold(0.0, f64::max)
    }
}
