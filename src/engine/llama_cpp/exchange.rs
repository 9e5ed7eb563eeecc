//! Exchanges the weights of a loaded model in their own memory.

use std::collections::HashMap;
use std::sync::Once;

use kl_formats::{GgmlType, Mixture};

use super::LlamaCppModel;
use super::quantized_rows::OriginalRows;
use super::weights::Weight;
use crate::engine::quantizer_rules::needs_imatrix;
use crate::engine::{EngineError, Exchange, Imatrix};
use crate::lock::locked;

/// The weights that are not the original's, by their names; `None`: of unknown contents.
pub(super) type Exchanged = HashMap<String, Option<Contents>>;

/// What lies in an exchanged weight's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    kind: GgmlType,
    /// SHA-256 (hex) of the importance matrix that it was quantized with.
    imatrix: Option<String>,
}

/// Makes llama.cpp build each graph anew, and CUDA launch each kernel by itself, in all contexts that
/// are created after this: graphs that were made before an exchange keep the types of the weights.
pub(super) fn disable_graph_reuse() {
    /// Read by `llama_context::llama_context`, and by `ggml_cuda_graph::is_enabled`, once, when the
    /// first graph is computed.
    const VARIABLES: [&str; 2] = ["LLAMA_GRAPH_REUSE_DISABLE", "GGML_CUDA_DISABLE_GRAPHS"];
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for variable in VARIABLES {
            // SAFETY: std's functions exclude each other. llama.cpp and ggml read the environment
            // where they start, load models and create contexts, and kl does none of these on one
            // thread while it loads a model on another.
            unsafe { set_variable(variable) }
        }
    });
}

/// Sets an environment variable to 1.
///
/// # Safety
/// No other thread uses the environment, except by std's functions.
#[cfg(not(windows))]
unsafe fn set_variable(name: &str) {
    // SAFETY: as required.
    unsafe { std::env::set_var(name, "1") }
}

/// As above: C programs on Windows read their own copy of the environment, which std does not set.
///
/// # Safety
/// As above.
#[cfg(windows)]
unsafe fn set_variable(name: &str) {
    use std::ffi::{CString, c_char, c_int};
    unsafe extern "C" {
        fn _putenv_s(name: *const c_char, value: *const c_char) -> c_int;
    }
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: both end with NUL, and no other thread uses the environment.
    unsafe { _putenv_s(name.as_ptr(), c"1".as_ptr()) };
}

impl LlamaCppModel<'_> {
    fn exchangeable_weight(&self, name: &str) -> Result<&Weight, EngineError> {
        let mut weights = self.weights()?.iter();
        let found = weights.find(|weight| weight.name() == name);
        found.ok_or_else(|| {
            self.not_exchanged(
                name,
                "decoding does not use it, or llama.cpp does not quantize it",
            )
        })
    }

    fn rows_of<'m>(&'m self, weight: &'m Weight) -> Result<OriginalRows<'m>, EngineError> {
        OriginalRows::of(&self.header, &weight.tensor, weight.kind)
            .ok_or_else(|| self.not_exchanged(weight.name(), "it has no rows, or four dimensions"))
    }

    /// The importances of a weight, of one expert after the other; `None` where the matrix has none.
    fn importances<'i>(
        &self,
        weight: &Weight,
        imatrix: Option<&'i Imatrix>,
    ) -> Result<Option<&'i [f32]>, EngineError> {
        let name = weight.name();
        let Some((imatrix, values)) = imatrix.and_then(|it| Some((it, it.of(name)?))) else {
            return Ok(None);
        };
        let n = self.rows_of(weight)?.n_importances();
        match values.len() == n {
            true => Ok(Some(values)),
            false => Err(EngineError::Setup(format!(
                "{}: has {} values for {name} instead of {n}: it was made of another model",
                imatrix.path.display(),
                values.len()
            ))),
        }
    }

    /// Refuses a type that a weight cannot have.
    fn check(
        &self,
        weight: &Weight,
        kind: GgmlType,
        imatrix: Option<&Imatrix>,
    ) -> Result<(), EngineError> {
        let (name, original) = (weight.name(), weight.kind);
        if kind == original {
            return Ok(());
        }
        let rows = self.rows_of(weight)?;
        let Some(bytes) = rows.row_bytes(kind).filter(|_| kind.is_for_weights) else {
            let what = format!("its rows are not whole blocks of {kind}: use another type");
            return Err(self.not_exchanged(name, &what));
        };
        let fits = weight
            .places
            .iter()
            .all(|place| place.has_room_for(kind, original));
        if rows.row_bytes(original).is_none_or(|own| own < bytes) || !fits {
            let what = format!("{kind} is larger than the original's {original}: use another type");
            return Err(self.not_exchanged(name, &what));
        }
        let importances = self.importances(weight, imatrix)?;
        if needs_imatrix(name, kind) && importances.is_none() {
            let what = match imatrix {
                None => "an importance matrix: give one with --imatrix".to_owned(),
                Some(imatrix) => {
                    let path = imatrix.path.display();
                    format!("an importance matrix with values for it, which {path} does not have")
                }
            };
            let what = format!("{kind} needs {what}, or use another type");
            return Err(self.not_exchanged(name, &what));
        }
        Ok(())
    }

    /// Gives a weight the contents that are wanted, and keeps account of it.
    fn fill(
        &self,
        weight: &Weight,
        wanted: Option<Contents>,
        importances: Option<&[f32]>,
        exchanged: &mut Exchanged,
    ) -> Result<(), EngineError> {
        let rows = self.rows_of(weight)?;
        let (kind, bytes) = match &wanted {
            Some(Contents { kind, .. }) => (*kind, rows.quantize(*kind, importances)?),
            None => (weight.kind, rows.read()?),
        };
        let name = weight.name();
        exchanged.insert(name.to_owned(), None);
        let _turn = locked(self.turn());
        for place in &weight.places {
            // SAFETY: decoding takes turns with this, and no graph is used again, since the model was
            // loaded to exchange its weights. `check` has found room, and these are the bytes of all
            // rows.
            let replaced = unsafe { place.replace(kind, bytes.get()) };
            replaced.map_err(|what| self.not_exchanged(name, &what))?;
        }
        match wanted {
            Some(contents) => exchanged.insert(name.to_owned(), Some(contents)),
            None => exchanged.remove(name),
        };
        Ok(())
    }
}

impl Exchange for LlamaCppModel<'_> {
    fn exchangeable(&self) -> Result<Vec<String>, EngineError> {
        let names = self
            .weights()?
            .iter()
            .map(|weight| weight.name().to_owned());
        Ok(names.collect())
    }

    fn exchange(&self, mixture: &Mixture, imatrix: Option<&Imatrix>) -> Result<(), EngineError> {
        for (name, &kind) in mixture {
            self.check(self.exchangeable_weight(name)?, kind, imatrix)?;
        }
        let mut exchanged = locked(&self.exchanged);
        for weight in self.weights()? {
            let kind = mixture
                .get(weight.name())
                .filter(|kind| **kind != weight.kind);
            let importances = match kind {
                Some(_) => self.importances(weight, imatrix)?,
                None => None,
            };
            let imatrix = imatrix.filter(|_| importances.is_some());
            let wanted = kind.map(|&kind| Contents {
                kind,
                imatrix: imatrix.map(|imatrix| imatrix.identity.sha256.clone()),
            });
            let is_there = match exchanged.get(weight.name()) {
                None => wanted.is_none(),
                Some(contents) => contents.is_some() && *contents == wanted,
            };
            if !is_there {
                self.fill(weight, wanted, importances, &mut exchanged)?;
            }
        }
        Ok(())
    }

    fn weight_errors(
        &self,
        tensor: &str,
        kinds: &[GgmlType],
        imatrix: Option<&Imatrix>,
        n_rows: usize,
    ) -> Result<Vec<f64>, EngineError> {
        let weight = self.exchangeable_weight(tensor)?;
        for &kind in kinds {
            self.check(weight, kind, imatrix)?;
        }
        let importances = self.importances(weight, imatrix)?;
        self.rows_of(weight)?.errors(kinds, importances, n_rows)
    }
}
