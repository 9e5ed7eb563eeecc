//! The numbers of each prompt.

use serde::Serialize;

use crate::stats::PromptStats;

/// One prompt and its numbers.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PromptReport {
    /// Its text, or the text of the user's last message.
    pub prompt: String,
    /// Its numbers.
    #[serde(flatten)]
    pub stats: PromptStats,
}

impl PromptReport {
    /// Labels each prompt's numbers; `labels[i]` is the text of prompt `i`.
    #[must_use]
    pub fn of_each(labels: &[String], stats: Vec<PromptStats>) -> Vec<Self> {
        let label = |number: u32| labels.get(number as usize).cloned().unwrap_or_default();
        stats
            .into_iter()
            .map(|stats| Self {
                prompt: label(stats.window),
                stats,
            })
            .collect()
    }
}
