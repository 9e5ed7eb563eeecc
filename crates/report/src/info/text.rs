//! The contents of a file as text, a line for each thing that the file records.

use kl_formats::{
    Checks, HeadStep, Kind, ModelIdentity, ReferenceSummary, States, TextIdentity,
    TokenizerIdentity,
};
use kl_stats::score::RowError;

use super::{
    COMPARED_ROWS, FileKind, Finding, GgufInfo, GroupInfo, Info, MapInfo, PromptText, PromptsInfo,
    Verification,
};
use crate::layout::Sheet;
use crate::number::{
    bytes, count, count_of, part, percent, printable, ratio, sampled, sampled_answers, short_kld,
    short_percent,
};
use crate::set_up::described;
use crate::table::Table;

/// The width of the names: narrow enough for a SHA-256 to fit beside one.
const NAME_WIDTH: usize = 13;

/// A value, or words for one that is not recorded.
fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "not known".to_owned(), |value| value.to_string())
}

/// The words, if the condition holds; otherwise none.
fn words_if(condition: bool, words: &'static str) -> &'static str {
    if condition { words } else { "" }
}

/// The parts that are known, with commas between them.
fn known_parts<const N: usize>(parts: [Option<String>; N]) -> String {
    Vec::from_iter(parts.into_iter().flatten()).join(", ")
}

/// One line for each thing that the file records.
pub fn info_text(info: &Info) -> String {
    let mut out = Sheet::new(NAME_WIDTH);
    out.text = format!("{}\n", printable(&info.path));
    out.line("kind", info.kind.description());
    out.known("label", info.label.as_ref());
    out.known("written by", info.writer.as_ref());
    out.line("size", &bytes(info.file_bytes));
    out.known("model", info.model.as_ref().map(model));
    out.known("model path", info.model_path.as_ref());
    match &info.gguf {
        Some(gguf) => put_gguf(&mut out, info, gguf),
        None => put_rows(&mut out, info),
    }
    out.text
}

/// Puts the lines about a file of rows, of their records, or of what they showed of a model's tensors.
fn put_rows(out: &mut Sheet, info: &Info) {
    out.known("tokenizer", info.tokenizer.as_ref().map(tokenizer));
    out.known("text", info.text.as_ref().map(text_identity));
    out.known("text path", info.text_path.as_ref());
    if let Some(reference) = &info.reference {
        out.line("reference", &summary(reference));
        out.known("  its model", reference.model.as_ref().map(model));
        out.known("  its text", reference.text.as_ref().map(text_identity));
    }
    for (name, value) in window_lines(info) {
        out.known(name, value);
    }
    if let Some(map) = &info.map {
        put_map(out, map);
    }
    if let Some(states) = &info.states {
        put_states(out, states);
    }
    let until = info.until.map(|half_width| {
        let percent = short_percent(half_width);
        format!("to stop where the mean KLD is known to ±{percent} %")
    });
    out.known("until", until);
    let token_ids = info
        .holds_tokens
        .map(|holds_tokens| if holds_tokens { "held" } else { "none" });
    out.known("token ids", token_ids);
    let set_up = info.backend.as_ref().map(described);
    out.known("set-up", set_up.filter(|settings| !settings.is_empty()));
    for (key, value) in &info.others {
        out.line(key, value);
    }
}

/// The lines about the windows of a file; what it does not record has no value.
fn window_lines(info: &Info) -> [(&'static str, Option<String>); 6] {
    let prompts = info.prompts.as_ref();
    let is_generated = prompts.is_some_and(|prompts| prompts.generated.is_some());
    let groups = Vec::from_iter(info.groups.iter().map(group)).join(", ");
    let part = info.shard.as_ref().map(|shard| {
        // A part does not know how long the answers of the others are.
        let at_most = words_if(is_generated, "at most ");
        let windows = count_of(shard.n_windows.into(), "window");
        let rows = count(shard.n_rows);
        format!(
            "{}, of {windows} and {at_most}{rows} rows in all",
            part(shard)
        )
    });
    let is_sidecar = info.kind == FileKind::Sidecar;
    let rows_name = if is_sidecar { "records" } else { "rows" };
    [
        ("prompts", prompts.map(prompts_line)),
        ("groups", Some(groups).filter(|groups| !groups.is_empty())),
        ("part", part),
        ("window", Some(window(info, is_generated))),
        ("windows", info.n_windows.map(|n| windows(n, info))),
        (rows_name, Some(rows(info))),
    ]
}

/// The lines about the model, the text and the windows of a reference that is about to be computed: a name
/// and a value each.
pub fn planned_lines(info: &Info) -> Vec<(&'static str, String)> {
    let input_lines = [
        ("model", info.model.as_ref().map(model)),
        ("text", info.text.as_ref().map(text_identity)),
    ];
    input_lines
        .into_iter()
        .chain(window_lines(info))
        .filter_map(|(name, value)| Some((name, printable(&without_hashes(&value?)))))
        .collect()
}

/// Leaves out the hashes, which tell files apart: a plan has one file of each kind.
fn without_hashes(line: &str) -> String {
    const SHA256: &str = ", sha256 ";
    const HEX_DIGITS: usize = 64;
    let mut parts = line.split(SHA256);
    let before = parts.next().unwrap_or_default().to_owned();
    parts.fold(before, |text, part| {
        match part.split_at_checked(HEX_DIGITS) {
            Some((hash, after_hash)) if hash.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
                text + after_hash
            }
            _ => text + SHA256 + part,
        }
    })
}

/// Puts the lines about what a map measured.
fn put_map(out: &mut Sheet, map: &MapInfo) {
    let tensor_counts = [
        count_of(map.n_tensors, "tensor"),
        format!("{} can be quantized", count(map.n_quantizable)),
        format!("{} measured alone", count(map.n_measured)),
        format!("{} with weight errors", count(map.n_with_errors)),
    ];
    out.line("tensors", &tensor_counts.join(", "));
    let cells = count_of(map.n_cells, "cell");
    let tokens = count_of(map.n_tokens, "token");
    let unfinished = words_if(!map.is_complete, "; not finished");
    out.line("measured", &format!("{cells}, {tokens} scored{unfinished}"));
    out.line("  at", &format!("{} where it fits", map.measured_type));
    let types: Vec<&str> = map.types.iter().map(|kind| kind.name).collect();
    out.line("  types", &types.join(" "));
    let imatrix = map
        .imatrix
        .as_ref()
        .map(|imatrix| format!("{}, sha256 {}", imatrix.file_name, imatrix.sha256));
    out.known("imatrix", imatrix);
}

/// Puts the lines about hidden states, their head, and how far computed rows are from the model's own.
fn put_states(out: &mut Sheet, states: &States) {
    let (n_embd, name) = (count(states.n_embd.into()), states.state_type.name());
    let (n_batch, n_ubatch) = (states.calls.n_batch, states.calls.n_ubatch);
    let equal = words_if(states.calls.is_equal, " in equal calls");
    let batches = format!("batches of {n_batch}{equal}, physical {n_ubatch}");
    let numbers = format!("{n_embd} numbers each, {name}, from {batches}");
    out.line("states", &numbers);

    let head = &states.head;
    let steps = states.then.iter().map(|step| match step {
        HeadStep::Scale { factor, bias: 0.0 } => format!("times {factor}"),
        HeadStep::Scale { factor, bias } => format!("times {factor} plus {bias}"),
        HeadStep::Tanh => "tanh".to_owned(),
        HeadStep::Add { .. } => "plus a bias".to_owned(),
        HeadStep::Mul { .. } => "times a vector".to_owned(),
    });
    let joint = words_if(!states.then.is_empty(), "; then ");
    let steps = format!("{joint}{}", Vec::from_iter(steps).join(", "));
    let (name, kind, size, hash) = (&head.name, &head.type_name, bytes(head.bytes), &head.sha256);
    out.line(
        "  their head",
        &format!("{name}, {kind}, {size}, sha256 {hash}{steps}"),
    );

    let error = RowError::from(&states.check);
    let klds = if error.max_kld > 0.0 {
        let [mean, max] = [error.mean_kld, error.max_kld].map(short_kld);
        format!("mean KLD of {mean}, {max} at most,")
    } else {
        "none".to_owned()
    };
    let rows = count_of(error.n_rows, "row");
    let error_text = format!("{klds} in {rows} when it was written");
    out.line("  their error", &error_text);
}

/// Puts the lines about a model's file besides its size and its name.
fn put_gguf(out: &mut Sheet, info: &Info, gguf: &GgufInfo) {
    let other_kind = gguf.kind.as_ref().filter(|kind| *kind != "model");
    out.known(
        "holds",
        other_kind.map(|kind| format!("{kind}, not a whole model")),
    );
    let n_files = Some(gguf.n_files).filter(|&n| n > 1);
    out.known("split into", n_files.map(|n| count_of(n.into(), "file")));
    let n_params = info
        .model
        .as_ref()
        .and_then(|model| model.n_params)
        .unwrap_or(0);
    let bpw = gguf.bpw.map(|bpw| format!("{bpw:.2} bits each"));
    out.line("parameters", &known_parts([Some(count(n_params)), bpw]));
    out.known("quantized as", gguf.file_type.as_ref());
    let types = gguf.types.iter().map(|tensor_type| {
        let share = percent(tensor_type.n_params as f64 / n_params.max(1) as f64);
        let tensors = count_of(tensor_type.n_tensors, "tensor");
        format!("{} {share} ({tensors})", tensor_type.name)
    });
    out.line("  types", &Vec::from_iter(types).join(", "));
    let n_ctx = Some(info.n_ctx).filter(|&n| n > 0);
    out.known("context", n_ctx.map(|n| count_of(n.into(), "token")));
    out.known("tokenizer", info.tokenizer.as_ref().map(tokenizer));
    out.known("  splits as", gguf.pre_tokenizer.as_ref());
    let inserted = match info.add_bos {
        Some(true) => ", inserted before each text",
        Some(false) => ", not inserted",
        None => "",
    };
    let (bos, eos) = (or_unknown(gguf.bos), or_unknown(gguf.eos));
    out.line("  special", &format!("BOS {bos}{inserted}; EOS {eos}"));
    let template = gguf.chat_template_bytes.map(bytes);
    out.line("chat template", template.as_deref().unwrap_or("none"));
}

/// Each prompt and its answer under a line that counts their tokens, indented.
pub fn prompts_text(texts: &[PromptText]) -> String {
    let mut out = String::new();
    let mut put = |title: &str, n_tokens: u32, text: &str| {
        out += &format!("{title}: {}\n", count_of(n_tokens.into(), "token"));
        for line in text.split('\n') {
            let indent = words_if(!line.is_empty(), "    ");
            let line: Vec<String> = line.split('\t').map(printable).collect();
            out += &format!("{indent}{}\n", line.join("\t"));
        }
    };
    for prompt_text in texts {
        let group = prompt_text
            .group
            .as_deref()
            .map_or_else(String::new, |name| format!(", group {}", printable(name)));
        let title = format!("\nprompt {}{group}", prompt_text.window);
        put(&title, prompt_text.n_prompt_tokens, &prompt_text.prompt);
        if prompt_text.n_answer_tokens > 0 {
            put("answer", prompt_text.n_answer_tokens, &prompt_text.answer);
        }
    }
    out
}

fn model(model: &ModelIdentity) -> String {
    let name = model.name.as_ref().or(model.file_name.as_ref());
    or_unknown(name.map(|name| {
        let architecture = model
            .architecture
            .as_ref()
            .map_or_else(String::new, |architecture| format!(" ({architecture})"));
        known_parts([
            Some(format!("{name}{architecture}")),
            model.shown_bytes().map(bytes),
        ])
    }))
}

fn tokenizer(tokenizer: &TokenizerIdentity) -> String {
    let n_tokens = count(tokenizer.n_tokens.into());
    format!(
        "{}, {n_tokens} tokens, sha256 {}",
        tokenizer.model, tokenizer.sha256
    )
}

fn text_identity(text: &TextIdentity) -> String {
    known_parts([
        Some(or_unknown(text.name.as_ref())),
        text.bytes.map(bytes),
        text.n_tokens.map(|n| format!("{} tokens", count(n))),
        text.sha256.as_ref().map(|hash| format!("sha256 {hash}")),
    ])
}

fn summary(reference: &ReferenceSummary) -> String {
    let name = or_unknown(reference.file_name.as_ref());
    let kind = reference.kind.as_ref().map(|kind| format!(" ({kind})"));
    let answers = reference
        .sampling
        .as_ref()
        .map(|sampling| format!("answers {}", sampled_answers(sampling)));
    known_parts([Some(name + &kind.unwrap_or_default()), answers])
}

fn group(group: &GroupInfo) -> String {
    match group.n_windows {
        Some(n) => format!("{} ({})", group.name, count_of(n.into(), "window")),
        None => group.name.clone(),
    }
}

fn window(info: &Info, is_generated: bool) -> String {
    let may_vary = matches!(
        info.kind,
        FileKind::Reference(Kind::KlPy | Kind::Safetensors | Kind::Npz)
    );
    let at_most = words_if(may_vary || info.prompts.is_some(), " at most");
    let earliest = words_if(is_generated, " at the earliest");

    known_parts([
        Some(format!("{} tokens{at_most}", count(info.n_ctx.into()))),
        (info.add_bos == Some(true)).then(|| "a BOS first".to_owned()),
        info.first_scored
            .map(|position| format!("scored from position {position}{earliest}")),
    ])
}

fn prompts_line(prompts: &PromptsInfo) -> String {
    let mut text = count(prompts.n_prompts);
    if prompts.n_conversations < prompts.n_prompts {
        let conversations = count_of(prompts.n_conversations, "conversation");
        text += &format!(" in {conversations}");
    }
    text += &match &prompts.chat_template {
        Some(sha256) => format!(", in a chat template, sha256 {sha256}"),
        None => ", as they are, without a chat template".to_owned(),
    };
    if let Some(n) = prompts.generated {
        let tokens = count_of(n.into(), "token");
        let manner = sampled(prompts.sampling.as_ref());
        text += &format!("; an answer of at most {tokens} to each, generated{manner}");
    }
    for span in &prompts.spans {
        text += &format!("; {}: {}", span.name, count_of(span.n_tokens, "token"));
    }
    text
}

fn windows(n: u32, info: &Info) -> String {
    let order = match (info.seed, info.kind) {
        (Some(seed), _) => Some(format!("in random order, seed {seed}")),
        (None, FileKind::Reference(Kind::Kl) | FileKind::Map) => {
            Some("in the order of the text".to_owned())
        }
        (None, _) => None, // They do not record it.
    };
    let stride = info.stride.map(|n| format!("one every {n} tokens"));
    known_parts([Some(count(n.into())), order, stride])
}

fn rows(info: &Info) -> String {
    let n_rows = or_unknown(info.n_rows.map(count));
    let n_vocab = count(info.n_vocab.into());
    let compared = info.n_vocab_compared.filter(|&n| n != info.n_vocab);
    let encoding = info.encoding.as_ref().map(|encoding| {
        if info.states.is_some() {
            format!("logits computed from states ({encoding})")
        } else if info.log_probabilities == Some(true) {
            format!("{encoding} log-probabilities")
        } else {
            format!("{encoding} logits")
        }
    });
    known_parts([
        Some(format!("{n_rows}, of {n_vocab} entries")),
        compared.map(|n| format!("{} compared", count(n.into()))),
        encoding,
    ])
}

/// The lines about a file that `--verify` has read; a file of another kind than a model is undamaged then.
pub fn verified_text(info: &Info) -> String {
    let mut out = Sheet::new(NAME_WIDTH);
    if let Some(verification) = &info.verification {
        put_verification(&mut out, verification);
    }
    if let Some(verified) = &info.verified {
        let evidence = match verified.checks {
            Checks::Checksums => "byte was read, and every checksum matches",
            Checks::Gzip => "byte was read, and gzip's checksums match",
            Checks::Zip => "row was read, and zip's checksums match",
            Checks::Lengths => {
                "row was read, and lengths and tokens are right; the format has no checksums"
            }
            _ => {
                "byte was read, and length, tokens and sums are right; the format has no checksums"
            }
        };
        let windows = count_of(verified.n_windows, "window");
        let rows = count_of(verified.n_rows, "row");
        let verdict = format!("whole: every {evidence} ({windows}, {rows})");
        out.line("verified", &verdict);
    }
    out.text
}

/// Puts the lines about what `--verify` found in a model's file: the faults, the tensors with the largest
/// errors for their type, and a summary.
fn put_verification(out: &mut Sheet, verification: &Verification) {
    /// The number of tensors that are shown.
    const N_WORST: usize = 10;
    for Finding { name, message, .. } in &verification.findings {
        let colon = words_if(!name.is_empty(), ": ");
        out.line("finding", &format!("{name}{colon}{message}"));
    }
    if let Some(original) = &verification.original {
        let title = format!(
            "Error of the weights against {}, squared and relative, in {COMPARED_ROWS} rows of each tensor; the largest for their type first:",
            printable(original)
        );
        let worst = verification.weight_errors.iter().take(N_WORST);
        let table = Table::new(title, worst)
            .left("tensor", |weights| printable(&weights.tensor))
            .left("type", |weights| weights.kind.to_string())
            .number("error", |weights| Some(weights.error), short_kld)
            .number(
                "its type gives",
                |weights| Some(weights.expected),
                short_kld,
            )
            .number(
                "times",
                |weights| Some(weights.error / weights.expected),
                ratio,
            );
        out.text += &format!("{}\n", table.gap(2).text());
    }
    let n_findings = count_of(verification.findings.len() as u64, "finding");
    let n_tensors = count_of(verification.n_tensors, "tensor");
    out.line("verified", &format!("{n_tensors}, {n_findings}"));
}
