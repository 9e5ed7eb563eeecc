//! `kl report`: compares evaluations that are done.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::{Request, Session};
use crate::cli::EXIT_CONDITION;
use crate::cli::results::{Form, NO_PAGE, Outputs};
use crate::cli::terminal::{Detail, show_conditions};
use crate::commands::settings::ReportSettings;
use crate::commands::{self, Reported};
use crate::report::comparison::CSV_START;
use crate::report::{json_text, page};

/// The start of a report's JSON after its versions: not that of an evaluation, which took a model to make.
const FIRST_KEY: &str = r#""reference":{"file_name":"#;

#[derive(Debug)]
pub struct ReportRequest {
    pub settings: ReportSettings,
    pub outputs: Outputs,
    pub form: ReportForm,
    pub detail: Detail,
}

/// The form in which `kl report` prints a comparison.
#[derive(Debug, Clone, Copy)]
pub enum ReportForm {
    Text,
    Markdown,
    /// The metadata and the table for a Hugging Face model card.
    ModelCard,
}

impl Request for ReportRequest {
    fn run(&self, session: &Session) -> Result<ExitCode> {
        let results = self.outputs.results(FIRST_KEY, CSV_START)?;
        let reported = commands::report(&self.settings, &session.terminal())?;
        for warning in reported.warnings() {
            say!("kl: warning: {warning}");
        }
        let conditions = reported.conditions();
        for (sidecar, verdicts) in &conditions {
            show_conditions(sidecar, verdicts, session.quiet);
        }
        let in_form = |form| match (&reported, form) {
            (Reported::Pair(pair), _) => Ok(json_text(pair)?),
            (Reported::Comparison(comparison), Form::Json(_)) => Ok(json_text(comparison)?),
            (Reported::Comparison(comparison), Form::Csv(_)) => Ok(comparison.csv()),
            (Reported::Comparison(comparison), Form::Page) => {
                page::html(comparison).context(NO_PAGE)
            }
        };
        results.write(|| self.text(&reported), in_form, session.quiet)?;
        let mut verdicts = conditions.iter().flat_map(|(_, verdicts)| *verdicts);
        let has_failed = verdicts.any(|verdict| verdict.failed);
        Ok(ExitCode::from(if has_failed { EXIT_CONDITION } else { 0 }))
    }
}

impl ReportRequest {
    fn text(&self, reported: &Reported) -> String {
        let view = self.detail.view();
        match (reported, self.form) {
            (Reported::Pair(pair), _) => pair.text(view),
            (Reported::Comparison(of), ReportForm::Markdown) => of.markdown(view.breakdown),
            (Reported::Comparison(of), ReportForm::ModelCard) => of.model_card(),
            (Reported::Comparison(of), ReportForm::Text) => {
                of.only_report(view).unwrap_or_else(|| of.text(view))
            }
        }
    }
}
