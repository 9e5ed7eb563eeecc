//! Which arrays of a zip are a window's rows and token ids, by their names.

use std::collections::BTreeMap;

use super::member::Member;

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
    /// Rows and token ids, in the order of their numbers, which follow one another.
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

/// Why the sparse kind is refused.
pub(super) const SPARSE_KIND: &str = "is of mlx-kld's sparse kind, which holds the most probable \
    entries of each row alone: it gives no KL divergence over the whole vocabulary; save \
    the dense kind";

/// "logits_12" as its name and its number.
fn numbered(array: &str) -> Option<(&str, u64)> {
    let (name, digits) = array.rsplit_once('_')?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((name, digits.parse().ok().filter(|_| is_number)?))
}
