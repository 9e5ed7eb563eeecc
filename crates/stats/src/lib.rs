//! The numbers of `kl`: pure functions, without llama.cpp, files or a terminal.
//!
//! | module | what goes in | what comes out |
//! |---|---|---|
//! | [`score`] | two rows of logits | one token's numbers |
//! | [`stats`] | the tokens' numbers | estimates with intervals |
//! | [`recipe`] | a map of what each tensor's quantization costs | the best mixture of types |
//!
//! None uses one below it.
#![forbid(unsafe_code)]

mod random;
pub mod recipe;
pub mod score;
pub mod stats;

pub use random::Random;
