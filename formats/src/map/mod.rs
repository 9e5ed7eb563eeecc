//! Maps of sensitivity: the KLD that each tensor's quantization costs, as JSON lines. The layout is
//! specified in `MAP.md`, beside this crate's manifest.
//!
//! The first line is the header. Each line after it states what was measured with some tensors
//! exchanged, or the weight errors of one tensor; so a map is resumed after its last whole line.
//! [`verify()`] reads all of it to check that it is whole.

mod builder;
mod header;
mod reader;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::GgmlType;
pub use header::{ImatrixIdentity, MAP_VERSION, MapHeader, MapTensor, MapWindow};
pub use reader::{CutOffMap, verify};
pub use writer::MapWriter;

/// The bytes that a map starts with.
pub const MAGIC: &str = "{\"kl_map\":";

/// Most bytes that a line may have.
pub const MAX_LINE_BYTES: usize = 64 << 20;

/// The types that some of a model's tensors are given, by the tensors' names.
pub type Mixture = BTreeMap<String, GgmlType>;

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

/// A map's lines, those of one cell joined.
#[derive(Clone, Debug, PartialEq)]
pub struct SensitivityMap {
    /// The first line.
    pub header: MapHeader,
    /// The relative squared error of each tensor's weights at some types, `sum((w - q)^2) / sum(w^2)`,
    /// weighted by the importance matrix if there is one; by the tensor's name.
    pub errors: BTreeMap<String, BTreeMap<GgmlType, f64>>,
    /// The cells, those of the same exchanged tensors joined, each from the first window on.
    pub cells: Vec<Cell>,
    /// True if the end line is missing: the map was not finished, or the file was cut off. What is
    /// here was measured all the same.
    pub is_cut_off: bool,
}

/// The weight errors of a tensor, as a line states them.
#[derive(Serialize, Deserialize)]
struct ErrorsLine {
    tensor: String,
    errors: BTreeMap<GgmlType, f64>,
}

/// The last line of a map that is whole.
#[derive(Serialize, Deserialize, Clone, Copy)]
struct EndLine {
    /// Lines before it, the header among them.
    n_lines: u64,
    /// CRC-32 of all bytes before it.
    crc32: u32,
}
