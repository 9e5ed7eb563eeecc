//! Parsers for values that are one of some words. Help, completions, the man page and messages list them.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kl_formats::{Encoding, Kind};

use crate::commands::settings::{ComparedVocabulary, Stats};
use crate::engine::{CacheType, FlashAttention, SplitMode};
use crate::stats::ClusterRule;

/// Parses one of these values by its name.
fn one_of<T: Copy + Send + Sync + 'static>(
    values: impl IntoIterator<Item = (PossibleValue, T)>,
) -> impl TypedValueParser<Value = T> {
    let values = Vec::from_iter(values);
    let names = values.iter().map(|(name, _)| name.clone());
    PossibleValuesParser::new(names).try_map(move |given| {
        let mut values = values.iter();
        let value = values.find(|(name, _)| name.matches(&given, false));
        value.map(|(_, value)| *value).ok_or("is not one of them")
    })
}

/// Values with their names and what the help says of them.
fn explained<T, const N: usize>(
    values: [(&'static str, &'static str, T); N],
) -> impl Iterator<Item = (PossibleValue, T)> {
    let values = values.into_iter();
    values.map(|(name, help, value)| (PossibleValue::new(name).help(help), value))
}

/// Parses the way in which kl's own kind of file stores rows.
pub fn encoding() -> impl TypedValueParser<Value = Encoding> {
    one_of(explained([
        ("u16", "16 bits for each logit", Encoding::U16),
        ("f32", "32 bits for each logit: exact", Encoding::F32),
        (
            "hidden",
            "The model's hidden states and its output head: exact",
            Encoding::Hidden,
        ),
    ]))
}

/// Parses the name of a format that references can be written in.
pub fn written_kind() -> impl TypedValueParser<Value = Kind> {
    one_of(explained([
        (
            "kl",
            "kl's own format: gzip with an index and checksums",
            Kind::Kl,
        ),
        ("kl.py", "kl.py's format", Kind::KlPy),
        (
            "llama.cpp",
            "llama.cpp's base file, which llama-perplexity uses",
            Kind::LlamaCpp,
        ),
    ]))
}

/// Parses the rule by which tokens are put into clusters.
pub fn cluster() -> impl TypedValueParser<Value = ClusterRule> {
    one_of(explained([
        ("window", "Each window, or prompt", ClusterRule::Window),
        (
            "block",
            "Each block of contiguous windows",
            ClusterRule::Block,
        ),
        (
            "auto",
            "Blocks if neighbouring windows resemble each other and make at least 10; parts of fewer \
             than 6 long windows, unless those of one window resemble each other; else windows",
            ClusterRule::Auto,
        ),
    ]))
}

/// Parses a kind of statistics.
pub fn stats() -> impl TypedValueParser<Value = Stats> {
    let own = (PossibleValue::new("kl").hide(true), Stats::Kl);
    let more = explained([
        (
            "llama-perplexity",
            "What llama-perplexity --kl-divergence prints",
            Stats::LlamaPerplexity,
        ),
        (
            "logits",
            "Distances between logits, Jensen-Shannon divergence, and KLD smoothed as in MAX",
            Stats::Logits,
        ),
    ]);
    one_of([own].into_iter().chain(more))
}

/// The vocabularies that can be compared without a model.
const STORED_VOCABULARIES: [(&str, &str, ComparedVocabulary); 2] = [
    (
        "same",
        "All entries; the sizes must not differ",
        ComparedVocabulary::Same,
    ),
    (
        "common",
        "The first entries, as many as both have",
        ComparedVocabulary::Common,
    ),
];

/// Parses the `--vocab` of an evaluation.
pub fn vocab() -> impl TypedValueParser<Value = ComparedVocabulary> {
    let of_model = [(
        "tokenizer",
        "All but the padding at the end of the evaluated model's vocabulary",
        ComparedVocabulary::Tokenizer,
    )];
    one_of(explained(STORED_VOCABULARIES).chain(explained(of_model)))
}

/// Parses the `--vocab` of `kl compare`, which has no model whose padding it could leave out.
pub fn compare_vocab() -> impl TypedValueParser<Value = ComparedVocabulary> {
    one_of(explained(STORED_VOCABULARIES))
}

/// Parses the way to split a model across devices.
pub fn split_mode() -> impl TypedValueParser<Value = SplitMode> {
    one_of(explained([
        (
            "none",
            "The whole model lies on one device",
            SplitMode::None,
        ),
        (
            "layer",
            "Each device holds whole layers: llama.cpp's default",
            SplitMode::Layer,
        ),
        ("row", "Rows of each matrix are split", SplitMode::Row),
        ("tensor", "Each tensor is split", SplitMode::Tensor),
    ]))
}

/// Parses the use of flash attention, by llama.cpp's names and by its numbers.
pub fn flash_attention() -> impl TypedValueParser<Value = FlashAttention> {
    let on = PossibleValue::new("on").aliases(["1", "true", "enabled"]);
    let off = PossibleValue::new("off").aliases(["0", "false", "disabled"]);
    let auto = PossibleValue::new("auto").alias("-1");
    one_of([
        (on.help("Always"), FlashAttention::On),
        (off.help("Never"), FlashAttention::Off),
        (
            auto.help("If the backend supports it"),
            FlashAttention::Auto,
        ),
    ])
}

/// Parses the type of a cache.
pub fn cache_type() -> impl TypedValueParser<Value = CacheType> {
    let all = CacheType::ALL.iter();
    one_of(all.map(|kind| (PossibleValue::new(kind.to_string()), *kind)))
}
