//! The whole result as JSON.

use serde::Serialize;

use super::result::Report;

/// The version of the keys of every JSON document: see docs/PROMISES.md for what raises it.
const JSON_VERSION: u32 = 1;

/// The first keys of every JSON document.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Versions {
    /// The version of the program that wrote the document.
    pub kl_version: &'static str,
    /// The version of the document's keys. It changes only if a key is removed or renamed, or if its
    /// meaning or type changes; new keys do not change it.
    pub json_version: u32,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            kl_version: env!("CARGO_PKG_VERSION"),
            json_version: JSON_VERSION,
        }
    }
}

/// The text of the JSON, which ends with a line feed.
///
/// It is indented unless it holds the values of every token, which nobody reads line by line.
pub fn json_text(report: &Report) -> serde_json::Result<String> {
    let has_tokens = report.models.iter().any(|model| model.tokens.is_some());
    let text = if has_tokens {
        serde_json::to_string(report)?
    } else {
        serde_json::to_string_pretty(report)?
    };
    Ok(text + "\n")
}
