//! `kl report`: prints and writes a comparison.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::args::ReportArgs;
use super::results::{Results, create_text, start_of, write_text};
use super::settings::Form;
use super::terminal::{Terminal, show_conditions};
use super::{EXIT_CONDITION, say_wrote};
use crate::commands::{self, Reported};
use crate::report::comparison::CSV_START;
use crate::report::{json_text, judge_pair, page};

/// Compares the evaluations that the flags name, prints the comparison in a form, and writes others.
///
/// # Errors
/// If nothing can be compared, or an output cannot be written.
pub fn show_report(args: &ReportArgs, printed: Form, terminal: &Terminal<'_>) -> Result<ExitCode> {
    // Created first, so that a bad path is found before the work is done. A report is made again and
    // again, so an earlier one is replaced; any other file is refused without --force.
    let mut files = Vec::new();
    for (path, form) in [
        (&args.json, Form::Json),
        (&args.csv, Form::Csv),
        (&args.html, Form::Page),
    ] {
        if let Some(path) = path {
            let replace = args.force || is_report(&start_of(path), form);
            files.push((path, create_text(path, replace)?, form));
        }
    }
    let (paths, confidence, clusters) = (&args.paths, args.confidence, args.cluster);
    let mut reported =
        commands::report(paths, confidence, clusters, args.pair, args.near, terminal)?;
    for warning in reported.warnings() {
        say!("kl: warning: {warning}");
    }
    let mut code = ExitCode::SUCCESS;
    if let Reported::Pair(pair) = &mut reported {
        pair.conditions = judge_pair(&args.fail_if, pair, args.allow_excluded);
        show_conditions(&pair.a.sidecar, &pair.conditions, args.quiet);
        if pair.conditions.iter().any(|one| one.failed) {
            code = ExitCode::from(EXIT_CONDITION);
        }
    }
    let mut results = Results::default();
    results.print_text(&text(&reported, printed, args.breakdown)?);
    for (path, output, form) in files {
        write_text(output, &text(&reported, form, args.breakdown)?)?;
        say_wrote(&path.display().to_string(), args.quiet);
    }
    results.close()?;
    Ok(code)
}

fn text(reported: &Reported, form: Form, breakdown: bool) -> Result<String> {
    Ok(match (reported, form) {
        (Reported::Pair(pair), Form::Json) => json_text(pair)?,
        (Reported::Pair(pair), _) => pair.text(),
        (Reported::Comparison(comparison), Form::Text) => {
            let only = comparison.only_report(breakdown);
            only.unwrap_or_else(|| match breakdown {
                true => comparison.text() + &comparison.breakdown_text(),
                false => comparison.text(),
            })
        }
        (Reported::Comparison(comparison), Form::Markdown) => comparison.markdown(breakdown),
        (Reported::Comparison(comparison), Form::ModelCard) => comparison.model_card(),
        (Reported::Comparison(comparison), Form::Json) => json_text(comparison)?,
        (Reported::Comparison(comparison), Form::Csv) => comparison.csv(),
        (Reported::Comparison(comparison), Form::Page) => {
            page::html(comparison).context("cannot render the page")?
        }
    })
}

/// True if a file starts like a report in this form; its JSON not like that of an evaluation, which
/// took a model to make.
fn is_report(start: &str, form: Form) -> bool {
    const GENERATOR_OF_PAGE: &str = "content=\"kl ";
    match form {
        Form::Json => {
            let start: String = start.split_whitespace().collect();
            start.starts_with(r#"{"kl_version":"#) && start.contains(r#""reference":{"file_name":"#)
        }
        Form::Csv => start.starts_with(CSV_START),
        _ => start.contains(GENERATOR_OF_PAGE),
    }
}
