//! `-r` and `--ref-model`: evaluates models.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;

use super::evaluation::show_evaluation;
use super::{Request, Session};
use crate::cli::terminal::Detail;
use crate::commands::settings::{EvaluateSettings, ReferenceSource};
use crate::commands::{self, Observer, Shelf};

#[derive(Debug)]
pub struct EvaluateRequest {
    pub settings: EvaluateSettings,
    pub json: Option<PathBuf>,
    pub detail: Detail,
}

impl Request for EvaluateRequest {
    fn inputs(&self) -> Vec<&Path> {
        match &self.settings.reference {
            ReferenceSource::Model(model) => model.input.files(),
            ReferenceSource::File { path, .. } => vec![path],
        }
    }

    /// Loads all but the models that are evaluated: each of those is loaded before its turn.
    fn load(&mut self, shelf: Shelf, observer: &dyn Observer) -> Result<()> {
        shelf.load_all_but(&self.settings.models, observer)?;
        self.settings.shelf = Arc::new(shelf);
        Ok(())
    }

    fn run(&self, session: &Session) -> Result<ExitCode> {
        let settings = &self.settings;
        let n = settings.subjects().len();
        let evaluate =
            |observer: &dyn Observer| commands::evaluate(settings, &session.engine, observer);
        let (results, quiet) = (&settings.results, session.quiet);
        show_evaluation(results, &self.json, self.detail, n, quiet, evaluate)
    }
}
