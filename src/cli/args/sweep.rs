//! The values of `--sweep`, and the evaluations that they ask for.

use crate::commands::settings::{CacheTypes, Sweep};
use crate::engine::CacheType;

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
        "ctk" | "cache-type-k" => return cache_types(names).map(SweptValues::Keys),
        "ctv" | "cache-type-v" => return cache_types(names).map(SweptValues::Values),
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

/// Parses types of the cache with commas between them, each of which may come once.
pub fn cache_types(names: &str) -> Result<Vec<CacheType>, String> {
    each(names, cache_type)
}

fn cache_type(name: &str) -> Result<CacheType, String> {
    name.parse().map_err(|_| {
        let known = Vec::from_iter(CacheType::ALL.iter().map(CacheType::to_string));
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

/// The grid of all values given: each type of the keys with each of the values, in the order given, for
/// either kind of weights. `is_dequantized`: the weights, where they are not swept.
///
/// # Errors
/// If an axis is given twice, or the weights are both swept and set.
pub fn grid(swept: &[SweptValues], is_dequantized: bool) -> Result<Sweep, String> {
    let (mut keys, mut values, mut weights) = (None, None, None);
    for of_axis in swept {
        let (axis, is_repeated) = match of_axis {
            SweptValues::Keys(types) => ("ctk", keys.replace(types.clone()).is_some()),
            SweptValues::Values(types) => ("ctv", values.replace(types.clone()).is_some()),
            SweptValues::Weights(kinds) => ("weights", weights.replace(kinds.clone()).is_some()),
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
    Ok(Sweep {
        weights: weights.unwrap_or_else(|| vec![is_dequantized]),
        caches,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sweep(words: &[&str]) -> Result<Sweep, String> {
        let swept = words.iter().map(|word| swept_values(word));
        grid(&swept.collect::<Result<Vec<_>, _>>()?, false)
    }

    fn suffixes(words: &[&str]) -> Result<Vec<String>, String> {
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
        assert_eq!(
            suffixes(&["ctk=f16,q4_0", "ctv=q8_0,f16"]).unwrap(),
            expected
        );
        assert_eq!(
            suffixes(&["--cache-type-v=q8_0,f16", "cache-type-k=f16,q4_0"]).unwrap(),
            expected
        );
        assert_eq!(suffixes(&["ctv=q5_1"]).unwrap(), ["k_f16-v_q5_1"]);
        assert_eq!(suffixes(&[]).unwrap(), [""]);
    }

    #[test]
    fn each_cache_meets_each_kind_of_weights() {
        assert_eq!(
            suffixes(&["weights=file,f16"]).unwrap(),
            ["", "dequantized"]
        );
        let expected = [
            "dequantized-k_f16-v_f16",
            "dequantized-k_q8_0-v_f16",
            "k_f16-v_f16",
            "k_q8_0-v_f16",
        ];
        assert_eq!(
            suffixes(&["weights=f16,file", "ctk=f16,q8_0"]).unwrap(),
            expected
        );
        let both = [swept_values("weights=file").unwrap()];
        let error = grid(&both, true).unwrap_err();
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
            let error = suffixes(words).unwrap_err();
            assert!(error.contains(what), "{words:?}: {error}");
        }
    }
}
