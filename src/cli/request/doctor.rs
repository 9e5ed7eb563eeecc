//! `kl doctor`: shows what `kl` runs on.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Request, Session};
use crate::cli::args::DoctorArgs;
use crate::cli::print;
use crate::commands;
use crate::commands::settings::default_threads;
use crate::report::number::count_of;

impl Request for DoctorArgs {
    fn run(&self, session: &Session) -> Result<ExitCode> {
        let doctor = commands::doctor(&self.rpc, default_threads(), &session.engine);
        print(&doctor.text)?;
        if doctor.n_problems > 0 {
            let n = count_of(doctor.n_problems as u64, "problem");
            bail!("{n} found: see each line that starts with PROBLEM");
        }
        Ok(ExitCode::SUCCESS)
    }
}
