//! `kl report`: prints and writes a comparison.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::args::ReportArgs;
use super::results::{Remade, Results, write_text};
use super::settings::Form;
use super::terminal::{Terminal, show_conditions, view};
use super::{EXIT_CONDITION, say_wrote};
use crate::commands::{self, Reported};
use crate::report::comparison::CSV_START;
use crate::report::layout::View;
use crate::report::{Verdict, json_text, judge, judge_pair, page};

/// How the JSON of a report starts after its versions: not like that of an evaluation, which took a model
/// to make.
const FIRST_KEY: &str = r#""reference":{"file_name":"#;

/// Compares the evaluations that the flags name, prints the comparison in a form, and writes others.
///
/// # Errors
/// If nothing can be compared, or an output cannot be written.
pub fn show_report(args: &ReportArgs, printed: Form, terminal: &Terminal<'_>) -> Result<ExitCode> {
    // Created first, so that a bad path is found before the work is done.
    let mut files = Vec::new();
    for (path, form, remade) in [
        (&args.json, Form::Json, Remade::Json(FIRST_KEY)),
        (&args.csv, Form::Csv, Remade::Csv(CSV_START)),
        (&args.html, Form::Page, Remade::Page),
    ] {
        if let Some(path) = path {
            files.push((path, remade.create(path, args.force)?, form));
        }
    }
    let (paths, confidence, clusters) = (&args.paths, args.confidence, args.cluster);
    let mut reported =
        commands::report(paths, confidence, clusters, args.pair, args.near, terminal)?;
    for warning in reported.warnings() {
        say!("kl: warning: {warning}");
    }
    let mut code = ExitCode::SUCCESS;
    let mut show = |sidecar: &str, conditions: &[Verdict]| {
        show_conditions(sidecar, conditions, args.quiet);
        if conditions.iter().any(|one| one.failed) {
            code = ExitCode::from(EXIT_CONDITION);
        }
    };
    match &mut reported {
        Reported::Pair(pair) => {
            pair.conditions = judge_pair(&args.fail_if, pair, args.allow_excluded);
            show(&pair.a.sidecar, &pair.conditions);
        }
        Reported::Comparison(comparison) => {
            for model in &mut comparison.models {
                model.conditions = judge(&args.fail_if, model, args.allow_excluded);
                show(&model.sidecar, &model.conditions);
            }
        }
    }
    let view = view(args.full, args.breakdown);
    let mut results = Results::default();
    results.print_text(&text(&reported, printed, view)?);
    for (path, output, form) in files {
        write_text(output, &text(&reported, form, view)?)?;
        say_wrote(&path.display().to_string(), args.quiet);
    }
    results.close()?;
    Ok(code)
}

fn text(reported: &Reported, form: Form, view: View) -> Result<String> {
    Ok(match (reported, form) {
        (Reported::Pair(pair), Form::Json) => json_text(pair)?,
        (Reported::Pair(pair), _) => pair.text(view),
        (Reported::Comparison(comparison), Form::Text) => {
            let only = comparison.only_report(view);
            only.unwrap_or_else(|| comparison.text(view))
        }
        (Reported::Comparison(comparison), Form::Markdown) => comparison.markdown(view.breakdown),
        (Reported::Comparison(comparison), Form::ModelCard) => comparison.model_card(),
        (Reported::Comparison(comparison), Form::Json) => json_text(comparison)?,
        (Reported::Comparison(comparison), Form::Csv) => comparison.csv(),
        (Reported::Comparison(comparison), Form::Page) => {
            page::html(comparison).context("cannot render the page")?
        }
    })
}
