//! What every JSON document states first: the program that wrote it, and the version of its keys.

use serde::Serialize;

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
