//! Writes quantized files with llama.cpp's own quantizer.

use std::ffi::{CString, c_char};
use std::fs::File;
use std::path::Path;
use std::ptr;

use llama_cpp_sys_2 as sys;

use super::abort::while_loading;
use super::inspect;
use super::log::last_log_errors;
use crate::engine::imatrix::PairValue;
use crate::engine::quantizer_rules::{file_type, n_dims, needs_imatrix};
use crate::engine::{Blueprint, EngineError, Imatrix, Quantization};

/// Writes the file, after a check of all that the quantizer would abort on.
///
/// # Errors
/// An original that is not a model, a mixture or an importance matrix that does not suit it, or a file that
/// cannot be written.
pub(super) fn quantize(quantization: &Quantization<'_>) -> Result<(), EngineError> {
    let Quantization { input, output, .. } = *quantization;
    let header = inspect(input)?;
    let blueprint = Blueprint::of(&header, quantization.imatrix)?;
    check(quantization, &blueprint)?;
    File::create(output).map_err(|cause| {
        let path = output.display();
        EngineError::Setup(format!("{path}: cannot create: {cause}"))
    })?;

    // SAFETY: returns plain values.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = i32::try_from(quantization.threads).unwrap_or(i32::MAX);
    params.ftype = file_type(&blueprint.tensors, quantization.mixture).id as _;
    // `Blueprint` lets no type but q8_0 be quantized again.
    params.allow_requantize = true;
    let types = Types::new(quantization, &blueprint)?;
    params.tt_overrides = types.overrides.as_ptr();
    let importance = quantization.imatrix.map(Importance::new).transpose()?;
    if let Some(importance) = &importance {
        params.imatrix = importance.entries.as_ptr();
        params.kv_overrides = importance.pairs.as_ptr();
    }
    let (from, to) = (c_path(input)?, c_path(output)?);
    // Errors that an earlier model left in the log are not this one's.
    let _ = last_log_errors();
    // SAFETY: the paths are zero-terminated. They and the lists that the parameters point to, which end as
    // llama.cpp wants them to, outlive the call.
    let call =
        || unsafe { sys::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const params) };
    match while_loading(input, call) {
        0 => Ok(()),
        _ => {
            let reason = last_log_errors();
            // The C++ library's words for a failed write.
            let what = match reason.contains("iostream") {
                true => format!("cannot write {}: is the disk full?", output.display()),
                false => format!("llama.cpp's quantizer refuses it: {reason}"),
            };
            Err(EngineError::model(input, what))
        }
    }
}

/// Refuses a mixture or an importance matrix that does not suit the original.
fn check(quantization: &Quantization<'_>, blueprint: &Blueprint) -> Result<(), EngineError> {
    let Quantization { input, imatrix, .. } = *quantization;
    if let Some(imatrix) = imatrix {
        imatrix.check(&blueprint.tensors)?;
    }
    for (name, &kind) in quantization.mixture {
        let refused = |what: String| Err(EngineError::model(input, what));
        let tensor = blueprint.tensors.iter().find(|tensor| tensor.name == *name);
        let Some(tensor) = tensor else {
            return refused(format!("it has no tensor {name:?}: give its own recipe"));
        };
        if kind == tensor.kind {
            continue;
        }
        let row = tensor.shape.first().copied().unwrap_or(1);
        if !tensor.is_quantizable {
            return refused(format!(
                "{name} cannot have another type than {}, which it has: leave it out of the mixture",
                tensor.kind
            ));
        }
        if !kind.is_for_weights {
            return refused(format!(
                "{name} cannot be {kind}, which is no type of weights"
            ));
        }
        if !row.is_multiple_of(kind.block) {
            return refused(format!(
                "{name} cannot be {kind}: its rows of {row} weights are no multiple of {}",
                kind.block
            ));
        }
        let is_known = imatrix.is_some_and(|imatrix| imatrix.of(name).is_some());
        if needs_imatrix(name, kind) && !is_known {
            return refused(match imatrix {
                None => format!("{name} cannot be {kind} without an importance matrix (--imatrix)"),
                Some(imatrix) => format!(
                    "{name} cannot be {kind}: {} holds nothing for it",
                    imatrix.path.display()
                ),
            });
        }
    }
    Ok(())
}

/// The type of each tensor that the quantizer may change, as it wants them: those that are not in the
/// mixture too, since it would choose one for them.
struct Types {
    /// The overrides, and one without a pattern.
    overrides: Vec<sys::llama_model_tensor_override>,
    _patterns: Vec<CString>,
}

impl Types {
    fn new(quantization: &Quantization<'_>, blueprint: &Blueprint) -> Result<Self, EngineError> {
        let (mut overrides, mut patterns) = (Vec::new(), Vec::new());
        for tensor in blueprint.tensors.iter().filter(|t| n_dims(&t.shape) > 1) {
            let kind = quantization.mixture.get(&tensor.name);
            let pattern = c_string(quantization.input, &tensor_pattern(&tensor.name))?;
            overrides.push(sys::llama_model_tensor_override {
                pattern: pattern.as_ptr(),
                type_: kind.unwrap_or(&tensor.kind).id as _,
            });
            patterns.push(pattern);
        }
        overrides.push(sys::llama_model_tensor_override {
            pattern: ptr::null(),
            type_: sys::GGML_TYPE_COUNT,
        });
        Ok(Self {
            overrides,
            _patterns: patterns,
        })
    }
}

/// The regular expression (ECMAScript) that matches this name and no other.
pub(super) fn tensor_pattern(name: &str) -> String {
    let mut pattern = String::from("^");
    for c in name.chars() {
        if r"^$\.*+?()[]{}|".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern + "$"
}

/// An importance matrix as the quantizer wants it, and the pairs that name it.
struct Importance<'i> {
    /// The entries, and one without a name.
    entries: Vec<sys::llama_model_imatrix_data>,
    /// The pairs, and one without a key.
    pairs: Vec<sys::llama_model_kv_override>,
    _names: Vec<CString>,
    _imatrix: &'i Imatrix,
}

impl<'i> Importance<'i> {
    fn new(imatrix: &'i Imatrix) -> Result<Self, EngineError> {
        let (mut entries, mut names) = (Vec::new(), Vec::new());
        for (name, values) in imatrix.entries() {
            let name = c_string(&imatrix.path, name)?;
            entries.push(sys::llama_model_imatrix_data {
                name: name.as_ptr(),
                data: values.as_ptr(),
                size: values.len(),
            });
            names.push(name);
        }
        entries.push(sys::llama_model_imatrix_data {
            name: ptr::null(),
            data: ptr::null(),
            size: 0,
        });
        let pairs = imatrix.pairs().into_iter();
        let mut pairs: Vec<_> = pairs.map(|(key, value)| pair(key, &value)).collect();
        pairs.push(pair("", &PairValue::Number(0)));
        Ok(Self {
            entries,
            pairs,
            _names: names,
            _imatrix: imatrix,
        })
    }
}

fn pair(key: &str, value: &PairValue) -> sys::llama_model_kv_override {
    use sys::llama_model_kv_override__bindgen_ty_1 as Value;
    let (tag, value) = match value {
        PairValue::Number(number) => (
            sys::LLAMA_KV_OVERRIDE_TYPE_INT,
            Value {
                val_i64: (*number).into(),
            },
        ),
        PairValue::Text(text) => (
            sys::LLAMA_KV_OVERRIDE_TYPE_STR,
            Value {
                val_str: chars(text),
            },
        ),
    };
    sys::llama_model_kv_override {
        tag,
        key: chars(key.as_bytes()),
        __bindgen_anon_1: value,
    }
}

/// A text of at most 127 bytes, and zeros.
fn chars(text: &[u8]) -> [c_char; 128] {
    let mut chars = [0; 128];
    for (to, from) in chars.iter_mut().zip(text.iter().take(127)) {
        *to = *from as c_char;
    }
    chars
}

/// A name in this file, for llama.cpp.
fn c_string(path: &Path, name: &str) -> Result<CString, EngineError> {
    CString::new(name).map_err(|_| {
        let what = format!("it names a tensor {name:?}, with a zero byte: make it again");
        EngineError::model(path, what)
    })
}

fn c_path(path: &Path) -> Result<CString, EngineError> {
    let text = path.to_str().and_then(|text| CString::new(text).ok());
    text.ok_or_else(|| {
        let what = "llama.cpp cannot open a path that is not valid Unicode: rename the file";
        EngineError::model(path, what)
    })
}
