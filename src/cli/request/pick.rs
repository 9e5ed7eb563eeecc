//! `kl pick`: the quant to run.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::{Request, Session};
use crate::cli::EXIT_CONDITION;
use crate::cli::results::{Form, NO_PAGE, Outputs, Results};
use crate::cli::terminal::{Detail, Terminal};
use crate::commands::pick::{PickSettings, pick};
use crate::commands::{Observer, Shelf};
use crate::input::Source;
use crate::report::comparison::CSV_START;
use crate::report::page;

/// The start of a pick's JSON after its versions.
const FIRST_KEY: &str = r#""pick":"#;

#[derive(Debug)]
pub struct PickRequest {
    pub settings: PickSettings,
    pub outputs: Outputs,
}

impl Request for PickRequest {
    fn inputs(&self) -> Vec<&Path> {
        let input = self.settings.input.as_ref();
        input.map_or_else(Vec::new, Source::files)
    }

    /// Loads nothing: each file is loaded before its turn.
    fn load(&mut self, shelf: Shelf, _observer: &dyn Observer) -> Result<()> {
        self.settings.shelf = Arc::new(shelf);
        Ok(())
    }

    fn run(&self, session: &Session) -> Result<ExitCode> {
        let results = self.outputs.results(FIRST_KEY, CSV_START)?;
        let view = Detail::default().view();
        let terminal = Terminal::new(session.quiet, true, view, Results::default());
        let picked = pick(&self.settings, &session.engine, &terminal)?;
        let in_form = |form| match form {
            Form::Json(_) => Ok(picked.json()?),
            Form::Csv(_) => Ok(picked.csv()),
            Form::Page => page::pick_html(&picked).context(NO_PAGE),
        };
        results.write(|| picked.text(view), in_form, session.quiet)?;
        let is_picked = picked.pick.is_some();
        Ok(ExitCode::from(if is_picked { 0 } else { EXIT_CONDITION }))
    }
}
