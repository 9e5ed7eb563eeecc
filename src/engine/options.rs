use std::fmt;
use std::str::FromStr;

use llama_cpp_2::context::params::KvCacheType;
use llama_cpp_2::model::params::LlamaSplitMode;

/// How a model is loaded; fields as llama.cpp's flags of the same name.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    /// Layers to offload.
    pub n_gpu_layers: u32,
    /// How layers are spread over several devices.
    pub split_mode: Option<SplitMode>,
    /// The device that holds what is not split.
    pub main_gpu: Option<i32>,
    /// Devices to offload to, by ggml's names; empty: all; `none`: the CPU alone.
    pub devices: Vec<String>,
}

/// How a context is made.
#[derive(Debug, Clone)]
pub struct ContextOptions {
    /// Tokens in a window.
    pub n_ctx: u32,
    /// Tokens in a decode call, and so rows of logits in memory.
    pub n_batch: u32,
    /// Tokens computed at once.
    pub n_ubatch: u32,
    /// Threads that decode.
    pub threads: u32,
    /// Flash attention.
    pub flash_attn: FlashAttention,
    /// Type of the cached keys.
    pub type_k: CacheType,
    /// Type of the cached values.
    pub type_v: CacheType,
}

/// What llama.cpp's output buffer may take: with 128k entries a row, 128 rows.
const OUTPUT_BUFFER_BYTES: u64 = 64 << 20;
/// llama.cpp's own default for its physical batch.
const MAX_DEFAULT_BATCH: u64 = 512;
const MIN_DEFAULT_BATCH: u64 = 32;

/// The batch that keeps the rows of logits of one decode call within 64 MiB, in steps of 32 tokens.
#[must_use]
pub fn default_batch(n_vocab: u32) -> u32 {
    let rows = OUTPUT_BUFFER_BYTES / (4 * u64::from(n_vocab.max(1)));
    let rows = rows / MIN_DEFAULT_BATCH * MIN_DEFAULT_BATCH;
    rows.clamp(MIN_DEFAULT_BATCH, MAX_DEFAULT_BATCH) as u32
}

/// Whether attention is computed by the fused kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// Where the backend has it.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
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

impl FromStr for FlashAttention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" | "-1" => Ok(Self::Auto),
            "on" | "1" | "true" | "enabled" => Ok(Self::On),
            "off" | "0" | "false" | "disabled" => Ok(Self::Off),
            _ => Err("expected on, off or auto".to_owned()),
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

/// A type that llama.cpp can keep keys or values in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheType {
    name: &'static str,
    pub(super) ggml: KvCacheType,
}

/// The types that llama.cpp's `-ctk` and `-ctv` know.
pub const CACHE_TYPES: [CacheType; 9] = [
    CacheType {
        name: "f16",
        ggml: KvCacheType::F16,
    },
    CacheType {
        name: "f32",
        ggml: KvCacheType::F32,
    },
    CacheType {
        name: "bf16",
        ggml: KvCacheType::BF16,
    },
    CacheType {
        name: "q8_0",
        ggml: KvCacheType::Q8_0,
    },
    CacheType {
        name: "q4_0",
        ggml: KvCacheType::Q4_0,
    },
    CacheType {
        name: "q4_1",
        ggml: KvCacheType::Q4_1,
    },
    CacheType {
        name: "iq4_nl",
        ggml: KvCacheType::IQ4_NL,
    },
    CacheType {
        name: "q5_0",
        ggml: KvCacheType::Q5_0,
    },
    CacheType {
        name: "q5_1",
        ggml: KvCacheType::Q5_1,
    },
];

impl Default for CacheType {
    fn default() -> Self {
        CACHE_TYPES[0]
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        CACHE_TYPES
            .into_iter()
            .find(|known| known.name == text)
            .ok_or_else(|| {
                let names: Vec<_> = CACHE_TYPES.iter().map(|known| known.name).collect();
                format!("expected one of {}", names.join(", "))
            })
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How layers are spread over several devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitMode(pub(super) LlamaSplitMode);

impl FromStr for SplitMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(LlamaSplitMode::None)),
            "layer" => Ok(Self(LlamaSplitMode::Layer)),
            "row" => Ok(Self(LlamaSplitMode::Row)),
            "tensor" => Ok(Self(LlamaSplitMode::Tensor)),
            _ => Err("expected none, layer, row or tensor".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_batch_keeps_the_output_buffer_bounded() {
        assert_eq!(default_batch(512), 512);
        assert_eq!(default_batch(32_000), 512);
        assert_eq!(default_batch(128_256), 128);
        assert_eq!(default_batch(262_144), 64);
        assert_eq!(default_batch(u32::MAX), 32);
        assert_eq!(default_batch(0), 512);
    }

    #[test]
    fn cache_types_are_named_as_in_llama_cpp() {
        assert_eq!("q8_0".parse::<CacheType>().unwrap().to_string(), "q8_0");
        assert!("q9_0".parse::<CacheType>().unwrap_err().contains("bf16"));
        assert_eq!(CacheType::default().to_string(), "f16");
    }
}
