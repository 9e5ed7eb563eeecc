//! A comparison as the beginning of a Hugging Face model card: `model-index` metadata, and a table.

use std::fmt::Write as _;

use super::{ComparedModel, Comparison};

/// The name of a text that the reference does not record.
const UNNAMED_TEXT: &str = "text of the reference";

impl Comparison {
    /// A model card: front matter with a `model-index`, and the table of models.
    ///
    /// The index has one entry, named after the reference's model, and a result for each model, whose
    /// metrics are named after its label. `huggingface_hub` reads an index of several entries
    /// without an error, but keeps only the last one's name for the metrics of all; and where it
    /// writes a card again, it joins results of the same task and data set. Names of metrics survive
    /// both. A metric without a value would not, and is left out; so is what is not ranked.
    ///
    /// Source: `model_index_to_eval_results` and `eval_results_to_model_index` in
    /// `huggingface_hub/repocard_data.py`, version 2.4.0.
    #[must_use]
    pub fn model_card(&self) -> String {
        let results: Vec<(&ComparedModel, Vec<Metric>)> = self
            .models
            .iter()
            .filter(|model| model.is_candidate())
            .map(|model| (model, metrics(model)))
            .filter(|(_, metrics)| !metrics.is_empty())
            .collect();
        let mut out = String::new();
        if !results.is_empty() {
            let _ = writeln!(out, "---\nmodel-index:");
            let _ = writeln!(
                out,
                "- name: {}\n  results:",
                quoted(self.reference.model_name().unwrap_or("model"))
            );
            for (model, metrics) in &results {
                self.result(&mut out, model, metrics);
            }
            out.push_str("---\n\n");
        }
        self.markdown_models(&mut out);
        out
    }

    fn result(&self, out: &mut String, model: &ComparedModel, metrics: &[Metric]) {
        let text = self.reference.text.as_ref();
        let name = text.and_then(|text| text.name.as_deref());
        let name = name.filter(|name| !name.trim().is_empty() && *name != "-");
        let name = quoted(name.unwrap_or(UNNAMED_TEXT));
        out.push_str("  - task:\n      type: text-generation\n    dataset:\n      type: text\n");
        let _ = writeln!(out, "      name: {name}");
        if let Some(sha256) = text.and_then(|text| text.sha256.as_deref()) {
            let _ = writeln!(out, "      args:\n        sha256: {}", quoted(sha256));
        }
        out.push_str("    metrics:\n");
        for metric in metrics {
            let name = quoted(&format!("{}, {}", metric.name, model.label));
            let _ = writeln!(out, "    - type: {}\n      name: {name}", metric.kind);
            let _ = writeln!(out, "      value: {}", number(metric.value));
        }
    }
}

/// A number of a model's.
struct Metric {
    kind: &'static str,
    name: &'static str,
    value: f64,
}

/// The numbers that a model has.
fn metrics(model: &ComparedModel) -> Vec<Metric> {
    let mean = model.mean_kld().map(|mean| mean.estimate.value);
    let quantile = model.quantile(0.99).map(|quantile| quantile.estimate.value);
    let all = [
        ("kl_divergence", "Mean KL divergence (nats)", mean),
        (
            "kl_divergence",
            "99 % quantile of the KL divergence (nats)",
            quantile,
        ),
        ("top_token_agreement", "Same top token", model.same_top()),
        ("perplexity_ratio", "Perplexity ratio", model.ppl_ratio()),
    ];
    all.into_iter()
        .filter_map(|(kind, name, value)| {
            let value = value.filter(|value| value.is_finite())?;
            Some(Metric { kind, name, value })
        })
        .collect()
}

/// A number that YAML 1.1 reads as one: it needs a point, and `1e-7` would be a string.
fn number(value: f64) -> String {
    let text = value.to_string();
    match text.contains('.') {
        true => text,
        false => text + ".0",
    }
}

/// A YAML string in double quotes. All but letters, digits and ASCII is escaped.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            ' '..='~' => write!(out, "{c}"),
            c if c.is_alphanumeric() => write!(out, "{c}"),
            c if u32::from(c) <= 0xFFFF => write!(out, "\\u{:04X}", u32::from(c)),
            c => write!(out, "\\U{:08X}", u32::from(c)),
        };
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::report::tests::sample::comparison;

    /// With names that YAML and Markdown must not take for their own, and a tiny number.
    fn awkward() -> Comparison {
        let mut of = comparison();
        of.models[2].label = "a: \"b\" # | \u{1b}--- 日本 \u{1F600}".to_owned();
        if let Some(kld) = &mut of.models[1].summary.kld {
            kld.mean.estimate.value = 1e-9;
        }
        of
    }

    #[test]
    fn card_of_the_comparison() {
        insta::assert_snapshot!(awkward().model_card());
    }

    #[test]
    fn without_a_number_there_is_no_front_matter() {
        let mut of = comparison();
        of.models.truncate(1);
        assert!(!of.model_card().contains("---\nmodel-index"));
    }

    /// Python's own reader of cards finds every model and metric.
    ///
    /// `KL_PYTHON` names a Python that has `huggingface_hub`; without one the test is skipped.
    #[test]
    fn huggingface_hub_reads_the_card() {
        let python = std::env::var("KL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let import = ["-c", "import huggingface_hub"];
        let found = Command::new(&python).args(import).output();
        if !found.is_ok_and(|found| found.status.success()) {
            eprintln!("skipped: {python} has no huggingface_hub");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (card, json) = (
            folder.path().join("card.md"),
            folder.path().join("report.json"),
        );
        let of = awkward();
        std::fs::write(&card, of.model_card()).unwrap();
        std::fs::write(&json, of.json().unwrap()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check_model_card.py");
        let run = Command::new(&python)
            .arg(script)
            .args([card, json])
            .output();
        let run = run.unwrap();
        assert!(
            run.status.success(),
            "{}",
            String::from_utf8_lossy(&run.stderr)
        );
    }
}
