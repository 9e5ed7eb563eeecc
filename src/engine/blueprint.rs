//! A model's file, as llama.cpp's quantizer rewrites it.

use std::path::Path;

use kl_formats::GgmlType;

use super::gguf::Gguf;
use super::quantizer_rules::{changes, is_original, n_dims};
use super::{EngineError, Imatrix};

/// A tensor of a model's file, as llama.cpp's quantizer treats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorFacts {
    pub name: String,
    /// Elements in each dimension, the innermost first.
    pub shape: Vec<u64>,
    pub kind: GgmlType,
    /// True if the quantizer may give it another type: not norms, vectors and the like, nor what is
    /// quantized already, except for q8_0.
    pub is_quantizable: bool,
}

/// A model's file, as llama.cpp's quantizer rewrites it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blueprint {
    /// All tensors, in the order of the original's file.
    pub tensors: Vec<TensorFacts>,
    /// Bytes of a quantized file before its tensors.
    pub metadata_bytes: u64,
    /// Bytes that the start of each tensor in a quantized file is a multiple of.
    pub alignment: u64,
}

/// The alignment of every file that the quantizer writes (`GGUF_DEFAULT_ALIGNMENT`).
const ALIGNMENT: u64 = 32;

/// Bytes of the magic, the version, and the numbers of tensors and of pairs.
const START_BYTES: u64 = 4 + 4 + 8 + 8;

/// Bytes of a string's or a list's length.
const LENGTH_BYTES: u64 = 8;

/// Bytes of a type's number, or of another u32.
const U32_BYTES: u64 = 4;

/// The pairs that the quantizer leaves out: its output is one file.
const REMOVED: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// The pairs that it sets in every file, u32.
const SET: [&str; 2] = ["general.quantization_version", "general.file_type"];

impl Blueprint {
    /// Describes the file that the quantizer makes of the model with this header. An importance matrix is
    /// named in its metadata.
    pub(super) fn of(header: &Gguf, imatrix: Option<&Imatrix>) -> Result<Self, EngineError> {
        let path = header.files.first().map_or(Path::new(""), |path| path);
        let refused = |what: String| Err(EngineError::model(path, what));
        if let Some(alignment) = header.number("general.alignment")
            && alignment != i128::from(ALIGNMENT)
        {
            return refused(format!(
                "its tensors are aligned to {alignment} bytes, and llama.cpp's quantizer writes files that state this but are aligned to {ALIGNMENT}, which nothing can read: convert it without --alignment"
            ));
        }
        let architecture = header.architecture().unwrap_or_default();
        let mut tensors = Vec::new();
        for tensor in &header.tensors {
            let Some(kind) = GgmlType::of(tensor.type_id) else {
                let what = format!("tensor {:?} has type {}", tensor.name, tensor.type_id);
                return refused(format!("{what}, which is unknown: use a newer kl"));
            };
            tensors.push(TensorFacts {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                kind,
                // The quantizer's loops have three dimensions, and it aborts where there are more.
                is_quantizable: changes(architecture, &tensor.name, &tensor.shape)
                    && n_dims(&tensor.shape) <= 3
                    && is_original(kind),
            });
        }
        Ok(Self {
            metadata_bytes: metadata_bytes(header, &tensors, imatrix),
            tensors,
            alignment: ALIGNMENT,
        })
    }
}

/// Bytes of a quantized file before its tensors: the original's pairs, those that the quantizer adds, and
/// what describes the tensors (`gguf_write_out` in `ggml/src/gguf.cpp`).
fn metadata_bytes(header: &Gguf, tensors: &[TensorFacts], imatrix: Option<&Imatrix>) -> u64 {
    let added: Vec<(&str, u64)> = imatrix.map_or_else(Vec::new, |imatrix| {
        let pairs = imatrix.pairs().into_iter();
        pairs.map(|(key, value)| (key, value.bytes())).collect()
    });
    let is_copied = |key: &str| {
        !REMOVED.contains(&key)
            && !SET.contains(&key)
            && !added.iter().any(|(added, _)| *added == key)
    };
    let pair = |key: &str, value| LENGTH_BYTES + key.len() as u64 + U32_BYTES + value;
    let copied = header.pair_bytes().filter(|(key, _)| is_copied(key));
    let copied: u64 = copied.map(|(_, bytes)| bytes).sum();
    let set: u64 = SET.iter().map(|key| pair(key, U32_BYTES)).sum();
    let added: u64 = added.iter().map(|(key, bytes)| pair(key, *bytes)).sum();
    let infos = tensors.iter().map(|tensor| {
        let shape = 8 * n_dims(&tensor.shape) as u64;
        // The offset has eight bytes.
        LENGTH_BYTES + tensor.name.len() as u64 + U32_BYTES + shape + U32_BYTES + 8
    });
    (START_BYTES + copied + set + added + infos.sum::<u64>()).next_multiple_of(ALIGNMENT)
}
