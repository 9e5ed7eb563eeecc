//! Finds the weights that can be exchanged, in the graph of one decoded token, and exchanges them in
//! their own memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Once};

use kl_formats::{GgmlType, Mixture};
use llama_cpp_sys_2 as sys;

use super::LlamaCppModel;
use super::context::Watch;
use super::ggml::{ModelTensor, Node};
use super::quantized_rows::OriginalRows;
use crate::engine::quantizer::{changes, is_original, refusal};
use crate::engine::{EngineError, Exchange, Imatrix, gguf};
use crate::lock::locked;

/// Quantized types in which models are published: a tensor of one stays as it is, and the others may be
/// an original's.
const PUBLISHED: [&str; 4] = ["mxfp4", "nvfp4", "tq1_0", "tq2_0"];

/// A weight of a loaded model that can be exchanged.
#[derive(Debug)]
pub(super) struct Weight {
    /// Its description in the file.
    pub(super) tensor: gguf::Tensor,
    /// Its type in the file.
    pub(super) kind: GgmlType,
    /// Where it lies: once, unless several devices need it.
    pub(super) places: Vec<ModelTensor>,
}

impl Weight {
    pub(super) fn name(&self) -> &str {
        &self.tensor.name
    }
}

/// The weights that a graph uses, by their names.
#[derive(Default)]
struct UsedWeights(HashMap<String, Use>);

/// How a graph uses a weight.
#[derive(Default)]
struct Use {
    places: Vec<ModelTensor>,
    /// True if a device computes with a copy that the graph makes.
    is_copied: bool,
    /// True if an operation uses it for which ggml may lack kernels for quantized weights.
    is_unusual: bool,
}

impl Watch for UsedWeights {
    fn wants(&mut self, node: Node<'_>) -> bool {
        for (i, input) in node.inputs() {
            let weight = input.as_weight();
            if weight.is_none() && !input.is_copy() {
                continue;
            }
            let found = self.0.entry(input.name()).or_default();
            let is_usual = matches!(
                node.op(),
                sys::GGML_OP_MUL_MAT | sys::GGML_OP_MUL_MAT_ID | sys::GGML_OP_GET_ROWS
            );
            found.is_unusual |= i != 0 || !is_usual;
            match weight {
                Some(place) if !found.places.contains(&place) => found.places.push(place),
                Some(_) => {}
                None => found.is_copied = true,
            }
        }
        false
    }

    fn computed(&mut self, _node: Node<'_>) -> bool {
        true
    }
}

impl LlamaCppModel<'_> {
    /// The weights that can be exchanged, in the order of the file. The first call finds them by
    /// decoding one token.
    pub(super) fn weights(&self) -> Result<&[Weight], EngineError> {
        if !self.facts.options.is_exchangeable {
            let what = "was not loaded to exchange its weights";
            return Err(EngineError::model(&self.facts.path, what));
        }
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let watch = Arc::new(Mutex::new(UsedWeights::default()));
        let failed = |reason: String| {
            let what = format!("llama.cpp cannot decode a token: {reason}");
            EngineError::model(&self.facts.path, what)
        };
        self.show_one_token(watch.clone(), failed)?;
        let UsedWeights(mut used) = std::mem::take(&mut *locked(&watch));
        let mut weights = Vec::new();
        for tensor in &self.header.tensors {
            let architecture = self.header.architecture().unwrap_or_default();
            if let Some(used) = used.remove(&tensor.name)
                && changes(architecture, &tensor.name, &tensor.shape)
                && !used.is_unusual
                && GgmlType::of(tensor.type_id).is_none_or(|it| !PUBLISHED.contains(&it.name))
            {
                weights.push(self.weight(tensor, used)?);
            }
        }
        Ok(self.weights.get_or_init(|| weights))
    }

    fn weight(&self, tensor: &gguf::Tensor, used: Use) -> Result<Weight, EngineError> {
        let (name, kind) = (&tensor.name, GgmlType::of(tensor.type_id));
        let Some(kind) = kind.filter(|&kind| is_original(kind)) else {
            let kind = kind.map_or_else(|| tensor.type_id.to_string(), |kind| kind.to_string());
            let what = format!(
                "{name} is quantized already ({kind}): give the original, in f16, bf16, f32 or q8_0"
            );
            return Err(EngineError::model(&self.facts.path, what));
        };
        let is_as_in_file = |place: &ModelTensor| place.type_id() == kind.id;
        if used.is_copied || !used.places.iter().all(is_as_in_file) {
            let what = "its device computes with a copy of it: use another -ngl, -ot or -dev";
            return Err(self.not_exchanged(name, what));
        }
        Ok(Weight {
            tensor: tensor.clone(),
            kind,
            places: used.places,
        })
    }

    /// The error for a weight that cannot be exchanged.
    pub(super) fn not_exchanged(&self, name: &str, what: &str) -> EngineError {
        let what = format!("{name} cannot be exchanged: {what}");
        EngineError::model(&self.facts.path, what)
    }
}

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
        let what = "decoding does not use it, or llama.cpp does not quantize it";
        found.ok_or_else(|| self.not_exchanged(name, what))
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
        if values.len() != n {
            let n_given = values.len();
            let what = format!(
                "has {n_given} values for {name} instead of {n}: it was made of another model"
            );
            return Err(EngineError::model(&imatrix.path, what));
        }
        Ok(Some(values))
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
        let n_columns = rows.n_columns as u64;
        if let Some(what) = refusal(name, n_columns, kind, imatrix) {
            return Err(self.not_exchanged(name, &what));
        }
        let mut places = weight.places.iter();
        let fits = places.all(|place| place.has_room_for(kind, original));
        if original.bytes(n_columns) < kind.bytes(n_columns) || !fits {
            let what = format!("{kind} is larger than the original's {original}: use another type");
            return Err(self.not_exchanged(name, &what));
        }
        self.importances(weight, imatrix).map(drop)
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
        let weights = self.weights()?.iter();
        Ok(weights.map(|weight| weight.name().to_owned()).collect())
    }

    fn exchange(&self, mixture: &Mixture, imatrix: Option<&Imatrix>) -> Result<(), EngineError> {
        for (name, &kind) in mixture {
            self.check(self.exchangeable_weight(name)?, kind, imatrix)?;
        }
        let mut exchanged = locked(&self.exchanged);
        for weight in self.weights()? {
            let kind = mixture.get(weight.name());
            let kind = kind.copied().filter(|kind| *kind != weight.kind);
            let used = imatrix.filter(|_| kind.is_some());
            let importances = self.importances(weight, used)?;
            let wanted = kind.map(|kind| Contents {
                kind,
                imatrix: importances.and(used).map(|of| of.identity.sha256.clone()),
            });
            // What is not exchanged is the original's.
            let there = exchanged.get(weight.name()).unwrap_or(&None);
            let is_known = there.is_some() || !exchanged.contains_key(weight.name());
            if !is_known || *there != wanted {
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
