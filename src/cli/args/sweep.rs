//! The grid of `--sweep`: the types of the KV cache with which each model is run.

use clap::ValueEnum as _;

use crate::commands::subject::CacheTypes;
use crate::engine::CacheType;

/// One value of `--sweep`: the types of the keys, or of the values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweptTypes {
    axis: Axis,
    types: Vec<CacheType>,
}

/// The tensors of the cache that the types are for, named by the flag that sets one type.
#[derive(strum::Display, strum::EnumString, Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    #[strum(to_string = "ctk", serialize = "cache-type-k")]
    Keys,
    #[strum(to_string = "ctv", serialize = "cache-type-v")]
    Values,
}

/// Parses `ctk=` or `ctv=` and types with commas between them, each once.
pub fn swept_types(text: &str) -> Result<SweptTypes, String> {
    let (axis, types) = text.split_once('=').unwrap_or((text, ""));
    let axis = axis.trim_start_matches('-').parse::<Axis>();
    let (Ok(axis), false) = (axis, types.is_empty()) else {
        return Err("expected ctk=TYPES or ctv=TYPES, as in ctk=f16,q8_0".to_owned());
    };
    let mut all = Vec::new();
    for name in types.split(',') {
        let kind = CacheType::from_str(name, false).map_err(|_| {
            let known = CacheType::value_variants().iter();
            let known: Vec<String> = known.map(CacheType::to_string).collect();
            format!("'{name}' is not one of the types {}", known.join(", "))
        })?;
        if all.contains(&kind) {
            return Err(format!("names {kind} twice: name each type once"));
        }
        all.push(kind);
    }
    Ok(SweptTypes { axis, types: all })
}

/// The cells of the grid: each type of the keys with each of the values, in the order given. Empty
/// without a sweep.
///
/// # Errors
/// If the types of the keys, or of the values, are given twice.
pub fn cells(swept: &[SweptTypes]) -> Result<Vec<CacheTypes>, String> {
    let types_of = |axis| {
        let mut of_axis = swept.iter().filter(|swept| swept.axis == axis);
        let first = of_axis.next();
        match of_axis.next() {
            Some(_) => Err(format!(
                "--sweep: {axis} is given twice: give all its types at once, as in {axis}=f16,q8_0"
            )),
            None => Ok(first.map_or_else(|| vec![CacheType::default()], |of| of.types.clone())),
        }
    };
    let (keys, values) = (types_of(Axis::Keys)?, types_of(Axis::Values)?);
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
