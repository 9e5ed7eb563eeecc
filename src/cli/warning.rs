//! What is odd but no error: each with the advice to give.

use thiserror::Error;

use crate::stats::llama_perplexity::MIN_TOKENS;

/// Something the user should know before trusting the numbers.
#[derive(Debug, Error)]
pub enum Warning {
    #[error(
        "-ngl {0} has no effect: this kl was built without an accelerator backend, or finds no device (build with --features cuda, metal, vulkan or rocm)"
    )]
    NoAccelerator(u32),
    #[error(
        "the window of {n_ctx} tokens is longer than the {n_ctx_train} the model was trained for: expect nonsense past that point; lower --n-ctx"
    )]
    LongWindow { n_ctx: u32, n_ctx_train: u32 },
    #[error(
        "{name}: {n} bytes that are no UTF-8, the first at byte {first}: they are read as U+FFFD"
    )]
    NotUtf8 {
        name: String,
        n: usize,
        first: usize,
    },
    #[error("the last {0} window(s) end before the first scored position and are left out")]
    Unscored(usize),
    #[error("{0} prompt(s) end before the first scored position and are left out")]
    UnscoredPrompts(usize),
    #[error(
        "the model has no chat template: prompts are taken as they are (--chat-template-file gives one, --no-chat-template asks for this)"
    )]
    NoChatTemplate,
    #[error("the last {0} token(s) make no whole window and are left out")]
    NoWholeWindow(u64),
    #[error(
        "{0} holds no numbers for --top-k, --stats logits, or llama-perplexity's of a base file: what it has is measured anew"
    )]
    MeasuredAnew(String),
    #[error("{0}")]
    Conversion(String),
    #[error(
        "the reference says nothing of its tokenizer (only kl's own files do): only the vocabulary's size was compared"
    )]
    TokenizerUnknown,
    #[error(
        "{what} is {here} here and was {there} when the reference was written: results move with it a little{advice}"
    )]
    SetUpDiffers {
        what: &'static str,
        here: String,
        there: String,
        advice: String,
    },
    #[error(
        "the reference's own perplexity is {0:.0}: this text is not what its model was made for (an instruct model on raw text?), and divergences on it may mean little"
    )]
    HighPerplexity(f64),
    #[error(
        "{0} tokens were left out of every statistic: rows with NaN or infinite logits (--json locates them)"
    )]
    Excluded(u64),
    #[error(
        "the first {compared} entries are compared, of rows of {there} in the reference and {here} of the model: that they are the same tokens cannot be checked"
    )]
    TokenizerCut {
        compared: u32,
        there: u32,
        here: u32,
    },
    #[error(
        "windows overlap, one every {stride} of {n_ctx} tokens: what they share is counted more than once, and intervals are narrower than they should be"
    )]
    Overlap { stride: u32, n_ctx: u32 },
    #[error(
        "--bos {bos} is not the token that the file's text begins with, {first}: if that one is the BOS, every window is evaluated with a wrong beginning"
    )]
    OtherBos { bos: u32, first: u32 },
    #[error(
        "there was no room for a second context: the model is evaluated with one (--contexts 1 asks for no more)"
    )]
    FewerContexts,
    #[error(
        "only files that both hold token ids can be seen to be of the same tokens: rows are compared by the numbers of their windows"
    )]
    TokensUnchecked,
    #[error("{n} of {of} windows of the reference are not in the other file: they are left out")]
    LackingWindows { n: usize, of: usize },
    #[error(
        "{unused} of {of} windows of the other file are not in the reference: they are left out"
    )]
    UnusedWindows { unused: usize, of: usize },
    #[error("only {0} window(s): no interval that allows for correlated tokens; use more text")]
    FewWindows(u64),
    #[error(
        "llama-perplexity gives no statistics of fewer than {MIN_TOKENS} tokens with a next one: --stats llama-perplexity has no effect"
    )]
    NoLlamaPerplexity,
}
