//! `kl sensitivity`: measures a map.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::{Request, Session};
use crate::cli::results::{Form, NO_PAGE, Outputs};
use crate::cli::say_new;
use crate::cli::terminal::stdout_width;
use crate::recipe;
use crate::recipe::report::page::sensitivity_html;
use crate::recipe::settings::SensitivitySettings;
use crate::report::json_text;

#[derive(Debug)]
pub struct SensitivityRequest {
    pub settings: SensitivitySettings,
    pub outputs: Outputs,
}

impl Request for SensitivityRequest {
    fn inputs(&self) -> Vec<&Path> {
        let mut files = self.settings.input.files();
        files.extend(self.settings.imatrix.as_deref());
        files
    }

    fn run(&self, session: &Session) -> Result<ExitCode> {
        let results = self.outputs.results(r#""model":{"#, "tensor,role,")?;
        let mapped = recipe::sensitivity(&self.settings, &session.engine, &session.terminal())?;
        if let Some(sensitivity) = &mapped.sensitivity {
            let text = || sensitivity.text(&mapped.file.path, stdout_width());
            let in_form = |form| match form {
                Form::Json(_) => Ok(json_text(sensitivity)?),
                Form::Csv(_) => Ok(sensitivity.csv()),
                Form::Page => sensitivity_html(sensitivity).context(NO_PAGE),
            };
            results.write(text, in_form, session.quiet)?;
        }
        say_new(&mapped.file, "", "", session.quiet);
        Ok(ExitCode::SUCCESS)
    }
}
