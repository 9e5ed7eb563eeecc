//! `kl info`: describes files.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Request, Session};
use crate::cli::args::InfoArgs;
use crate::cli::results::{Form, Results};
use crate::cli::terminal::{Detail, Terminal};
use crate::commands::{self, Event, Observer as _, one_line};
use crate::report::json_text;
use crate::report::number::count_of;

impl Request for InfoArgs {
    fn run(&self, session: &Session) -> Result<ExitCode> {
        show_info(self, session)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Describes files. One that cannot be described does not stop the others.
fn show_info(args: &InfoArgs, session: &Session) -> Result<()> {
    let mut results = Results::default();
    results.printed = args.json.then_some(Form::Json(""));
    let engine = &session.engine;
    let terminal = Terminal::new(session.quiet, false, Detail::default().view(), results);
    let mut infos = Vec::new();
    let describe = |file: &PathBuf| {
        let original = args.original.as_deref();
        let mut info = commands::info(file, args.verify, original, engine, &terminal)?;
        if args.prompts {
            let model = args.model.as_deref();
            let texts = commands::prompt_texts(file, model, engine, &terminal)?;
            terminal.on_event(&Event::Prompted(&texts));
            info.prompt_texts = Some(texts);
        }
        Ok(info)
    };
    for file in &args.files {
        match describe(file) {
            Ok(info) => infos.push(info),
            Err(error) if args.files.len() == 1 => return Err(error),
            Err(error) => say!("kl: {}", one_line(&error)),
        }
    }
    let n_failed = args.files.len() - infos.len();
    let json = || match &infos[..] {
        [only] if args.files.len() == 1 => json_text(only),
        all => json_text(&all),
    };
    terminal.into_results().finish(json, true)?;
    if n_failed > 0 {
        bail!("{n_failed} of {} files could not be read", args.files.len());
    }
    let found = infos.iter().filter_map(|info| info.verification.as_ref());
    let n_findings: usize = found.map(|found| found.findings.len()).sum();
    if n_findings > 0 {
        bail!("{}: see above", count_of(n_findings as u64, "finding"));
    }
    Ok(())
}
