//! `kl compare`: evaluates files of rows, without a model.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::evaluation::show_evaluation;
use super::{Request, Session};
use crate::cli::terminal::Detail;
use crate::commands::settings::CompareSettings;
use crate::commands::{self, Observer};

#[derive(Debug)]
pub struct CompareRequest {
    pub settings: CompareSettings,
    pub json: Option<PathBuf>,
    pub detail: Detail,
}

impl Request for CompareRequest {
    fn run(&self, session: &Session) -> Result<ExitCode> {
        let settings = &self.settings;
        let n = settings.others.len();
        let compare =
            |observer: &dyn Observer| commands::compare(settings, &session.engine, observer);
        let (results, quiet) = (&settings.results, session.quiet);
        show_evaluation(results, &self.json, self.detail, n, quiet, compare)
    }
}
