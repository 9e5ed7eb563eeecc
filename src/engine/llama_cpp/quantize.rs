//! Writes quantized files with llama.cpp's own quantizer.

use std::ffi::{CString, c_char};
use std::fs::File;
use std::path::Path;
use std::ptr;

use llama_cpp_sys_2 as sys;

use super::inspect;
use super::log::{last_log_errors, while_loading};
use crate::engine::imatrix::PairValue;
use crate::engine::quantizer::{file_type, n_dims, refusal};
use crate::engine::{Blueprint, EngineError, Imatrix, Quantization, TensorFacts};

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
    let (types, _patterns) = types(quantization, &blueprint)?;
    params.tt_overrides = types.as_ptr();
    let entries = quantization.imatrix.map(entries).transpose()?;
    let pairs = quantization.imatrix.map(pairs);
    if let (Some((entries, _)), Some(pairs)) = (&entries, &pairs) {
        params.imatrix = entries.as_ptr();
        params.kv_overrides = pairs.as_ptr();
    }
    let (from, to) = (c_path(input)?, c_path(output)?);
    // Errors that an earlier model left in the log are not this one's.
    let _ = last_log_errors();
    // SAFETY: the paths are zero-terminated. They and the lists that the parameters point to, which end as
    // llama.cpp wants them to, outlive the call.
    let call =
        || unsafe { sys::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const params) };
    if while_loading(input, call) == 0 {
        return Ok(());
    }
    let reason = last_log_errors();
    // The C++ library's words for a failed write.
    let what = if reason.contains("iostream") {
        format!("cannot write {}: is the disk full?", output.display())
    } else {
        format!("llama.cpp's quantizer refuses it: {reason}")
    };
    Err(EngineError::model(input, what))
}

/// Refuses a mixture or an importance matrix that does not suit the original.
fn check(quantization: &Quantization<'_>, blueprint: &Blueprint) -> Result<(), EngineError> {
    let Quantization { input, imatrix, .. } = *quantization;
    if let Some(imatrix) = imatrix {
        imatrix.check(&blueprint.tensors)?;
    }
    for (name, &kind) in quantization.mixture {
        let mut tensors = blueprint.tensors.iter();
        let what = match tensors.find(|tensor| tensor.name == *name) {
            None => format!("it has no tensor {name:?}: give its own recipe"),
            Some(tensor) if kind == tensor.kind => continue,
            Some(TensorFacts {
                is_quantizable: false,
                kind,
                ..
            }) => format!(
                "{name} cannot have another type than {kind}, which it has: leave it out of the mixture"
            ),
            Some(tensor) => {
                let row = tensor.shape.first().copied().unwrap_or(1);
                let Some(what) = refusal(name, row, kind, imatrix) else {
                    continue;
                };
                format!("{name} cannot be {kind}: {what}")
            }
        };
        return Err(EngineError::model(input, what));
    }
    Ok(())
}

/// The type of each tensor that the quantizer may change, as it wants them, and one without a pattern:
/// those that are not in the mixture too, since it would choose one for them. The patterns that they point
/// to come with them.
fn types(
    quantization: &Quantization<'_>,
    blueprint: &Blueprint,
) -> Result<(Vec<sys::llama_model_tensor_override>, Vec<CString>), EngineError> {
    let tensors = blueprint.tensors.iter().filter(|t| n_dims(&t.shape) > 1);
    let tensors: Vec<_> = tensors.collect();
    let pattern = |of: &&TensorFacts| c_string(quantization.input, &tensor_pattern(&of.name));
    let patterns = tensors.iter().map(pattern).collect::<Result<Vec<_>, _>>()?;
    let types = tensors.iter().zip(&patterns).map(|(tensor, pattern)| {
        let kind = quantization
            .mixture
            .get(&tensor.name)
            .unwrap_or(&tensor.kind);
        (pattern.as_ptr(), kind.id as _)
    });
    let types = types.chain([(ptr::null(), sys::GGML_TYPE_COUNT)]);
    let types = types.map(|(pattern, type_)| sys::llama_model_tensor_override { pattern, type_ });
    Ok((types.collect(), patterns))
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

/// The entries of an importance matrix as the quantizer wants them, and one without a name. They point to
/// the matrix, and to the names that come with them.
fn entries(
    imatrix: &Imatrix,
) -> Result<(Vec<sys::llama_model_imatrix_data>, Vec<CString>), EngineError> {
    let names = imatrix
        .entries()
        .map(|(name, _)| c_string(&imatrix.path, name));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let entries = names.iter().zip(imatrix.entries());
    let entries = entries.map(|(name, (_, values))| (name.as_ptr(), values.as_ptr(), values.len()));
    let entries = entries.chain([(ptr::null(), ptr::null(), 0)]);
    let entries =
        entries.map(|(name, data, size)| sys::llama_model_imatrix_data { name, data, size });
    Ok((entries.collect(), names))
}

/// The pairs that name an importance matrix, and one without a key.
fn pairs(imatrix: &Imatrix) -> Vec<sys::llama_model_kv_override> {
    use sys::llama_model_kv_override__bindgen_ty_1 as Value;
    let pair = |(key, value): (&str, PairValue)| {
        let (tag, value) = match value {
            PairValue::Number(n) => (sys::LLAMA_KV_OVERRIDE_TYPE_INT, Value { val_i64: n.into() }),
            PairValue::Text(text) => {
                let val_str = chars(&text);
                (sys::LLAMA_KV_OVERRIDE_TYPE_STR, Value { val_str })
            }
        };
        sys::llama_model_kv_override {
            tag,
            key: chars(key.as_bytes()),
            __bindgen_anon_1: value,
        }
    };
    let end = ("", PairValue::Number(0));
    imatrix.pairs().into_iter().chain([end]).map(pair).collect()
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

/// The path of a model, for llama.cpp.
pub(super) fn c_path(path: &Path) -> Result<CString, EngineError> {
    let text = path.to_str().and_then(|text| CString::new(text).ok());
    text.ok_or_else(|| {
        let what = "llama.cpp cannot open a path that is not valid Unicode: rename the file";
        EngineError::model(path, what)
    })
}
