//! The evaluated model or file, and with `--sweep` the types of its KV cache.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::engine::{CacheType, ContextOptions};

/// One evaluation of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The model, or the file of rows.
    pub path: PathBuf,
    /// The types of its KV cache, if it is a cell of a sweep.
    pub cell: Option<CacheTypes>,
}

impl Subject {
    /// The evaluation of a model or a file outside a sweep.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            cell: None,
        }
    }

    /// The evaluations of a model: one for each cell of the sweep, or one alone without a sweep.
    pub fn of_model(path: &Path, sweep: &[CacheTypes]) -> Vec<Self> {
        let cells = sweep.iter().map(|&cell| Self {
            path: path.to_owned(),
            cell: Some(cell),
        });
        match sweep {
            [] => vec![Self::new(path)],
            _ => cells.collect(),
        }
    }

    /// The options with the types of the cell, if there is one.
    pub fn with_cache_types(&self, options: ContextOptions) -> ContextOptions {
        match self.cell {
            Some(CacheTypes { k, v }) => ContextOptions {
                type_k: k,
                type_v: v,
                ..options
            },
            None => options,
        }
    }
}

/// The types of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheTypes {
    pub k: CacheType,
    pub v: CacheType,
}

/// The end of a cell's label, as in `k_q8_0-v_f16`.
impl fmt::Display for CacheTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k_{}-v_{}", self.k, self.v)
    }
}
