//! The arrays of a zip that are windows' rows and token ids, by their names, and mlx-kld's
//! `meta_json`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{SeqAccess, Visitor};

use super::zip::Member;

/// Names of arrays of rows, before the window's number.
const ROWS: [&str; 4] = ["logprobs", "log_probs", "logits", "arr"];

/// Names of arrays of token ids.
const IDS: [&str; 3] = ["token_ids", "input_ids", "tokens"];

/// Names of mlx-kld's sparse kind, which holds only the most probable entries.
const SPARSE: [&str; 3] = ["lp", "idx", "tail"];

/// The name of mlx-kld's array about its prompts.
const META: &str = "meta_json";

/// The arrays of interest.
#[derive(Debug)]
pub(super) struct Arrays {
    /// Each window's rows and token ids, in the order of their numbers, which have no gap.
    pub(super) windows: Vec<(Member, Option<Member>)>,
    pub(super) meta: Option<Member>,
}

impl Arrays {
    /// Finds the arrays of interest among all members.
    ///
    /// # Errors
    /// A phrase that names the arrays that do not go together, or are missing.
    pub(super) fn of(members: Vec<Member>) -> Result<Self, String> {
        let (mut rows, mut ids, mut meta) = (BTreeMap::new(), BTreeMap::new(), None);
        let mut is_sparse = false;
        for member in members {
            let array = member.name.strip_suffix(".npy").unwrap_or(&member.name);
            let twice = if array == META {
                meta.replace(member)
            } else {
                match numbered(array) {
                    Some((name, number)) if ROWS.contains(&name) => rows.insert(number, member),
                    Some((name, number)) if IDS.contains(&name) => ids.insert(number, member),
                    Some((name, _)) if SPARSE.contains(&name) => {
                        is_sparse = true;
                        None
                    }
                    _ => None,
                }
            };
            if let Some(other) = twice {
                return Err(format!(
                    "holds {} and another array of its kind and number: leave one of them out",
                    other.name
                ));
            }
        }
        if rows.is_empty() && is_sparse {
            return Err(SPARSE_KIND.to_owned());
        }
        let Some((&first, _)) = rows.first_key_value() else {
            return Err(
                "holds no rows: arrays must be named logprobs_0, log_probs_0, logits_0 or arr_0 \
                 and on, one a window"
                    .to_owned(),
            );
        };
        if let Some((missing, (&number, _))) = (first..)
            .zip(&rows)
            .find(|(expected, (number, _))| expected != *number)
        {
            return Err(format!(
                "has rows of window {number} and none of window {missing}: save it again"
            ));
        }
        let has_ids = !ids.is_empty();
        let windows: Vec<_> = rows
            .into_iter()
            .map(|(number, rows)| (rows, ids.remove(&number)))
            .collect();
        if let Some((rows, _)) = windows.iter().find(|(_, ids)| has_ids != ids.is_some()) {
            return Err(format!(
                "has token ids of other windows, and none for {}: add them or leave all out",
                rows.name
            ));
        }
        match ids.into_values().next() {
            Some(ids) => Err(format!(
                "has token ids in {}, and no rows for them",
                ids.name
            )),
            None => Ok(Self { windows, meta }),
        }
    }
}

/// The reason why the sparse kind is refused.
const SPARSE_KIND: &str = "is of mlx-kld's sparse kind, which holds the most probable \
    entries of each row alone: it gives no KL divergence over the whole vocabulary; save \
    the dense kind";

/// Splits a name such as `logits_12` at its number.
fn numbered(array: &str) -> Option<(&str, u64)> {
    let (name, digits) = array.rsplit_once('_')?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((name, digits.parse().ok().filter(|_| is_number)?))
}

/// Most bytes of `meta_json`: enough for the ids of millions of tokens and their texts.
pub(super) const MAX_META_BYTES: u64 = 256 << 20;

/// The parts of mlx-kld's `meta_json` that are used.
#[derive(Deserialize, Default)]
pub(super) struct Meta {
    #[serde(default)]
    pub(super) reference_model: Option<String>,
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    pub(super) prompts: TokenIds,
}

#[derive(Deserialize)]
struct Prompt {
    #[serde(default)]
    token_ids: Vec<Id>,
}

/// A token id, converted as it is read: millions of ids would need twice the memory as `i64`.
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
    /// True if no prompt has token ids.
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

impl Meta {
    /// Parses `meta_json`.
    ///
    /// # Errors
    /// A phrase that states what is wrong with it, or that this kind does not hold whole rows.
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let meta: Self =
            serde_json::from_slice(json).map_err(|e| format!("meta_json: {e}: save it again"))?;
        match meta.format.as_deref() {
            None | Some("dense") => Ok(meta),
            Some(format) if format.contains("sparse") => Err(SPARSE_KIND.to_owned()),
            Some(format) => Err(format!(
                "meta_json: its format is {format:?}: save the format \"dense\""
            )),
        }
    }
}
