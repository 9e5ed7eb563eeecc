//! `kl check`: whether this build computes a model rightly.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::{Request, Session};
use crate::cli::EXIT_CONDITION;
use crate::cli::results::{Form, Outputs, Results};
use crate::commands;
use crate::commands::settings::CheckSettings;
use crate::input;
use crate::report::check::Outcome;
use crate::report::json_text;

#[derive(Debug)]
pub struct CheckRequest {
    pub settings: CheckSettings,
    pub outputs: Outputs,
}

impl Request for CheckRequest {
    fn inputs(&self) -> Vec<&Path> {
        Vec::from_iter(self.settings.text.as_deref().and_then(input::file))
    }

    /// Runs the check and shows its result. The exit code says whether anything is wrong.
    fn run(&self, session: &Session) -> Result<ExitCode> {
        let wanted = [(&self.outputs.json, Form::Json(r#""verdict":"#))];
        let results = Results::new(wanted, self.outputs.existing)?;
        let check = commands::check(&self.settings, &session.engine, &session.terminal())?;
        let in_form = |_| Ok(json_text(&check)?);
        results.write(|| check.text(), in_form, session.quiet)?;
        let is_wrong = check.verdict == Outcome::Wrong;
        Ok(ExitCode::from(if is_wrong { EXIT_CONDITION } else { 0 }))
    }
}
