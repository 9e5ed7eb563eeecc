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
    let same_tokens = most(&most(&all, has_same_reference), is_over_same_tokens);
    if let Some(standard) = same_tokens.first() {
        let reasons = Vec::from_iter(all.iter().map(|row| why_not(row, standard)));
        let with_reasons = rows.iter_mut().zip(reasons);
        with_reasons.for_each(|(row, why_not)| row.why_not = why_not);
    }
}

/// The largest set of rows that are alike; among equally large sets, the one with the most tokens, then
/// the first.
fn most<'r>(
    rows: &[&'r MeasuredEvaluation],
    are_alike: fn(&MeasuredEvaluation, &MeasuredEvaluation) -> bool,
) -> Vec<&'r MeasuredEvaluation> {
    let mut sets: Vec<Vec<&MeasuredEvaluation>> = Vec::new();
    for row in rows {
        let is_its = |set: &&mut Vec<&MeasuredEvaluation>| {
            set.first().is_some_and(|first| are_alike(first, row))
        };
        match sets.iter_mut().find(is_its) {
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
    let is_described_alike = differences.iter().all(|of| of.effect != Effect::Numbers);
    let shape = |of: &SidecarHeader| (of.n_ctx, of.n_vocab, of.first_scored);
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
    let (here, there) = (&row.stored.header, &standard.stored.header);
    if !has_same_reference(row, standard) {
        return Some(other_reference(here, there));
    }
    let (compared, of) = (n_compared(row), n_compared(standard));
    if compared != of {
        return Some(format!(
            "compares {} entries of each row, and the others {}: evaluate it with the same --vocab",
            count(compared.into()),
            count(of.into())
        ));
    }
    let (n_here, n_there) = (row.stored.n_records, standard.stored.n_records);
    if row.tokens_hash == standard.tokens_hash {
        return None;
    }
    if n_here == n_there {
        let what = "is of other windows or tokens than the others";
        return Some(format!("{what}: evaluate it against the same file"));
    }
    let how = match here.until.or(there.until) {
        Some(until) => format!("without --until {} %", short_percent(until)),
        None => "with the same -n".to_owned(),
    };
    let [n, of] = [n_here, n_there].map(count);
    Some(format!(
        "has {n} tokens, and the others {of}: evaluate all {how}"
    ))
}

/// The reason that a row of another reference is not compared: the known difference. All rows of that reference
/// have the same reason, and are listed together.
fn other_reference(here: &SidecarHeader, there: &SidecarHeader) -> String {
    let (ours, theirs) = (&here.reference, &there.reference);
    let other = match &ours.file_name {
        Some(name) if ours.file_name == theirs.file_name => &format!(", also named {name}"),
        Some(name) => &format!(", {name}"),
        None => "",
    };
    let was = format!("was evaluated against another reference{other}");
    let name = |model: &Option<ModelIdentity>| {
        let shown = model.as_ref().and_then(ModelIdentity::shown_name);
        shown.unwrap_or("unknown").to_owned()
    };
    if here.n_vocab != there.n_vocab || is_other(&theirs.model, &ours.model) {
        let (model, original) = (name(&ours.model), name(&theirs.model));
        return format!("{was}, of another model, {model}, not {original}: report it apart");
    }
    if is_other(&theirs.model, &here.model) {
        let (model, original) = (name(&here.model), name(&theirs.model));
        return format!(
            "{was}, and its model, {model}, is not a quant of {original}: report it apart"
        );
    }
    let text = |of: &ReferenceSummary| of.text.as_ref()?.sha256.clone();
    // Texts are told apart by their bytes, not by their names.
    let n_same = usize::from(text(ours) == text(theirs));
    let mut both = facts(here).into_iter().zip(facts(there)).skip(n_same);
    let (mut what, mut condition) = (String::new(), String::new());
    if let Some(((of, here), (_, there))) = both.find(|(here, there)| here != there)
        && let (Some(here), Some(there)) = (here, there)
    {
        what = format!(", {of} {here}, not {there}");
        if of == "of the model" {
            // No header shows whether one of two models of one shape is a quant of the other.
            condition = format!(" if it is a quant of {there} too");
        }
    }
    let reference = theirs.file_name.as_deref().unwrap_or("that of the others");
    let again = if theirs.kind == Some(Kind::Model) {
        format!("with --ref-model {}, as the others", shell::file(reference))
    } else {
        format!("against {reference}")
    };
    format!("{was}{what}: evaluate it {again}{condition}, or report it apart")
}

/// The facts in which evaluations of one model may differ: a label, and the name or number in a header.
fn facts(of: &SidecarHeader) -> [(&'static str, Option<String>); 4] {
    let (text, model) = (of.reference.text.as_ref(), of.reference.model.as_ref());
    let first_scored = of.first_scored.map(|n| n.to_string());
    let file_name = model.and_then(|model| model.file_name.clone());
    [
        ("of the text", text.and_then(|text| text.name.clone())),
        ("with windows of", Some(of.n_ctx.to_string())),
        ("scored from position", first_scored),
        ("of the model", file_name),
    ]
}

/// True if headers show that a model cannot be a quant of the original.
fn is_other(original: &Option<ModelIdentity>, model: &Option<ModelIdentity>) -> bool {
    let models = original.as_ref().zip(model.as_ref());
    models.is_some_and(|(original, model)| other_model(original, model).is_some())
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
