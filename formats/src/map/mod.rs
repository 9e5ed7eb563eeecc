//! Maps of sensitivity: the KLD that each tensor's quantization costs, as JSON lines. The layout is
//! specified in `MAP.md`, beside this crate's manifest.
//!
//! The first line is the header. Each line after it states what was measured with some tensors
//! exchanged, or the weight errors of one tensor; so a map is resumed after its last whole line.
//! [`verify()`] reads all of it to check that it is whole.

mod file;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::about::ReferenceSummary;
pub use crate::kinds::MAP as MAGIC;
use crate::numbers::GgmlType;
use crate::provenance::{OwnHeader, Provenance, deref_to_provenance};
use crate::window::{size_fault, twice};
pub use file::{CutOffMap, MapWriter, verify};

/// Most bytes that a line may have.
pub const MAX_LINE_BYTES: usize = 64 << 20;

/// The types that some of a model's tensors are given, by the tensors' names.
pub type Mixture = BTreeMap<String, GgmlType>;

/// The measurements with some tensors exchanged, over one window after another.
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

/// The version of the map that this crate writes and reads.
pub const MAP_VERSION: u32 = 1;

/// Most parameters of a model, and most bytes before its tensors: sums of sizes stay far below 2^64.
const MAX_SIZE: u64 = 1 << 50;

/// Dimensions of a tensor, at most (`GGML_MAX_DIMS`).
const MAX_DIMS: usize = 4;

/// The first line of a map: what was measured, and what a recipe needs to know of the model.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct MapHeader {
    /// [`MAP_VERSION`], the first key.
    pub kl_map: u32,
    /// The original model, the text and the set-up. With a `shard`, the file holds some of the cells,
    /// over all windows: `n_windows` and `n_rows` of the shard are those of [`Self::windows`].
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

/// A tensor of a model's file, as llama.cpp's quantizer treats it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MapTensor {
    /// Its name.
    pub name: String,
    /// Elements in each dimension, the innermost first.
    pub shape: Vec<u64>,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// True if the quantizer may give it another type: not norms, vectors and the like, nor what is
    /// quantized already, except for q8_0.
    pub is_quantizable: bool,
    /// The reason why a tensor that the quantizer may change cannot be measured, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<Unmeasured>,
}

/// The reason why a tensor that the quantizer may change cannot be measured.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Unmeasured {
    /// Decoding does not use it, as the layers that predict further tokens (MTP).
    Unused,
    /// Decoding uses it in an operation for which ggml may lack kernels for quantized weights.
    OtherOperation,
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

impl MapHeader {
    /// The header of the whole that this file is a part of; of a whole file, its own.
    #[must_use]
    pub fn of_whole(&self) -> Self {
        let mut whole = self.clone();
        whole.shard = None;
        whole
    }

    /// The tensors that the quantizer may change but that cannot be measured, each with the reason. Maps of
    /// earlier versions state no reason: there it is those of the layers that predict further tokens (MTP).
    pub fn unmeasured(&self) -> impl Iterator<Item = (&MapTensor, Unmeasured)> {
        let layer = |name: &str| Some(name.strip_prefix("blk.")?.split_once('.')?.0.to_owned());
        let names = self.tensors.iter().map(|tensor| &*tensor.name);
        let of_further_tokens = names.filter(|name| name.contains(".nextn."));
        let layers: BTreeSet<String> = of_further_tokens.filter_map(layer).collect();
        let quantizable = self.tensors.iter().filter(|tensor| tensor.is_quantizable);
        quantizable.filter_map(move |tensor| {
            let is_further = layer(&tensor.name).is_some_and(|layer| layers.contains(&layer));
            let by_name = is_further.then_some(Unmeasured::Unused);
            Some((tensor, tensor.unmeasured.or(by_name)?))
        })
    }
}

impl OwnHeader for MapHeader {
    const MAGIC: &'static str = "";
    const VERSION: (&'static str, RangeInclusive<u32>) = ("kl_map", 1..=MAP_VERSION);
    const MOST_BYTES: usize = MAX_LINE_BYTES;

    fn fault(&self) -> Option<String> {
        let (n_ctx, alignment, metadata_bytes) = (self.n_ctx, self.alignment, self.metadata_bytes);
        let mut types = self.types.iter().chain([&self.measured_type]);
        let sizes = self.tensors.iter().map(MapTensor::n_params);
        let n_params = sizes.fold(0, u64::saturating_add);
        let is_aligned = alignment.is_power_of_two() && alignment <= MAX_SIZE;
        let version = Some(self.kl_map).filter(|version| *version != MAP_VERSION);
        let long = self.windows.iter().find(|of| of.n_rows > n_ctx);
        let impossible = self.tensors.iter().find(|tensor| !tensor.is_possible());
        let faults = [
            size_fault(n_ctx, self.n_vocab),
            self.shard.and_then(|shard| shard.fault(None)),
            version.map(|version| format!("kl_map {version}, not {MAP_VERSION}")),
            self.windows.is_empty().then(|| "no windows".to_owned()),
            twice(self.windows.iter().map(|of| of.window))
                .map(|window| format!("window {window} is listed twice")),
            long.map(|MapWindow { window, n_rows }| {
                format!("window {window} of {n_rows} rows, n_ctx is {n_ctx}")
            }),
            types
                .find(|kind| !kind.is_for_weights)
                .map(|other| format!("{other} is not a type of weights")),
            twice(&self.types).map(|kind| format!("type {kind} is listed twice")),
            (!is_aligned).then(|| format!("an alignment of {alignment} bytes")),
            (metadata_bytes > MAX_SIZE)
                .then(|| format!("{metadata_bytes} bytes before the tensors")),
            twice(self.tensors.iter().map(|tensor| &tensor.name))
                .map(|name| format!("tensor {name:?} is listed twice")),
            impossible.map(
                |MapTensor {
                     name, shape, kind, ..
                 }| {
                    format!("tensor {name:?} of shape {shape:?} and type {kind}")
                },
            ),
            (n_params > MAX_SIZE).then(|| format!("{n_params} parameters")),
        ];
        faults.into_iter().flatten().next()
    }
}

impl MapTensor {
    /// Its elements.
    pub fn n_params(&self) -> u64 {
        self.shape.iter().fold(1, |n, of| n.saturating_mul(*of))
    }

    fn is_possible(&self) -> bool {
        let has_dims = (1..=MAX_DIMS).contains(&self.shape.len());
        has_dims && self.n_params() > 0 && self.has_rows_of(self.kind)
    }

    /// True if its rows are whole blocks of this type.
    pub fn has_rows_of(&self, kind: GgmlType) -> bool {
        let row = self.shape.first();
        row.is_some_and(|n| n.is_multiple_of(kind.block))
    }
}
