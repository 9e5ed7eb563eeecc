//! Exchanged weights of a fake model.

use kl_formats::{GgmlType, Mixture, Unmeasured};

use super::FakeModel;
use super::weights::{FakeWeight, Perturbation};
use crate::{EngineError, Exchange, Imatrix};
use kl_system::locked;

impl FakeModel {
    fn check_exchangeable(&self) -> Result<(), EngineError> {
        let what = match (&self.quantized, self.facts.options.is_exchangeable) {
            (Some(_), _) => "is quantized already: give the original",
            (None, false) => "was not loaded to exchange its weights",
            (None, true) => return Ok(()),
        };
        Err(EngineError::model(&self.facts.path, what))
    }
}

impl Exchange for FakeModel {
    fn exchangeable(&self) -> Result<Vec<String>, EngineError> {
        self.check_exchangeable()?;
        let names = FakeWeight::all().map(|weight| weight.name.to_owned());
        Ok(names.collect())
    }

    fn unmeasured(&self) -> Result<Vec<(String, Unmeasured)>, EngineError> {
        Ok(Vec::new())
    }

    fn exchange(&self, mixture: &Mixture, imatrix: Option<&Imatrix>) -> Result<(), EngineError> {
        self.check_exchangeable()?;
        *locked(&self.perturbation) = Perturbation::of_mixture(mixture, imatrix)?;
        Ok(())
    }

    fn weight_errors(
        &self,
        tensor: &str,
        kinds: &[GgmlType],
        imatrix: Option<&Imatrix>,
        _n_rows: usize,
    ) -> Result<Vec<f64>, EngineError> {
        self.check_exchangeable()?;
        let weight = FakeWeight::named(tensor)?;
        let error = |&kind: &GgmlType| {
            weight.check(kind, imatrix)?;
            Ok(weight.error(kind, imatrix))
        };
        kinds.iter().map(error).collect()
    }
}
