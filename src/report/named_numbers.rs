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
    collect(
        "",
        &serde_json::to_value(model).unwrap_or_default(),
        &mut numbers,
    );
    numbers
}

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
                        for (key, entry) in entries.iter().flat_map(names_of) {
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

/// The names by which an entry of a list goes, and what goes by each.
fn names_of(entry: &Value) -> Vec<(String, &Value)> {
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
    use std::time::Duration;

    use kl_formats::{ModelIdentity, Row, TokenRecord};

    use super::*;
    use crate::pipeline::Timing;
    use crate::report::comparison::{ComparedReference, InDepth};
    use crate::report::result::{ModelInfo, ModelReport, ModelResult, TimingInfo};
    use crate::report::tests::sample;
    use crate::score::{RowPair, logit_metrics};
    use crate::stats::{
        ClusterRule, Clusters, Confidence, LlamaPerplexity, LogitSummary, PairedComparison,
        PartNames, TokenTable, UntilInfo,
    };

    /// Records of more tokens than llama-perplexity needs, in two windows.
    fn made_up() -> Vec<TokenRecord> {
        let record = |window, position| TokenRecord {
            window,
            position,
            ref_top_rank: 1,
            eval_top_rank: 1,
            ref_top_p: 0.5,
            eval_top_p: 0.25,
            ref_unknown_p: 0.25,
            kld: 1.0,
            flags: TokenRecord::NEXT_IS_GREEDY,
            group: window,
            ..TokenRecord::default()
        };
        (0..240).map(|i| record(i / 120, i % 120)).collect()
    }

    /// A comparison of two models that has every number.
    fn pair() -> InDepth {
        let a = made_up();
        let nearer = |record: &TokenRecord| TokenRecord {
            kld: 0.5,
            ..*record
        };
        let b: Vec<TokenRecord> = a.iter().map(nearer).collect();
        let (confidence, rule) = (Confidence::default(), ClusterRule::default());
        let table = TokenTable::from_records(&a);
        let clusters = Clusters::by_rule(&table.windows(), rule);
        let paired = PairedComparison::in_depth(&a, &b, &[], &clusters, confidence, 0).unwrap();
        let statistics = table.summarise(&clusters, PartNames::default(), confidence);
        let summary = statistics.summary;
        let mut of = sample::comparison();
        of.models.truncate(2);
        for model in &mut of.models {
            model.result.summary = summary.clone();
            model.result.model = ModelInfo::default();
        }
        of.reference = ComparedReference::default();
        of.clusters = Some(clusters.clustering);
        InDepth::new(&of, [&of.models[0], &of.models[1]], paired, Vec::new())
    }

    /// A report that has every number.
    fn report() -> ModelReport {
        let mut identity = ModelIdentity::named("");
        (identity.name, identity.architecture) = (Some(String::new()), Some(String::new()));
        (identity.size_bytes, identity.n_params) = (Some(0), Some(0));
        identity.file_bytes = Some(0);
        let records = made_up();
        let (confidence, rule) = (Confidence::default(), ClusterRule::default());
        let table = TokenTable::from_records(&records);
        let clusters = Clusters::by_rule(&table.windows(), rule);
        let statistics = table.summarise(&clusters, PartNames::default(), confidence);
        let metrics = logit_metrics(&RowPair::new(Row::F32(&[0.0, 1.0]), &[0.0, 1.0], None));
        let result = ModelResult {
            label: String::new(),
            model: ModelInfo::new(Path::new(""), &identity),
            is_reference_model: false,
            is_noise_floor: false,
            n_vocab_compared: Some(1),
            until: Some(UntilInfo {
                target: 0.0,
                reached: true,
                relative_half_width: None,
                of: None,
            }),
            summary: statistics.summary,
            breakdown: statistics.breakdown,
        };
        ModelReport {
            max_at_text: Some(String::new()),
            sidecar: Some(String::new()),
            timing: Some(TimingInfo::new(&Timing::default(), Duration::ZERO, 0)),
            llama_perplexity: LlamaPerplexity::of_records(&records),
            logits: Some(LogitSummary::from_metrics(
                &table,
                &vec![metrics; records.len()],
                false,
                confidence,
                rule,
            )),
            result,
            ..ModelReport::default()
        }
    }

    /// Compares a list with the names of what has them all.
    fn assert_listed(list: &str, file: &str, has_all: &impl Serialize) {
        let names: Vec<String> = named_numbers(has_all).into_keys().collect();
        let names = names.join("\n") + "\n";
        if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report");
            std::fs::write(folder.join(file), &names).unwrap();
            return;
        }
        assert_eq!(list, names, "INSTA_UPDATE=always rewrites {file}");
    }

    #[test]
    fn the_names_of_conditions_are_those_of_results() {
        assert_listed(NAMES, "names.txt", &report());
        assert_listed(NAMES_OF_PAIR, "names_of_pair.txt", &pair());
    }
}
