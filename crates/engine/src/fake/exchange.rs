//! Exchanged weights of a fake model.

use std::sync::Arc;

use kl_formats::{GgmlType, Mixture, Unmeasured};

use super::FakeModel;
use super::weights::{FakeWeight, Perturbation};
use crate::{EngineError, Imatrix, ShouldStop, Weights};
use kl_system::locked;

impl Weights for FakeModel {
    fn exchangeable(&self) -> Result<Vec<String>, EngineError> {
        let names = FakeWeight::all().map(|weight| weight.name.to_owned());
        Ok(names.collect())
    }

    fn unmeasured(&self) -> Result<Vec<(String, Unmeasured)>, EngineError> {
        Ok(Vec::new())
    }

    fn exchange(
        &self,
        mixture: &Mixture,
        imatrix: Option<&Imatrix>,
        should_stop: ShouldStop<'_>,
    ) -> Result<(), EngineError> {
        if should_stop() {
            return Err(EngineError::Interrupted);
        }
        // Each decoder shares the perturbation.
        if Arc::strong_count(&self.perturbation) > 1 {
            return Err(EngineError::has_decoder(&self.facts.path));
        }
        *locked(&self.perturbation) = Perturbation::of_mixture(mixture, imatrix)?;
        Ok(())
    }

    fn errors(
        &self,
        tensor: &str,
        kinds: &[GgmlType],
        imatrix: Option<&Imatrix>,
        _n_rows: usize,
    ) -> Result<Vec<f64>, EngineError> {
        let weight = FakeWeight::named(tensor)?;
        let error = |&kind: &GgmlType| {
            weight.check(kind, imatrix)?;
            Ok(weight.error(kind, imatrix))
        };
        kinds.iter().map(error).collect()
    }
}
