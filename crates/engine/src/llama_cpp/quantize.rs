//! Writes quantized files with llama.cpp's own quantizer.

use std::ffi::{CString, c_char};
use std::fs::File;
use std::path::Path;
use std::ptr;

use kl_formats::MapTensor;
use llama_cpp_sys_2 as sys;

#[cfg(unix)]
use super::bus_error::Mapped;
use super::guard::{calls, guarded};
use super::inspect;
use super::log::{last_log_errors, while_loading};
use crate::gguf::Gguf;
use crate::imatrix::PairValue;
use crate::model_files::IN_USE;
use crate::quantizer::{file_kind, n_dims, refusal};
use crate::{Blueprint, EngineError, Imatrix, ModelFiles, Quantization};
use kl_system::threads;

/// Writes the file, after a check of all that the quantizer would abort on.
///
/// # Errors
/// An original that is not a model, a mixture or an importance matrix that does not suit it, or a file that
/// cannot be written.
pub(super) fn quantize(quantization: &Quantization<'_>) -> Result<(), EngineError> {
    let header = inspect(quantization.input)?;
    let tensors = Blueprint::of_quantized(&header, quantization.imatrix)?.tensors;
    check(quantization, &tensors)?;
    rewrite(&header, &tensors, quantization)
}

/// Writes the file, whose mixture and importance matrix suit these tensors, those of the original with this
/// header.
///
/// # Errors
/// A file that cannot be read or written, or why the quantizer refuses it.
pub(super) fn rewrite(
    header: &Gguf,
    tensors: &[MapTensor],
    quantization: &Quantization<'_>,
) -> Result<(), EngineError> {
    let Quantization { input, output, .. } = *quantization;
    let (mixture, imatrix) = (quantization.mixture, quantization.imatrix);
    let files = ModelFiles::look_at(&header.files);
    // The quantizer maps them.
    #[cfg(unix)]
    let _mapped = Mapped::add(&files);
    File::create(output).map_err(|cause| {
        let path = output.display();
        EngineError::Setup(format!("{path}: cannot create: {cause}"))
    })?;

    // The type of each tensor that the quantizer may change, also of those that are not in the mixture,
    // since it would choose one for them; and an entry without a pattern, which ends the list.
    let matrices = tensors.iter().filter(|tensor| n_dims(&tensor.shape) > 1);
    let patterns = matrices.clone().map(|tensor| tensor_pattern(&tensor.name));
    let c_patterns = c_strings(input, patterns)?;
    let types = matrices.map(|tensor| mixture.get(&tensor.name).unwrap_or(&tensor.kind).id as _);
    let listed = (c_patterns.iter().map(|name| name.as_ptr()).zip(types))
        .chain([(ptr::null(), sys::GGML_TYPE_COUNT)])
        .map(|(pattern, type_)| sys::llama_model_tensor_override { pattern, type_ });
    let overrides: Vec<_> = listed.collect();
    // SAFETY: returns plain values.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    // The number of threads changes nothing in the file.
    let others = threads::allowed(quantization.threads.saturating_sub(1) as usize);
    params.nthread = i32::try_from(others + 1).unwrap_or(i32::MAX);
    params.ftype = file_kind(tensors, mixture).id as _;
    // Only q8_0 is quantized again, and what is dequantized loses nothing by it.
    params.allow_requantize = true;
    params.tt_overrides = overrides.as_ptr();
    // Its entries, one without a name, and the pairs that name it.
    let entries = imatrix.map_or(Vec::new(), |imatrix| imatrix.entries().collect());
    let path = imatrix.map_or(input, |imatrix| &imatrix.path);
    let names = c_strings(path, entries.iter().map(|(name, _)| *name))?;
    let values = entries
        .iter()
        .map(|(_, values)| (values.as_ptr(), values.len()));
    let described = (names.iter().map(|name| name.as_ptr()).zip(values))
        .chain([(ptr::null(), (ptr::null(), 0))])
        .map(|(name, (data, size))| sys::llama_model_imatrix_data { name, data, size });
    let (data, pairs) = (described.collect::<Vec<_>>(), imatrix.map(pairs));
    if let Some(pairs) = &pairs {
        params.imatrix = data.as_ptr();
        params.kv_overrides = pairs.as_ptr();
    }
    let (from, to) = (c_path(input)?, c_path(output)?);
    // Errors that an earlier model left in the log are not this one's.
    let _ = last_log_errors();
    // SAFETY: the paths are zero-terminated. They and the lists that the parameters point to, which end as
    // llama.cpp wants them to, outlive the call.
    let call =
        || unsafe { calls::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const params) };
    match while_loading(input, || guarded(call)) {
        Ok(0) => files.check_same(IN_USE),
        Ok(_) => Err(failed(input, output, &last_log_errors())),
        Err(exception) => Err(failed(input, output, &exception)),
    }
}

/// Explains why the quantizer has not written the file.
fn failed(input: &Path, output: &Path, reason: &str) -> EngineError {
    // The C++ library's words for a failed write.
    let what = if reason.contains("iostream") {
        format!("cannot write {}: is the disk full?", output.display())
    } else {
        format!("llama.cpp's quantizer refuses it: {reason}")
    };
    EngineError::model(input, what)
}

/// Refuses a mixture or an importance matrix that does not suit the original.
fn check(quantization: &Quantization<'_>, tensors: &[MapTensor]) -> Result<(), EngineError> {
    let Quantization { input, imatrix, .. } = *quantization;
    imatrix.map_or(Ok(()), |imatrix| imatrix.check(tensors))?;
    for (name, &kind) in quantization.mixture {
        let what = match tensors.iter().find(|tensor| tensor.name == *name) {
            None => format!("it has no tensor {name:?}: give its own recipe"),
            Some(tensor) if kind == tensor.kind => continue,
            Some(tensor) if !tensor.is_quantizable => format!(
                "{name} cannot have another type than {}, which it has: leave it out of the mixture",
                tensor.kind
            ),
            Some(tensor) => {
                let has_values = imatrix.is_some_and(|imatrix| imatrix.values(name).is_some());
                let Some(what) = refusal(name, &tensor.shape, kind, has_values) else {
                    continue;
                };
                format!("{name} cannot be {kind}: {what}")
            }
        };
        return Err(EngineError::model(input, what));
    }
    Ok(())
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

/// The pairs that name an importance matrix, and one without a key.
fn pairs(imatrix: &Imatrix) -> Vec<sys::llama_model_kv_override> {
    use sys::llama_model_kv_override__bindgen_ty_1 as Value;
    /// A text of at most 127 bytes, and zeros.
    fn chars(text: &[u8]) -> [c_char; 128] {
        let mut chars = [0; 128];
        for (to, from) in chars.iter_mut().zip(text.iter().take(127)) {
            *to = *from as c_char;
        }
        chars
    }
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

/// Names of tensors in this file, for llama.cpp.
fn c_strings(
    path: &Path,
    names: impl Iterator<Item = impl Into<Vec<u8>>>,
) -> Result<Vec<CString>, EngineError> {
    let strings: Result<_, _> = names.map(CString::new).collect();
    strings.map_err(|_| {
        let what = "it names a tensor with a zero byte in its name: make it again";
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
