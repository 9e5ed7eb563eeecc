//! `--list-devices`.

use std::process::ExitCode;

use anyhow::Result;

use super::{Request, Session};
use crate::cli::print;
use crate::commands;

#[derive(Debug)]
pub struct DevicesRequest {
    /// The servers whose devices are listed too.
    pub servers: Vec<String>,
}

impl Request for DevicesRequest {
    fn run(&self, session: &Session) -> Result<ExitCode> {
        print(&commands::list_devices(&self.servers, &session.engine)?)
    }
}
