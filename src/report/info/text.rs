//! The contents of a file as text, a line for each thing that the file records.

use kl_formats::{
    Checks, HeadStep, ModelIdentity, ReferenceSummary, Shard, States, TextIdentity,
    TokenizerIdentity,
};

use super::{
    COMPARED_ROWS, Finding, GgufInfo, GroupInfo, Info, MapInfo, PromptText, PromptsInfo,
    Verification,
};
use crate::report::layout::laid_out;
use crate::report::number::{
    bytes, count, count_of, part, percent, printable, ratio, sampled, sampled_answers, short_kld,
    short_percent,
};
use crate::report::set_up::described;
use crate::report::table::Table;
use crate::score::RowError;

/// A value, or words for one that is not recorded.
fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "not known".to_owned(), |value| value.to_string())
}

/// The words, if something holds.
fn when(holds: bool, words: &'static str) -> &'static str {
    if holds { words } else { "" }
}

/// The parts that are known, between commas.
fn list<const N: usize>(parts: [Option<String>; N]) -> String {
    Vec::from_iter(parts.into_iter().flatten()).join(", ")
}

/// The lines of a file; what it does not record has none.
struct Lines(String);

impl Lines {
    fn put(&mut self, name: &str, value: impl Into<Option<String>>) {
        let value = value.into().map(|value| line(name, &printable(&value)));
        self.0.extend(value);
    }
}

/// One line for each thing that the file records.
pub fn info_text(info: &Info) -> String {
    let mut out = Lines(format!("{}\n", printable(&info.path)));
    out.put("kind", kind(&info.kind).to_owned());
    out.put("label", info.label.clone());
    out.put("written by", info.writer.clone());
    out.put("size", bytes(info.file_bytes));
    out.put("model", info.model.as_ref().map(model));
    out.put("model path", info.model_path.clone());
    match &info.gguf {
        Some(gguf) => put_gguf(&mut out, info, gguf),
        None => put_rows(&mut out, info),
    }
    out.0
}

/// Puts the lines about a file of rows, of their records, or of what they showed of a model's tensors.
fn put_rows(out: &mut Lines, info: &Info) {
    out.put("tokenizer", info.tokenizer.as_ref().map(tokenizer));
    out.put("text", info.text.as_ref().map(text_identity));
    out.put("text path", info.text_path.clone());
    if let Some(reference) = &info.reference {
        out.put("reference", summary(reference));
        out.put("  its model", reference.model.as_ref().map(model));
        out.put("  its text", reference.text.as_ref().map(text_identity));
    }
    out.put("prompts", info.prompts.as_ref().map(prompts));
    out.put("groups", groups(&info.groups));
    let of_info = info.prompts.as_ref();
    let is_generated = of_info.is_some_and(|prompts| prompts.generated.is_some());
    let part = info.shard.as_ref();
    out.put("part", part.map(|shard| part_of(shard, is_generated)));
    out.put("window", window(info, is_generated));
    out.put("windows", info.n_windows.map(|n| windows(n, info)));
    let is_sidecar = info.kind == "sidecar";
    out.put(if is_sidecar { "records" } else { "rows" }, rows(info));
    if let Some(map) = &info.map {
        put_map(out, map);
    }
    if let Some(of_file) = &info.states {
        put_states(out, of_file);
    }
    let until = info.until.map(short_percent);
    let until = until.map(|of| format!("to stop where the mean KLD is known to ±{of} %"));
    out.put("until", until);
    let words = |is_held| (if is_held { "held" } else { "none" }).to_owned();
    out.put("token ids", info.holds_tokens.map(words));
    let set_up = info.backend.as_ref().map(described);
    out.put("set-up", set_up.filter(|known| !known.is_empty()));
    for (key, value) in &info.others {
        out.put(key, value.clone());
    }
}

/// Puts the lines about what a map measured.
fn put_map(out: &mut Lines, map: &MapInfo) {
    let of_tensors = [
        count_of(map.n_tensors, "tensor"),
        format!("{} can be quantized", count(map.n_quantizable)),
        format!("{} measured alone", count(map.n_measured)),
        format!("{} with weight errors", count(map.n_with_errors)),
    ];
    out.put("tensors", of_tensors.join(", "));
    let (cells, tokens) = (
        count_of(map.n_cells, "cell"),
        count_of(map.n_tokens, "token"),
    );
    let unfinished = when(!map.is_complete, "; not finished");
    out.put("measured", format!("{cells}, {tokens} scored{unfinished}"));
    out.put("  at", format!("{} where it fits", map.measured_type));
    let types: Vec<&str> = map.types.iter().map(|kind| kind.name).collect();
    out.put("  types", types.join(" "));
    let imatrix = map.imatrix.as_ref();
    let imatrix = imatrix.map(|of| format!("{}, sha256 {}", of.file_name, of.sha256));
    out.put("imatrix", imatrix);
}

/// Puts the lines about hidden states, their head, and how far computed rows are from the model's own.
fn put_states(out: &mut Lines, states: &States) {
    let (n_embd, name) = (count(states.n_embd.into()), states.state_type.name());
    let (n_batch, n_ubatch) = (states.calls.n_batch, states.calls.n_ubatch);
    let equal = when(states.calls.is_equal, " in equal calls");
    let numbers = format!("{n_embd} numbers each, {name}");
    out.put(
        "states",
        format!("{numbers}, from batches of {n_batch}{equal}, physical {n_ubatch}"),
    );

    let head = &states.head;
    let (name, kind, size) = (&head.name, &head.type_name, bytes(head.bytes));
    let steps = states.then.iter().map(|step| match step {
        HeadStep::Scale { factor, bias: 0.0 } => format!("times {factor}"),
        HeadStep::Scale { factor, bias } => format!("times {factor} plus {bias}"),
        HeadStep::Tanh => "tanh".to_owned(),
        HeadStep::Add { .. } => "plus a bias".to_owned(),
        HeadStep::Mul { .. } => "times a vector".to_owned(),
    });
    let then = when(!states.then.is_empty(), "; then ");
    let steps = Vec::from_iter(steps).join(", ");
    out.put(
        "  their head",
        format!(
            "{name}, {kind}, {size}, sha256 {}{then}{steps}",
            head.sha256
        ),
    );

    let error = RowError::from(&states.check);
    let klds = if error.max_kld > 0.0 {
        let [mean, max] = [error.mean_kld, error.max_kld].map(short_kld);
        format!("mean KLD of {mean}, {max} at most,")
    } else {
        "none".to_owned()
    };
    let rows = count_of(error.n_rows, "row");
    out.put(
        "  their error",
        format!("{klds} in {rows} when it was written"),
    );
}

/// Puts the lines about a model's file besides its size and its name.
fn put_gguf(out: &mut Lines, info: &Info, gguf: &GgufInfo) {
    let holds = gguf.kind.as_ref().filter(|kind| *kind != "model");
    out.put("holds", holds.map(|of| format!("{of}, not a whole model")));
    let n_files = Some(gguf.n_files).filter(|&n| n > 1);
    out.put("split into", n_files.map(|n| count_of(n.into(), "file")));
    let n_params = info.model.as_ref().and_then(|model| model.n_params);
    let n_params = n_params.unwrap_or(0);
    let bpw = gguf.bpw.map(|bpw| format!("{bpw:.2} bits each"));
    out.put("parameters", list([Some(count(n_params)), bpw]));
    out.put("quantized as", gguf.file_type.clone());
    let types = gguf.types.iter().map(|of_type| {
        let share = percent(of_type.n_params as f64 / n_params.max(1) as f64);
        let tensors = count_of(of_type.n_tensors, "tensor");
        format!("{} {share} ({tensors})", of_type.name)
    });
    out.put("  types", Vec::from_iter(types).join(", "));
    let n_ctx = Some(info.n_ctx).filter(|&n| n > 0);
    out.put("context", n_ctx.map(|n| count_of(n.into(), "token")));
    out.put("tokenizer", info.tokenizer.as_ref().map(tokenizer));
    out.put("  splits as", gguf.pre_tokenizer.clone());
    let inserted = match info.add_bos {
        Some(true) => ", inserted before each text",
        Some(false) => ", not inserted",
        None => "",
    };
    let (bos, eos) = (or_unknown(gguf.bos), or_unknown(gguf.eos));
    out.put("  special", format!("BOS {bos}{inserted}; EOS {eos}"));
    let template = gguf.chat_template_bytes.map(bytes);
    out.put("chat template", template.unwrap_or("none".to_owned()));
}

/// Each prompt and its answer under a line that counts their tokens, indented.
pub fn prompts_text(texts: &[PromptText]) -> String {
    let mut out = String::new();
    let mut put = |title: String, n_tokens: u32, text: &str| {
        out += &format!("{title}: {}\n", count_of(n_tokens.into(), "token"));
        for line in text.split('\n') {
            let indent = when(!line.is_empty(), "    ");
            let line: Vec<String> = line.split('\t').map(printable).collect();
            out += &format!("{indent}{}\n", line.join("\t"));
        }
    };
    for of in texts {
        let group = of.group.as_deref().map(printable);
        let group = group.map_or_else(String::new, |name| format!(", group {name}"));
        let title = format!("\nprompt {}{group}", of.window);
        put(title, of.n_prompt_tokens, &of.prompt);
        if of.n_answer_tokens > 0 {
            put("answer".to_owned(), of.n_answer_tokens, &of.answer);
        }
    }
    out
}

/// Describes the part, and the whole that it is of. A part does not know how long the answers of the
/// others are.
fn part_of(shard: &Shard, is_generated: bool) -> String {
    let (part, rows) = (part(shard), count(shard.n_rows));
    let windows = count_of(shard.n_windows.into(), "window");
    let at_most = when(is_generated, "at most ");
    format!("{part}, of {windows} and {at_most}{rows} rows in all")
}

fn line(name: &str, value: &str) -> String {
    /// Narrow enough for a SHA-256 to fit below a name.
    const NAME_WIDTH: usize = 13;
    let start = format!("  {name:<NAME_WIDTH$} ");
    // Split at each space, so that a path keeps all of its own.
    laid_out(&start, NAME_WIDTH + 3, " ", value.split(' '))
}

fn kind(kind: &str) -> &str {
    match kind {
        "kl" => "kl's reference",
        "kl.py" => "kl.py's reference",
        "llama.cpp" => "llama.cpp's base file, of log-probabilities",
        "safetensors" => "folder of safetensors files, one per window",
        "npz" => "npz: numpy arrays, one per window",
        "sidecar" => "sidecar: one record per token",
        "map" => "map of sensitivity, which kl recipe reads",
        "model" => "model (GGUF)",
        other => other,
    }
}

fn model(model: &ModelIdentity) -> String {
    let name = model.name.as_ref().or(model.file_name.as_ref());
    let architecture = model.architecture.as_ref().map(|of| format!(" ({of})"));
    let shown = name.map(|name| name.to_owned() + &architecture.unwrap_or_default());
    or_unknown(shown.map(|shown| list([Some(shown), model.shown_bytes().map(bytes)])))
}

fn tokenizer(tokenizer: &TokenizerIdentity) -> String {
    let TokenizerIdentity { model, sha256, .. } = tokenizer;
    let n_tokens = count(tokenizer.n_tokens.into());
    format!("{model}, {n_tokens} tokens, sha256 {sha256}")
}

fn text_identity(text: &TextIdentity) -> String {
    list([
        Some(or_unknown(text.name.as_ref())),
        text.bytes.map(bytes),
        text.n_tokens.map(|n| format!("{} tokens", count(n))),
        text.sha256.as_ref().map(|hash| format!("sha256 {hash}")),
    ])
}

fn summary(reference: &ReferenceSummary) -> String {
    let name = or_unknown(reference.file_name.as_ref());
    let kind = reference.kind.as_ref().map(|kind| format!(" ({kind})"));
    let answers = reference.sampling.as_ref().map(sampled_answers);
    let answers = answers.map(|answers| format!("answers {answers}"));
    list([Some(name + &kind.unwrap_or_default()), answers])
}

fn groups(groups: &[GroupInfo]) -> Option<String> {
    let group = |group: &GroupInfo| match group.n_windows {
        Some(n) => format!("{} ({})", group.name, count_of(n.into(), "window")),
        None => group.name.clone(),
    };
    let shown: Vec<String> = groups.iter().map(group).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

fn window(info: &Info, is_generated: bool) -> String {
    let varies = matches!(info.kind.as_str(), "kl.py" | "safetensors" | "npz");
    let at_most = when(varies || info.prompts.is_some(), " at most");
    let earliest = when(is_generated, " at the earliest");
    let first = info.first_scored;
    list([
        Some(format!("{} tokens{at_most}", count(info.n_ctx.into()))),
        (info.add_bos == Some(true)).then(|| "a BOS first".to_owned()),
        first.map(|first| format!("scored from position {first}{earliest}")),
    ])
}

fn prompts(prompts: &PromptsInfo) -> String {
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
        let (n, sampled) = (
            count_of(n.into(), "token"),
            sampled(prompts.sampling.as_ref()),
        );
        text += &format!("; an answer of at most {n} to each, generated{sampled}");
    }
    for span in &prompts.spans {
        text += &format!("; {}: {}", span.name, count_of(span.n_tokens, "token"));
    }
    text
}

fn windows(n: u32, info: &Info) -> String {
    let in_order = matches!(info.kind.as_str(), "kl" | "map"); // The other kinds do not record it.
    let in_order = in_order.then(|| "in the order of the text".to_owned());
    let seed = info.seed;
    let random = seed.map(|seed| format!("in random order, seed {seed}"));
    let stride = info.stride.map(|n| format!("one every {n} tokens"));
    list([Some(count(n.into())), random.or(in_order), stride])
}

fn rows(info: &Info) -> String {
    let n_rows = or_unknown(info.n_rows.map(count));
    let n_vocab = count(info.n_vocab.into());
    let compared = info.n_vocab_compared.filter(|&n| n != info.n_vocab);
    let encoding = info.encoding.as_ref().map(|encoding| {
        if info.states.is_some() {
            return format!("logits computed from states ({encoding})");
        }
        let is_log = info.log_probabilities == Some(true);
        let values = if is_log {
            "log-probabilities"
        } else {
            "logits"
        };
        format!("{encoding} {values}")
    });
    list([
        Some(format!("{n_rows}, of {n_vocab} entries")),
        compared.map(|n| format!("{} compared", count(n.into()))),
        encoding,
    ])
}

/// The lines about a file that `--verify` has read; a file of another kind than a model is undamaged then.
pub fn verified_text(info: &Info) -> String {
    let Some(verified) = &info.verified else {
        return info.verification.iter().map(verification).collect();
    };
    let what = match verified.checks {
        Checks::Checksums => "byte was read, and every checksum matches",
        Checks::Gzip => "byte was read, and gzip's checksums match",
        Checks::Zip => "row was read, and zip's checksums match",
        Checks::Lengths => {
            "row was read, and lengths and tokens are right; the format has no checksums"
        }
        _ => "byte was read, and length, tokens and sums are right; the format has no checksums",
    };
    let windows = count_of(verified.n_windows, "window");
    let rows = count_of(verified.n_rows, "row");
    let text = format!("whole: every {what} ({windows}, {rows})");
    line("verified", &text)
}

/// The lines about what `--verify` found in a model's file: the faults, the tensors with the largest errors for
/// their type, and a summary.
fn verification(found: &Verification) -> String {
    /// The tensors that are shown.
    const WORST: usize = 10;
    let mut text = String::new();
    for Finding { name, message, .. } in &found.findings {
        let colon = when(!name.is_empty(), ": ");
        text += &line("finding", &printable(&format!("{name}{colon}{message}")));
    }
    if let Some(original) = &found.original {
        let title = format!(
            "Error of the weights against {}, squared and relative, in {COMPARED_ROWS} rows of each tensor; the largest for their type first:",
            printable(original)
        );
        let worst = found.weight_errors.iter().take(WORST);
        let table = Table::new(title, worst)
            .left("tensor", |of| printable(&of.tensor))
            .left("type", |of| of.kind.to_string())
            .number("error", |of| Some(of.error), short_kld)
            .number("its type gives", |of| Some(of.expected), short_kld)
            .number("times", |of| Some(of.error / of.expected), ratio);
        text += &format!("{}\n", table.gap(2).text());
    }
    let n_findings = count_of(found.findings.len() as u64, "finding");
    let n_tensors = count_of(found.n_tensors, "tensor");
    text + &line("verified", &format!("{n_tensors}, {n_findings}"))
}
