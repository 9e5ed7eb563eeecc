//! mlx-kld's `meta_json`: its prompts and their token ids.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{SeqAccess, Visitor};

use super::arrays::SPARSE_KIND;

/// Most bytes of `meta_json`: enough for the ids of millions of tokens and their texts.
pub(super) const MAX_BYTES: u64 = 256 << 20;

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    reference_model: Option<String>,
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    prompts: TokenIds,
}

#[derive(Deserialize)]
struct Prompt {
    #[serde(default)]
    token_ids: Vec<Id>,
}

/// Converted as it is read: millions of ids would need twice the memory as `i64`.
#[derive(Deserialize)]
#[serde(from = "i64")]
struct Id(u32);

impl From<i64> for Id {
    fn from(id: i64) -> Self {
        Self(u32::try_from(id).unwrap_or(u32::MAX))
    }
}

/// The token ids of prompts. A prompt without any uses no memory: deflate makes millions of those
/// out of nothing.
#[derive(Debug, Default)]
pub(super) struct TokenIds {
    pub(super) n_prompts: usize,
    /// The ids of each prompt that has some, by its index.
    ids: BTreeMap<usize, Vec<u32>>,
}

impl TokenIds {
    /// Whether no prompt has token ids.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Removes and returns the token ids of a prompt; empty if it has none.
    pub(super) fn take(&mut self, index: usize) -> Vec<u32> {
        self.ids.remove(&index).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: serde::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Prompts;

        impl<'de> Visitor<'de> for Prompts {
            type Value = TokenIds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of prompts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TokenIds, A::Error> {
                let mut found = TokenIds::default();
                while let Some(Prompt { token_ids }) = list.next_element()? {
                    if !token_ids.is_empty() {
                        let ids = token_ids.into_iter().map(|Id(id)| id).collect();
                        found.ids.insert(found.n_prompts, ids);
                    }
                    found.n_prompts += 1;
                }
                Ok(found)
            }
        }

        json.deserialize_seq(Prompts)
    }
}

/// The parts of `meta_json` that are used.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    pub(super) model: Option<String>,
    pub(super) token_ids: TokenIds,
}

impl Prompts {
    /// Parses `meta_json`.
    ///
    /// # Errors
    /// A phrase that states what is wrong with it, or that this kind does not hold whole rows.
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let meta: Meta =
            serde_json::from_slice(json).map_err(|e| format!("meta_json: {e}: save it again"))?;
        match meta.format.as_deref() {
            None | Some("dense") => {}
            Some(format) if format.contains("sparse") => return Err(SPARSE_KIND.to_owned()),
            Some(format) => {
                return Err(format!(
                    "meta_json: its format is {format:?}: save the format \"dense\""
                ));
            }
        }
        Ok(Self {
            model: meta.reference_model,
            token_ids: meta.prompts,
        })
    }
}
