//! The choice of rows that were measured alike, so that they can be compared.

use kl_formats::{Effect, Kind, ModelIdentity, ReferenceSummary, SidecarHeader};
use kl_report::number::{count, short_percent};
use kl_system::shell;

use super::measured::MeasuredEvaluation;
use crate::commands::context::other_model;

/// Sets `why_not` of each row that cannot be compared. The comparable rows are those of the reference that most
/// rows have, and among these, those over the same tokens.
pub fn tell_apart(rows: &mut [MeasuredEvaluation]) {
    let all: Vec<&MeasuredEvaluation> = rows.iter().collect();
    let with_same_reference = largest_set(&all, has_same_reference);
    let with_same_tokens = largest_set(&with_same_reference, is_over_same_tokens);
    if let Some(standard) = with_same_tokens.first() {
        let reasons: Vec<_> = all.iter().map(|row| why_not(row, standard)).collect();
        for (row, reason) in rows.iter_mut().zip(reasons) {
            row.why_not = reason;
        }
    }
}

/// The largest set of rows that are alike; among equally large sets, the one with the most tokens, then
/// the first.
fn largest_set<'r>(
    rows: &[&'r MeasuredEvaluation],
    are_alike: fn(&MeasuredEvaluation, &MeasuredEvaluation) -> bool,
) -> Vec<&'r MeasuredEvaluation> {
    let mut sets: Vec<Vec<&MeasuredEvaluation>> = Vec::new();
    for row in rows {
        let set_of_row = sets
            .iter_mut()
            .find(|set| set.first().is_some_and(|first| are_alike(first, row)));
        match set_of_row {
            Some(set) => set.push(row),
            None => sets.push(vec![row]),
        }
    }
    let size =
        |set: &Vec<&MeasuredEvaluation>| (set.len(), set.first().map(|row| row.stored.n_records));
    sets.into_iter().rev().max_by_key(size).unwrap_or_default()
}

/// True if, by their headers, both were evaluated against one reference.
fn has_same_reference(one: &MeasuredEvaluation, other: &MeasuredEvaluation) -> bool {
    let (a, b) = (&one.stored.header, &other.stored.header);
    let differences = a.reference.diff(&b.reference, a.n_ctx);
    let is_described_alike = differences
        .iter()
        .all(|difference| difference.effect != Effect::Numbers);
    let shape = |header: &SidecarHeader| (header.n_ctx, header.n_vocab, header.first_scored);
    let has_fingerprints = a.reference.fingerprint.is_some() && b.reference.fingerprint.is_some();
    is_described_alike && (has_fingerprints || shape(a) == shape(b))
}

fn is_over_same_tokens(one: &MeasuredEvaluation, other: &MeasuredEvaluation) -> bool {
    one.tokens_hash == other.tokens_hash && n_compared(one) == n_compared(other)
}

/// The number of entries of each row that were compared.
fn n_compared(row: &MeasuredEvaluation) -> u32 {
    let header = &row.stored.header;
    header.n_vocab_compared.unwrap_or(header.n_vocab)
}

/// The reason that a row cannot be compared with the standard; `None` if it can.
fn why_not(row: &MeasuredEvaluation, standard: &MeasuredEvaluation) -> Option<String> {
    let (header, standard_header) = (&row.stored.header, &standard.stored.header);
    if !has_same_reference(row, standard) {
        return Some(other_reference(header, standard_header));
    }
    let (n_entries, standard_n_entries) = (n_compared(row), n_compared(standard));
    if n_entries != standard_n_entries {
        return Some(format!(
            "compares {} entries of each row, and the others {}: evaluate it with the same --vocab",
            count(n_entries.into()),
            count(standard_n_entries.into())
        ));
    }
    if row.tokens_hash == standard.tokens_hash {
        return None;
    }
    let [n_tokens, standard_n_tokens] = [row, standard].map(|row| row.stored.n_records);
    if n_tokens == standard_n_tokens {
        return Some(
            "is of other windows or tokens than the others: evaluate it against the same file"
                .to_owned(),
        );
    }
    let flags = match header.until.or(standard_header.until) {
        Some(until) => format!("without --until {} %", short_percent(until)),
        None => "with the same -n".to_owned(),
    };
    Some(format!(
        "has {} tokens, and the others {}: evaluate all {flags}",
        count(n_tokens),
        count(standard_n_tokens)
    ))
}

/// The reason that a row of another reference is not compared: the known difference. All rows of that reference
/// have the same reason, and are listed together.
fn other_reference(header: &SidecarHeader, standard: &SidecarHeader) -> String {
    let (reference, standard_reference) = (&header.reference, &standard.reference);
    let name = match &reference.file_name {
        Some(name) if reference.file_name == standard_reference.file_name => {
            &format!(", also named {name}")
        }
        Some(name) => &format!(", {name}"),
        None => "",
    };
    let start = format!("was evaluated against another reference{name}");
    let model_name = |model: &Option<ModelIdentity>| {
        let name = model.as_ref().and_then(ModelIdentity::shown_name);
        name.unwrap_or("unknown").to_owned()
    };
    let original = &standard_reference.model;
    if header.n_vocab != standard.n_vocab || is_other_model(original, &reference.model) {
        let (model, original) = (model_name(&reference.model), model_name(original));
        return format!("{start}, of another model, {model}, not {original}: report it apart");
    }
    if is_other_model(original, &header.model) {
        let (model, original) = (model_name(&header.model), model_name(original));
        return format!(
            "{start}, and its model, {model}, is not a quant of {original}: report it apart"
        );
    }
    let text_hash = |reference: &ReferenceSummary| reference.text.as_ref()?.sha256.clone();
    // Texts are told apart by their bytes, not by their names.
    let n_same = usize::from(text_hash(reference) == text_hash(standard_reference));
    let (mut difference, mut condition) = (String::new(), String::new());
    let differing_fact = facts(header)
        .into_iter()
        .zip(facts(standard))
        .skip(n_same)
        .find(|(fact, standard_fact)| fact != standard_fact);
    if let Some(((label, value), (_, standard_value))) = differing_fact
        && let (Some(value), Some(standard_value)) = (value, standard_value)
    {
        difference = format!(", {label} {value}, not {standard_value}");
        if label == "of the model" {
            // No header shows whether one of two models of one shape is a quant of the other.
            condition = format!(" if it is a quant of {standard_value} too");
        }
    }
    let standard_name = standard_reference
        .file_name
        .as_deref()
        .unwrap_or("that of the others");
    let remedy = if standard_reference.kind == Some(Kind::Model) {
        format!(
            "with --ref-model {}, as the others",
            shell::file(standard_name)
        )
    } else {
        format!("against {standard_name}")
    };
    format!("{start}{difference}: evaluate it {remedy}{condition}, or report it apart")
}

/// The facts in which evaluations of one model may differ: a label, and the name or number in a header.
fn facts(header: &SidecarHeader) -> [(&'static str, Option<String>); 4] {
    let text = header.reference.text.as_ref();
    let model = header.reference.model.as_ref();
    let first_scored = header.first_scored.map(|n| n.to_string());
    let file_name = model.and_then(|model| model.file_name.clone());
    [
        ("of the text", text.and_then(|text| text.name.clone())),
        ("with windows of", Some(header.n_ctx.to_string())),
        ("scored from position", first_scored),
        ("of the model", file_name),
    ]
}

/// True if headers show that a model cannot be a quant of the original.
fn is_other_model(original: &Option<ModelIdentity>, model: &Option<ModelIdentity>) -> bool {
    original
        .as_ref()
        .zip(model.as_ref())
        .is_some_and(|(original, model)| other_model(original, model).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(file_name: &str, architecture: &str) -> Option<ModelIdentity> {
        let mut model = ModelIdentity::named(file_name);
        model.architecture = Some(architecture.to_owned());
        Some(model)
    }

    fn header(
        name: &str,
        original: Option<ModelIdentity>,
        model: Option<ModelIdentity>,
    ) -> SidecarHeader {
        let mut reference = ReferenceSummary::default();
        (reference.file_name, reference.model) = (Some(name.to_owned()), original);
        let mut header = SidecarHeader::new(reference, 64, 512, None);
        header.model = model;
        header
    }

    #[test]
    fn the_model_that_differs_is_named() {
        let llama = || model("f16.gguf", "llama");
        let gpt2 = || model("gpt2.gguf", "gpt2");
        let there = header("ref.gz", llama(), model("q4.gguf", "llama"));
        assert_eq!(
            other_reference(&header("other.gz", gpt2(), gpt2()), &there),
            "was evaluated against another reference, other.gz, of another model, gpt2.gguf, not \
             f16.gguf: report it apart"
        );
        assert_eq!(
            other_reference(&header("again.gz", llama(), gpt2()), &there),
            "was evaluated against another reference, again.gz, and its model, gpt2.gguf, is not a \
             quant of f16.gguf: report it apart"
        );
    }
}
