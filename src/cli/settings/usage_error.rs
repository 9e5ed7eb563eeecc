//! Flags that do not go together.

/// Flags that do not go together, in one line: what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

pub(super) fn wrong<T>(message: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError(message.into()))
}
