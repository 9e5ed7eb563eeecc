//! What the tables of a breakdown sort tokens by, in words.

pub const BY_CONFIDENCE: &str = "by the probability of the reference's top token";
pub const BY_POSITION: &str = "by position in the window";
pub const BY_GROUP: &str = "by group";
pub const BY_KIND: &str = "by the kind of the next token";

/// One of these titles, where a window is called `unit`.
pub fn title(by: &str, unit: &str) -> String {
    by.replace("window", unit)
}
