//! The program's commands. Each goes from checked settings and an [`Observer`] to a value that can
//! be printed or serialised. Commands print nothing and read no flags.
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

mod bench;
mod check;
mod compare;
mod context;
mod convert;
mod devices;
mod differences;
mod doctor;
mod evaluate;
mod evaluation;
mod finite_rows;
pub mod folder;
mod info;
mod input;
mod merge;
mod observer;
pub mod output;
mod parts;
mod pipe;
mod prompt_texts;
mod recipe;
mod ref_model;
mod reference;
mod report;
mod resume;
mod sensitivity;
mod server_keys;
pub mod settings;
mod shelf;
mod verify_model;
mod write;

pub use check::check;
pub use compare::compare;
pub use convert::convert;
pub use devices::list_devices;
pub use doctor::{Doctor, doctor};
pub use evaluate::evaluate;
pub use folder::{is_gguf, labels_of_namesakes, models_of_folder};
pub use info::info;
pub use merge::merge;
pub use observer::{Event, Observer, Outlook, one_line};
pub use output::NewFile;
pub use parts::{StoredEvaluation, stored_evaluations};
pub use prompt_texts::prompt_texts;
pub use recipe::{quantize, recipe};
pub use report::{Reported, is_listed, report};
pub use sensitivity::{Mapped, sensitivity};
pub use shelf::Shelf;
pub use write::{Written, write};

#[cfg(test)]
mod tests;
