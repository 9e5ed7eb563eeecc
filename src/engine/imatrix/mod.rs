//! Importance matrices, as llama.cpp's `llama-imatrix` writes them, and as its quantizer reads them
//! (`common/imatrix-loader.cpp`, and `load_imatrix` in `tools/quantize/quantize.cpp`).
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod dat;
mod gguf_file;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use kl_formats::{ImatrixIdentity, hex};
use sha2::{Digest, Sha256};

use super::gguf::{ModelError, open};
use super::{EngineError, TensorFacts};

/// The largest mean square that is believed: activations are at most 65,504 in f16, and ggml ends the
/// process where its sums overflow.
const MAX_VALUE: f32 = 1e15;

/// The mean squares of the activations that each column of a matrix is multiplied with.
#[derive(Clone, Debug)]
pub struct Imatrix {
    /// The file, as it was given.
    pub path: PathBuf,
    pub identity: ImatrixIdentity,
    /// The names of the texts that it was made of; empty if unknown.
    pub datasets: Vec<String>,
    /// The number of chunks of text that it was made of; `None` if unknown.
    pub n_chunks: Option<u32>,
    /// For each tensor, a value for each column, of one expert after the other.
    values: HashMap<String, Vec<f32>>,
}

/// What a file of either format holds.
#[derive(Default)]
struct Contents {
    datasets: Vec<String>,
    n_chunks: i128,
    values: HashMap<String, Vec<f32>>,
}

impl Imatrix {
    /// Reads a GGUF or the older `.dat`.
    ///
    /// # Errors
    /// A file that cannot be read, is neither, is damaged, or holds a number that no activations have.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        let (is_gguf, sha256) = hash(path)?;
        let contents = match is_gguf {
            true => gguf_file::read(path)?,
            false => dat::read(path)?,
        };
        let is_sound = |value: &f32| (0.0..=MAX_VALUE).contains(value);
        let mut entries = contents.values.iter();
        if let Some((name, _)) = entries.find(|(_, values)| !values.iter().all(is_sound)) {
            let what = format!(
                "the values of {name:?} are not means of squares (negative, too large or not a number): make it again"
            );
            return Err(EngineError::model(path, what));
        }
        let file_name = path.file_name().unwrap_or(path.as_os_str());
        let n_chunks = i32::try_from(contents.n_chunks).unwrap_or(0);
        Ok(Self {
            path: path.to_owned(),
            identity: ImatrixIdentity {
                file_name: file_name.to_string_lossy().into_owned(),
                sha256,
            },
            datasets: contents.datasets,
            n_chunks: u32::try_from(n_chunks).ok().filter(|&n| n > 0),
            values: contents.values,
        })
    }

    /// The values of a tensor, in its shape: n_columns x n_experts.
    pub fn of(&self, tensor: &str) -> Option<&[f32]> {
        self.values.get(tensor).map(Vec::as_slice)
    }

    /// All entries: the names of tensors, and their values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &[f32])> {
        let entries = self.values.iter();
        entries.map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// The pairs that llama-quantize adds to the metadata of a file that was made with the matrix.
    pub(super) fn pairs(&self) -> Vec<(&'static str, PairValue)> {
        let text = |text: &str| PairValue::Text(cut(text).to_vec());
        let mut pairs = vec![("quantize.imatrix.file", text(&self.path.to_string_lossy()))];
        if let Some(dataset) = self.datasets.first() {
            pairs.push(("quantize.imatrix.dataset", text(dataset)));
        }
        let n_entries = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        pairs.push((
            "quantize.imatrix.entries_count",
            PairValue::Number(n_entries),
        ));
        if let Some(n_chunks) = self.n_chunks {
            pairs.push(("quantize.imatrix.chunks_count", PairValue::Number(n_chunks)));
        }
        pairs
    }

    /// Refuses the matrix of another model.
    ///
    /// # Errors
    /// If it has values for none of the tensors, or another number of them than a tensor has columns.
    pub fn check(&self, tensors: &[TensorFacts]) -> Result<(), EngineError> {
        let another = |what: String| {
            let what = format!("{what}: it was made with another model; give this one's");
            Err(EngineError::model(&self.path, what))
        };
        let mut n_known = 0;
        for tensor in tensors {
            let Some(values) = self.of(&tensor.name) else {
                continue;
            };
            let dimension = |i: usize| tensor.shape.get(i).copied().unwrap_or(1);
            let (n_columns, n_experts) = (dimension(0), dimension(2));
            if n_columns.checked_mul(n_experts) != Some(values.len() as u64) {
                let experts = match n_experts {
                    1 => String::new(),
                    n => format!(" of {n} experts"),
                };
                return another(format!(
                    "it has {} values for {}, which has {n_columns} columns{experts}",
                    values.len(),
                    tensor.name
                ));
            }
            n_known += 1;
        }
        match n_known {
            0 => another("it has values for none of the model's tensors".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Returns true if a file begins as a GGUF does, and its SHA-256 (hex).
fn hash(path: &Path) -> Result<(bool, String), EngineError> {
    let (mut file, _) = open(path)?;
    let (mut hash, mut piece) = (Sha256::new(), Vec::new());
    let mut is_gguf = None;
    loop {
        piece.clear();
        let read = (&mut file).take(1 << 20).read_to_end(&mut piece);
        if let Err(cause) = read {
            return Err(EngineError::model(path, format!("cannot read: {cause}")));
        }
        is_gguf.get_or_insert(piece.starts_with(b"GGUF"));
        if piece.is_empty() {
            return Ok((is_gguf == Some(true), hex(&hash.finalize())));
        }
        hash.update(&piece);
    }
}

/// The numbers that are stored in these bytes, f32.
fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// The error for a file that holds something else.
fn not_an_imatrix(path: &Path, what: &str) -> ModelError {
    let what = format!("not an importance matrix: {what}; give a file that llama-imatrix wrote");
    ModelError::new(path, what)
}

/// The value of a pair in a model's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PairValue {
    Text(Vec<u8>),
    Number(u32),
}

impl PairValue {
    /// Its bytes in a file.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) => 8 + text.len() as u64,
            Self::Number(_) => 4,
        }
    }
}

/// The part of a text that llama-quantize keeps: up to a zero byte, and at most 127 bytes.
fn cut(text: &str) -> &[u8] {
    let text = text.as_bytes();
    let end = text.iter().position(|&byte| byte == 0);
    let end = end.unwrap_or(text.len()).min(127);
    text.get(..end).unwrap_or_default()
}
