//! Which tensors of a model hurt when they are quantized, and the mixture of types that hurts least at a size.
//!
//! [`sensitivity()`] measures a map: what each tensor costs at a type. [`recipe()`] chooses a mixture by it, measures that, and
//! writes it. [`mathematics`] is what both rest on: pure functions of a map's cells. [`report`] shows maps and recipes.
//! The crate measures with `kl_measure`'s bench, and prints nothing.
//!
//! Begin with [`recipe()`].
//!
//! No input may make it panic: clippy denies what could, and each exception states why it cannot.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

#[allow(
    clippy::indexing_slicing,
    reason = "its indices are of classes, items and tensors that it has counted itself"
)]
pub mod mathematics;
mod recipe;
pub mod report;
mod sensitivity;
pub mod settings;
#[cfg(test)]
mod tests;

pub use recipe::{quantize, recipe};
pub use sensitivity::{Mapped, sensitivity};
