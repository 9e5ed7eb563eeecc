//! `kl merge`: joins the parts that `--shard` made.

use std::process::ExitCode;

use anyhow::Result;

use super::{Request, Session};
use crate::cli::say_new;
use crate::commands;
use crate::commands::settings::MergeSettings;
use crate::report::number::count_of;

#[derive(Debug)]
pub struct MergeRequest(pub MergeSettings);

impl Request for MergeRequest {
    fn run(&self, session: &Session) -> Result<ExitCode> {
        let parts = count_of(self.0.parts.len() as u64, "part");
        let merged = commands::merge(&self.0, &session.terminal())?;
        say_new(&merged, &format!(" of {parts}"), "", session.quiet);
        Ok(ExitCode::SUCCESS)
    }
}
