//! The whole result as JSON.

use super::result::Report;

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
