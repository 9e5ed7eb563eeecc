//! `kl convert`: writes a reference in another format.

use std::process::ExitCode;

use anyhow::Result;

use super::{Request, Session};
use crate::cli::say_new;
use crate::commands;
use crate::commands::settings::ConvertSettings;

#[derive(Debug)]
pub struct ConvertRequest(pub ConvertSettings);

impl Request for ConvertRequest {
    fn run(&self, session: &Session) -> Result<ExitCode> {
        let new = commands::convert(&self.0, &session.engine, &session.terminal())?;
        say_new(&new, "", "", session.quiet);
        Ok(ExitCode::SUCCESS)
    }
}
