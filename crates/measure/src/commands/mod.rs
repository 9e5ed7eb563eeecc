//! The program's commands. Each goes from checked settings and an [`Observer`] to a value that can
//! be printed or serialised. Commands print nothing and read no flags.

pub mod bench;
mod check;
mod compare;
pub mod context;
mod convert;
pub mod devices;
mod differences;
mod doctor;
mod evaluate;
mod evaluation;
mod finite_rows;
pub mod folder;
mod info;
pub mod input;
pub mod merge;
pub mod observer;
pub mod output;
mod parts;
pub mod pick;
mod pipe;
mod prompt_texts;
mod ref_model;
pub mod reference;
mod report;
pub mod resume;
mod server_keys;
pub mod settings;
mod shelf;
mod speed;
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
pub use observer::{Event, FileWork, Observer, Outlook, one_line};
pub use output::NewFile;
pub use parts::{StoredEvaluation, stored_evaluations};
pub use prompt_texts::prompt_texts;
pub use report::{Reported, is_listed, report};
pub use shelf::Shelf;
pub use write::{Written, write};

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
