//! The settings of a check.

use std::path::{Path, PathBuf};

use super::RunSettings;
use crate::input::Source;

/// Settings for checking whether this build computes a model, on each device.
#[derive(Debug)]
pub struct CheckSettings {
    /// The GGUF of the model.
    pub model: PathBuf,
    /// The text to run it over; `None`: the prompts that come with `kl`.
    pub text: Option<PathBuf>,
    /// Tokens in a window; `None`: 512, or fewer if `max_tokens` or the model's positions are.
    pub n_ctx: Option<u32>,
    /// Most tokens of a setting; a quarter of them where batches are small or one thread computes.
    pub max_tokens: u32,
    /// The way to run it, which is checked last: first come other settings, one after another.
    pub run: RunSettings,
}

impl CheckSettings {
    /// The text to run the model over, in windows of this many tokens at most; without a path, the
    /// prompts that come with `kl`.
    pub fn source(&self, n_ctx: u32) -> Source {
        let text = self.text.as_deref();
        Source {
            max_windows: Some((self.max_tokens / n_ctx).max(1)),
            ..Source::one_text(text.unwrap_or(Path::new("starter")), n_ctx)
        }
    }
}
