//! Maps of sensitivity: the KLD that each tensor's quantization costs, as JSON lines.
//!
//! The first line is the header. Each line after it states what was measured with some tensors
//! exchanged, or the weight errors of one tensor; so a map is resumed after its last whole line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::provenance::deref_to_provenance;
use crate::{GgmlType, Provenance, ReferenceSummary};

/// The version of the map that this crate writes and reads.
pub const MAP_VERSION: u32 = 1;

/// The types that some of a model's tensors are given, by the tensors' names.
pub type Mixture = BTreeMap<String, GgmlType>;

/// The first line of a map: what was measured, and what a recipe needs to know of the model.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct MapHeader {
    /// [`MAP_VERSION`], the first key.
    pub kl_map: u32,
    /// The original model, the text and the set-up. `shard` counts cells, not windows.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// The file whose rows the tensors were measured against; `None`: the original's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ReferenceSummary>,
    /// The windows, in the order in which they are measured.
    pub windows: Vec<MapWindow>,
    /// The type at which tensors are measured, where their rows are whole blocks of it.
    pub measured_type: GgmlType,
    /// The types that a recipe may use.
    pub types: Vec<GgmlType>,
    /// The importance matrix with which tensors are quantized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imatrix: Option<ImatrixIdentity>,
    /// Bytes of a quantized file before its tensors.
    pub metadata_bytes: u64,
    /// Bytes that the start of each tensor in a quantized file is a multiple of.
    pub alignment: u64,
    /// All tensors of the model, in the order of its file.
    pub tensors: Vec<MapTensor>,
}

deref_to_provenance!(MapHeader);

/// A window of the text that a map is measured on.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapWindow {
    /// Its number, in text order.
    pub window: u32,
    /// Its scored positions.
    pub n_rows: u32,
}

/// A tensor of the original.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MapTensor {
    /// Its name.
    pub name: String,
    /// Elements in each dimension, the innermost first.
    pub shape: Vec<u64>,
    /// Its type in the original.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// True if llama.cpp's quantizer may give it another type.
    pub is_quantizable: bool,
}

/// The file of an importance matrix.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImatrixIdentity {
    /// The file's name, without its folder.
    pub file_name: String,
    /// SHA-256 (hex) of its bytes.
    pub sha256: String,
}

/// What was measured with some tensors exchanged, over one window after another.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The exchanged tensors; none: the original against itself.
    pub exchanged: Mixture,
    /// The index in [`MapHeader::windows`] of the first window.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from: usize,
    /// The sum of the KLDs of each window's tokens, in nats.
    pub klds: Vec<f64>,
    /// The tokens of each window that are counted: those with a finite KLD.
    pub n_tokens: Vec<u32>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// A whole map.
#[derive(Clone, Debug, PartialEq)]
pub struct SensitivityMap {
    /// The first line.
    pub header: MapHeader,
    /// The relative squared error of each tensor's weights at some types, `sum((w - q)^2) / sum(w^2)`,
    /// weighted by the importance matrix if there is one; by the tensor's name.
    pub errors: BTreeMap<String, BTreeMap<GgmlType, f64>>,
    /// The cells, those of the same exchanged tensors joined, each from the first window on.
    pub cells: Vec<Cell>,
}
