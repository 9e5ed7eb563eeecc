//! Keys of a model's file that llama-server obeys when it samples answers, and `kl` does not.

use std::fmt::Write as _;

use kl_engine::ModelFacts;
use kl_report::Warning;
use kl_report::number::printable;

use crate::input::Source;

/// A key of `general.sampling` that `kl` has a flag for.
struct Flag {
    key: &'static str,
    flag: &'static str,
    /// The value with which it changes nothing: `kl`'s own default.
    neutral: f64,
    is_set: bool,
}

/// Keys of samplers that `kl` does not have, with the value at which each is off. What only matters where
/// another one is on is not among them.
const WITHOUT_FLAG: [(&str, f64); 3] = [
    ("xtc_probability", 0.0),
    ("penalty_repeat", 1.0),
    ("mirostat", 0.0),
];

/// The warning that answers are not sampled as the file asks for. A flag that the user gives counts more than
/// the file, in llama-server too.
pub fn of_sampling(source: &Source, facts: &ModelFacts) -> Option<Warning> {
    source.generate?;
    let value_of = |key: &str| facts.sampling.get(key);
    let number = |key: &str| value_of(key).and_then(|value| value.parse::<f64>().ok());
    let is_greedy = match source.temp {
        Some(temp) => temp <= 0.0,
        None => number("temp").is_some_and(|temp| temp <= 0.0),
    };
    let flag = |key, flag, neutral, is_set| Flag {
        key,
        flag,
        neutral,
        is_set,
    };
    let mut flags = vec![flag("temp", "--temp", 0.0, source.temp.is_some())];
    if !is_greedy {
        flags.extend([
            flag("top_k", "--top-k", 0.0, source.top_k.is_some()),
            flag("top_p", "--top-p", 1.0, source.top_p.is_some()),
            flag("min_p", "--min-p", 0.0, source.min_p.is_some()),
        ]);
    }
    let differs = |key: &str, neutral: f64| {
        value_of(key).is_some() && number(key).is_none_or(|value| value != neutral)
    };
    let (mut ignored, mut flags_to_use, mut without_flag) = (Vec::new(), String::new(), Vec::new());
    for Flag { key, flag, .. } in flags
        .iter()
        .filter(|flag| !flag.is_set && differs(flag.key, flag.neutral))
    {
        let value = printable(value_of(key).map_or("", String::as_str));
        ignored.push(format!("{key} {value}"));
        let _ = write!(flags_to_use, " {flag} {value}");
    }
    for (key, neutral) in WITHOUT_FLAG {
        let is_used = key == "penalty_repeat" || !is_greedy;
        if is_used && differs(key, neutral) {
            let value = printable(value_of(key).map_or("", String::as_str));
            ignored.push(format!("{key} {value}"));
            without_flag.push(key);
        }
    }
    if let Some(sequence) = value_of("sequence") {
        ignored.push(format!("sequence {}", printable(sequence)));
        without_flag.push("sequence");
    }
    if ignored.is_empty() {
        return None;
    }
    let mut remedies = Vec::new();
    if !flags_to_use.is_empty() {
        remedies.push(format!("to obey the file, use{flags_to_use}"));
    }
    if !without_flag.is_empty() {
        remedies.push(format!("kl has no {}", without_flag.join(", no ")));
    }
    let message = format!(
        "{}: its file asks for sampling that llama-server obeys and kl does not ({}, in general.sampling): {}",
        facts.path.display(),
        ignored.join(", "),
        remedies.join("; ")
    );
    Some(Warning::new("sampling_ignored", message))
}

#[cfg(test)]
mod tests {
    use kl_engine::{Engine as _, FakeEngine, ModelOptions};

    use super::*;

    fn facts(sampling: &[(&str, &str)]) -> ModelFacts {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, "model").unwrap();
        let engine = FakeEngine::default();
        let model = engine.load(&path, &ModelOptions::default());
        let mut facts = model.unwrap().facts().clone();
        facts.path = "m.gguf".into();
        let pairs = sampling.iter();
        facts.sampling = pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        facts
    }

    /// The warning for answers that are generated at this temperature, with this `--top-k`.
    fn message(temp: Option<f32>, top_k: Option<u32>, sampling: &[(&str, &str)]) -> String {
        let source = Source {
            prompts: Some("p".into()),
            generate: Some(8),
            temp,
            top_k,
            ..Source::default()
        };
        let warning = of_sampling(&source, &facts(sampling));
        warning.map_or_else(String::new, |of| of.to_string())
    }

    #[test]
    fn sampling_that_the_file_asks_for_and_no_flag_sets_is_named() {
        let value_of = [
            ("temp", "0.6"),
            ("top_k", "20"),
            ("top_p", "1"),
            ("min_p", "0"),
        ];
        assert_eq!(
            message(None, None, &value_of),
            "m.gguf: its file asks for sampling that llama-server obeys and kl does not (temp 0.6, top_k 20, in general.sampling): to obey the file, use --temp 0.6 --top-k 20"
        );
        assert_eq!(message(Some(0.6), Some(20), &value_of), "");
        assert!(message(Some(1.0), None, &value_of).ends_with("use --top-k 20"));
        // Greedy in both.
        assert_eq!(message(None, None, &[("temp", "0"), ("top_k", "20")]), "");
        assert_eq!(message(Some(0.0), None, &value_of), "");
        assert_eq!(message(None, None, &[]), "");
    }

    #[test]
    fn samplers_that_kl_does_not_have_are_named() {
        let value_of = [("penalty_repeat", "1.05"), ("xtc_probability", "0.5")];
        let found = message(Some(0.0), None, &value_of);
        let end = "(penalty_repeat 1.05, in general.sampling): kl has no penalty_repeat";
        assert!(found.ends_with(end), "{found}");
        let value_of = [("sequence", "kt"), ("mirostat", "2"), ("temp", "1")];
        let found = message(Some(1.0), None, &value_of);
        let end = "(mirostat 2, sequence kt, in general.sampling): kl has no mirostat, no sequence";
        assert!(found.ends_with(end), "{found}");
    }
}
