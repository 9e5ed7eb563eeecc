//! The contents of a file, as `kl info` shows them.

use std::collections::BTreeMap;

use kl_formats::{
    BackendIdentity, Calls, Checks, Groups, HeadStep, ModelIdentity, Provenance, ReferenceSummary,
    Shard, States, TextIdentity, TokenizerIdentity,
};
use serde::Serialize;

use super::layout::laid_out;
use super::number::{bytes, count, count_of, part, percent, printable, short_percent};
use super::result::Versions;
use super::set_up::setting;
use super::{PromptsInfo, Warning};
use crate::score::RowError;

/// The contents of a file: null where it does not record them.
#[derive(Serialize, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Info {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The file's path, as given.
    pub path: String,
    /// `kl`, `kl.py`, `llama.cpp`, `safetensors`, `npz`, `sidecar`, or `model`.
    pub kind: String,
    /// Of a sidecar: what the user calls the evaluation; absent without a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The program that wrote it.
    pub writer: Option<String>,
    /// Bytes of the file; of a folder or a split model, of all its files.
    pub file_bytes: u64,
    /// The model whose rows it holds; of a sidecar, the evaluated model; of a model, itself.
    pub model: Option<ModelIdentity>,
    /// The path of the model, as it was given.
    pub model_path: Option<String>,
    /// The model's tokenizer.
    pub tokenizer: Option<TokenizerIdentity>,
    /// The text that the windows are cut from.
    pub text: Option<TextIdentity>,
    /// The path of the text, as it was given.
    pub text_path: Option<String>,
    /// Of a sidecar: what the model was evaluated against.
    pub reference: Option<ReferenceSummary>,
    /// Tokens in a window, at most; rows, where the file may hold no tokens. Of a model, the
    /// context that it was trained for, 0 where its file does not record that.
    pub n_ctx: u32,
    /// Entries of a row; of a model, of its vocabulary.
    pub n_vocab: u32,
    /// Of a sidecar: the entries of each row that were compared.
    pub n_vocab_compared: Option<u32>,
    /// True if each window starts with an inserted BOS; of a model, whether its file asks for that.
    pub add_bos: Option<bool>,
    /// The first scored position of a full window.
    pub first_scored: Option<u32>,
    /// Windows in the file.
    pub n_windows: Option<u32>,
    /// Scored rows; of a sidecar, records.
    pub n_rows: Option<u64>,
    /// Of a sidecar: half the width of the mean's interval over the mean, at which the evaluation
    /// was to stop; null if it was to go on to its end.
    pub until: Option<f64>,
    /// The storage of a row: `f32`, `u16`, `f16`, `bf16` or `f64` for each entry; `hidden` or
    /// `hidden16` where it is computed from a hidden state; null for a sidecar.
    pub encoding: Option<String>,
    /// The hidden states that it holds in place of rows, as its header describes them; absent where
    /// it holds rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub states: Option<States>,
    /// True if the rows are log-probabilities; null for a sidecar.
    pub log_probabilities: Option<bool>,
    /// True if it holds token ids; null where the kind always does.
    pub holds_tokens: Option<bool>,
    /// The part of a reference or of an evaluation that it holds, and the counts of the whole; null
    /// for a whole one.
    pub shard: Option<Shard>,
    /// Of a model: what else its file records; absent for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gguf: Option<GgufInfo>,
    /// The seed of the windows' order; null: the text's order, or unknown.
    pub seed: Option<u64>,
    /// Tokens from the start of a window to the start of the next, where windows overlap.
    pub stride: Option<u32>,
    /// The groups that the windows are of; absent without groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupInfo>,
    /// The prompts; null where the windows are not prompts.
    pub prompts: Option<PromptsInfo>,
    /// The set-up that computed the rows.
    pub backend: Option<BackendIdentity>,
    /// Other entries of kl.py's header, by their names.
    pub others: BTreeMap<String, String>,
    /// The contents that were read and found whole; null unless `--verify` was given.
    pub verified: Option<Verified>,
    /// Warnings to read before you trust the file.
    pub warnings: Vec<Warning>,
}

impl Info {
    /// The part of a description that is the provenance of the file's rows.
    #[must_use]
    pub fn of(provenance: Provenance) -> Self {
        Self {
            writer: provenance.writer,
            model: provenance.model,
            model_path: provenance.model_path,
            tokenizer: provenance.tokenizer,
            text: provenance.text,
            text_path: provenance.text_path,
            n_ctx: provenance.n_ctx,
            n_vocab: provenance.n_vocab,
            add_bos: provenance.add_bos,
            first_scored: provenance.first_scored,
            shard: provenance.shard,
            seed: provenance.seed,
            stride: provenance.stride,
            backend: provenance.backend,
            ..Self::default()
        }
    }
}

/// The record of a model in its own file.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GgufInfo {
    /// `general.type`: `model`, or what it is instead, such as `adapter` or `mmproj`.
    pub kind: Option<String>,
    /// The files that it is split into.
    pub n_files: u16,
    /// Its quantization (`general.file_type`), by llama-quantize's name, such as `Q4_K_M`.
    pub file_type: Option<String>,
    /// Bits per weight: eight times the tensors' bytes over the parameters.
    pub bpw: Option<f64>,
    /// Its tensors by their type, those with the most parameters first.
    pub types: Vec<TensorTypeInfo>,
    /// The rule by which the tokenizer splits a text before it merges pieces
    /// (`tokenizer.ggml.pre`).
    pub pre_tokenizer: Option<String>,
    /// The id of the token that begins a text; null where the file leaves it to llama.cpp.
    pub bos: Option<u32>,
    /// The id of the token that ends a text; null where the file leaves it to llama.cpp.
    pub eos: Option<u32>,
    /// Bytes of its chat template; null without one.
    pub chat_template_bytes: Option<u64>,
}

/// The tensors of one type.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TensorTypeInfo {
    /// ggml's name of the type, such as `q6_K`.
    pub name: String,
    /// Their number.
    pub n_tensors: u64,
    /// Their parameters.
    pub n_params: u64,
    /// Their bytes; null for a type that is unknown to this version.
    pub bytes: Option<u64>,
}

/// One group of windows.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// Windows of it that the text was cut into, all of which the file holds unless it is a sample;
    /// null for a sidecar.
    pub n_windows: Option<u32>,
}

impl GroupInfo {
    /// Collects the groups of a reference.
    #[must_use]
    pub fn of_each(groups: &Groups) -> Vec<Self> {
        let named = groups.names().iter().zip(0..);
        let info = named.map(|(name, group)| {
            let runs = groups.window_groups().iter().filter(|run| run.0 == group);
            Self {
                name: name.clone(),
                n_windows: Some(runs.map(|run| run.1).sum()),
            }
        });
        info.collect()
    }
}

/// The contents that `--verify` read, and found to be undamaged.
#[derive(Serialize, Debug, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Verified {
    /// Windows read; of a sidecar, those that its records belong to.
    pub n_windows: u64,
    /// Rows read; of a sidecar, records.
    pub n_rows: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// The checks that this format allows.
    pub checks: Checks,
}

/// A value, or words for one that is not recorded.
fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "not known".to_owned(), |value| value.to_string())
}

/// One line for each thing that the file records.
#[must_use]
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
    put("part", info.shard.as_ref().map(part_of));
    put("window", Some(window(info)));
    put("windows", info.n_windows.map(|n| windows(n, info)));
    let is_sidecar = info.kind == "sidecar";
    put(
        if is_sidecar { "records" } else { "rows" },
        Some(rows(info)),
    );
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

/// Describes the part, and the whole that it is of.
fn part_of(shard: &Shard) -> String {
    let (part, rows) = (part(shard), count(shard.n_rows));
    let windows = count_of(shard.n_windows.into(), "window");
    format!("{part}, of {windows} and {rows} rows in all")
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
        "model" => "model (GGUF)",
        other => other,
    }
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
    match &reference.kind {
        Some(kind) => format!("{name} ({kind})"),
        None => name,
    }
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
        Some(n) => format!(", {n} tokens generated after each"),
        None => String::new(),
    };
    format!("{}, {template}{generated}", count(prompts.n_prompts))
}

fn windows(n: u32, info: &Info) -> String {
    let order = match info.seed {
        Some(seed) => format!(", in random order, seed {seed}"),
        None if info.kind == "kl" => ", in the order of the text".to_owned(),
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
    let meaning = info.log_probabilities.map(|normalised| match normalised {
        true => " log-probabilities",
        false => " logits",
    });
    of + &encoding.unwrap_or_default() + meaning.unwrap_or_default()
}

fn states(states: &States) -> String {
    let (n_embd, name) = (count(states.n_embd.into()), states.state_type.name());
    let Calls {
        n_batch,
        n_ubatch,
        is_equal,
    } = states.calls;
    let equal = equal_calls(is_equal);
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
    match error.max_kld > 0.0 {
        true => format!("{error} when it was written"),
        false => format!(
            "none in {} when it was written",
            count_of(error.n_rows, "row")
        ),
    }
}

fn backend(backend: &BackendIdentity) -> String {
    let mut parts: Vec<String> = backend.llama_cpp.iter().cloned().collect();
    parts.extend(backend.devices.as_ref().map(|devices| devices.join(", ")));
    let layers = backend.n_gpu_layers;
    parts.extend(layers.map(|n| format!("{n} layers offloaded")));
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
#[must_use]
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
    let (windows, rows) = (count(verified.n_windows), count(verified.n_rows));
    let text = format!("whole: {what} ({windows} windows, {rows} rows)");
    line("verified", &text)
}
