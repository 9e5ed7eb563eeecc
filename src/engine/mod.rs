//! The only place that names llama.cpp: load a model, tokenize, decode, hand out rows of logits.
//! It knows nothing of KL.
//!
//! What follows it sees one small trait, [`LogitSource`]; [`Fake`] is one without a model.

mod decoder;
mod error;
mod fake;
mod llama;
mod log;
mod options;

pub use decoder::Decoder;
pub use error::EngineError;
pub use fake::Fake;
pub use llama::{Backend, Model, inspect};
pub use log::{follow_log, last_log_errors};
pub use options::{
    CACHE_TYPES, CacheType, ContextOptions, FlashAttention, ModelOptions, SplitMode, default_batch,
};

use kl_formats::WindowHead;

/// Which llama.cpp computes: the version of the crate that carries its source.
pub const LLAMA_CPP_VERSION: &str = "llama-cpp-sys-2 0.1.160";

/// A source of rows of logits, a window at a time.
pub trait LogitSource {
    /// Why no rows come.
    type Error;

    /// Entries in a row.
    fn n_vocab(&self) -> usize;

    /// Runs one window from an empty context and hands the rows of its scored positions, in order,
    /// to `sink`: those of one decode call at a time, which may be none, each of
    /// [`n_vocab`](Self::n_vocab) raw logits, gone when `sink` returns.
    ///
    /// # Errors
    /// What the source says where it has no rows, or what `sink` returned.
    fn decode<E: From<Self::Error>>(
        &mut self,
        window: &WindowHead,
        sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_the_one_that_is_locked() {
        let (name, version) = super::LLAMA_CPP_VERSION.split_once(' ').unwrap();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"");
        assert!(include_str!("../../Cargo.lock").contains(&entry));
    }
}
