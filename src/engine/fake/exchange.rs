//! Exchanged weights of a fake model.

use kl_formats::{GgmlType, Mixture};

use super::FakeModel;
use crate::engine::{EngineError, Exchange, Imatrix};

impl Exchange for FakeModel {
    fn exchangeable(&self) -> Result<Vec<String>, EngineError> {
        Ok(Vec::new())
    }

    fn exchange(&self, _mixture: &Mixture, _imatrix: Option<&Imatrix>) -> Result<(), EngineError> {
        Err(EngineError::Setup("not yet".to_owned()))
    }

    fn weight_errors(
        &self,
        _tensor: &str,
        _kinds: &[GgmlType],
        _imatrix: Option<&Imatrix>,
        _n_rows: usize,
    ) -> Result<Vec<f64>, EngineError> {
        Err(EngineError::Setup("not yet".to_owned()))
    }
}
