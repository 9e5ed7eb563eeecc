//! Other types for a loaded model's weights, in place, and for the weights of a file.

use std::path::Path;

use kl_formats::{GgmlType, Mixture};

use super::{EngineError, Imatrix};

/// A quantized file to write.
#[derive(Debug)]
pub struct Quantization<'q> {
    /// The original.
    pub input: &'q Path,
    pub output: &'q Path,
    /// A type for each tensor that the quantizer may change.
    pub mixture: &'q Mixture,
    pub imatrix: Option<&'q Imatrix>,
    pub threads: u32,
}

/// A loaded model whose weights can be exchanged for quantized ones, and back, in their own memory.
/// It must be loaded with [`ModelOptions::is_exchangeable`](super::ModelOptions::is_exchangeable).
pub trait Exchange {
    /// Names the weights that decoding uses and the quantizer may change, in the order of the file.
    ///
    /// # Errors
    /// Why the model cannot be decoded, or weights that lie where they cannot be exchanged.
    fn exchangeable(&self) -> Result<Vec<String>, EngineError>;

    /// Gives each tensor of `mixture` its type, quantized from the original with the importance matrix,
    /// and all others the original's weights. What is there already stays.
    ///
    /// # Errors
    /// A tensor that cannot be exchanged or has no such type, a type that needs an importance matrix,
    /// or a file that cannot be read any more.
    fn exchange(&self, mixture: &Mixture, imatrix: Option<&Imatrix>) -> Result<(), EngineError>;

    /// Returns the relative squared errors of a tensor's weights at some types,
    /// `sum((w - q)^2) / sum(w^2)`, each square weighted by the importance of its column if there is an
    /// importance matrix. At most `n_rows` rows are used, evenly spaced.
    ///
    /// # Errors
    /// Those of [`exchange`](Self::exchange).
    fn weight_errors(
        &self,
        tensor: &str,
        kinds: &[GgmlType],
        imatrix: Option<&Imatrix>,
        n_rows: usize,
    ) -> Result<Vec<f64>, EngineError>;
}
