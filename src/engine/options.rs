//! The options of a context: llama.cpp's flags as values.

use std::fmt;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use kl_formats::{Calls, GgmlType};

/// The options with which a context is created.
#[derive(Debug, Clone, Default)]
pub struct ContextOptions {
    /// Tokens in a window.
    pub n_ctx: u32,
    /// The rule by which a window is split into decode calls. Memory holds the rows of one call at
    /// most.
    pub calls: Calls,
    /// Most windows that a call decodes, each as a sequence of its own; 0 means 1.
    pub n_seq: u32,
    /// True if each sequence has a KV cache of its own, so that sequences can grow and end apart from
    /// each other; else all share one.
    pub has_own_caches: bool,
    /// Decode threads.
    pub threads: u32,
    /// The use of the fused kernel for attention.
    pub flash_attn: FlashAttention,
    /// Type of the K cache.
    pub type_k: CacheType,
    /// Type of the V cache.
    pub type_v: CacheType,
    /// True if the context shows hidden states, for [`super::Decoder::decode_call`].
    pub shows_states: bool,
}

/// Most bytes for llama.cpp's output buffer: 128 rows of 128k entries.
const OUTPUT_BUFFER_BYTES: u64 = 64 << 20;
/// llama.cpp's own default physical batch.
const MAX_DEFAULT_BATCH: u64 = 512;

/// Most tokens of a call where the CPU decodes: as many as have 64 MiB of logits, at most 512.
pub fn default_batch(n_vocab: u32) -> u32 {
    let rows = OUTPUT_BUFFER_BYTES / (4 * u64::from(n_vocab.max(1)));
    rows.min(MAX_DEFAULT_BATCH) as u32
}

/// Most bytes for llama.cpp's mask of attention, which has two for each token of a call at each
/// position of the window: from 131,072 positions on, calls have fewer than 512 tokens.
const MASK_BYTES: u64 = 128 << 20;

/// The default rule where the CPU decodes windows of at most `n_ctx` tokens: equal calls of at most
/// [`default_batch`] tokens, and of fewer where the window is so long that the mask of attention
/// would outgrow its bound.
pub fn default_calls(n_vocab: u32, n_ctx: u32) -> Calls {
    let masked = MASK_BYTES / (2 * u64::from(n_ctx.max(1)));
    let most = u64::from(default_batch(n_vocab)).min(masked);
    Calls::equal(most as u32, n_ctx)
}

/// The use of the fused kernel for attention.
#[derive(ValueEnum, strum::Display, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[strum(serialize_all = "lowercase")]
pub enum FlashAttention {
    /// Always.
    #[value(aliases = ["1", "true", "enabled"])]
    On,
    /// Never.
    #[value(aliases = ["0", "false", "disabled"])]
    Off,
    /// If the backend supports it.
    #[default]
    #[value(alias = "-1")]
    Auto,
}

/// A type of the K or V cache, by ggml's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheType(pub(super) u32);

impl CacheType {
    /// Returns true if it stores blocks of elements in fewer bits than 16 for each.
    pub fn is_quantized(self) -> bool {
        GgmlType::of(self.0).is_some_and(|kind| kind.block > 1)
    }
}

impl ValueEnum for CacheType {
    fn value_variants<'a>() -> &'a [Self] {
        /// Those that llama.cpp's `-ctk` and `-ctv` accept, in the order of its help.
        static ALL: LazyLock<[CacheType; 9]> =
            LazyLock::new(|| [1, 0, 30, 8, 2, 3, 20, 6, 7].map(CacheType));
        &*ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        GgmlType::of(self.0).map(|kind| PossibleValue::new(kind.name))
    }
}

impl Default for CacheType {
    /// llama.cpp's own: f16.
    fn default() -> Self {
        Self(1)
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(GgmlType::of(self.0).map_or("", |kind| kind.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_calls_keep_the_output_buffer_bounded() {
        let n_batch = |n_vocab| default_calls(n_vocab, 512).n_batch;
        assert_eq!(n_batch(512), 512);
        assert_eq!(n_batch(32_000), 512);
        assert_eq!(n_batch(128_256), 128);
        assert_eq!(n_batch(152_064), 103);
        // None is below 64 tokens.
        assert_eq!(n_batch(262_144), 64);
        assert_eq!(n_batch(u32::MAX), 64);
        assert_eq!(n_batch(0), 512);
    }

    #[test]
    fn the_default_calls_of_long_windows_keep_the_mask_bounded() {
        let n_batch = |n_ctx| default_calls(512, n_ctx).n_batch;
        assert_eq!([1 << 16, 1 << 17, 1 << 18].map(n_batch), [512, 512, 256]);
        assert_eq!([1 << 20, 1 << 22].map(n_batch), [64, 64]);
        // The rows of large vocabularies bound their calls before that.
        assert_eq!(default_calls(128_256, 1 << 18).n_batch, 130);
    }

    #[test]
    fn cache_types_are_named_as_in_llama_cpp() {
        let names = CacheType::value_variants().iter().map(CacheType::to_string);
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                "f16", "f32", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"
            ]
        );
        assert_eq!(
            CacheType::from_str("q8_0", false).unwrap().to_string(),
            "q8_0"
        );
        assert!(CacheType::from_str("q9_0", false).is_err());
        assert_eq!(CacheType::default().to_string(), "f16");
        let all = CacheType::value_variants().iter();
        let plain = all.filter(|kind| !kind.is_quantized());
        let plain: Vec<_> = plain.map(CacheType::to_string).collect();
        assert_eq!(plain, ["f16", "f32", "bf16"]);
    }
}
