//! What a call asks for, a file a command: its settings, how it runs, and how its result is shown. A new command is a
//! file here, its flags in [`args`](super::args), and a line where [`rules`](super::rules) makes its request.

pub mod check;
pub mod compare;
pub mod convert;
pub mod devices;
pub mod doctor;
pub mod evaluate;
mod evaluation;
pub mod info;
pub mod merge;
pub mod pick;
pub mod recipe;
pub mod report;
pub mod sensitivity;
pub mod write;

use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::results::Results;
use super::terminal::{Detail, Terminal};
use crate::commands::{Observer, Shelf};
use crate::engine::LlamaCpp;

/// A command with its settings, made of flags that [`rules`](super::rules) has checked.
pub trait Request: Any + Debug {
    /// The files that a model is to run over, and what else a run of hours needs.
    fn inputs(&self) -> Vec<&Path> {
        Vec::new()
    }

    /// Loads what the call names on a hub.
    ///
    /// # Errors
    /// What cannot be loaded.
    fn load(&mut self, shelf: Shelf, observer: &dyn Observer) -> Result<()> {
        shelf.load_all_but(&[], observer)
    }

    /// Runs the command, and shows what it returns.
    ///
    /// # Errors
    /// Why it failed, which ends the program with exit code 1.
    fn run(&self, session: &Session) -> Result<ExitCode>;
}

/// What every command runs with.
pub struct Session {
    pub engine: LlamaCpp,
    /// True if results and what is wrong are all that is shown.
    pub quiet: bool,
}

impl Session {
    /// A terminal that shows what happens; the command itself shows its result.
    pub fn terminal(&self) -> Terminal<'static> {
        Terminal::new(
            self.quiet,
            false,
            Detail::default().view(),
            Results::default(),
        )
    }
}
