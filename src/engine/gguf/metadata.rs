//! The key-value pairs: the few that matter are kept, the rest are skipped.

use std::collections::{HashMap, HashSet};

use super::cursor::Cursor;
use super::error::Result;
use super::values::{ARRAY, STRING, Scalar, scalar, skip_array, words};
use super::vocabulary::{self, TokenTypes, Tokens};

/// Bytes of the shortest pair: a key's length, a type, a bool.
pub(super) const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;

/// Longest key (ggml's `docs/gguf.md`).
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Longest string that is kept.
const MAX_STRING_BYTES: u64 = 1 << 20;

/// `general.alignment` of a file that does not state it.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The pairs that were kept.
#[derive(Default)]
pub(super) struct Metadata {
    pub(super) architecture: Option<String>,
    pub(super) name: Option<String>,
    /// `general.type`.
    pub(super) kind: Option<String>,
    pub(super) tokenizer_model: Option<String>,
    /// `tokenizer.ggml.pre`, unless it is empty.
    pub(super) pre_tokenizer: Option<String>,
    /// Bytes of `tokenizer.chat_template`.
    pub(super) chat_template_bytes: Option<u64>,
    pub(super) tokens: Option<Tokens>,
    pub(super) types: TokenTypes,
    pub(super) alignment: u64,
    /// Integers and bools by key; the largest element of a list.
    pub(super) numbers: HashMap<String, i128>,
    /// What is added before a division, by key.
    pub(super) epsilons: HashMap<String, f64>,
    /// `<architecture>.rope.scaling.type`, by key.
    pub(super) texts: HashMap<String, String>,
}

impl Metadata {
    /// Whether llama.cpp has to guess how a text is split before its pieces are merged
    /// (`llama_vocab::impl::load` in `llama-vocab.cpp`).
    pub(super) fn lacks_pre_tokenizer(&self) -> bool {
        /// The tokenizer models that are BPE. Gemma 4's has its own pre-tokenizer.
        const BPE: [&str; 3] = ["gpt2", "hybriddna", "whitespace"];
        let model = self.tokenizer_model.as_deref();
        model.is_some_and(|model| BPE.contains(&model)) && self.pre_tokenizer.is_none()
    }
}

/// Reads all pairs.
pub(super) fn read(cursor: &mut Cursor, n_pairs: u64) -> Result<Metadata> {
    let mut found = Metadata {
        alignment: DEFAULT_ALIGNMENT,
        ..Metadata::default()
    };
    let mut keys = HashSet::new();
    for _ in 0..n_pairs {
        let key = cursor.string(MAX_KEY_BYTES)?;
        let kind = cursor.u32()?;
        match (key.as_str(), kind) {
            ("general.architecture", STRING) => {
                found.architecture = Some(cursor.string(MAX_STRING_BYTES)?);
            }
            ("general.name", STRING) => found.name = Some(cursor.string(MAX_STRING_BYTES)?),
            ("general.type", STRING) => found.kind = Some(cursor.string(MAX_STRING_BYTES)?),
            ("tokenizer.ggml.model", STRING) => {
                found.tokenizer_model = Some(cursor.string(MAX_STRING_BYTES)?);
            }
            ("tokenizer.ggml.pre", STRING) => {
                let name = cursor.string(MAX_STRING_BYTES)?;
                found.pre_tokenizer = Some(name).filter(|name| !name.is_empty());
            }
            ("tokenizer.chat_template", STRING) => {
                let bytes = cursor.string_len()?;
                cursor.skip(bytes, |_| ())?;
                found.chat_template_bytes = Some(bytes);
            }
            ("tokenizer.ggml.tokens", ARRAY) => found.tokens = Some(vocabulary::tokens(cursor)?),
            ("tokenizer.ggml.token_type", ARRAY) => found.types = vocabulary::types(cursor)?,
            (_, STRING) if key.ends_with(".rope.scaling.type") => {
                let text = cursor.string(MAX_STRING_BYTES)?;
                found.texts.insert(key.clone(), text);
            }
            (_, STRING) => cursor.skip_string()?,
            (_, ARRAY) if key.ends_with(".expert_used_count") => {
                // A count for each layer; an array of another type counts as 0.
                let mut largest = 0;
                words(cursor, |word| largest = word.max(largest))?;
                found.numbers.insert(key.clone(), largest.into());
            }
            (_, ARRAY) => skip_array(cursor)?,
            _ => match scalar(cursor, kind)? {
                Scalar::Integer(number) if is_kept(&key) => {
                    found.numbers.insert(key.clone(), number);
                }
                Scalar::Float(epsilon) if key.ends_with("_epsilon") => {
                    found.epsilons.insert(key.clone(), epsilon);
                }
                _ => {}
            },
        }
        if keys.contains(&key) {
            return Err(cursor.corrupt(format!("the key {key:?} occurs twice")));
        }
        keys.insert(key);
    }
    if let Some(&alignment) = found.numbers.get("general.alignment") {
        found.alignment = u64::try_from(alignment)
            .ok()
            .filter(|n| n.is_power_of_two() && *n <= 1 << 30)
            .ok_or_else(|| {
                let limit = "not a power of 2 up to 2^30";
                cursor.corrupt(format!("general.alignment is {alignment}, {limit}"))
            })?;
    }
    match found.tokenizer_model.as_deref() {
        Some("none" | "no_vocab") => {
            Err(cursor.unsupported("the model has no tokenizer: convert it with one"))
        }
        Some("bert") if found.types.has_bytes => {
            Err(cursor.corrupt("a bert tokenizer, of words, has tokens that stand for bytes"))
        }
        _ => Ok(found),
    }
}

/// Whether an integer or a bool is needed later.
fn is_kept(key: &str) -> bool {
    const WHOLE: [&str; 7] = [
        "general.alignment",
        "general.file_type",
        "split.no",
        "split.count",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
    ];
    const ENDS: [&str; 14] = [
        ".attention.causal",
        ".attention.head_count",
        ".attention.head_count_kv",
        ".attention.key_length",
        ".block_count",
        ".context_length",
        ".embedding_length",
        ".expert_count",
        ".expert_group_count",
        ".expert_group_used_count",
        ".expert_used_count",
        ".nextn_predict_layers",
        ".pooling_type",
        ".rope.dimension_count",
    ];
    WHOLE.contains(&key) || ENDS.iter().any(|end| key.ends_with(end))
}
