//! Maps and recipes on the fake engine.

mod recipe;
mod sensitivity;

use std::fs;
use std::ops::Deref;

use kl_engine::FakeEngine;
use kl_measure::commands::one_line;
use kl_measure::commands::settings::RunSettings;
use kl_measure::commands::testing::*;

/// A folder of files for the fake engine, and of maps of its models.
struct MapFolder(Folder);

impl MapFolder {
    fn new() -> Self {
        Self(Folder::new())
    }
}

impl Deref for MapFolder {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.0
    }
}

/// The way to run an original whose tensors are exchanged.
fn exchangeable_run() -> RunSettings {
    let mut run = run();
    run.model.is_exchangeable = true;
    run
}
