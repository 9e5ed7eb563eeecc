//! The numbers of `kl`: pure functions, without llama.cpp, files or a terminal.
//!
//! | module | what goes in | what comes out |
//! |---|---|---|
//! | [`score`] | two rows of logits | one token's numbers |
//! | [`stats`] | the tokens' numbers | estimates with intervals |
//!
//! None uses one below it.
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
mod random;
pub mod score;
pub mod stats;

#[cfg(any(test, feature = "testing"))]
pub use random::Lcg;
