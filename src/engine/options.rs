//! The options of a context: llama.cpp's flags as values.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use kl_formats::Calls;
use llama_cpp_2::context::params::KvCacheType;

/// The options with which a context is created.
#[derive(Debug, Clone, Default)]
pub struct ContextOptions {
    /// Tokens in a window.
    pub n_ctx: u32,
    /// Logical batch: most tokens of a decode call, and so rows of logits in memory.
    pub n_batch: u32,
    /// Physical batch: most tokens computed at once.
    pub n_ubatch: u32,
    /// True if a window is split into equal calls: see [`Calls`].
    pub equal_calls: bool,
    /// Most windows that a call decodes, each as a sequence of its own; 0 is 1.
    pub n_seq: u32,
    /// Decode threads.
    pub threads: u32,
    /// The use of the fused kernel for attention.
    pub flash_attn: FlashAttention,
    /// Type of the K cache.
    pub type_k: CacheType,
    /// Type of the V cache.
    pub type_v: CacheType,
    /// True if the context shows hidden states, for [`super::Decoder::decode_states`].
    pub states: bool,
}

impl ContextOptions {
    /// Returns the rule by which a window is split into decode calls.
    #[must_use]
    pub fn calls(&self) -> Calls {
        Calls {
            n_batch: self.n_batch,
            n_ubatch: self.n_ubatch,
            is_equal: self.equal_calls,
        }
    }
}

/// Most bytes for llama.cpp's output buffer: 128 rows of 128k entries.
const OUTPUT_BUFFER_BYTES: u64 = 64 << 20;
/// llama.cpp's own default physical batch.
const MAX_DEFAULT_BATCH: u64 = 512;

/// Most tokens of a call where the CPU decodes: as many as have 64 MiB of logits, at most 512.
#[must_use]
pub fn default_batch(n_vocab: u32) -> u32 {
    let rows = OUTPUT_BUFFER_BYTES / (4 * u64::from(n_vocab.max(1)));
    rows.min(MAX_DEFAULT_BATCH) as u32
}

/// The default where the CPU decodes windows of at most `n_ctx` tokens: equal calls of at most
/// [`default_batch`] tokens.
#[must_use]
pub fn default_calls(n_vocab: u32, n_ctx: u32) -> Calls {
    Calls::equal(default_batch(n_vocab), n_ctx)
}

/// The use of the fused kernel for attention.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
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

impl FlashAttention {
    pub(super) fn policy(self) -> llama_cpp_sys_2::llama_flash_attn_type {
        match self {
            Self::Auto => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO,
            Self::On => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            Self::Off => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }
    }
}

impl fmt::Display for FlashAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// A type of the K or V cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheType {
    name: &'static str,
    pub(super) ggml: KvCacheType,
}

/// The types that llama.cpp's `-ctk` and `-ctv` accept.
const CACHE_TYPES: [(&str, KvCacheType); 9] = [
    ("f16", KvCacheType::F16),
    ("f32", KvCacheType::F32),
    ("bf16", KvCacheType::BF16),
    ("q8_0", KvCacheType::Q8_0),
    ("q4_0", KvCacheType::Q4_0),
    ("q4_1", KvCacheType::Q4_1),
    ("iq4_nl", KvCacheType::IQ4_NL),
    ("q5_0", KvCacheType::Q5_0),
    ("q5_1", KvCacheType::Q5_1),
];

impl CacheType {
    /// The names of all types.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CACHE_TYPES.into_iter().map(|(name, _)| name)
    }
}

impl Default for CacheType {
    /// llama.cpp's own: f16.
    fn default() -> Self {
        let [(name, ggml), ..] = CACHE_TYPES;
        Self { name, ggml }
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        CACHE_TYPES
            .into_iter()
            .find(|(name, _)| *name == text)
            .map(|(name, ggml)| Self { name, ggml })
            .ok_or_else(|| {
                let names: Vec<_> = Self::names().collect();
                format!("expected one of {}", names.join(", "))
            })
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
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
    fn cache_types_are_named_as_in_llama_cpp() {
        assert_eq!("q8_0".parse::<CacheType>().unwrap().to_string(), "q8_0");
        assert!("q9_0".parse::<CacheType>().unwrap_err().contains("bf16"));
        assert_eq!(CacheType::default().to_string(), "f16");
    }
}
