//! The settings of [`sensitivity()`](crate::sensitivity()), which measures a map, and of
//! [`recipe()`](crate::recipe()), which uses it.

use std::fmt;
use std::path::{Path, PathBuf};

use kl_formats::GgmlType;
use kl_measure::commands::output::Existing;
use kl_measure::commands::settings::RunSettings;
use kl_measure::input::Source;
use kl_measure::pipeline::Part;
use kl_stats::stats::{ClusterRule, Confidence};
use regex::Regex;

use crate::mathematics::Goal;

/// The settings for measuring a map.
#[derive(Debug)]
pub struct SensitivitySettings {
    /// The GGUF of the original: f16, bf16, f32 or q8_0.
    pub model: PathBuf,
    /// The text or the reference that the tensors are measured on.
    pub input: MapInput,
    /// The most scored tokens for a tensor, in whole windows that are drawn at random; `None`: 8 windows.
    pub max_tokens: Option<u64>,
    /// The map to write.
    pub output: PathBuf,
    /// The treatment of a map that is there.
    pub existing: Existing,
    /// The types that a recipe may use; empty: those that need no importance matrix, and with one those that do.
    pub types: Vec<GgmlType>,
    /// The type at which tensors are measured; `None`: q3_K. A tensor whose rows its blocks do not divide is
    /// measured at the nearest type that fits.
    pub measured_type: Option<GgmlType>,
    /// The importance matrix to quantize with.
    pub imatrix: Option<PathBuf>,
    /// The names of the tensors to measure; `None`: all. In a recipe, the others keep the original's type.
    pub tensors: Option<Regex>,
    /// The most tensors that are measured one by one from the start. Of more, groups are measured first.
    pub max_singles: usize,
    /// The seed by which windows are drawn.
    pub seed: u64,
    /// The part of the tensors to measure; `None`: all.
    pub part: Option<Part>,
    /// The confidence level of the intervals.
    pub confidence: Confidence,
    /// The way to run the original, which must be [exchangeable](kl_engine::ModelOptions::is_exchangeable).
    pub run: RunSettings,
}

/// The input that tensors are measured on.
#[derive(Debug)]
pub enum MapInput {
    /// A text, over which the original computes its own rows.
    Text(Source),
    /// A reference with exact rows, which the original has written. Windows are drawn from those that it holds.
    Reference(PathBuf),
}

impl MapInput {
    /// The files that are read; none for the text that comes with `kl`.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::Text(source) => source.files(),
            Self::Reference(path) => vec![path],
        }
    }
}

/// The path, as it was given.
impl fmt::Display for MapInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(source) => source.fmt(f),
            Self::Reference(path) => path.display().fmt(f),
        }
    }
}

/// The settings for choosing a recipe, and for measuring and writing it.
#[derive(Debug)]
pub struct RecipeSettings {
    /// The map to choose by.
    pub map: PathBuf,
    /// The goal that the recipe must reach.
    pub goal: RecipeGoal,
    /// The types to choose from; empty: those of the map.
    pub types: Vec<GgmlType>,
    /// The file to write for llama-quantize's `--tensor-type-file`.
    pub output: Option<PathBuf>,
    /// The quantized GGUF to write, which needs `model`.
    pub quantize: Option<PathBuf>,
    /// True if outputs that exist may be replaced.
    pub may_replace: bool,
    /// The confidence level of the intervals.
    pub confidence: Confidence,
    /// The GGUF of the original that the map was made of.
    pub model: Option<PathBuf>,
    /// The text to measure the recipe on, which needs `model`; it should not be the map's.
    pub text: Option<Source>,
    /// The most scored tokens of that text, in whole windows in a seeded random order; `None`: all.
    pub max_rows: Option<u64>,
    /// The rule by which tokens are put into clusters.
    pub clusters: ClusterRule,
    /// The importance matrix that the map was made with.
    pub imatrix: Option<PathBuf>,
    /// The way to run the original, which must be [exchangeable](kl_engine::ModelOptions::is_exchangeable).
    pub run: RunSettings,
}

/// The goal of a recipe: a number, or another model's size.
#[derive(Debug, Clone, PartialEq)]
pub enum RecipeGoal {
    /// A size, or a KLD.
    Number(Goal),
    /// A GGUF whose size the file must not exceed. With a text, it is measured on the same tokens as the recipe.
    Like(PathBuf),
}

impl RecipeGoal {
    /// The model whose size is the goal.
    pub fn like(&self) -> Option<&Path> {
        match self {
            Self::Number(_) => None,
            Self::Like(path) => Some(path),
        }
    }
}
