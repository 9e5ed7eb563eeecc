//! Flags as given -> what to do: checked once, here.

use std::path::{Path, PathBuf};

use kl_formats::{Encoding, MAX_N_CTX};

use super::args::{Args, Format, ResultArgs, Stats, Vocabulary};
use crate::engine::{CacheType, FlashAttention, ModelOptions};
use crate::report::Condition;
use crate::stats::Confidence;
use crate::windows::{ScoreFrom, Windowing};

/// Flags that do not go together, in one line: what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub(super) String);

/// What a call asks for.
#[derive(Debug)]
pub enum Command {
    /// Write a reference.
    Write(WriteSettings),
    /// Evaluate models against one.
    Read(ReadSettings),
}

/// Write mode.
#[derive(Debug)]
pub struct WriteSettings {
    pub model: PathBuf,
    pub input: Input,
    pub target: PathBuf,
    pub kind: WriteKind,
    /// Whether to go on with what an earlier run has left.
    pub resume: bool,
    pub run: RunSettings,
}

/// What a reference is written of.
#[derive(Debug)]
pub enum Input {
    /// A text, cut into windows.
    Text {
        path: PathBuf,
        windowing: Windowing,
        /// Whether special tokens in it are read as such.
        parse_special: bool,
    },
    /// Prompts, each a window.
    Prompts(PromptSettings),
}

impl Input {
    /// The file, or `-`.
    pub fn path(&self) -> &Path {
        match self {
            Self::Text { path, .. } => path,
            Self::Prompts(prompts) => &prompts.path,
        }
    }
}

/// How prompts become windows.
#[derive(Debug)]
pub struct PromptSettings {
    pub path: PathBuf,
    pub template: TemplateChoice,
    /// Whether special tokens are read as such where no template is applied.
    pub parse_special: bool,
    /// Most tokens that a window may have; `None`: as many as the longest has.
    pub n_ctx: Option<u32>,
    /// So many prompts are taken, from the first on.
    pub max_prompts: Option<u32>,
    /// Tokens that the model puts behind each.
    pub generate: Option<u32>,
    /// The first scored position of each; `None`: the last of the prompt.
    pub first_scored: Option<u32>,
}

/// Which chat template is applied.
#[derive(Debug, PartialEq, Eq)]
pub enum TemplateChoice {
    /// The model's own, if it has one.
    OfModel,
    File(PathBuf),
    None,
}

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    Native(Encoding),
    KlPy,
    LlamaCpp,
}

impl WriteKind {
    /// How a row is stored; in llama.cpp's base file as log-probabilities.
    pub fn encoding(self) -> Encoding {
        match self {
            Self::Native(encoding) => encoding,
            Self::KlPy => Encoding::F32,
            Self::LlamaCpp => Encoding::U16,
        }
    }
}

/// Read mode.
#[derive(Debug)]
pub struct ReadSettings {
    pub models: Vec<PathBuf>,
    pub reference: PathBuf,
    /// The window's size if one was given: it has to be the reference's.
    pub n_ctx: Option<u32>,
    pub vocabulary: Vocabulary,
    /// Contexts of a model used in turn; `None`: as suits the device.
    pub contexts: Option<u32>,
    pub results: ResultSettings,
    pub run: RunSettings,
}

/// What becomes of the numbers of an evaluation.
#[derive(Debug)]
pub struct ResultSettings {
    pub confidence: Confidence,
    pub stats: Vec<Stats>,
    pub json: Option<PathBuf>,
    /// Whether the JSON holds every token's values.
    pub json_tokens: bool,
    /// So many tokens with the largest KLD are listed.
    pub top_k: Option<u32>,
    /// What fails a model.
    pub conditions: Vec<Condition>,
    pub sidecar: Sidecar,
    pub force: bool,
    /// Whether to go on with what an earlier run has left; `None`: it cannot be.
    pub resume: Option<bool>,
    pub quiet: bool,
}

/// Where the per-token file goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Sidecar {
    /// `<model file name>.kls` in the current folder.
    ByModel,
    At(PathBuf),
    None,
}

/// What both modes share.
#[derive(Debug)]
pub struct RunSettings {
    pub model: ModelOptions,
    pub n_batch: Option<u32>,
    pub n_ubatch: Option<u32>,
    pub threads: u32,
    /// `None`: as the reference was written.
    pub flash_attn: Option<FlashAttention>,
    pub type_k: CacheType,
    pub type_v: CacheType,
    /// Scored rows to stop after.
    pub max_rows: Option<u64>,
    pub force: bool,
    pub verbose: bool,
    pub quiet: bool,
}

/// More than these crash llama.cpp (`GGML_MAX_N_THREADS`).
const MAX_THREADS: u32 = 512;

/// Tokens in a window, where neither the user nor a reference says: llama.cpp's habit.
const DEFAULT_N_CTX: u32 = 512;

impl TryFrom<Args> for Command {
    type Error = UsageError;

    fn try_from(mut args: Args) -> Result<Self, UsageError> {
        if args.resume && args.force {
            return wrong(
                "--resume goes on with what is there, and --force starts anew: give one of them",
            );
        }
        let run = run_settings(&mut args)?;
        if args.n_ctx.is_some_and(|n_ctx| n_ctx < 2) {
            return wrong("--n-ctx must be at least 2: a window of one token predicts nothing");
        }
        if args.n_ctx.is_some_and(|n_ctx| n_ctx > MAX_N_CTX) {
            return wrong(&format!("--n-ctx can be {MAX_N_CTX} at most"));
        }
        for (path, flag) in [
            (&args.write_path, "-w"),
            (&args.read_path, "-r"),
            (&args.results.sidecar, "--sidecar"),
            (&args.chat_template_file, "--chat-template-file"),
        ] {
            if path.as_deref().is_some_and(|path| path.as_os_str() == "-") {
                return wrong(&format!(
                    "{flag} needs a file: '-' is understood by -t, --prompts-file and --json alone"
                ));
            }
        }
        let input = input(&mut args)?;
        match (input, args.write_path.take(), args.read_path.take()) {
            (None, None, None) => wrong(
                "nothing to do: give a text and a file to write its reference to (-t TEXT -w REF), or a reference to evaluate against (-r REF)",
            ),
            (None, Some(_), None) => wrong(
                "no text: -w writes a reference of a text, given with -t, or of prompts, given with --prompts-file",
            ),
            (Some(_), None, None) => wrong(
                "no output: -t and --prompts-file need -w REF, the file to write the reference to",
            ),
            (_, Some(_), Some(_)) => wrong("-w and -r exclude each other: write first, then read"),
            (Some(_), None, Some(_)) => wrong(
                "-t has no use with -r, nor has --prompts-file: the reference holds the tokens of its text",
            ),
            (Some(input), Some(target), None) => write_settings(args, input, target, run),
            (None, None, Some(reference)) => read_settings(args, reference, run),
        }
    }
}

/// What there is to read, if anything.
fn input(args: &mut Args) -> Result<Option<Input>, UsageError> {
    if args.stride == Some(0) || args.max_windows == Some(0) {
        return wrong("--stride and --max-windows must be at least 1");
    }
    match (args.text_path.take(), args.prompts_file.take()) {
        (Some(_), Some(_)) => wrong(
            "-t and --prompts-file exclude each other: a reference is of a text or of prompts",
        ),
        (None, Some(path)) => prompts(args, path).map(|prompts| Some(Input::Prompts(prompts))),
        (text, None) => {
            if args.no_chat_template || args.chat_template_file.is_some() || args.generate.is_some()
            {
                return wrong(
                    "--no-chat-template, --chat-template-file and --generate belong to --prompts-file",
                );
            }
            let windowing = Windowing {
                n_ctx: args.n_ctx.unwrap_or(DEFAULT_N_CTX),
                stride: args.stride,
                score: args.score.unwrap_or_default(),
                max_windows: args.max_windows,
            };
            Ok(text.map(|path| Input::Text {
                path,
                windowing,
                parse_special: args.parse_special,
            }))
        }
    }
}

fn prompts(args: &mut Args, path: PathBuf) -> Result<PromptSettings, UsageError> {
    if args.stride.is_some() {
        return wrong("--stride has no use with --prompts-file: each prompt is one window");
    }
    if args.format != Format::Kl {
        return wrong("--prompts-file needs --format kl: no other kind of file can hold prompts");
    }
    let first_scored = match (args.score, args.generate) {
        (None, None) | (Some(ScoreFrom::All), _) => Some(0),
        (None, Some(_)) => None,
        (Some(ScoreFrom::Position(first)), None) => Some(first),
        (Some(_), Some(_)) => {
            return wrong(
                "--generate scores what is generated, and with --score all the prompt too: nothing else",
            );
        }
        (Some(ScoreFrom::Half | ScoreFrom::New), None) => {
            return wrong(
                "--score with --prompts-file is all or a position: prompts have lengths of their own, and share no text",
            );
        }
    };
    let template = match (args.chat_template_file.take(), args.no_chat_template) {
        (Some(path), _) => TemplateChoice::File(path),
        (None, true) => TemplateChoice::None,
        (None, false) => TemplateChoice::OfModel,
    };
    Ok(PromptSettings {
        path,
        template,
        parse_special: args.parse_special,
        n_ctx: args.n_ctx,
        max_prompts: args.max_windows,
        generate: args.generate,
        first_scored,
    })
}

fn write_settings(
    args: Args,
    input: Input,
    target: PathBuf,
    run: RunSettings,
) -> Result<Command, UsageError> {
    let [model] = args.model.try_into().map_err(|models: Vec<_>| {
        UsageError(format!(
            "{} models given: a reference is written by one",
            models.len()
        ))
    })?;
    if args.results.json.is_some() {
        return wrong(
            "--json has no use with -w: there are no results until a model is read against the reference",
        );
    }
    if args.results.sidecar.is_some() || args.results.no_sidecar {
        return wrong("--sidecar and --no-sidecar have no use with -w");
    }
    if args.vocab.is_some() {
        return wrong("--vocab belongs to -r: a reference holds whole rows");
    }
    if !args.results.stats.is_empty() {
        return wrong("--stats belongs to -r: a reference has no statistics");
    }
    let ResultArgs {
        fail_if,
        top_k,
        json_tokens,
        ..
    } = &args.results;
    if !fail_if.is_empty() || top_k.is_some() || *json_tokens {
        return wrong(
            "--fail-if, --top-k and --json-tokens belong to -r: there are no results until a model is read against the reference",
        );
    }
    if args.contexts.is_some() {
        return wrong("--contexts belongs to -r: rows are written in their order");
    }
    if args.resume && args.format != Format::Kl {
        return wrong(
            "--resume goes on with --format kl alone, whose checksums tell what is whole: write that, and kl convert it",
        );
    }
    let kind = kind(args.format, args.encoding)?;
    if let Input::Text { windowing, .. } = &input {
        check_windowing(windowing, kind, args.score, &run)?;
    }
    Ok(Command::Write(WriteSettings {
        model,
        input,
        target,
        kind,
        resume: args.resume,
        run,
    }))
}

fn kind(format: Format, encoding: Option<Encoding>) -> Result<WriteKind, UsageError> {
    Ok(match (format, encoding) {
        (Format::Kl, encoding) => WriteKind::Native(encoding.unwrap_or(Encoding::U16)),
        (Format::KlPy, None | Some(Encoding::F32)) => WriteKind::KlPy,
        (Format::KlPy, Some(Encoding::U16)) => {
            return wrong("--format kl.py stores f32: leave --encoding out");
        }
        (Format::LlamaCpp, Some(_)) => {
            return wrong(
                "--format llama.cpp stores log-probabilities in 16 bits: leave --encoding out",
            );
        }
        (Format::LlamaCpp, None) => WriteKind::LlamaCpp,
    })
}

/// What leaves nothing to score, or cannot be expressed by the kind of file.
fn check_windowing(
    windowing: &Windowing,
    kind: WriteKind,
    score: Option<ScoreFrom>,
    run: &RunSettings,
) -> Result<(), UsageError> {
    if windowing.score.first(windowing.n_ctx) >= windowing.n_ctx {
        return wrong("--score leaves no position to score: it must be less than --n-ctx");
    }
    match kind {
        WriteKind::KlPy if windowing.score != ScoreFrom::All => {
            wrong("--format kl.py scores all positions: leave --score out")
        }
        WriteKind::LlamaCpp => check_llama_cpp(windowing, score, run),
        WriteKind::Native(_) | WriteKind::KlPy => Ok(()),
    }
}

/// What llama.cpp's base file cannot express.
fn check_llama_cpp(
    windowing: &Windowing,
    score: Option<ScoreFrom>,
    run: &RunSettings,
) -> Result<(), UsageError> {
    let n_ctx = windowing.n_ctx;
    if windowing.stride.is_some() || windowing.max_windows.is_some() {
        return wrong(
            "--format llama.cpp takes all whole windows of a text, which do not overlap: leave --stride and --max-windows out",
        );
    }
    if score.is_some_and(|score| score.first(n_ctx) != n_ctx / 2) {
        return wrong(
            "--format llama.cpp scores the second half of each window: leave --score out",
        );
    }
    if n_ctx < 3 {
        return wrong("--n-ctx must be at least 3 with --format llama.cpp, to score a position");
    }
    if run.max_rows.is_some() {
        return wrong(
            "--format llama.cpp holds whole windows in the order of the text: leave --n-tokens out, and give a shorter text",
        );
    }
    Ok(())
}

fn read_settings(args: Args, reference: PathBuf, run: RunSettings) -> Result<Command, UsageError> {
    if args.score.is_some() {
        return wrong("--score belongs to -w: the reference has fixed which positions are scored");
    }
    if args.stride.is_some() || args.max_windows.is_some() {
        return wrong(
            "--stride and --max-windows belong to -w: the reference has fixed the windows",
        );
    }
    if args.parse_special || args.encoding.is_some() || args.format != Format::Kl {
        return wrong("--parse-special, --encoding and --format belong to -w");
    }
    if args.resume && args.results.no_sidecar {
        return wrong("--resume goes on from the sidecar: leave --no-sidecar out");
    }
    Ok(Command::Read(ReadSettings {
        results: ResultSettings {
            resume: Some(args.resume),
            ..result_settings(args.results, args.model.len(), args.force, args.quiet)?
        },
        models: args.model,
        reference,
        n_ctx: args.n_ctx,
        vocabulary: args.vocab.unwrap_or_default(),
        contexts: args.contexts,
        run,
    }))
}

/// `n`: how many models, or files in their place, are evaluated.
pub(super) fn result_settings(
    args: ResultArgs,
    n: usize,
    force: bool,
    quiet: bool,
) -> Result<ResultSettings, UsageError> {
    if args.sidecar.is_some() && n > 1 {
        return wrong(
            "--sidecar names one file and several models were given: leave it out to get one for each",
        );
    }
    if args.json_tokens && args.json.is_none() {
        return wrong("--json-tokens needs --json PATH, the file to put the tokens in");
    }
    for condition in &args.fail_if {
        let (kind, name) = match condition.section() {
            "logits" | "jensen_shannon" | "smoothed_kld" => (Stats::Logits, "logits"),
            "llama_perplexity" => (Stats::LlamaPerplexity, "llama-perplexity"),
            _ => continue,
        };
        if !args.stats.contains(&kind) {
            return wrong(&format!(
                "--fail-if '{}' needs --stats {name}",
                condition.expression()
            ));
        }
    }
    let sidecar = match (args.sidecar, args.no_sidecar) {
        (_, true) => Sidecar::None,
        (Some(path), false) => Sidecar::At(path),
        (None, false) => Sidecar::ByModel,
    };
    Ok(ResultSettings {
        confidence: args.confidence,
        stats: args.stats,
        json: args.json,
        json_tokens: args.json_tokens,
        top_k: args.top_k,
        conditions: args.fail_if,
        sidecar,
        force,
        resume: None,
        quiet,
    })
}

fn run_settings(args: &mut Args) -> Result<RunSettings, UsageError> {
    if args.tensor_split.is_some() {
        return wrong(
            "--tensor-split is not available: the bindings to llama.cpp do not offer it; choose devices with --device",
        );
    }
    if args.threads.is_some_and(|threads| threads > MAX_THREADS) {
        return wrong(&format!(
            "--threads can be {MAX_THREADS} at most, llama.cpp's own limit"
        ));
    }
    for (value, flag) in [
        (args.n_batch, "--n-batch"),
        (args.n_ubatch, "--n-ubatch"),
        (args.threads, "--threads"),
    ] {
        if value == Some(0) || value.is_some_and(|value| i32::try_from(value).is_err()) {
            return wrong(&format!("{flag} must be at least 1 and fit 31 bits"));
        }
    }
    let max_rows = match args.n_tokens {
        -1 => None,
        n if n >= 1 => Some(n as u64),
        _ => return wrong("--n-tokens must be at least 1, or -1 for all"),
    };
    Ok(RunSettings {
        model: ModelOptions {
            n_gpu_layers: args.n_gpu_layers,
            split_mode: args.split_mode,
            main_gpu: args.main_gpu,
            devices: std::mem::take(&mut args.device),
        },
        n_batch: args.n_batch,
        n_ubatch: args.n_ubatch,
        threads: args
            .threads
            .unwrap_or_else(|| (num_cpus::get_physical() as u32).min(MAX_THREADS)),
        flash_attn: args.flash_attn,
        type_k: args.cache_type_k,
        type_v: args.cache_type_v,
        max_rows,
        force: args.force,
        verbose: args.verbose,
        quiet: args.quiet,
    })
}

fn wrong<T>(message: &str) -> Result<T, UsageError> {
    Err(UsageError(message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn command(line: &str) -> Result<Command, String> {
        let args = Args::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        Command::try_from(args).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_missing_is_named() {
        for (line, named) in [
            ("kl -m a", "-r REF"),
            ("kl -m a -t t", "-w REF"),
            ("kl -m a -w w", "-t"),
            ("kl -m a -t t -r r", "-t has no use"),
            ("kl -m a -w w -r r", "exclude"),
            ("kl -m a -m b -t t -w w", "2 models"),
            ("kl -m a -t t -w w -c 1", "--n-ctx"),
            ("kl -m a -t t -w w -c 0", "--n-ctx"),
            ("kl -m a -t t -w w -c 64 --score 64", "--score"),
            ("kl -m a -t t -w w --format kl.py --resume", "kl convert"),
            ("kl -m a -t t -w w --json j", "--json"),
            ("kl -m a -t t -w w --stats kl", "--stats"),
            ("kl -m a -t t -w w --format kl.py --encoding u16", "f32"),
            ("kl -m a -t t -w w --format kl.py --score half", "--score"),
            ("kl -m a -t t -w w --format llama.cpp -n 9", "--n-tokens"),
            ("kl -m a -t t -w w --format llama.cpp -c 2", "--n-ctx"),
            (
                "kl -m a -t t -w w --format llama.cpp --score all",
                "--score",
            ),
            (
                "kl -m a -t t -w w --format llama.cpp --encoding u16",
                "--encoding",
            ),
            ("kl -m a -r r -n 0", "--n-tokens"),
            ("kl -m a -r r -n -2", "--n-tokens"),
            ("kl -m a -r r -b 0", "--n-batch"),
            ("kl -m a -r r --threads 0", "--threads"),
            ("kl -m a -r r --threads 513", "512"),
            ("kl -m a -t t -w -", "-w needs a file"),
            ("kl -m a -r -", "-r needs a file"),
            ("kl -m a -r r --score half", "--score"),
            ("kl -m a -r r --stride 4", "--stride"),
            ("kl -m a -t t -w w --stride 0", "--stride"),
            ("kl -m a -t t -w w --max-windows 0", "--max-windows"),
            ("kl -m a -r r --json-tokens", "--json PATH"),
            ("kl -m a -r r --resume --no-sidecar", "--no-sidecar"),
            ("kl -m a -r r --resume --force", "one of them"),
            (
                "kl -m a -r r --fail-if logits.mean_abs_diff.mean>1",
                "--stats logits",
            ),
            ("kl -m a -t t -w w --fail-if kld.mean>1", "--fail-if"),
            ("kl -m a -t t -w w --top-k 3", "--top-k"),
            ("kl -m a -t t -w w --json-tokens", "--json-tokens"),
            ("kl -m a -m b -r r --sidecar s", "--sidecar"),
            ("kl -m a -r r --tensor-split 1,1", "--device"),
            ("kl -m a -w w", "--prompts-file"),
            ("kl -m a --prompts-file p", "-w REF"),
            ("kl -m a --prompts-file p -r r", "--prompts-file"),
            ("kl -m a -t t --prompts-file p -w w", "exclude each other"),
            ("kl -m a -t t -w w --generate 5", "--prompts-file"),
            ("kl -m a -t t -w w --no-chat-template", "--prompts-file"),
            ("kl -m a -r r --chat-template-file c", "--prompts-file"),
            (
                "kl -m a --prompts-file p -w w --chat-template-file -",
                "needs a file",
            ),
            ("kl -m a --prompts-file p -w w --score half", "--score"),
            ("kl -m a --prompts-file p -w w --score new", "--score"),
            ("kl -m a --prompts-file p -w w --stride 4", "--stride"),
            (
                "kl -m a --prompts-file p -w w --generate 2 --score 3",
                "--generate",
            ),
            (
                "kl -m a --prompts-file p -w w --format kl.py",
                "--format kl",
            ),
            (
                "kl -m a --prompts-file p -w w --format llama.cpp",
                "--format kl",
            ),
            (
                "kl -m a --prompts-file p -w w --max-windows 0",
                "--max-windows",
            ),
        ] {
            let message = command(line).unwrap_err();
            assert!(message.contains(named), "{line}: {message}");
            assert!(!message.contains('\n'), "{line}: one line");
        }
    }

    #[test]
    fn the_two_classic_calls() {
        let Command::Write(write) = command("kl -m a -t t -w w").unwrap() else {
            panic!("write")
        };
        let Input::Text { windowing, .. } = write.input else {
            panic!("text")
        };
        assert_eq!(
            (windowing.n_ctx, write.kind),
            (512, WriteKind::Native(Encoding::U16))
        );
        assert_eq!(
            (windowing.score, write.run.max_rows),
            (ScoreFrom::All, None)
        );
        let Command::Read(read) = command("kl -m a -m b -r r -n 100").unwrap() else {
            panic!("read")
        };
        assert_eq!((read.models.len(), read.run.max_rows), (2, Some(100)));
        assert_eq!((read.n_ctx, read.results.sidecar), (None, Sidecar::ByModel));
        assert_eq!(read.results.stats, []);
    }
    #[test]
    fn prompts_are_scored_from_where_they_are_said_to_be() {
        for (flags, n_ctx, generate, first_scored, template) in [
            ("", None, None, Some(0), TemplateChoice::OfModel),
            (
                "-c 64 --score 3",
                Some(64),
                None,
                Some(3),
                TemplateChoice::OfModel,
            ),
            (
                "--generate 5 --no-chat-template",
                None,
                Some(5),
                None,
                TemplateChoice::None,
            ),
            (
                "--generate 5 --score all --chat-template-file c",
                None,
                Some(5),
                Some(0),
                TemplateChoice::File("c".into()),
            ),
        ] {
            let line = format!("kl -m a --prompts-file - -w w {flags}");
            let Command::Write(write) = command(line.trim()).unwrap() else {
                panic!("write")
            };
            let Input::Prompts(prompts) = write.input else {
                panic!("prompts")
            };
            assert_eq!(
                (prompts.n_ctx, prompts.generate),
                (n_ctx, generate),
                "{line}"
            );
            assert_eq!(
                (prompts.first_scored, prompts.template),
                (first_scored, template)
            );
        }
        let range = command("kl -m a --prompts-file p -w w --generate 0").unwrap_err();
        assert!(range.contains("--generate"), "{range}");
    }
}
