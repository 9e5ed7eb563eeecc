//! `kl report`: prints and writes a comparison.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::EXIT_CONDITION;
use super::args::ReportArgs;
use super::results::{Forms, Remade, Results};
use super::terminal::{Terminal, show_conditions, view};
use crate::commands::{self, Reported};
use crate::report::comparison::CSV_START;
use crate::report::layout::View;
use crate::report::{Verdict, json_text, judge, judge_pair, page};

/// How the JSON of a report starts after its versions: not like that of an evaluation, which took a model
/// to make.
const FIRST_KEY: &str = r#""reference":{"file_name":"#;

/// A form of a comparison.
#[derive(Debug, Clone, Copy)]
enum Form {
    Text,
    Markdown,
    ModelCard,
    Json,
    Csv,
    Page,
}

/// Compares the evaluations that the flags name, prints the comparison in one form, and writes others.
///
/// # Errors
/// If nothing can be compared, or an output cannot be written.
pub fn show_report(args: &ReportArgs, terminal: &Terminal<'_>) -> Result<ExitCode> {
    let forms = Forms::create(
        [
            (&args.json, Form::Json, Remade::Json(FIRST_KEY)),
            (&args.csv, Form::Csv, Remade::Csv(CSV_START)),
            (&args.html, Form::Page, Remade::Page),
        ],
        args.force,
    )?;
    let printed = match forms.printed {
        Some(form) => form,
        None if args.markdown => Form::Markdown,
        None if args.model_card => Form::ModelCard,
        None => Form::Text,
    };
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
            pair.conditions = judge_pair(&args.fail_if, pair, &pair.paired, args.allow_excluded);
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
    forms.write(|form| text(&reported, form, view), args.quiet)?;
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
