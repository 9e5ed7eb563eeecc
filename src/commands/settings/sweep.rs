//! The subjects of an evaluation: a model or a file, and with `--sweep` each model with several types
//! of its KV cache.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;

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
        if sweep.is_empty() {
            return vec![Self::new(path)];
        }
        let of_cell = |&cell| Self {
            cell: Some(cell),
            ..Self::new(path)
        };
        sweep.iter().map(of_cell).collect()
    }

    /// The options with the types of the cell, if there is one.
    pub fn with_cache_types(&self, mut options: ContextOptions) -> ContextOptions {
        if let Some(CacheTypes { k, v }) = self.cell {
            (options.type_k, options.type_v) = (k, v);
        }
        options
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

/// One value of `--sweep`: the types of the keys or of the values, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweptTypes {
    /// `ctk` or `ctv`.
    axis: &'static str,
    types: Vec<CacheType>,
}

/// Parses `ctk=` or `ctv=` and types with commas between them.
pub fn swept_types(text: &str) -> Result<SweptTypes, String> {
    let (flag, names) = text.split_once('=').unwrap_or((text, ""));
    let axis = match flag.trim_start_matches('-') {
        "ctk" | "cache-type-k" if !names.is_empty() => "ctk",
        "ctv" | "cache-type-v" if !names.is_empty() => "ctv",
        _ => return Err("expected ctk=TYPES or ctv=TYPES, as in ctk=f16,q8_0".to_owned()),
    };
    let mut types = Vec::new();
    for name in names.split(',') {
        let kind = CacheType::from_str(name, false).map_err(|_| {
            let all = CacheType::value_variants().iter();
            let known: Vec<String> = all.map(CacheType::to_string).collect();
            format!("'{name}' is not one of the types {}", known.join(", "))
        })?;
        if types.contains(&kind) {
            return Err(format!("names {kind} twice: name each type once"));
        }
        types.push(kind);
    }
    Ok(SweptTypes { axis, types })
}

/// The cells of the grid: each type of the keys with each of the values, in the order given. Empty
/// without a sweep.
///
/// # Errors
/// If the types of the keys, or of the values, are given twice.
pub fn cells(swept: &[SweptTypes]) -> Result<Vec<CacheTypes>, String> {
    let types_of = |axis: &str| match *Vec::from_iter(swept.iter().filter(|of| of.axis == axis)) {
        [] => Ok(vec![CacheType::default()]),
        [only] => Ok(only.types.clone()),
        _ => Err(format!(
            "--sweep: {axis} is given twice: give all its types at once, as in {axis}=f16,q8_0"
        )),
    };
    let (keys, values) = (types_of("ctk")?, types_of("ctv")?);
    if swept.is_empty() {
        return Ok(Vec::new());
    }
    let with_values = |&k| values.iter().map(move |&v| CacheTypes { k, v });
    Ok(keys.iter().flat_map(with_values).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(words: &[&str]) -> Result<Vec<String>, String> {
        let swept = words.iter().map(|word| swept_types(word));
        let swept = swept.collect::<Result<Vec<_>, _>>()?;
        Ok(cells(&swept)?.iter().map(CacheTypes::to_string).collect())
    }

    #[test]
    fn each_type_of_keys_meets_each_of_values() {
        let expected = [
            "k_f16-v_q8_0",
            "k_f16-v_f16",
            "k_q4_0-v_q8_0",
            "k_q4_0-v_f16",
        ];
        assert_eq!(grid(&["ctk=f16,q4_0", "ctv=q8_0,f16"]).unwrap(), expected);
        assert_eq!(
            grid(&["--cache-type-v=q8_0,f16", "cache-type-k=f16,q4_0"]).unwrap(),
            expected
        );
        assert_eq!(grid(&["ctv=q5_1"]).unwrap(), ["k_f16-v_q5_1"]);
        assert!(grid(&[]).unwrap().is_empty());
    }

    #[test]
    fn other_words_are_refused() {
        for (words, what) in [
            (&["f16,q8_0"][..], "expected ctk=TYPES"),
            (&["ctk="], "expected ctk=TYPES"),
            (&["ctk"], "expected ctk=TYPES"),
            (&["ngl=1,2"], "expected ctk=TYPES"),
            (
                &["ctk=f16,q9_0"],
                "'q9_0' is not one of the types f16, f32,",
            ),
            (&["ctk=f16,"], "'' is not one of the types"),
            (&["ctk=q8_0,f16,q8_0"], "names q8_0 twice"),
            (&["ctk=f16", "ctk=q8_0"], "ctk is given twice"),
        ] {
            let error = grid(words).unwrap_err();
            assert!(error.contains(what), "{words:?}: {error}");
        }
    }
}
