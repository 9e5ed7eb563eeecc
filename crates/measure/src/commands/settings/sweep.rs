//! The subjects of an evaluation: a model or a file, and with `--sweep` each model with several types
//! of its KV cache, and with its weights as its file has them or dequantized.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;

use kl_engine::{CacheType, ContextOptions, ModelOptions};

/// The end of the label of an evaluation with dequantized weights.
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
            .chain(self.cache.map(|of| of.to_string()));
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
    weights: Vec<bool>,
    /// The types of its KV cache, each pair once; empty: those of the run.
    pub caches: Vec<CacheTypes>,
}

impl Sweep {
    /// Each model once, as the run's flags are. `is_dequantized`: the flag of its weights.
    pub fn none(is_dequantized: bool) -> Self {
        Self {
            weights: vec![is_dequantized],
            caches: Vec::new(),
        }
    }

    /// The grid of all values given: each type of the keys with each of the values, in the order given, for
    /// either kind of weights. `is_dequantized`: the weights, where they are not swept.
    ///
    /// # Errors
    /// If an axis is given twice, or the weights are both swept and set.
    pub fn new(swept: &[SweptValues], is_dequantized: bool) -> Result<Self, String> {
        let (mut keys, mut values, mut weights) = (None, None, None);
        for of_axis in swept {
            let (axis, is_repeated) = match of_axis {
                SweptValues::Keys(types) => ("ctk", keys.replace(types.clone()).is_some()),
                SweptValues::Values(types) => ("ctv", values.replace(types.clone()).is_some()),
                SweptValues::Weights(kinds) => {
                    ("weights", weights.replace(kinds.clone()).is_some())
                }
            };
            if is_repeated {
                let all = if axis == "weights" {
                    "file,f16"
                } else {
                    "f16,q8_0"
                };
                return Err(format!(
                    "--sweep: {axis} is given twice: give all its values at once, as in {axis}={all}"
                ));
            }
        }
        if weights.is_some() && is_dequantized {
            return Err("--sweep weights=: --dequantize sets them: leave it out".to_owned());
        }
        let mut caches = Vec::new();
        if keys.is_some() || values.is_some() {
            let plain = || vec![CacheType::default()];
            let (keys, values) = (keys.unwrap_or_else(plain), values.unwrap_or_else(plain));
            let with_values = |&k| values.iter().map(move |&v| CacheTypes { k, v });
            caches = keys.iter().flat_map(with_values).collect();
        }
        Ok(Self {
            weights: weights.unwrap_or_else(|| vec![is_dequantized]),
            caches,
        })
    }

    /// The evaluations of a model, those with the same weights one after another.
    pub fn subjects(&self, path: &Path) -> Vec<Subject> {
        let caches: Vec<Option<CacheTypes>> = match &*self.caches {
            [] => vec![None],
            all => all.iter().copied().map(Some).collect(),
        };
        let of_weights = |&is_dequantized| {
            caches.iter().map(move |&cache| Subject {
                path: path.to_owned(),
                is_dequantized,
                cache,
            })
        };
        self.weights.iter().flat_map(of_weights).collect()
    }
}

/// One value of `--sweep`: the values of an axis, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweptValues {
    /// The types of the keys.
    Keys(Vec<CacheType>),
    /// The types of the values.
    Values(Vec<CacheType>),
    /// Whether weights are dequantized.
    Weights(Vec<bool>),
}

/// Parses `ctk=` or `ctv=` and types, or `weights=` and kinds, with commas between them.
pub fn swept_values(text: &str) -> Result<SweptValues, String> {
    let (axis, names) = text.split_once('=').unwrap_or((text, ""));
    match axis.trim_start_matches('-') {
        _ if names.is_empty() => {}
        "ctk" | "cache-type-k" => return each(names, cache_type).map(SweptValues::Keys),
        "ctv" | "cache-type-v" => return each(names, cache_type).map(SweptValues::Values),
        "weights" => return each(names, weights).map(SweptValues::Weights),
        _ => {}
    }
    Err("expected ctk=TYPES, ctv=TYPES or weights=file,f16, as in ctk=f16,q8_0".to_owned())
}

/// Parses values with commas between them, each of which may come once.
fn each<T: PartialEq>(names: &str, parse: fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let mut values = Vec::new();
    for name in names.split(',') {
        let value = parse(name)?;
        if values.contains(&value) {
            return Err(format!("names {name} twice: name each once"));
        }
        values.push(value);
    }
    Ok(values)
}

fn cache_type(name: &str) -> Result<CacheType, String> {
    CacheType::from_str(name, false).map_err(|_| {
        let all = CacheType::value_variants().iter();
        let known: Vec<String> = all.map(CacheType::to_string).collect();
        format!("'{name}' is not one of the types {}", known.join(", "))
    })
}

fn weights(name: &str) -> Result<bool, String> {
    match name {
        "file" => Ok(false),
        "f16" => Ok(true),
        _ => Err(format!(
            "'{name}' is not one of the weights file, as they are, and f16, dequantized"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(words: &[&str]) -> Result<Sweep, String> {
        let swept = words.iter().map(|word| swept_values(word));
        Sweep::new(&swept.collect::<Result<Vec<_>, _>>()?, false)
    }

    fn grid(words: &[&str]) -> Result<Vec<String>, String> {
        let subjects = sweep(words)?.subjects(Path::new("q4.gguf"));
        let suffixes = subjects.iter().map(|of| of.suffix().unwrap_or_default());
        Ok(suffixes.collect())
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
        assert_eq!(grid(&[]).unwrap(), [""]);
    }

    #[test]
    fn each_cache_meets_each_kind_of_weights() {
        assert_eq!(grid(&["weights=file,f16"]).unwrap(), ["", "dequantized"]);
        let expected = [
            "dequantized-k_f16-v_f16",
            "dequantized-k_q8_0-v_f16",
            "k_f16-v_f16",
            "k_q8_0-v_f16",
        ];
        assert_eq!(
            grid(&["weights=f16,file", "ctk=f16,q8_0"]).unwrap(),
            expected
        );
        let both = [swept_values("weights=file").unwrap()];
        let error = Sweep::new(&both, true).unwrap_err();
        assert!(error.contains("--dequantize sets them"), "{error}");
        let subjects = Sweep::none(true).subjects(Path::new("q4.gguf"));
        assert!(matches!(&*subjects, [only] if only.is_dequantized && only.cache.is_none()));
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
            (&["weights=bf16"], "'bf16' is not one of the weights file"),
            (&["weights=f16,f16"], "names f16 twice"),
        ] {
            let error = grid(words).unwrap_err();
            assert!(error.contains(what), "{words:?}: {error}");
        }
    }
}
