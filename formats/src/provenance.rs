//! Where rows come from: the model, the text and the backend, by which two runs are distinguished.
//!
//! `None` means that the file does not record the property.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cache_sizes::CacheSizes;
use crate::calls::Calls;
use crate::error::{Named, Result};

/// The model that computed rows, the text that its windows are cut from, and the set-up. The
/// description of an open reference ([`crate::About`]) and the headers of `kl`'s own files
/// ([`crate::Header`], [`crate::SidecarHeader`]) each embed one, and deref to it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The program that wrote the file, with its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<String>,
    /// The model that computed the rows; in a sidecar the evaluated one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelIdentity>,
    /// The model's path, as it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
    /// The model's tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerIdentity>,
    /// Most tokens in a window; most rows in a window of a kind of file that may lack tokens.
    pub n_ctx: u32,
    /// Entries of a row.
    pub n_vocab: u32,
    /// True if each window starts with an inserted BOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_bos: Option<bool>,
    /// First scored position of a full window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_scored: Option<u32>,
    /// The text that the windows are cut from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextIdentity>,
    /// The texts, where the windows are cut from several, in the order of their windows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<TextIdentity>,
    /// The text's path, as it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_path: Option<String>,
    /// The set-up that computed the rows: results move with each of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendIdentity>,
    /// Seed of the windows' order; `None` where they are in the order of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Tokens of text from the start of a window to that of the next, where windows overlap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stride: Option<u32>,
    /// The part of a whole that the file holds; `None` for a whole one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
}

/// Most bytes that a header may have, apart from lists of something for each prompt or window.
pub const MAX_HEADER_BYTES: usize = 1 << 20;

/// Most bytes that a header may have with such lists.
pub const MAX_HEADER_BYTES_WITH_PROMPTS: usize = 64 << 20;

/// The header of a file of `kl`'s own: first a magic, then a line of JSON.
pub(crate) trait OwnHeader: Serialize + DeserializeOwned {
    /// The bytes that precede the JSON.
    const MAGIC: &'static str;

    /// The key of the version, and the versions that are read.
    const VERSION: (&'static str, RangeInclusive<u32>);

    /// The keys of lists that do not count against `MOST_BYTES`.
    const LISTS: &'static [&'static str] = &[];

    /// Most bytes of the header.
    const MOST_BYTES: usize = MAX_HEADER_BYTES;

    /// Finds a fault in what it states.
    fn fault(&self) -> Option<String>;

    /// The header's bytes.
    fn to_lines(&self, name: &Named) -> Result<Vec<u8>> {
        if let Some(fault) = self.fault() {
            return Err(name.unwritable(fault));
        }
        let unwritable = |e: serde_json::Error| name.unwritable(format!("the header as JSON: {e}"));
        let mut lines = Self::MAGIC.as_bytes().to_vec();
        serde_json::to_writer(&mut lines, self).map_err(unwritable)?;
        let json = lines.get(Self::MAGIC.len()..).unwrap_or_default();
        let fields: Fields<'_> = serde_json::from_slice(json).map_err(unwritable)?;
        match too_large::<Self>(json, &fields) {
            Some(fault) => Err(name.unwritable(fault)),
            None => {
                lines.push(b'\n');
                Ok(lines)
            }
        }
    }

    /// Parses the JSON; the version first, as another may have other fields.
    fn from_json(json: &[u8], name: &Named) -> Result<Self> {
        let unusable = |e: serde_json::Error| name.header(e.to_string());
        let fields: Fields<'_> = serde_json::from_slice(json).map_err(unusable)?;
        let (key, versions) = Self::VERSION;
        let version = fields.get(key).map_or("no version", |of| of.get());
        if !version.parse().is_ok_and(|of| versions.contains(&of)) {
            let last = versions.end();
            return Err(name.unsupported(format!(
                "{key} {version}, this kl reads up to {last}: use the kl that wrote it, or make it again"
            )));
        }
        if let Some(fault) = too_large::<Self>(json, &fields) {
            return Err(name.too_large(fault));
        }
        let header: Self = serde_json::from_slice(json).map_err(unusable)?;
        match header.fault() {
            Some(fault) => Err(name.header(fault)),
            None => Ok(header),
        }
    }
}

/// The values of a header's JSON by their keys.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

fn too_large<H: OwnHeader>(json: &[u8], fields: &Fields<'_>) -> Option<String> {
    let lists = H::LISTS.iter().filter_map(|key| fields.get(*key));
    let lists_bytes: usize = lists.map(|list| list.get().len()).sum();
    if json.len() >= MAX_HEADER_BYTES_WITH_PROMPTS {
        Some("a header of more than 64 MiB: give fewer prompts".to_owned())
    } else if json.len() - lists_bytes >= H::MOST_BYTES {
        Some(format!("a header of more than {} MiB", H::MOST_BYTES >> 20))
    } else {
        None
    }
}

/// Lets the fields of a struct's `provenance` be used as its own.
macro_rules! deref_to_provenance {
    ($of:ty) => {
        impl std::ops::Deref for $of {
            type Target = crate::provenance::Provenance;

            fn deref(&self) -> &crate::provenance::Provenance {
                &self.provenance
            }
        }

        impl std::ops::DerefMut for $of {
            fn deref_mut(&mut self) -> &mut crate::provenance::Provenance {
                &mut self.provenance
            }
        }
    };
}
pub(crate) use deref_to_provenance;

/// A model file.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ModelIdentity {
    /// The file's name, without its folder.
    pub file_name: Option<String>,
    /// `general.name` of the GGUF.
    pub name: Option<String>,
    /// `general.architecture` of the GGUF.
    pub architecture: Option<String>,
    /// Bytes of all tensors, as llama.cpp counts them.
    pub size_bytes: Option<u64>,
    /// Parameters, as llama.cpp counts them.
    pub n_params: Option<u64>,
    /// Bytes of the file.
    pub file_bytes: Option<u64>,
    /// SHA-256 (hex) of the GGUF's header, up to the end of its tensor infos.
    pub metadata_sha256: Option<String>,
    /// SHA-256 (hex) of samples of the file's bytes: distinguishes models with the same header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_sha256: Option<String>,
    /// Tokens of the context that it was trained on, as the GGUF records them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
}

impl ModelIdentity {
    /// A model, if only its file's name is known.
    pub fn named(file_name: impl Into<String>) -> Self {
        Self {
            file_name: Some(file_name.into()),
            ..Self::default()
        }
    }

    /// The name to show a person: the file's, or else the one that it records.
    pub fn shown_name(&self) -> Option<&str> {
        let name = self.file_name.as_ref().or(self.name.as_ref());
        name.map(String::as_str)
    }

    /// The size in bytes to show a person, as `ls` does: the file's, or the tensors' where that is
    /// unknown.
    pub fn shown_bytes(&self) -> Option<u64> {
        self.file_bytes.or(self.size_bytes)
    }

    /// Bits per weight, if the size of the tensors and the parameters are known.
    pub fn bits_per_weight(&self) -> Option<f64> {
        let n_params = self.n_params.filter(|n| *n > 0)?;
        Some(8.0 * self.size_bytes? as f64 / n_params as f64)
    }

    /// True if its weights have fewer bits than floats of 16: most are quantized. False where that is not known.
    pub fn has_quantized_weights(&self) -> bool {
        self.bits_per_weight().is_some_and(|bits| bits < 15.0)
    }

    /// True if both are the same model by their hashes. Models without a hash are not.
    pub fn is_same(&self, other: &Self) -> bool {
        let (here, there) = (&self.sample_sha256, &other.sample_sha256);
        self.metadata_sha256.is_some()
            && self.metadata_sha256 == other.metadata_sha256
            && (here.is_none() || there.is_none() || here == there)
    }
}

/// A tokenizer, as the model file holds it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenizerIdentity {
    /// `tokenizer.ggml.model` of the GGUF.
    pub model: String,
    /// Entries of the vocabulary.
    pub n_tokens: u32,
    /// SHA-256 (hex) over all tokens in the order of their ids, each as a u64 length in bytes
    /// (little-endian) and its bytes.
    pub sha256: String,
}

/// The text that the windows are cut from.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TextIdentity {
    /// The file's name, or `-` for standard input.
    pub name: Option<String>,
    /// Its bytes.
    pub bytes: Option<u64>,
    /// SHA-256 (hex) of its bytes.
    pub sha256: Option<String>,
    /// Its tokens, an inserted BOS not counted.
    pub n_tokens: Option<u64>,
}

impl TextIdentity {
    /// A text, if only its name is known.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..Self::default()
        }
    }
}

/// The set-up that computed the rows: results move with each of these.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BackendIdentity {
    /// Version or commit of llama.cpp.
    pub llama_cpp: Option<String>,
    /// Devices used, as ggml names them.
    pub devices: Option<Vec<String>>,
    /// Layers offloaded.
    pub n_gpu_layers: Option<u32>,
    /// The flags of llama.cpp that moved weights or work between the devices, each with its value;
    /// `None` without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Vec<String>>,
    /// Logical batch, in tokens.
    pub n_batch: Option<u32>,
    /// Physical batch, in tokens.
    pub n_ubatch: Option<u32>,
    /// True if windows were split into decode calls of equal length. Where absent, they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal_calls: Option<bool>,
    /// Windows decoded in a call, as separate sequences. Where absent, one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_seq: Option<u32>,
    /// Decode threads.
    pub threads: Option<u32>,
    /// Flash attention: `on`, `off` or `auto`.
    pub flash_attn: Option<String>,
    /// Type of the K cache.
    pub type_k: Option<String>,
    /// Type of the V cache.
    pub type_v: Option<String>,
    /// `f16` if quantized weights were dequantized before the model ran. Where absent, they were as in the
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// Bytes of the KV cache of a context, which holds the windows of one decode call, and of the
    /// states of recurrent layers; `None` where they are not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_bytes: Option<u64>,
    /// Bytes of the cache of a context of one sequence, by the number of its tokens, as llama.cpp's
    /// programs allocate it; `None` where they are not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_sizes: Option<CacheSizes>,
    /// Bytes of the buffers in which such a context computes a physical batch on one device; `None` where they
    /// are not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_sizes: Option<CacheSizes>,
}

impl BackendIdentity {
    /// The rule by which windows were split; `None` if it is not recorded.
    pub fn calls(&self) -> Option<Calls> {
        let n_batch = self.n_batch.filter(|&n| n > 0)?;
        let n_ubatch = self.n_ubatch.filter(|&n| n > 0).unwrap_or(n_batch);
        Some(Calls {
            is_equal: self.equal_calls == Some(true),
            ..Calls::new(n_batch, n_ubatch)
        })
    }
}

/// The part of a whole that a file holds: the windows `index`, `index + count`, `index + 2 *
/// count`, ... of the whole's, counted from 0 in the order in which one run would write them.
///
/// The header of a part counts its own windows and rows; the counts here are those of the whole.
/// Everything else in the header is as in the whole's.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shard {
    /// The part's number, from 0.
    pub index: u32,
    /// The number of parts.
    pub count: u32,
    /// Windows of the whole that have rows.
    pub n_windows: u32,
    /// Rows of the whole; of a sidecar, records. Where answers were generated, the most that the
    /// whole can have.
    pub n_rows: u64,
}

impl Shard {
    /// Windows of this part.
    pub fn n_own_windows(&self) -> u32 {
        let after = self.n_windows.saturating_sub(self.index);
        after.div_ceil(self.count.max(1))
    }

    /// Finds a fault in the counts; `n_rows` is the file's own.
    pub(crate) fn fault(&self, n_rows: Option<u64>) -> Option<String> {
        let Self { index, count, .. } = self;
        if index >= count {
            return Some(format!("shard {index} of {count}"));
        }
        let more = n_rows.filter(|&n| n > self.n_rows)?;
        let whole = self.n_rows;
        Some(format!("a shard of {more} rows, the whole has {whole}"))
    }
}

/// Bytes in lower-case hexadecimal, as kl writes every hash.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Splits the name, without `.gguf`, of a part of a split GGUF, as llama.cpp names parts: into the
/// name that all parts share, the part's number (from 1), and how many there are. `None` for any
/// other name.
#[must_use]
pub fn split_gguf_name(stem: &str) -> Option<(&str, u32, u32)> {
    let number = |digits: &str| {
        let is_number = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    Some((name, number(part)?, number(count)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_gguf_are_known_by_their_names() {
        for (stem, expected) in [
            ("a-00002-of-00003", Some(("a", 2, 3))),
            ("a-b-00001-of-00003", Some(("a-b", 1, 3))),
            ("a-2-of-3", None),
            ("a-0000x-of-00003", None),
            ("a-00001-of-0000x", None),
            ("00002-of-00003", None),
            ("a", None),
        ] {
            assert_eq!(split_gguf_name(stem), expected, "{stem}");
        }
    }

    #[test]
    fn the_parts_of_a_whole_share_its_windows() {
        for (n_windows, count) in [(9, 1), (9, 3), (9, 7), (10, 3), (7, 7)] {
            let own = |index| {
                let shard = Shard {
                    index,
                    count,
                    n_windows,
                    n_rows: 0,
                };
                shard.n_own_windows()
            };
            for index in 0..count {
                let expected = (index..n_windows).step_by(count as usize).count();
                assert_eq!(own(index) as usize, expected, "{index}/{count}");
            }
            assert_eq!((0..count).map(own).sum::<u32>(), n_windows);
        }
    }

    #[test]
    fn a_part_that_cannot_be_is_a_fault() {
        let shard = |index, count| Shard {
            index,
            count,
            n_windows: 4,
            n_rows: 10,
        };
        assert_eq!(shard(2, 3).fault(Some(10)), None);
        assert!(shard(3, 3).fault(None).is_some());
        assert!(shard(0, 0).fault(None).is_some());
        assert!(shard(0, 3).fault(Some(11)).is_some());
    }
}
