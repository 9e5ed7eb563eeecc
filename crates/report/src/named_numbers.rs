//! A model's numbers by name: the dotted paths in its JSON object.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::number::short_percent;

/// The names of all numbers that a model's report can have, one a line: `INSTA_UPDATE=always` rewrites
/// them.
pub const NAMES: &str = include_str!("names.txt");

/// The names of all numbers that a comparison of two models can have.
pub const NAMES_OF_PAIR: &str = include_str!("names_of_pair.txt");

/// Numbers by name; `None` where the JSON has null.
///
/// An object with a `value` also goes by its own name: `kld.mean` is `kld.mean.value`. A quantile
/// is `q` and its percentage, as in `kld.q99.9`; the 50 % quantile is also `median`. The tokens
/// accepted of 8 drafted are `acceptance.drafted8`.
pub type NamedNumbers = BTreeMap<String, Option<f64>>;

/// Names every number of a model's JSON object.
pub fn named_numbers(model: &impl Serialize) -> NamedNumbers {
    let mut numbers = NamedNumbers::new();
    // Without JSON there are no numbers, and every condition fails.
    let json = serde_json::to_value(model).unwrap_or_default();
    collect("", &json, &mut numbers);
    numbers
}

/// Adds the numbers of a value that goes by `name`.
fn collect(name: &str, value: &Value, numbers: &mut NamedNumbers) {
    match value {
        Value::Null | Value::Number(_) => {
            numbers.insert(name.to_owned(), value.as_f64());
        }
        Value::Object(fields) => {
            let join = |key: &str| format!("{name}.{key}").trim_start_matches('.').to_owned();
            for (key, field) in fields {
                match (key.as_str(), field) {
                    ("quantiles" | "drafted", Value::Array(entries)) => {
                        for (key, entry) in entries.iter().flat_map(named_values) {
                            collect(&join(&key), entry, numbers);
                        }
                    }
                    ("value", _) => {
                        numbers.insert(name.to_owned(), field.as_f64());
                        numbers.insert(join(key), field.as_f64());
                    }
                    _ => collect(&join(key), field, numbers),
                }
            }
        }
        Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
    }
}

/// The names by which an entry of a list goes, each with the value that it names.
fn named_values(entry: &Value) -> Vec<(String, &Value)> {
    let p = entry.get("p").and_then(Value::as_f64);
    let quantile = p.map(|p| (format!("q{}", short_percent(p)), entry));
    let median = (p == Some(0.5)).then(|| ("median".to_owned(), entry));
    let n = entry.get("n_drafted").and_then(Value::as_u64);
    let accepted = n.zip(entry.get("accepted"));
    let drafted = accepted.map(|(n, accepted)| (format!("drafted{n}"), accepted));
    quantile.into_iter().chain(median).chain(drafted).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kl_stats::stats::UntilInfo;

    use super::*;
    use crate::testing::{made_up, sample};

    /// Compares a list with the names of what has them all.
    fn assert_listed(list: &str, file: &str, has_all: &impl Serialize) {
        let names: Vec<String> = named_numbers(has_all).into_keys().collect();
        let names = names.join("\n") + "\n";
        if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
            std::fs::write(folder.join(file), &names).unwrap();
            return;
        }
        assert_eq!(list, names, "INSTA_UPDATE=always rewrites {file}");
    }

    #[test]
    fn the_names_of_conditions_are_those_of_results() {
        let mut records = made_up::records(3, 80);
        for record in &mut records {
            record.ref_unknown_p = 0.25;
        }
        let mut report = made_up::full("q4.gguf", &records);
        report.result.summary.identical_output = Some(sample::identical(40.0));
        report.result.until = Some(UntilInfo {
            target: 0.05,
            reached: false,
            relative_half_width: None,
            of: None,
        });
        assert_listed(NAMES, "names.txt", &report);
        let [a, b] = [0.5, 0.52].map(sample::records);
        let pair = sample::in_depth(&sample::comparison(), [&a, &b]).unwrap();
        assert_listed(NAMES_OF_PAIR, "names_of_pair.txt", &pair);
    }
}
