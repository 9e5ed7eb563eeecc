//! The arrays of a zip that are windows' rows and token ids, by their names, and mlx-kld's
//! `meta_json`.

use std::collections::BTreeMap;
use std::iter::repeat_with;

use serde::Deserialize;

use super::zip::Member;

/// Names of arrays of rows, before the window's number.
const ROWS: [&str; 4] = ["logprobs", "log_probs", "logits", "arr"];

/// Names of arrays of token ids.
const IDS: [&str; 3] = ["token_ids", "input_ids", "tokens"];

/// Names of mlx-kld's sparse kind, which holds only the most probable entries.
const SPARSE: [&str; 3] = ["lp", "idx", "tail"];

/// The name of mlx-kld's array about its prompts.
const META: &str = "meta_json";

/// The reason why the sparse kind is refused.
const SPARSE_KIND: &str = "is of mlx-kld's sparse kind, which holds the most probable \
    entries of each row alone: it gives no KL divergence over the whole vocabulary; save \
    the dense kind";

/// The arrays of interest.
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
            let earlier = match numbered(array) {
                _ if array == META => meta.replace(member),
                Some((name, number)) if ROWS.contains(&name) => rows.insert(number, member),
                Some((name, number)) if IDS.contains(&name) => ids.insert(number, member),
                other => {
                    is_sparse |= other.is_some_and(|(name, _)| SPARSE.contains(&name));
                    None
                }
            };
            if let Some(Member { name, .. }) = earlier {
                return Err(format!(
                    "holds {name} and another array of its kind and number: leave one of them out"
                ));
            }
        }
        let Some((&first, _)) = rows.first_key_value() else {
            return Err(if is_sparse {
                SPARSE_KIND
            } else {
                "holds no rows: arrays must be named logprobs_0, log_probs_0, logits_0 or arr_0 \
                 and on, one a window"
            }
            .to_owned());
        };
        if let Some((missing, _)) = (first..).zip(rows.keys()).find(|(n, key)| n != *key) {
            return Err(format!(
                "has rows of windows after {missing}, and none of window {missing}: save it again"
            ));
        }
        if !ids.is_empty() && !ids.keys().eq(rows.keys()) {
            return Err(
                "has token ids of other windows than rows: add them or leave all out".to_owned(),
            );
        }
        let ids = ids.into_values().map(Some).chain(repeat_with(|| None));
        let windows = rows.into_values().zip(ids).collect();
        Ok(Self { windows, meta })
    }
}

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
#[serde(default)]
pub(super) struct Meta {
    pub(super) reference_model: Option<String>,
    format: Option<String>,
    pub(super) prompts: Vec<Prompt>,
}

/// A prompt, which uses 8 bytes without token ids: deflate makes millions of those out of nothing.
#[derive(Deserialize)]
pub(super) struct Prompt {
    #[expect(clippy::box_collection, reason = "a Vec uses 24 bytes")]
    pub(super) token_ids: Option<Box<Vec<u32>>>,
}

impl Meta {
    /// Parses `meta_json`.
    ///
    /// # Errors
    /// A phrase that states what is wrong with it, or that this kind does not hold whole rows.
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let mut meta: Self =
            serde_json::from_slice(json).map_err(|e| format!("{e}: save it again"))?;
        // Ids of none of the prompts are as good as no prompts.
        if meta.prompts.iter().all(|prompt| prompt.token_ids.is_none()) {
            meta.prompts.clear();
        }
        match meta.format.as_deref() {
            None | Some("dense") => Ok(meta),
            Some(format) if format.contains("sparse") => Err(SPARSE_KIND.to_owned()),
            Some(format) => Err(format!(
                "its format is {format:?}: save the format \"dense\""
            )),
        }
    }
}
