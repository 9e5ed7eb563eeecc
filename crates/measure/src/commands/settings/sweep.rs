//! The subjects of an evaluation: a model or a file, and in a sweep each model with several types of its KV cache, and
//! with its weights as its file has them or dequantized.

use std::fmt;
use std::path::{Path, PathBuf};

use kl_engine::{CacheType, ContextOptions, ModelOptions};

/// What the label of an evaluation with dequantized weights has after the model's name.
const DEQUANTIZED: &str = "dequantized";

/// One evaluation of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The model, or the file of rows.
    pub path: PathBuf,
    /// True if the model runs with its weights dequantized.
    pub is_dequantized: bool,
    /// The types of its KV cache, if they are swept.
    pub cache: Option<CacheTypes>,
}

impl Subject {
    /// The evaluation of a model or a file outside a sweep.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            is_dequantized: false,
            cache: None,
        }
    }

    /// The options of its context: with the types of a swept cache.
    pub fn with_cache_types(&self, mut options: ContextOptions) -> ContextOptions {
        if let Some(CacheTypes { k, v }) = self.cache {
            (options.type_k, options.type_v) = (k, v);
        }
        options
    }

    /// The options of its model.
    pub fn with_weights(&self, options: &ModelOptions) -> ModelOptions {
        ModelOptions {
            is_dequantized: self.is_dequantized,
            ..options.clone()
        }
    }

    /// The end of its label, as in `dequantized-k_q8_0-v_f16`; `None` for the model as it is.
    pub fn suffix(&self) -> Option<String> {
        let weights = self.is_dequantized.then(|| DEQUANTIZED.to_owned());
        let parts = weights
            .into_iter()
            .chain(self.cache.map(|types| types.to_string()));
        Some(Vec::from_iter(parts).join("-")).filter(|suffix| !suffix.is_empty())
    }
}

/// The types of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheTypes {
    pub k: CacheType,
    pub v: CacheType,
}

/// As in `k_q8_0-v_f16`.
impl fmt::Display for CacheTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k_{}-v_{}", self.k, self.v)
    }
}

/// What each model of a run is evaluated with, every combination of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// Whether its weights are dequantized: once each.
    pub weights: Vec<bool>,
    /// The types of its KV cache, each pair once; empty: those of the run.
    pub caches: Vec<CacheTypes>,
}

impl Sweep {
    /// Each model once, with the types of the run. `is_dequantized`: whether its weights are dequantized.
    pub fn none(is_dequantized: bool) -> Self {
        Self {
            weights: vec![is_dequantized],
            caches: Vec::new(),
        }
    }

    /// The evaluations of a model, those with the same weights one after another.
    pub fn subjects(&self, path: &Path) -> Vec<Subject> {
        let caches: Vec<Option<CacheTypes>> = match &*self.caches {
            [] => vec![None],
            all => all.iter().copied().map(Some).collect(),
        };
        self.weights
            .iter()
            .flat_map(|&is_dequantized| {
                caches.iter().map(move |&cache| Subject {
                    path: path.to_owned(),
                    is_dequantized,
                    cache,
                })
            })
            .collect()
    }
}
