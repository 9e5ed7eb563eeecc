//! Warnings: what is odd but not an error, each with the advice to give.

use kl_formats::{GgmlType, RowForms, Shard};
use serde::Serialize;
use serde::ser::SerializeStruct;
use strum::IntoStaticStr;
use thiserror::Error;

use super::number::{bytes, count_of, kld, left_out, part, percent, ratio, short_kld};
use crate::pipeline::DeviceTime;
use crate::stats::llama_perplexity::MIN_TOKENS;

/// Something that you should know before you trust the numbers. In JSON: `kind` and `message`.
#[derive(Debug, Clone, PartialEq, Error, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Warning {
    /// Flags ask for a device, but there is none.
    #[error(
        "{} no effect: this kl was built without an accelerator backend, or finds no device (kl --list-devices shows what it finds, docs/GPU.md how to build one)",
        have(flags)
    )]
    NoAccelerator {
        /// The flags without effect, each with its value.
        flags: Vec<String>,
    },
    /// ggml does not use instructions that the CPU has.
    #[error(
        "ggml was compiled without AVX2, which this CPU has: decoding on it takes many times as long; build kl again with RUSTFLAGS=-Ctarget-cpu=native CFLAGS=-U__AMX_INT8__ CXXFLAGS=-U__AMX_INT8__ in the environment"
    )]
    SlowBuild,
    /// Decoding was given more threads than can run at once.
    #[error(
        "--threads {threads}: this process may run only {available} at once, and at each step of the model all wait for those that are not running: it is slower than --threads {available}; lower it"
    )]
    ManyThreads {
        /// Threads that decode.
        threads: u32,
        /// Threads that the system runs at once for this process.
        available: u32,
    },
    /// The system did not lock the weights into memory.
    #[error(
        "--mlock has no effect: the system refuses to lock so much memory (ulimit -l shows and raises the limit)"
    )]
    NotLocked,
    /// A map is measured against rows that are not the original's own to the bit.
    #[error(
        "{path}: the original has a mean KLD of {mean_kld:.1e} nats against it: it was written on another device or by another llama.cpp, and no tensor costs less than that here; with -t TEXT the original computes its own rows"
    )]
    NotOwnRows {
        /// The reference.
        path: String,
        /// The mean KLD, in nats.
        mean_kld: f64,
    },
    /// Windows are longer than the model's training context.
    #[error(
        "the window of {n_ctx} tokens is longer than the {n_ctx_train} that the model was trained on: expect nonsense past that point; {advice}"
    )]
    LongWindow {
        n_ctx: u32,
        n_ctx_train: u32,
        /// The way to shorter windows.
        advice: &'static str,
    },
    /// The text is not all UTF-8.
    #[error("{name}: {}, the first at byte {first}: read as U+FFFD", not_utf8(*.n))]
    NotUtf8 {
        name: String,
        n: usize,
        first: usize,
    },
    /// The text has the line ends of Windows.
    #[error(
        "{name}: {} with CR LF, as on Windows: the model reads each CR as text; remove them, unless its users' texts have them too: tr -d '\\r' < {name} > new.txt", end(*.n)
    )]
    Crlf { name: String, n: usize },
    /// The text begins with a byte order mark.
    #[error(
        "{0}: begins with a byte order mark, which the model reads as text; remove its 3 bytes: tail -c +4 {0} > new.txt"
    )]
    ByteOrderMark(String),
    /// Something is not scored or not compared.
    #[error("left out: {what}")]
    LeftOut {
        /// The warning's kind in JSON: `unscored_windows`, `turns_left_out` and so on.
        kind: &'static str,
        /// The number of windows, prompts, answers or tokens, and why.
        what: String,
    },
    /// Tokens of these groups are not among those that are scored.
    #[error(
        "no token of {} is scored: -n chooses whole windows at random, and none of these is there; raise -n, or leave it out", .0.join(" or ")
    )]
    EmptyGroups(Vec<String>),
    /// With the longest answers, a reference does not fit on its disk.
    #[error(
        "{path}: if every answer is as long as --generate allows, the reference takes {}, but the disk has {} free: free some, or the run may end after its answers are generated; --resume uses them then", bytes(*.size), bytes(*.free)
    )]
    MayNotFit { path: String, size: u64, free: u64 },
    /// Prompts should be rendered by the model's chat template, but it has none.
    #[error(
        "the model has no chat template: prompts are used as they are (--chat-template-file gives one; --no-chat-template silences this)"
    )]
    NoChatTemplate,
    /// The file of a BPE tokenizer does not record how it splits a text.
    #[error(
        "the model's file does not record how its tokenizer splits a text (tokenizer.ggml.pre is missing): llama.cpp uses a default, and the tokens may not be those that the model was trained on; convert the model again"
    )]
    NoPreTokenizer,
    /// A sidecar lacks numbers that this run wants.
    #[error(
        "{0} lacks the numbers for --top-k, --stats logits, or --stats llama-perplexity against a base file: the model is evaluated from the start"
    )]
    MeasuredAnew(String),
    /// A converted file lacks something.
    #[error("{0}")]
    ConversionLoss(String),
    /// Rows could not be stored in codes.
    #[error(
        "{exact} of {} are stored exactly, at twice the size, because their u16 copies would diverge from them by more than 1e-6 nats, or because they hold NaN or +infinity; if most rows are, --encoding f32 makes a file as small", count_of(*.of, "row")
    )]
    ExactRows { exact: u64, of: u64 },
    /// The reference does not identify its tokenizer.
    #[error(
        "the reference does not identify its tokenizer (only kl's own files do): only the size of the vocabulary was compared"
    )]
    TokenizerUnknown,
    /// The reference was computed in another way.
    #[error("{what} is {here} here and {there} for the reference: {}{advice}", effect(*.loses))]
    SetUpDiffers {
        what: &'static str,
        here: String,
        there: String,
        /// True if one of the two values is a loss of its own, as a quantized KV cache is.
        loses: bool,
        advice: String,
    },
    /// The text is not what the reference model expects.
    #[error(
        "the reference's own perplexity is {perplexity:.0}: its model was not made for {}, and divergences on it may mean little",
        unfit(*.of_prompts)
    )]
    HighPerplexity { perplexity: f64, of_prompts: bool },
    /// The evaluated model is another one than the reference's.
    #[error(
        "the model's {what} is {here}, and {there} for the reference's: they are different models, and the KLD does not measure a quantization"
    )]
    OtherModel {
        what: &'static str,
        here: String,
        there: String,
    },
    /// The reference's model has fewer bits than the evaluated one.
    #[error(
        "the reference's model has {there:.2} bits per weight, the evaluated one {here:.2}: the reference should be the original's; were the two swapped?"
    )]
    SmallerReference { here: f64, there: f64 },
    /// The two models hardly agree.
    #[error(
        "{path}: the mean KLD is {} nats, and the top tokens agree in only {}: this is a quant of another model (a fine-tune?), or a broken one", kld(*.mean_kld), percent(*.top1)
    )]
    FarApart {
        path: String,
        mean_kld: f64,
        top1: f64,
    },
    /// Rows were not finite.
    #[error(
        "{} left out of every statistic: a row holds NaN or +infinity, or no finite logit (--json locates them)", left_out([(*.0, ""), (0, "")])
    )]
    ExcludedTokens(u64),
    /// The model gives a probability of 0 where the reference does not.
    #[error(
        "the KLD of {} is infinite, because the model gives a probability of 0 where the reference does not: the mean and the quantiles leave out such tokens", count_of(*.0, "token")
    )]
    InfiniteKld(u64),
    /// Tokens of one of several models are left out.
    #[error("{label}: {} left out of its mean, but not of other models'", left_out([(*.n_excluded, "without a finite row"), (*.n_infinite, "with an infinite KLD")]))]
    LeftOutTokens {
        label: String,
        n_excluded: u64,
        n_infinite: u64,
    },
    /// Models of a run are shown side by side without being compared.
    #[error("no ratios on the same tokens: {0}")]
    Unpaired(&'static str),
    /// Two models that should differ give the same rows.
    #[error(
        "{path}: the KLD is exactly 0 at every token, though this is not known to be the reference's own model: did you pass the same model twice?"
    )]
    IdenticalRows { path: String },
    /// A base file does not record the probability of all entries.
    #[error(
        "the reference's base file does not record the probability of its least probable entries, which together could have up to {} on average: statistics are over the others", percent(*.0)
    )]
    UnknownProbability(f64),
    /// A base file does not record the probability of some actual tokens.
    #[error(
        "perplexity and the change in the actual token's probability leave out {}, the least probable ones, which the base file does not know: both perplexities are too low, and llama-perplexity's differ", count_of(*.0, "token")
    )]
    UnknownTokens(u64),
    /// Vocabularies of two sizes are compared in part.
    #[error(
        "only the first {compared} entries are compared, of {there} in the reference's rows and {here} in the model's: kl cannot check that they are the same tokens"
    )]
    VocabularyCut {
        compared: u32,
        there: u32,
        here: u32,
    },
    /// The reference is a part of one.
    #[error(
        "the reference is {}: the numbers cover only its windows; kl merge makes the whole of the parts", part(.0)
    )]
    PartOfReference(Shard),
    /// The original of a map is quantized itself.
    #[error(
        "-m {0}: is quantized to q8_0, which a map takes for the truth: what that lost is not in it; give f16, bf16 or f32 where you can"
    )]
    QuantizedOriginal(String),
    /// A map of sensitivity was not finished.
    #[error(
        "{0}: the map is not finished: only its whole lines are used; kl sensitivity --resume continues it"
    )]
    MapCutOff(String),
    /// A map says nothing of some tensors.
    #[error(
        "{path}: says nothing of {} that could be quantized, {first} first: they keep their type; make the map again without --tensors to include them", count_of(*.n, "tensor")
    )]
    UnknownTensors { path: String, n: u64, first: String },
    /// A cell of a map lacks tokens that others have.
    #[error("{}: {n} of {of} tokens have no finite KLD and are left out{}: it may hurt much more than it seems to; keep kl recipe from it with --types", cell_name(tensor, *kind, *.n_tensors), as_in_more_cells(*.n_cells))]
    LostTokens {
        /// The first tensor of the cell, and its type there.
        tensor: String,
        kind: GgmlType,
        /// Its other tensors.
        n_tensors: u64,
        /// Tokens without a finite KLD, of those that the cell could have.
        n: u64,
        of: u64,
        /// Other cells that lack tokens.
        n_cells: u64,
    },
    /// A recipe is judged on the text that it was made on.
    #[error("{0}: the map was made on this text, which so judges its own recipe: use another")]
    TextOfMap(String),
    /// A recipe's measured KLD is far from the predicted one.
    #[error(
        "the measured KLD is {} times the predicted one: this text is of another kind than the map's, or one of the two has too few tokens", ratio(*.measured / *.predicted)
    )]
    PredictionOff { predicted: f64, measured: f64 },
    /// A recipe's measured KLD is above the one that was asked for.
    #[error(
        "--kld {most}: the measured KLD is {} nats: ask for a lower one, or make a map on more text of this kind", short_kld(*.measured)
    )]
    MissedKld { most: f64, measured: f64 },
    /// Rows computed from hidden states are far from the model's own.
    #[error(
        "{path}: the rows computed from its hidden states on {device} differ from those of the model that wrote it by a mean KLD of {}, and up to {}, more than the rounding of another backend explains: evaluate where it was written, or write it with --encoding u16", kld(*.mean_kld), kld(*.max_kld)
    )]
    RowsMoved {
        path: String,
        device: String,
        mean_kld: f64,
        max_kld: f64,
    },
    /// Parts of a whole were not computed alike.
    #[error(
        "{what} is {one} in {one_path} and {other} in {other_path}: the parts may differ by more than rounding; the merged file records what the first part states"
    )]
    PartsDiffer {
        what: &'static str,
        one: String,
        one_path: String,
        other: String,
        other_path: String,
    },
    /// Windows share scored tokens.
    #[error(
        "windows overlap, one every {stride} of {n_ctx} tokens: tokens they share are counted more than once, and intervals are narrower than they should be"
    )]
    OverlappingWindows { stride: u32, n_ctx: u32 },
    /// The BOS of a conversion is not the text's first token.
    #[error(
        "the file's text starts with token {first}, not with --bos {bos}: if {first} is the BOS, every window is evaluated with a wrong first token"
    )]
    OtherBos { bos: u32, first: u32 },
    /// There was memory for one context only.
    #[error("not enough memory for a second context: one is used (--contexts 1 silences this)")]
    FewerContexts,
    /// Windows are paired by number.
    #[error(
        "the files do not both hold token ids: windows are paired by their numbers, and kl cannot check that they hold the same tokens"
    )]
    TokensUnchecked,
    /// The accelerator was not kept busy.
    #[error("the device was busy only {} of the time: it waited {wait}", percent(*.busy_share))]
    DeviceWaited {
        busy_share: f64,
        /// The work that it waited for most, and what helps.
        wait: &'static str,
    },
    /// There are too few windows for their intervals.
    #[error("{}", few_windows_message(*.n, *.worth, (*.n_blocks, *.n_parts), *.needed, .unit))]
    FewWindows {
        n: u64,
        /// The number of windows of equal length that they are worth, where it is notably less.
        worth: Option<u64>,
        /// The number of blocks that the windows were put into, if they were.
        n_blocks: Option<u64>,
        /// The number of parts that the windows were divided into, if they were.
        n_parts: Option<u64>,
        /// The number of windows that would be enough.
        needed: u64,
        /// The word for a window.
        unit: &'static str,
    },
    /// Too few tokens for llama-perplexity's statistics.
    #[error(
        "llama-perplexity computes no statistics from fewer than {MIN_TOKENS} tokens with a next one, and kl none from infinite scores: --stats llama-perplexity has no effect"
    )]
    NoLlamaPerplexity,
}

impl Warning {
    /// The warning for a file whose rows are stored in these forms, if it deserves one.
    pub fn of_forms(forms: RowForms) -> Option<Self> {
        let (exact, of) = (forms.exact, forms.total());
        (exact > 0).then_some(Self::ExactRows { exact, of })
    }

    /// The warning for a run that left its device waiting, if it did so for long. `writes` is true if
    /// the run writes a reference, false if it evaluates a model.
    pub fn of_device(time: &DeviceTime, writes: bool) -> Option<Self> {
        /// Runs that keep a device for less than this many seconds are too short to judge.
        const MIN_S: f64 = 5.0;
        /// The share of its time that a device may wait before `kl` warns.
        const MAX_WAITED: f64 = 0.1;
        let waited = time.waited_cpu_s + time.waited_file_s;
        let busy_share = time.busy_share;
        let has_waited = time.busy_s + waited >= MIN_S && busy_share < 1.0 - MAX_WAITED;
        let wait = match (writes, time.waited_file_s > time.waited_cpu_s) {
            (false, false) => {
                "for the CPU to score rows: use more cores, or two contexts (--contexts 2)"
            }
            (false, true) => {
                "for the reference to be read: keep it on a faster disk, or write it with --encoding hidden"
            }
            (true, false) => {
                "for the CPU to encode rows: use more cores, or two contexts (--contexts 2)"
            }
            (true, true) => {
                "for the reference to be written: use a faster disk, or a smaller --encoding (u16, hidden)"
            }
        };
        has_waited.then_some(Self::DeviceWaited { busy_share, wait })
    }

    /// Returns true if the message names the model that it is about.
    pub fn names_model(&self) -> bool {
        matches!(
            self,
            Self::FarApart { .. } | Self::IdenticalRows { .. } | Self::MeasuredAnew(_)
        )
    }

    /// Returns true if it is about the reference or its text, so that the first model's is enough:
    /// those of other models would repeat it with other digits.
    pub fn is_about_reference(&self) -> bool {
        matches!(
            self,
            Self::UnknownProbability(_)
                | Self::UnknownTokens(_)
                | Self::HighPerplexity { .. }
                | Self::FewWindows { .. }
                | Self::EmptyGroups(_)
        )
    }

    /// Returns true if it is about the intervals, and so depends on their clusters.
    pub fn is_about_intervals(&self) -> bool {
        matches!(self, Self::FewWindows { .. })
    }

    /// The warning's subject, for scripts: stable, unlike the message.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::LeftOut { kind, .. } => kind,
            other => other.into(),
        }
    }
}

/// Some flags, as the subject of a sentence with the verb `have`.
fn have(flags: &[String]) -> String {
    let verb = if flags.len() == 1 { "has" } else { "have" };
    format!("{} {verb}", flags.join(", "))
}

/// The tensors that a cell exchanges, by the first of them.
fn cell_name(tensor: &str, kind: GgmlType, n_more: u64) -> String {
    match n_more {
        0 => format!("{tensor} at {kind}"),
        n => format!("{tensor} and {n} more at {kind}"),
    }
}

fn as_in_more_cells(n: u64) -> String {
    match n {
        0 => String::new(),
        1 => ", as in 1 more cell".to_owned(),
        n => format!(", as in {n} more cells"),
    }
}

/// What another set-up than the reference's does to the results.
fn effect(loses: bool) -> &'static str {
    if loses {
        "the KLD includes what that loses, which may be more than the weights lose"
    } else {
        "this changes the results a little"
    }
}

/// A number of bytes, with its verb.
fn not_utf8(n: usize) -> String {
    let verb = if n == 1 { "is" } else { "are" };
    format!("{} {verb} not UTF-8", count_of(n as u64, "byte"))
}

/// A number of lines, with the verb.
fn end(n: usize) -> String {
    let verb = if n == 1 { "ends" } else { "end" };
    format!("{} {verb}", count_of(n as u64, "line"))
}

/// The text that a reference model finds improbable, and a possible reason.
fn unfit(of_prompts: bool) -> &'static str {
    if of_prompts {
        "these prompts (are they in its own chat template?)"
    } else {
        "this text (an instruct model on raw text? --prompts runs it on chats)"
    }
}

fn few_windows_message(
    n: u64,
    worth: Option<u64>,
    (n_blocks, n_parts): (Option<u64>, Option<u64>),
    needed: u64,
    unit: &str,
) -> String {
    let windows = count_of(n, unit);
    if let Some(n_parts) = n_parts {
        let parts = count_of(n_parts, "part");
        return format!(
            "the intervals rest on {parts} of {windows}: they do not show how much other texts differ; use at least {needed} {unit}s, of different texts"
        );
    }
    if let Some(worth) = worth {
        return format!(
            "the intervals rest on {windows} that are worth {worth} of equal length, as a few long ones decide: use more, worth at least {needed}"
        );
    }
    match n_blocks {
        _ if n == 1 => format!("no intervals: there is only {windows}; use at least {needed}"),
        Some(1) => {
            format!("no intervals: {windows} make only one block; use at least {needed} {unit}s")
        }
        None => format!(
            "the intervals rest on {windows}: they are too narrow if neighbouring {unit}s resemble each other; use at least {needed}"
        ),
        Some(n_blocks) => format!(
            "the intervals rest on {}, of {windows} in all: from so few they are often too narrow; use at least {needed} {unit}s",
            count_of(n_blocks, "block")
        ),
    }
}

impl Serialize for Warning {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut warning = serializer.serialize_struct("Warning", 2)?;
        warning.serialize_field("kind", self.kind())?;
        warning.serialize_field("message", &self.to_string())?;
        warning.end()
    }
}
