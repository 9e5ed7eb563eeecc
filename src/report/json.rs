//! JSON documents.

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

/// A document's text, indented, which ends with a line feed.
///
/// # Errors
/// If a value cannot be written as JSON.
pub fn json_text(document: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

impl Report {
    /// The whole result as JSON. It is indented unless it holds the values of every token, which
    /// nobody reads line by line.
    ///
    /// # Errors
    /// If a value cannot be written as JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        match self.models.iter().any(|model| model.tokens.is_some()) {
            true => Ok(serde_json::to_string(self)? + "\n"),
            false => json_text(self),
        }
    }
}
