//! The GGUFs that are not language models by themselves: what each holds, by its metadata and its tensors.

use std::collections::BTreeSet;
use std::fmt;

use super::Gguf;

/// The contents of a GGUF that is not a causal language model by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAModel {
    /// Its contents, as a noun phrase: `the vision or audio part (mmproj)`.
    pub what: String,
    /// True if it belongs to a model: llama.cpp uses it only beside that one.
    is_part: bool,
}

/// Its contents, and the file to give instead.
impl fmt::Display for NotAModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = if self.is_part {
            "not a model: give the model that it belongs to"
        } else {
            "which predicts no next token: give a causal language model"
        };
        write!(f, "{}, {advice}", self.what)
    }
}

impl NotAModel {
    /// The reason why it is skipped where a folder or a pattern names it.
    pub fn in_place_of_a_model(&self) -> String {
        format!("not a language model by itself, but {}", self.what)
    }

    fn part(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_part: true,
        }
    }

    fn other(what: String) -> Self {
        Self {
            what,
            is_part: false,
        }
    }
}

/// Architectures of drafts, for whose graphs llama.cpp needs the hidden states or the KV cache of another
/// model (`ctx_other` in `llama-context.cpp`), and names that other programs give such files.
const DRAFTS: &str = "eagle eagle2 dflash dspark medusa";

/// The tensor with the target's token for each token of an EAGLE-3 draft.
const FROM_DRAFT_TO_TARGET: &str = "d2t";

/// Keys of an architecture that name layers of another model, whose hidden states a draft reads
/// (`LLM_KV_TARGET_LAYERS`, `LLM_KV_TARGET_HIDDEN_SIZE`).
const KEYS_OF_DRAFTS: [&str; 2] = ["target_layers", "target_hidden_size"];

/// Architectures that see later tokens, or have no head, without a key in the file that states it: text
/// diffusion and embedding models of llama.cpp's `src/models`.
const NOT_CAUSAL: &str = "dream llada llada-moe rnd1 gemma-embedding llama-embed";

/// llama.cpp's `LLAMA_POOLING_TYPE_RANK`.
const POOLING_RANK: i128 = 4;

pub(super) fn has_word(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|other| other == word)
}

impl Gguf {
    /// The contents of a file that is not a causal language model by itself; `None` of a model. llama.cpp would
    /// decode some of these without an error, crash on others, and report a missing tensor for the rest.
    pub fn not_a_model(&self) -> Option<NotAModel> {
        let part = self.part_of_a_model().map(NotAModel::part);
        part.or_else(|| self.other_kind().map(NotAModel::other))
    }

    /// Names a file that belongs to a model.
    fn part_of_a_model(&self) -> Option<String> {
        let architecture = self.architecture().unwrap_or_default();
        let has_lora = || {
            let mut names = self.tensors.iter().map(|tensor| &tensor.name);
            names.any(|name| name.ends_with(".lora_a"))
        };
        let what = match self.text("general.type").unwrap_or_default() {
            "imatrix" => "an importance matrix",
            "vocab" => "a vocabulary without tensors",
            kind if kind == "adapter" || has_lora() => {
                "a LoRA adapter (llama-export-lora merges it into its model)"
            }
            kind if kind == "mmproj" || architecture == "clip" => {
                "the vision or audio part (mmproj)"
            }
            _ if architecture == "controlvector" => "a control vector",
            _ if architecture == "pockettts" => "the text part of a speech model (pockettts)",
            _ if architecture == "wavtokenizer-dec" => {
                "the sound decoder of a speech model (wavtokenizer-dec)"
            }
            _ if self.is_draft() => {
                return Some(format!("a draft for speculative decoding ({architecture})"));
            }
            _ => return self.only_further_tokens(),
        };
        Some(what.to_owned())
    }

    fn is_draft(&self) -> bool {
        let architecture = self.architecture().unwrap_or_default();
        let has = |name: &&str| self.pairs.contains_key(&format!("{architecture}.{name}"));
        has_word(DRAFTS, architecture)
            || architecture.ends_with("assistant")
            || architecture.ends_with("eagle3")
            || KEYS_OF_DRAFTS.iter().any(has)
            || self.tensor(FROM_DRAFT_TO_TARGET).is_some()
    }

    /// Names a file with the layers that predict further tokens (MTP) and none of those before them, as
    /// `convert_hf_to_gguf.py --mtp` writes it.
    fn only_further_tokens(&self) -> Option<String> {
        let layers = self.layers(|_| true);
        let of_further_tokens = self.layers(|name| name.contains(".nextn."));
        // Where a file has no other layers, they may begin at 0.
        let n_layers = self.n_layers().filter(|_| self.n_further_layers() > 0);
        let is_beyond = n_layers.is_some_and(|n| layers.iter().all(|layer| *layer >= n));
        let is_only = !layers.is_empty() && (is_beyond || layers == of_further_tokens);
        is_only.then(|| {
            let layers = if layers.len() == 1 {
                "layer that predicts"
            } else {
                "layers that predict"
            };
            format!("only the {layers} further tokens (MTP)")
        })
    }

    /// Names a whole model that predicts no next token.
    fn other_kind(&self) -> Option<String> {
        let architecture = self.architecture().unwrap_or_default();
        let number = |name| self.architecture_number(name);
        let tokenizer = self.tokenizer.as_ref().map(|tokenizer| &*tokenizer.model);
        let pooling = number("pooling_type").unwrap_or(0);
        let is_classifier = || self.tensors.iter().any(|of| of.name.starts_with("cls."));
        Some(if matches!(architecture, "t5" | "t5encoder") {
            format!("an encoder-decoder or encoder-only model ({architecture})")
        } else if pooling == POOLING_RANK || is_classifier() {
            format!("a reranker or a classifier ({architecture})")
        } else if number("attention.causal") == Some(0)
            || architecture.contains("bert")
            || has_word(NOT_CAUSAL, architecture)
        {
            format!("a model without causal attention ({architecture})")
        } else if pooling != 0 {
            format!("an embedding model ({architecture} with pooling)")
        } else if architecture == "clef" {
            "a model that chooses among options (clef)".to_owned()
        } else if tokenizer.is_none_or(|model| matches!(model, "none" | "no_vocab")) {
            format!("a GGUF without a vocabulary ({architecture})")
        } else if self.tensors.is_empty() {
            "a vocabulary without tensors".to_owned()
        } else {
            return None;
        })
    }

    /// The number of layers that decoding runs through: those that predict further tokens come after them.
    /// `None` if the file does not state it.
    pub(super) fn n_layers(&self) -> Option<u64> {
        let n_all = u64::try_from(self.architecture_number("block_count")?).ok()?;
        Some(n_all.saturating_sub(self.n_further_layers()))
    }

    /// The number of layers that predict further tokens (`n_layer_nextn` in llama.cpp).
    pub(super) fn n_further_layers(&self) -> u64 {
        let stated = self.architecture_number("nextn_predict_layers");
        stated.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
    }

    /// The layers that have such tensors: `3` of `blk.3.attn_q.weight`.
    pub(super) fn layers(&self, is_such: impl Fn(&str) -> bool) -> BTreeSet<u64> {
        self.tensors
            .iter()
            .filter(|tensor| is_such(&tensor.name))
            .filter_map(|tensor| tensor.name.strip_prefix("blk.")?.split_once('.'))
            .filter_map(|(number, _)| number.parse().ok())
            .collect()
    }
}
