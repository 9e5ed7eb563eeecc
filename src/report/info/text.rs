//! The contents of a file as text, a line for each thing that the file records.

use kl_formats::{
    BackendIdentity, Checks, HeadStep, ModelIdentity, ReferenceSummary, Shard, States,
    TextIdentity, TokenizerIdentity,
};

use super::{
    GgufInfo, GroupInfo, Info, MapInfo, PromptText, PromptsInfo, TensorTypeInfo, Verified,
};
use crate::report::layout::laid_out;
use crate::report::number::{
    bytes, count, count_of, part, percent, printable, sampled, sampled_answers, short_kld,
    short_percent,
};
use crate::report::set_up::setting;
use crate::score::RowError;

/// A value, or words for one that is not recorded.
fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "not known".to_owned(), |value| value.to_string())
}

/// One line for each thing that the file records.
pub fn info_text(info: &Info) -> String {
    let mut out = format!("{}\n", printable(&info.path));
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            out.push_str(&line(name, &printable(&value)));
        }
    };
    put("kind", Some(kind(&info.kind).to_owned()));
    put("label", info.label.clone());
    put("written by", info.writer.clone());
    put("size", Some(bytes(info.file_bytes)));
    put("model", info.model.as_ref().map(model));
    put("model path", info.model_path.clone());
    if let Some(gguf) = &info.gguf {
        put_gguf(&mut put, info, gguf);
        return out;
    }
    put("tokenizer", info.tokenizer.as_ref().map(tokenizer));
    put("text", info.text.as_ref().map(text_identity));
    put("text path", info.text_path.clone());
    if let Some(reference) = &info.reference {
        put("reference", Some(summary(reference)));
        put("  its model", reference.model.as_ref().map(model));
        put("  its text", reference.text.as_ref().map(text_identity));
    }
    put("prompts", info.prompts.as_ref().map(prompts));
    put("groups", groups(&info.groups));
    put(
        "part",
        info.shard.as_ref().map(|shard| part_of(shard, info)),
    );
    put("window", Some(window(info)));
    put("windows", info.n_windows.map(|n| windows(n, info)));
    let is_sidecar = info.kind == "sidecar";
    put(
        if is_sidecar { "records" } else { "rows" },
        Some(rows(info)),
    );
    if let Some(map) = &info.map {
        put_map(&mut put, map);
    }
    if let Some(of_file) = &info.states {
        put("states", Some(states(of_file)));
        put("  their head", Some(head(of_file)));
        put("  their error", Some(states_error(of_file)));
    }
    let until = info.until.map(short_percent);
    let until = until.map(|until| format!("to stop where the mean KLD is known to ±{until} %"));
    put("until", until);
    let token_ids = info.holds_tokens;
    let token_ids = token_ids.map(|is_held| if is_held { "held" } else { "none" });
    put("token ids", token_ids.map(str::to_owned));
    put("backend", info.backend.as_ref().map(backend));
    put("batch", info.backend.as_ref().map(batch));
    for (key, value) in &info.others {
        put(key, Some(value.clone()));
    }
    out
}

/// Each prompt and its answer under a line that counts their tokens, indented.
pub fn prompts_text(texts: &[PromptText]) -> String {
    let mut out = String::new();
    let mut put = |title: String, text: &str| {
        out.push_str(&format!("{title}\n"));
        for line in text.split('\n') {
            let indent = if line.is_empty() { "" } else { "    " };
            let line: Vec<String> = line.split('\t').map(printable).collect();
            out.push_str(&format!("{indent}{}\n", line.join("\t")));
        }
    };
    for of in texts {
        let group = of
            .group
            .as_deref()
            .map(|name| format!(", group {}", printable(name)));
        let (n, group) = (
            count_of(of.n_prompt_tokens.into(), "token"),
            group.unwrap_or_default(),
        );
        put(format!("\nprompt {}{group}: {n}", of.window), &of.prompt);
        if of.n_answer_tokens > 0 {
            let n = count_of(of.n_answer_tokens.into(), "token");
            put(format!("answer: {n}"), &of.answer);
        }
    }
    out
}

/// Describes the part, and the whole that it is of. A part does not know how long the answers of the
/// others are.
fn part_of(shard: &Shard, info: &Info) -> String {
    let (part, rows) = (part(shard), count(shard.n_rows));
    let windows = count_of(shard.n_windows.into(), "window");
    let prompts = info.prompts.as_ref();
    let at_most = match prompts.and_then(|prompts| prompts.generated) {
        Some(_) => "at most ",
        None => "",
    };
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

/// Puts the lines about what a map measured.
fn put_map(put: &mut dyn FnMut(&str, Option<String>), map: &MapInfo) {
    let of_tensors = [
        count_of(map.n_tensors, "tensor"),
        format!("{} can be quantized", count(map.n_quantizable)),
        format!("{} measured alone", count(map.n_measured)),
        format!("{} with weight errors", count(map.n_with_errors)),
    ];
    put("tensors", Some(of_tensors.join(", ")));
    let unfinished = if map.is_complete {
        ""
    } else {
        "; not finished"
    };
    let (cells, tokens) = (
        count_of(map.n_cells, "cell"),
        count_of(map.n_tokens, "token"),
    );
    put(
        "measured",
        Some(format!("{cells}, {tokens} scored{unfinished}")),
    );
    put("  at", Some(format!("{} where it fits", map.measured_type)));
    let types: Vec<&str> = map.types.iter().map(|kind| kind.name).collect();
    put("  types", Some(types.join(" ")));
    let imatrix = map.imatrix.as_ref();
    let imatrix = imatrix.map(|of| format!("{}, sha256 {}", of.file_name, of.sha256));
    put("imatrix", imatrix);
}

/// Puts the lines about a model's file besides its size and its name.
fn put_gguf(put: &mut dyn FnMut(&str, Option<String>), info: &Info, gguf: &GgufInfo) {
    let holds = gguf.kind.as_ref().filter(|kind| *kind != "model");
    put(
        "holds",
        holds.map(|kind| format!("{kind}, not a whole model")),
    );
    let n_files = Some(gguf.n_files).filter(|&n| n > 1);
    put("split into", n_files.map(|n| count_of(n.into(), "file")));
    let n_params = info.model.as_ref().and_then(|model| model.n_params);
    let n_params = n_params.unwrap_or(0);
    let bpw = gguf.bpw.map(|bpw| format!(", {bpw:.2} bits each"));
    put(
        "parameters",
        Some(count(n_params) + &bpw.unwrap_or_default()),
    );
    put("quantized as", gguf.file_type.clone());
    let share = |of_type: &TensorTypeInfo| {
        let share = of_type.n_params as f64 / n_params.max(1) as f64;
        let tensors = count_of(of_type.n_tensors, "tensor");
        format!("{} {} ({tensors})", of_type.name, percent(share))
    };
    let types: Vec<String> = gguf.types.iter().map(share).collect();
    put("  types", Some(types.join(", ")));
    let context = Some(info.n_ctx).filter(|&n| n > 0);
    put("context", context.map(|n| count_of(n.into(), "token")));
    put("tokenizer", info.tokenizer.as_ref().map(tokenizer));
    put("  splits as", gguf.pre_tokenizer.clone());
    let inserted = match info.add_bos {
        Some(true) => ", inserted before each text",
        Some(false) => ", not inserted",
        None => "",
    };
    let (bos, eos) = (or_unknown(gguf.bos), or_unknown(gguf.eos));
    put("  special", Some(format!("BOS {bos}{inserted}; EOS {eos}")));
    let template = gguf.chat_template_bytes.map(bytes);
    put(
        "chat template",
        template.or_else(|| Some("none".to_owned())),
    );
}

fn model(model: &ModelIdentity) -> String {
    let name = model.name.as_ref().or(model.file_name.as_ref());
    let mut text = or_unknown(name);
    if name.is_none() {
        return text;
    }
    if let Some(architecture) = &model.architecture {
        text.push_str(&format!(" ({architecture})"));
    }
    if let Some(size) = model.shown_bytes() {
        text.push_str(&format!(", {}", bytes(size)));
    }
    text
}

fn tokenizer(tokenizer: &TokenizerIdentity) -> String {
    let TokenizerIdentity { model, sha256, .. } = tokenizer;
    let n_tokens = count(tokenizer.n_tokens.into());
    format!("{model}, {n_tokens} tokens, sha256 {sha256}")
}

fn text_identity(text: &TextIdentity) -> String {
    let mut parts = vec![or_unknown(text.name.as_ref())];
    parts.extend(text.bytes.map(bytes));
    parts.extend(text.n_tokens.map(|n| format!("{} tokens", count(n))));
    parts.extend(text.sha256.as_ref().map(|hash| format!("sha256 {hash}")));
    parts.join(", ")
}

fn summary(reference: &ReferenceSummary) -> String {
    let name = or_unknown(reference.file_name.as_ref());
    let name = match &reference.kind {
        Some(kind) => format!("{name} ({kind})"),
        None => name,
    };
    let answers = reference.sampling.as_ref().map(sampled_answers);
    let answers = answers.map(|answers| format!(", answers {answers}"));
    name + &answers.unwrap_or_default()
}

fn groups(groups: &[GroupInfo]) -> Option<String> {
    let group = |group: &GroupInfo| match group.n_windows {
        Some(n) => format!("{} ({})", group.name, count_of(n.into(), "window")),
        None => group.name.clone(),
    };
    let shown: Vec<String> = groups.iter().map(group).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

fn window(info: &Info) -> String {
    let mut window = format!("{} tokens", count(info.n_ctx.into()));
    let varies = matches!(info.kind.as_str(), "kl.py" | "safetensors" | "npz");
    if varies || info.prompts.is_some() {
        window.push_str(" at most");
    }
    if info.add_bos == Some(true) {
        window.push_str(", a BOS first");
    }
    if let Some(first) = info.first_scored {
        window.push_str(&format!(", scored from position {first}"));
    }
    let prompts = info.prompts.as_ref();
    if prompts.is_some_and(|prompts| prompts.generated.is_some()) {
        window.push_str(" at the earliest");
    }
    window
}

fn prompts(prompts: &PromptsInfo) -> String {
    let template = match &prompts.chat_template {
        Some(sha256) => format!("in a chat template, sha256 {sha256}"),
        None => "as they are, without a chat template".to_owned(),
    };
    let generated = match prompts.generated {
        Some(n) => {
            let sampled = sampled(prompts.sampling.as_ref());
            format!(
                "; an answer of at most {} to each, generated{sampled}",
                count_of(n.into(), "token")
            )
        }
        None => String::new(),
    };
    let turns = match prompts.n_conversations {
        n if n < prompts.n_prompts => format!(" in {}", count_of(n, "conversation")),
        _ => String::new(),
    };
    let n = count(prompts.n_prompts);
    let spans = prompts.spans.iter().map(|span| {
        let n_tokens = count_of(span.n_tokens, "token");
        format!("; {}: {n_tokens}", span.name)
    });
    format!(
        "{n}{turns}, {template}{generated}{}",
        spans.collect::<String>()
    )
}

fn windows(n: u32, info: &Info) -> String {
    let order = match info.seed {
        Some(seed) => format!(", in random order, seed {seed}"),
        None if info.kind == "kl" || info.kind == "map" => ", in the order of the text".to_owned(),
        // The other kinds do not record it.
        None => String::new(),
    };
    let stride = info.stride.map(|n| format!(", one every {n} tokens"));
    format!("{}{order}{}", count(n.into()), stride.unwrap_or_default())
}

fn rows(info: &Info) -> String {
    let (n_rows, n_vocab) = (info.n_rows.map(count), count(info.n_vocab.into()));
    let mut of = format!("{}, of {n_vocab} entries", or_unknown(n_rows));
    if let Some(compared) = info.n_vocab_compared.filter(|&n| n != info.n_vocab) {
        of.push_str(&format!(", {} compared", count(compared.into())));
    }
    let encoding = info.encoding.as_ref();
    if let (Some(_), Some(encoding)) = (&info.states, encoding) {
        return format!("{of}, logits computed from states ({encoding})");
    }
    let encoding = encoding.map(|encoding| format!(", {encoding}"));
    let meaning = info.log_probabilities.map(|normalised| {
        if normalised {
            " log-probabilities"
        } else {
            " logits"
        }
    });
    of + &encoding.unwrap_or_default() + meaning.unwrap_or_default()
}

fn states(states: &States) -> String {
    let (n_embd, name) = (count(states.n_embd.into()), states.state_type.name());
    let (n_batch, n_ubatch) = (states.calls.n_batch, states.calls.n_ubatch);
    let equal = equal_calls(states.calls.is_equal);
    format!("{n_embd} numbers each, {name}, from batches of {n_batch}{equal}, physical {n_ubatch}")
}

/// The head of hidden states, and what follows it.
fn head(states: &States) -> String {
    let head = &states.head;
    let mut text = format!(
        "{}, {}, {}, sha256 {}",
        head.name,
        head.type_name,
        bytes(head.bytes),
        head.sha256
    );
    for (i, step) in states.then.iter().enumerate() {
        text.push_str(if i == 0 { "; then " } else { ", " });
        text.push_str(&step_text(*step));
    }
    text
}

fn step_text(step: HeadStep) -> String {
    match step {
        HeadStep::Scale { factor, bias: 0.0 } => format!("times {factor}"),
        HeadStep::Scale { factor, bias } => format!("times {factor} plus {bias}"),
        HeadStep::Tanh => "tanh".to_owned(),
        HeadStep::Add { .. } => "plus a bias".to_owned(),
        HeadStep::Mul { .. } => "times a vector".to_owned(),
    }
}

/// Describes how far computed rows are from the model's own.
fn states_error(states: &States) -> String {
    let error = RowError::from(&states.check);
    let rows = count_of(error.n_rows, "row");
    if error.max_kld > 0.0 {
        let [mean, max] = [error.mean_kld, error.max_kld].map(short_kld);
        format!("mean KLD of {mean}, {max} at most, in {rows} when it was written")
    } else {
        format!("none in {rows} when it was written")
    }
}

fn backend(backend: &BackendIdentity) -> String {
    let mut parts: Vec<String> = backend.llama_cpp.iter().cloned().collect();
    parts.extend(backend.devices.as_ref().map(|devices| devices.join(", ")));
    let layers = backend.n_gpu_layers;
    parts.extend(layers.map(|n| format!("{} offloaded", count_of(n.into(), "layer"))));
    parts.extend(backend.placement.iter().flatten().cloned());
    parts.extend(backend.threads.map(|n| count_of(n.into(), "thread")));
    or_unknown(Some(parts.join(", ")).filter(|parts| !parts.is_empty()))
}

fn equal_calls(is_equal: bool) -> &'static str {
    if is_equal { " in equal calls" } else { "" }
}

fn batch(backend: &BackendIdentity) -> String {
    let part = |name| or_unknown(setting(backend, name));
    let windows = backend.n_seq.filter(|&n| n > 1);
    let windows = windows.map(|n| format!(", up to {n} windows in a call"));
    format!(
        "{}{}, physical {}{}, flash attention {}, cache {} and {}",
        part("batch"),
        equal_calls(backend.equal_calls == Some(true)),
        part("physical batch"),
        windows.unwrap_or_default(),
        part("flash attention"),
        part("K cache"),
        part("V cache")
    )
}

/// The line about a file that `--verify` found to be undamaged.
pub fn verified_text(verified: &Verified) -> String {
    let what = match verified.checks {
        Checks::Checksums => "every byte was read, and every checksum matches",
        Checks::Gzip => "every byte was read, and gzip's checksums match",
        Checks::Zip => "every row was read, and zip's checksums match",
        Checks::Lengths => {
            "every row was read, and lengths and tokens are right; the format has no checksums"
        }
        _ => {
            "every byte was read, and length, tokens and sums are right; the format has no checksums"
        }
    };
    let windows = count_of(verified.n_windows, "window");
    let text = format!(
        "whole: {what} ({windows}, {})",
        count_of(verified.n_rows, "row")
    );
    line("verified", &text)
}
