//! A comparison as Markdown: the report, and the beginning of a Hugging Face model card, which is
//! `model-index` metadata and a table.

use std::fmt::Write as _;

use super::tables::ShownName;
use super::{ComparedModel, Comparison, PairKind};
use crate::number::{printable, short_percent};
use crate::table::{Table, escaped};

/// The name of a text that the reference does not record.
const UNNAMED_TEXT: &str = "text of the reference";

/// Names stay whole.
const NAME: ShownName<'static> = &|label| label.to_owned();

impl Comparison {
    /// The table, the ratios, and what was not compared; with `breakdown`, also where
    /// each model's KLD comes from.
    pub fn markdown(&self, breakdown: bool) -> String {
        let mut out = self.markdown_models();
        let title = "How many times as far as the next in size, on the same tokens";
        let to_next = self.pairs.iter().filter(|pair| pair.kind == PairKind::Size);
        out.push_str(&self.pairs_table(title, to_next.collect(), NAME).markdown());
        out.push_str(&self.spans_table(NAME).markdown());
        out.extend(self.caches_tables().iter().map(Table::markdown));
        out.push_str(&self.markdown_in_use());
        out.push_str(&self.set_up_table(NAME).markdown());
        if breakdown {
            let tables = self.breakdown_tables(&self.models, NAME, None);
            out.extend(tables.iter().map(Table::markdown));
            let legend = self.breakdown_legend();
            out.extend(legend.map(|legend| format!("\n{}\n", escaped(&legend))));
        }
        if !self.not_compared.is_empty() {
            out.push_str("\nNot compared:\n\n");
            for (why, files) in self.not_compared_by_reason() {
                let files: Vec<String> = files.into_iter().map(code).collect();
                let _ = writeln!(out, "- {}: {}", files.join(", "), escaped(why));
            }
        }
        out
    }

    /// The table of models and what follows from it.
    pub(super) fn markdown_models(&self) -> String {
        let against = code(self.reference.shown_name());
        let level = short_percent(self.confidence.level());
        let mut out = format!("KL divergence from {against}, nats; intervals at {level} %");
        if !self.models.is_empty() {
            let _ = write!(out, ", {}", self.clusters_text());
        }
        if let Some(sampled) = self.reference.sampled_answers() {
            let _ = write!(out, "; answers {sampled}");
        }
        out.push_str("\n\n");
        let sentences = self.sentences(printable);
        if !sentences.is_empty() {
            let _ = writeln!(out, "{}\n", escaped(&sentences.join(" ")));
        }
        out.push_str(&self.models_table(NAME).markdown());
        let marks = self.legend();
        if !marks.is_empty() {
            let _ = writeln!(out, "\nMarks: {}.", escaped(&marks.join("; ")));
        }
        out
    }

    /// The tables of greedy answers and of drafted tokens.
    fn markdown_in_use(&self) -> String {
        let mut text = self.identical_table(NAME, false).markdown();
        if self.shows_drafts() {
            text += &self.acceptance_table(NAME).markdown();
        }
        text
    }

    /// A model card: front matter with a `model-index`, and the table of models.
    ///
    /// The index has one entry, named after the reference's model, and a result for each model, whose
    /// metrics are named after its label. `huggingface_hub` reads an index of several entries
    /// without an error, but keeps only the last one's name for the metrics of all; and where it
    /// writes a card again, it joins results of the same task and data set. Names of metrics survive
    /// both. A data set is known by its type, configuration, split and revision, not by its name: the
    /// reference's fingerprint as its revision keeps results on another text or on other windows apart.
    /// A metric without a value would not survive, and is left out; so is what is not ranked.
    ///
    /// Source: `model_index_to_eval_results` and `eval_results_to_model_index` in
    /// `huggingface_hub/repocard_data.py`, version 2.4.0.
    pub fn model_card(&self) -> String {
        let mut results = String::new();
        for model in self.models.iter().filter(|model| model.is_candidate()) {
            self.add_result(&mut results, model);
        }
        let mut table = self.markdown_models();
        table.push_str(&self.markdown_in_use());
        if results.is_empty() {
            return table;
        }
        let name = quoted(self.reference.model_name().unwrap_or("model"));
        let index = format!("---\nmodel-index:\n- name: {name}\n  results:\n{results}---\n\n");
        index + &table
    }

    /// Adds the numbers that a model has, as its result in the index.
    fn add_result(&self, out: &mut String, model: &ComparedModel) {
        let mean = model.mean_kld().map(|mean| mean.value);
        let quantile = "99 % quantile of the KL divergence";
        let acceptance = model.summary.acceptance.as_ref();
        let accepted = acceptance.map(|acceptance| acceptance.mean.value);
        let answers = model.summary.identical_output.as_ref();
        let identical = answers.and_then(|answers| Some(answers.same_to_the_end?.value));
        let same_answers = "Greedy answers that stay the same";
        let (same_top, ppl_ratio) = (model.same_top(), model.ppl_ratio());
        let mut metrics = String::new();
        let (nats, share) = ("nats, lower is better", "share, higher is better");
        let ratio = "nearer to 1 is better";
        for (kind, name, unit, value) in [
            ("kl_divergence", "Mean KL divergence", nats, mean),
            ("kl_divergence", quantile, nats, model.q99()),
            ("top_token_agreement", "Same top token", share, same_top),
            ("perplexity_ratio", "Perplexity ratio", ratio, ppl_ratio),
            ("acceptance", "Accepted of drafted tokens", share, accepted),
            ("identical_output", same_answers, share, identical),
        ] {
            if let Some(value) = value.filter(|value| value.is_finite()) {
                let name = quoted(&format!("{name} ({unit}), {}", model.label));
                let value = number(value);
                let _ = writeln!(metrics, "    - type: {kind}\n      name: {name}");
                let _ = writeln!(metrics, "      value: {value}");
            }
        }
        if metrics.is_empty() {
            return;
        }
        let text = self.reference.text.as_ref();
        let text_name = text
            .and_then(|text| text.name.as_deref())
            .filter(|name| !name.trim().is_empty() && *name != "-");
        let name = quoted(text_name.unwrap_or(UNNAMED_TEXT));
        out.push_str("  - task:\n      type: text-generation\n    dataset:\n      type: text\n");
        let _ = writeln!(out, "      name: {name}");
        let sha256 = text.and_then(|text| text.sha256.as_deref());
        if let Some(revision) = self.reference.fingerprint.as_deref().or(sha256) {
            let _ = writeln!(out, "      revision: {}", quoted(revision));
        }
        if let Some(sha256) = sha256 {
            let _ = writeln!(out, "      args:\n        sha256: {}", quoted(sha256));
        }
        let _ = write!(out, "    metrics:\n{metrics}");
    }
}

/// A text as code.
fn code(text: &str) -> String {
    if text.contains('`') {
        escaped(text)
    } else {
        format!("`{}`", printable(text).replace('|', "\\|"))
    }
}

/// A number that YAML 1.1 reads as one: it needs a point, and `1e-7` would be a string.
fn number(value: f64) -> String {
    let text = value.to_string();
    let point = if text.contains('.') { "" } else { ".0" };
    text + point
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

    use kl_formats::TextIdentity;

    use super::*;
    use crate::testing::sample::comparison;

    #[test]
    fn markdown_of_the_comparison() {
        let mut comparison = comparison();
        comparison.models[5].label = "other|<b>".to_owned();
        insta::assert_snapshot!(comparison.markdown(true));
    }

    /// With names that YAML and Markdown must not take for their own, and a tiny number.
    fn awkward() -> Comparison {
        let mut comparison = comparison();
        comparison.models[2].label = "a: \"b\" # | \u{1b}--- 日本 \u{1F600}".to_owned();
        if let Some(kld) = &mut comparison.models[1].summary.kld {
            kld.mean.independent.value = 1e-9;
        }
        comparison
    }

    #[test]
    fn card_of_the_comparison() {
        insta::assert_snapshot!(awkward().model_card());
    }

    #[test]
    fn without_a_number_there_is_no_front_matter() {
        let mut comparison = comparison();
        comparison.models.truncate(1);
        assert!(!comparison.model_card().contains("---\nmodel-index"));
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
        let mut comparison = awkward();
        std::fs::write(&card, comparison.model_card()).unwrap();
        std::fs::write(&json, crate::json_text(&comparison).unwrap()).unwrap();
        // The same models on another text.
        let other = folder.path().join("other.md");
        comparison.reference.fingerprint = Some("ff00".to_owned());
        comparison.reference.text = Some(TextIdentity::named("code.txt"));
        std::fs::write(&other, comparison.model_card()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/check_model_card.py");
        let run = Command::new(&python)
            .arg(script)
            .args([card, json, other])
            .output();
        let run = run.unwrap();
        assert!(
            run.status.success(),
            "{}",
            String::from_utf8_lossy(&run.stderr)
        );
    }
}
