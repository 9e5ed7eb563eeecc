//! The header of a file: u64 length, then JSON that names each tensor, its type, its shape and
//! where its bytes are after the header.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};

use super::{IDS, MAX_HEADER_BYTES, ROWS};
use crate::error::Result;
use crate::numbers::{Float, Integer};
use crate::source::Source;
use crate::tensors::{Matrix, TensorWindow, n_ids, n_ids_fault};

/// Bytes of the length that a file begins with.
const LENGTH_BYTES: u64 = 8;

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The JSON's entries in its order, each name once.
struct Tensors(Vec<(String, Tensor)>);

/// Reads the header of a file and its token ids. Returns the window, and where its rows start.
///
/// # Errors
/// [`crate::Fault::Truncated`] for a file that is shorter than its header states,
/// [`crate::Fault::Header`], [`crate::Fault::Unsupported`] for tensors that are not what is looked
/// for, [`crate::Fault::TooLarge`], [`crate::Fault::Io`].
pub(super) fn read(source: &Source) -> Result<(TensorWindow, u64)> {
    let name = &source.name;
    let cut = |what: &str| name.truncated(None, source.len, what);
    let Some(length) = source.array_at(0)? else {
        return Err(cut("the file ends within the length of its header"));
    };
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(name.too_large(format!(
            "a header of {length} bytes, a safetensors file has {MAX_HEADER_BYTES} at most"
        )));
    }
    let data_start = LENGTH_BYTES + length;
    let Some(data_bytes) = source.len.checked_sub(data_start) else {
        return Err(cut("the file ends within its header"));
    };
    // The file is long enough.
    let mut json = vec![0; length as usize];
    source.read_exact_at(&mut json, LENGTH_BYTES)?;
    let Tensors(tensors) = serde_json::from_slice(&json)
        .map_err(|e| name.header(format!("it is not safetensors JSON: {e}")))?;
    for (key, tensor) in &tensors {
        if let Some(fault) = tensor.fault() {
            return Err(name.header(format!("tensor {key:?} {fault}")));
        }
        let [_, end] = tensor.data_offsets;
        if end > data_bytes {
            let missing = end - data_bytes;
            return Err(cut(&format!("tensor {key:?} lacks {missing} bytes")));
        }
    }
    let (tensor, matrix) = rows(&tensors).map_err(|what| name.unsupported(what))?;
    let ids = ids(&tensors, matrix.n_rows).map_err(|what| name.unsupported(what))?;
    let tokens = Vec::new();
    let mut window = TensorWindow { matrix, tokens };
    if let Some((integer, [start, end])) = ids {
        // The offsets are within the file, and those of as many ids as there are rows.
        let mut bytes = vec![0; (end - start) as usize];
        source.read_exact_at(&mut bytes, data_start + start)?;
        window.tokens = integer.decode(&bytes);
        if let Some(fault) = window.token_fault() {
            return Err(name.corrupt(None, data_start + start, fault));
        }
    }
    let [start, _] = tensor.data_offsets;
    Ok((window, data_start + start))
}

impl Tensor {
    /// Finds a fault in its offsets.
    fn fault(&self) -> Option<String> {
        let [start, end] = self.data_offsets;
        let Some(there) = end.checked_sub(start) else {
            return Some("ends before it starts".to_owned());
        };
        // Of the types that are read here.
        let entry = float(&self.dtype)
            .map(Float::bytes)
            .or(integer(&self.dtype).map(Integer::bytes))? as u64;
        let needed = self.shape.iter().try_fold(entry, |n, &d| n.checked_mul(d));
        (needed != Some(there)).then(|| {
            let Self { dtype, shape, .. } = self;
            format!("of type {dtype} and shape {shape:?} has {there} bytes")
        })
    }
}

/// The tensor of rows: the one of a known name, or the only one that can be.
fn rows(tensors: &[(String, Tensor)]) -> std::result::Result<(&Tensor, Matrix), String> {
    let matrix = |key: &str, tensor: &Tensor| {
        let float = float(&tensor.dtype).ok_or_else(|| {
            let dtype = &tensor.dtype;
            format!("tensor {key:?} is of type {dtype}: rows must be F32, F16, BF16 or F64")
        })?;
        Matrix::new(float, &tensor.shape).map_err(|what| format!("tensor {key:?}: {what}"))
    };
    if let Some((key, tensor)) = one_of(tensors, &ROWS)? {
        return Ok((tensor, matrix(key, tensor)?));
    }
    let mut fitting = tensors
        .iter()
        .filter_map(|(key, tensor)| Some((tensor, matrix(key, tensor).ok()?)));
    match (fitting.next(), fitting.count()) {
        (Some(only), 0) => Ok(only),
        (None, _) => Err(format!(
            "holds no tensor of rows: none is named {}, and none holds floats of shape \
             [tokens, vocabulary]",
            ROWS.join(", ")
        )),
        (Some(_), more) => Err(format!(
            "none of its tensors is named {}, and {} could be the rows: give one such a name",
            ROWS.join(", "),
            more + 1
        )),
    }
}

/// The type of the token ids and their offsets from the end of the header, if there are any.
fn ids(
    tensors: &[(String, Tensor)],
    n_rows: u32,
) -> std::result::Result<Option<(Integer, [u64; 2])>, String> {
    let Some((key, tensor)) = one_of(tensors, &IDS)? else {
        return Ok(None);
    };
    let (Some(integer), Some(n)) = (integer(&tensor.dtype), n_ids(&tensor.shape)) else {
        return Err(format!(
            "tensor {key:?} is of type {} and shape {:?}: token ids must be I32, I64, U32 or U64, of \
             shape [tokens]",
            tensor.dtype, tensor.shape
        ));
    };
    match n_ids_fault(n, n_rows) {
        Some(fault) => Err(format!("tensor {key:?}: {fault}")),
        None => Ok(Some((integer, tensor.data_offsets))),
    }
}

/// The tensor that has one of these names.
fn one_of<'t>(
    tensors: &'t [(String, Tensor)],
    names: &[&str],
) -> std::result::Result<Option<(&'t str, &'t Tensor)>, String> {
    let mut found = tensors
        .iter()
        .filter(|(key, _)| names.contains(&key.as_str()));
    match (found.next(), found.next()) {
        (Some((one, _)), Some((other, _))) => Err(format!(
            "holds a tensor {one:?} and one {other:?}: leave one of them out"
        )),
        (found, _) => Ok(found.map(|(key, tensor)| (key.as_str(), tensor))),
    }
}

fn float(dtype: &str) -> Option<Float> {
    match dtype {
        "F16" => Some(Float::F16),
        "BF16" => Some(Float::Bf16),
        "F32" => Some(Float::F32),
        "F64" => Some(Float::F64),
        _ => None,
    }
}

fn integer(dtype: &str) -> Option<Integer> {
    match dtype {
        "I32" => Some(Integer::I32),
        "I64" => Some(Integer::I64),
        "U32" => Some(Integer::U32),
        "U64" => Some(Integer::U64),
        _ => None,
    }
}

impl<'de> Deserialize<'de> for Tensors {
    fn deserialize<D: serde::Deserializer<'de>>(json: D) -> std::result::Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Tensors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Tensors, A::Error> {
                let (mut tensors, mut names) = (Vec::new(), HashSet::new());
                while let Some(key) = map.next_key::<String>()? {
                    if !names.insert(key.clone()) {
                        return Err(A::Error::custom(format!("two entries are named {key:?}")));
                    }
                    if key == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        tensors.push((key, map.next_value()?));
                    }
                }
                Ok(Tensors(tensors))
            }
        }

        json.deserialize_map(Entries)
    }
}
