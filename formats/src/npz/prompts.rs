//! mlx-kld's `meta_json`: its prompts and their token ids.

use serde::Deserialize;

use super::arrays::SPARSE_KIND;

/// Most bytes of it that are read: the ids of millions of tokens and their texts.
pub(super) const MAX_BYTES: u64 = 256 << 20;

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    reference_model: Option<String>,
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    #[serde(default)]
    token_ids: Vec<i64>,
}

/// What it says that is of use.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    pub(super) model: Option<String>,
    /// The token ids of each prompt; of none where no prompt has them.
    pub(super) token_ids: Option<Vec<Vec<u32>>>,
}

impl Prompts {
    /// # Errors
    /// In words: what is wrong with it, or that no rows are to be had from this kind.
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let meta: Meta =
            serde_json::from_slice(json).map_err(|e| format!("meta_json: {e}: save it anew"))?;
        match meta.format.as_deref() {
            None | Some("dense") => {}
            Some(format) if format.contains("sparse") => return Err(SPARSE_KIND.to_owned()),
            Some(format) => {
                return Err(format!(
                    "meta_json: its format is {format:?}, and \"dense\" is read: save that"
                ));
            }
        }
        let id = |&id: &i64| u32::try_from(id).unwrap_or(u32::MAX);
        let prompts = meta.prompts.iter().map(|prompt| &prompt.token_ids);
        let token_ids: Vec<Vec<u32>> = prompts.map(|ids| ids.iter().map(id).collect()).collect();
        let has_ids = token_ids.iter().any(|ids| !ids.is_empty());
        Ok(Self {
            model: meta.reference_model,
            token_ids: has_ids.then_some(token_ids),
        })
    }
}
