//! What is evaluated: a model or a file, and with `--sweep` the types of the KV cache beside it.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::settings::RunSettings;
use crate::engine::{CacheType, FlashAttention};

/// One evaluation of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The model, or the file of rows.
    pub path: PathBuf,
    /// The types of its KV cache, if it is a cell of a sweep.
    pub cell: Option<CacheTypes>,
}

impl Subject {
    /// The evaluation of a model or a file that is no cell of a sweep.
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

/// Refuses quantized values in a KV cache without flash attention, which llama.cpp would refuse once the
/// model is loaded. `precedent`: the flash attention of the reference, where it is recorded.
///
/// # Errors
/// If the run, or a cell of the sweep, wants both.
pub fn check_caches(
    run: &RunSettings,
    sweep: &[CacheTypes],
    precedent: Option<FlashAttention>,
) -> Result<()> {
    if run.flash_attn.or(precedent) != Some(FlashAttention::Off) {
        return Ok(());
    }
    let swept = sweep.iter().map(|cell| ("--sweep ctv=", cell.v));
    let mut all = swept.chain([("--cache-type-v ", run.type_v)]);
    let Some((flag, kind)) = all.find(|(_, kind)| kind.is_quantized()) else {
        return Ok(());
    };
    let off = match run.flash_attn {
        Some(_) => "and --flash-attn is off",
        None => "and the reference was written without it",
    };
    bail!(
        "{flag}{kind}: llama.cpp quantizes cached values with flash attention only, {off}: use \
         --flash-attn on or auto, or {flag}f16"
    )
}
