//! Who made a file and of what: the parts of a header that tell two runs apart.

use serde::{Deserialize, Serialize};

/// A model file.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ModelIdentity {
    /// The file's name, without its folder.
    pub file_name: String,
    /// `general.name` of the GGUF.
    pub name: Option<String>,
    /// `general.architecture` of the GGUF.
    pub architecture: Option<String>,
    /// Bytes of all tensors, as llama.cpp counts them.
    pub size_bytes: u64,
    /// Parameters, as llama.cpp counts them.
    pub n_params: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// SHA-256 (hex) of the GGUF's header: see [`crate::GgufSummary::metadata_sha256`].
    pub metadata_sha256: String,
    /// What tells it from another model of the same header: see
    /// [`crate::GgufSummary::sample_sha256`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_sha256: Option<String>,
}

impl ModelIdentity {
    /// Whether both are one model, as far as they tell.
    pub fn is_same(&self, other: &Self) -> bool {
        let are_equal = |(here, there)| here == there;
        let samples = self
            .sample_sha256
            .as_ref()
            .zip(other.sample_sha256.as_ref());
        !self.metadata_sha256.is_empty()
            && self.metadata_sha256 == other.metadata_sha256
            && samples.is_none_or(are_equal)
    }
}

/// A tokenizer, as the model file holds it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct TokenizerIdentity {
    /// `tokenizer.ggml.model` of the GGUF.
    pub model: String,
    /// Entries of the vocabulary.
    pub n_tokens: u32,
    /// SHA-256 (hex) over all tokens in the order of their ids, each as a u64 length in bytes
    /// (little-endian) and its bytes.
    pub sha256: String,
}

/// The text that was evaluated.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct TextIdentity {
    /// The file's name, or `-` for standard input.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// SHA-256 (hex) of its bytes.
    pub sha256: String,
    /// Its tokens, inserted BOS not counted.
    pub n_tokens: u64,
}

/// How the rows were computed: results move with each of these.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct BackendIdentity {
    /// Version or commit of llama.cpp.
    pub llama_cpp: String,
    /// Devices used, as ggml names them.
    pub devices: Vec<String>,
    /// Layers offloaded.
    pub n_gpu_layers: u32,
    /// Logical batch, in tokens.
    pub n_batch: u32,
    /// Physical batch, in tokens.
    pub n_ubatch: u32,
    /// Decode threads.
    pub threads: u32,
    /// Flash attention: `on`, `off` or `auto`.
    pub flash_attn: String,
    /// Type of the K cache.
    pub type_k: String,
    /// Type of the V cache.
    pub type_v: String,
}

/// Bytes in lower-case hexadecimal, as every hash is written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_lower_case_and_keep_their_zeros() {
        assert_eq!(hex(&[0x00, 0x0f, 0xa0, 0xff]), "000fa0ff");
        assert_eq!(hex(&[]), "");
    }
}
