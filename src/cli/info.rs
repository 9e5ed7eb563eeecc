//! `kl info`: what a reference or a sidecar holds, and whether it is whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use kl_formats::{
    BackendIdentity, Encoding, ModelIdentity, Reference, ReferenceSummary, SidecarReader,
    TextIdentity, TokenizerIdentity, is_sidecar,
};
use serde::Serialize;

use super::print_result;
use super::verify::{Checks, Verified, verify_reference, verify_sidecar};
use crate::report::PromptsInfo;
use crate::report::number::{bytes, count, printable};

/// What a reference of any kind or a sidecar holds.
#[derive(Parser, Debug)]
#[command(
    name = "kl info",
    bin_name = "kl info",
    max_term_width = 100,
    args_override_self = true
)]
pub struct InfoArgs {
    /// A reference of kl, kl.py or llama-perplexity, a sidecar (.kls), an .npz or a folder of
    /// N.safetensors: recognised by its bytes
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Read every byte and check every checksum; exit code 1 if the file is damaged
    #[arg(long)]
    pub verify: bool,

    /// Print it as JSON
    #[arg(long)]
    pub json: bool,

    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// What a file says of itself; field names are the JSON's keys, and null is what it does not say.
#[derive(Serialize, Debug, Default)]
struct Info {
    /// As given.
    path: String,
    /// `kl`, `kl.py`, `llama.cpp`, `safetensors`, `npz`, or `sidecar`.
    kind: String,
    /// The program that wrote it.
    writer: Option<String>,
    file_bytes: u64,
    /// The model whose rows it holds; of a sidecar, the one evaluated.
    model: Option<ModelIdentity>,
    /// Its path, as it was given.
    model_path: Option<String>,
    tokenizer: Option<TokenizerIdentity>,
    text: Option<TextIdentity>,
    text_path: Option<String>,
    /// Of a sidecar: what the model was evaluated against.
    reference: Option<ReferenceSummary>,
    n_ctx: u32,
    n_vocab: u32,
    add_bos: Option<bool>,
    first_scored: Option<u32>,
    n_windows: Option<u32>,
    /// Scored rows; of a sidecar, records.
    n_rows: Option<u64>,
    encoding: Option<String>,
    /// Whether the rows are log-probabilities; null where the kind of file says it.
    log_probabilities: Option<bool>,
    /// Whether token ids are there; null where the kind always has them.
    holds_tokens: Option<bool>,
    seed: Option<u64>,
    /// Tokens from the start of a window to that of the next, where windows overlap.
    stride: Option<u32>,
    /// Null where the windows are not prompts.
    prompts: Option<PromptsInfo>,
    backend: Option<BackendIdentity>,
    /// Whatever else kl.py's header says.
    others: BTreeMap<String, String>,
    /// Null where it was not asked for.
    verified: Option<Verified>,
}

/// Prints what the file holds.
///
/// # Errors
/// What is wrong with the file, and where.
pub fn run(args: &InfoArgs) -> Result<()> {
    let path = &args.file;
    let (mut info, reference) = if is_sidecar(path) {
        (of_sidecar(path)?, None)
    } else {
        let reference = Reference::open(path)?;
        (of_reference(&reference), Some(reference))
    };
    info.path = path.display().to_string();
    info.file_bytes = match &reference {
        Some(Reference::Safetensors(folder)) => folder.file_bytes(),
        _ => fs::metadata(path)
            .with_context(|| format!("{}: cannot be read", path.display()))?
            .len(),
    };
    if !args.json {
        print(&text(&info))?;
    }
    if args.verify {
        let verified = match reference {
            Some(reference) => verify_reference(reference, info.file_bytes, args.quiet)?,
            None => verify_sidecar(path)?,
        };
        if !args.json {
            print(&line("verified", &verdict(&verified)))?;
        }
        info.verified = Some(verified);
    }
    if args.json {
        let json = serde_json::to_string_pretty(&info);
        print(&(json.context("the result cannot be put into JSON")? + "\n"))?;
    }
    Ok(())
}

/// To stdout; whoever reads it may have stopped, which is no error.
fn print(text: &str) -> Result<()> {
    match print_result(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output: cannot be written")
        }
        _ => Ok(()),
    }
}

fn of_sidecar(path: &Path) -> Result<Info> {
    let header = SidecarReader::open(path)?.header().clone();
    Ok(Info {
        kind: "sidecar".to_owned(),
        writer: Some(header.writer),
        model: Some(header.model),
        model_path: Some(header.model_path),
        reference: Some(header.reference),
        n_ctx: header.n_ctx,
        n_vocab: header.n_vocab,
        first_scored: Some(header.first_scored),
        n_rows: Some(header.n_records),
        ..Info::default()
    })
}

fn of_reference(reference: &Reference) -> Info {
    let shared = Info {
        kind: reference.kind().to_string(),
        n_ctx: reference.n_ctx(),
        n_vocab: reference.n_vocab(),
        n_windows: reference.n_windows(),
        n_rows: reference.n_rows(),
        ..Info::default()
    };
    match reference {
        Reference::Native(reader) => {
            let prompts = PromptsInfo::of(reader.header());
            let header = reader.header().clone();
            Info {
                prompts,
                writer: Some(header.writer),
                model: Some(header.model),
                tokenizer: header.tokenizer,
                text: Some(header.text),
                add_bos: Some(header.add_bos),
                first_scored: Some(header.first_scored),
                encoding: Some(header.encoding.to_string()),
                seed: header.seed,
                stride: header.stride,
                backend: Some(header.backend),
                ..shared
            }
        }
        Reference::KlPy(reader) => {
            let header = reader.header().clone();
            Info {
                model_path: header.model,
                text_path: header.text_path,
                first_scored: Some(0),
                encoding: Some(Encoding::F32.to_string()),
                others: header.others.into_iter().collect(),
                ..shared
            }
        }
        Reference::LlamaCpp(reader) => Info {
            first_scored: Some(reader.header().first_scored()),
            encoding: Some(Encoding::U16.to_string()),
            ..shared
        },
        Reference::Safetensors(reader) => Info {
            first_scored: Some(0),
            encoding: Some(reader.float().to_string()),
            log_probabilities: Some(reader.log_probabilities()),
            holds_tokens: Some(reader.holds_tokens()),
            ..shared
        },
        Reference::Npz(reader) => Info {
            model_path: reader.model().map(str::to_owned),
            first_scored: Some(0),
            encoding: Some(reader.float().to_string()),
            log_probabilities: Some(reader.log_probabilities()),
            holds_tokens: Some(reader.holds_tokens()),
            ..shared
        },
    }
}

/// For a person: a line for each thing that the file says.
fn text(info: &Info) -> String {
    let mut out = format!("{}\n", printable(&info.path));
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            out.push_str(&line(name, &printable(&value)));
        }
    };
    put("kind", Some(kind(&info.kind).to_owned()));
    put("written by", info.writer.clone());
    put("size", Some(bytes(info.file_bytes)));
    put("model", info.model.as_ref().map(model));
    put("model path", info.model_path.clone());
    put("tokenizer", info.tokenizer.as_ref().map(tokenizer));
    put("text", info.text.as_ref().map(text_identity));
    put("text path", info.text_path.clone());
    if let Some(reference) = &info.reference {
        put("reference", Some(summary(reference)));
        put("  its model", reference.model.as_ref().map(model));
        put("  its text", reference.text.as_ref().map(text_identity));
    }
    put("prompts", info.prompts.as_ref().map(prompts));
    put("window", Some(window(info)));
    put("windows", info.n_windows.map(|n| windows(n, info)));
    let unit = if info.kind == "sidecar" {
        "records"
    } else {
        "rows"
    };
    put(unit, Some(rows(info)));
    let holds = |holds: bool| if holds { "held" } else { "none" };
    put(
        "token ids",
        info.holds_tokens.map(|ids| holds(ids).to_owned()),
    );
    put("backend", info.backend.as_ref().map(backend));
    put("batch", info.backend.as_ref().map(batch));
    for (key, value) in &info.others {
        put(key, Some(value.clone()));
    }
    out
}

fn line(name: &str, value: &str) -> String {
    format!("  {name:<18} {value}\n")
}

fn kind(kind: &str) -> &str {
    match kind {
        "kl" => "kl's reference",
        "kl.py" => "kl.py's reference",
        "llama.cpp" => "llama.cpp's base file, of log-probabilities",
        "safetensors" => "folder of safetensors, one a window",
        "npz" => "npz: numpy's arrays, one a window",
        "sidecar" => "sidecar: one record a token",
        other => other,
    }
}

fn model(model: &ModelIdentity) -> String {
    let name = model.name.as_ref().unwrap_or(&model.file_name);
    let architecture = model.architecture.as_deref();
    let architecture = architecture.map_or_else(String::new, |name| format!(" ({name})"));
    match (name.as_str(), model.size_bytes) {
        ("", 0) => "not known".to_owned(),
        (name, 0) => format!("{name}{architecture}"),
        (name, size) => format!("{name}{architecture}, {}", bytes(size)),
    }
}

fn tokenizer(tokenizer: &TokenizerIdentity) -> String {
    let n_tokens = count(tokenizer.n_tokens.into());
    format!(
        "{}, {n_tokens} tokens, sha256 {}",
        tokenizer.model, tokenizer.sha256
    )
}

fn text_identity(text: &TextIdentity) -> String {
    match (text.name.as_str(), text.bytes) {
        ("", 0) => "not known".to_owned(),
        (name, 0) => name.to_owned(),
        (name, size) => format!(
            "{name}, {}, {} tokens, sha256 {}",
            bytes(size),
            count(text.n_tokens),
            text.sha256
        ),
    }
}

fn summary(reference: &ReferenceSummary) -> String {
    let name = reference.file_name.as_deref().unwrap_or("not known");
    match &reference.kind {
        Some(kind) => format!("{name} ({kind})"),
        None => name.to_owned(),
    }
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
        None => "as they are, in no chat template".to_owned(),
    };
    let generated = match prompts.generated {
        Some(n) => format!(", {n} tokens generated behind each"),
        None => String::new(),
    };
    format!("{}, {template}{generated}", count(prompts.n_prompts))
}

fn windows(n: u32, info: &Info) -> String {
    let order = match info.seed {
        Some(seed) => format!(", in random order, seed {seed}"),
        None if info.kind == "kl" => ", in the order of the text".to_owned(),
        // The others do not say.
        None => String::new(),
    };
    let stride = info.stride;
    let stride = stride.map_or(String::new(), |stride| {
        format!(", one every {stride} tokens")
    });
    format!("{}{order}{stride}", count(n.into()))
}

fn rows(info: &Info) -> String {
    let n_rows = info.n_rows.map_or("not known".to_owned(), count);
    let of = format!("{n_rows}, of {} entries", count(info.n_vocab.into()));
    let encoding = info
        .encoding
        .as_ref()
        .map(|encoding| format!(", {encoding}"));
    let meaning = info.log_probabilities.map(|normalised| match normalised {
        true => " log-probabilities",
        false => " logits",
    });
    of + &encoding.unwrap_or_default() + meaning.unwrap_or_default()
}

fn backend(backend: &BackendIdentity) -> String {
    if backend.llama_cpp.is_empty() {
        return "not known".to_owned();
    }
    format!(
        "{}, {}, {} layers offloaded, {} threads",
        backend.llama_cpp,
        backend.devices.join(", "),
        backend.n_gpu_layers,
        backend.threads
    )
}

fn batch(backend: &BackendIdentity) -> String {
    let or_unknown = |text: &str| match text {
        "" | "0" => "not known".to_owned(),
        text => text.to_owned(),
    };
    format!(
        "{}, physical {}, flash attention {}, cache {} and {}",
        or_unknown(&backend.n_batch.to_string()),
        or_unknown(&backend.n_ubatch.to_string()),
        or_unknown(&backend.flash_attn),
        or_unknown(&backend.type_k),
        or_unknown(&backend.type_v)
    )
}

fn verdict(verified: &Verified) -> String {
    let what = match verified.checks {
        Checks::Checksums => "every byte was read, every checksum matches",
        Checks::Gzip => "every byte was read, gzip's checksums match",
        Checks::Zip => "every row was read, zip's checksums match",
        Checks::Lengths => {
            "every row was read, lengths and tokens fit; the format has no checksums"
        }
        Checks::LengthAndTokens => {
            "every byte was read, length and tokens fit; the format has no checksums"
        }
    };
    let (windows, rows) = (count(verified.n_windows), count(verified.n_rows));
    format!("whole: {what} ({windows} windows, {rows} rows)")
}
