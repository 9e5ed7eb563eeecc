//! The commands that make their results of finished files, again and again: `kl report`, `kl
//! sensitivity` and `kl recipe`. Each prints its result in one form, and writes others.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};

use super::results::{Form, Outputs, Results};
use super::terminal::{Detail, Terminal, show_conditions, stdout_width};
use super::{EXIT_CONDITION, say_new, say_wrote};
use crate::commands::settings::{CheckSettings, ReportSettings};
use crate::commands::{self, Reported};
use crate::engine::Engine;
use crate::recipe;
use crate::recipe::report::page::{self as recipe_page, ReportedQuant};
use crate::recipe::report::recipe::recipe_text;
use crate::recipe::settings::{RecipeSettings, SensitivitySettings};
use crate::report::check::Outcome;
use crate::report::comparison::CSV_START;
use crate::report::json_text;
use crate::report::page;
use crate::whole_file::read_json;

/// The start of a report's JSON after its versions: not that of an evaluation, which took a model to make.
const FIRST_KEY: &str = r#""reference":{"file_name":"#;

/// The error of a page.
const NO_PAGE: &str = "cannot render the page";

/// Compares the evaluations that the flags name.
///
/// # Errors
/// If nothing can be compared, or an output cannot be written.
pub fn show_report(
    settings: &ReportSettings,
    outputs: &Outputs,
    form: ReportForm,
    detail: Detail,
    terminal: &Terminal<'_>,
    quiet: bool,
) -> Result<ExitCode> {
    let wanted = [
        (&outputs.json, Form::Json(FIRST_KEY)),
        (&outputs.csv, Form::Csv(CSV_START)),
        (&outputs.html, Form::Page),
    ];
    let results = Results::new(wanted, outputs.existing)?;
    let reported = commands::report(settings, terminal)?;
    for warning in reported.warnings() {
        say!("kl: warning: {warning}");
    }
    let conditions = reported.conditions();
    for (sidecar, verdicts) in &conditions {
        show_conditions(sidecar, verdicts, quiet);
    }
    let in_form = |form| match (&reported, form) {
        (Reported::Pair(pair), _) => Ok(json_text(pair)?),
        (Reported::Comparison(comparison), Form::Json(_)) => Ok(json_text(comparison)?),
        (Reported::Comparison(comparison), Form::Csv(_)) => Ok(comparison.csv()),
        (Reported::Comparison(comparison), Form::Page) => page::html(comparison).context(NO_PAGE),
    };
    results.write(|| report_text(&reported, form, detail), in_form, quiet)?;
    let mut verdicts = conditions.iter().flat_map(|(_, verdicts)| *verdicts);
    let has_failed = verdicts.any(|verdict| verdict.failed);
    Ok(ExitCode::from(if has_failed { EXIT_CONDITION } else { 0 }))
}

/// The form in which `kl report` prints a comparison.
#[derive(Debug, Clone, Copy)]
pub enum ReportForm {
    Text,
    Markdown,
    /// The metadata and the table for a Hugging Face model card.
    ModelCard,
}

fn report_text(reported: &Reported, form: ReportForm, detail: Detail) -> String {
    let view = detail.view();
    match (reported, form) {
        (Reported::Pair(pair), _) => pair.text(view),
        (Reported::Comparison(of), ReportForm::Markdown) => of.markdown(view.breakdown),
        (Reported::Comparison(of), ReportForm::ModelCard) => of.model_card(),
        (Reported::Comparison(of), ReportForm::Text) => {
            of.only_report(view).unwrap_or_else(|| of.text(view))
        }
    }
}

/// Measures a map and shows it.
///
/// # Errors
/// Why it cannot be measured, or an output not be written.
pub fn show_sensitivity(
    settings: &SensitivitySettings,
    outputs: &Outputs,
    engine: &dyn Engine,
    terminal: &Terminal<'_>,
    quiet: bool,
) -> Result<()> {
    let wanted = [
        (&outputs.json, Form::Json(r#""model":{"#)),
        (&outputs.csv, Form::Csv("tensor,role,")),
        (&outputs.html, Form::Page),
    ];
    let results = Results::new(wanted, outputs.existing)?;
    let mapped = recipe::sensitivity(settings, engine, terminal)?;
    if let Some(sensitivity) = &mapped.sensitivity {
        let text = || sensitivity.text(&mapped.file.path, stdout_width());
        let in_form = |form| match form {
            Form::Json(_) => Ok(json_text(sensitivity)?),
            Form::Csv(_) => Ok(sensitivity.csv()),
            Form::Page => recipe_page::sensitivity_html(sensitivity).context(NO_PAGE),
        };
        results.write(text, in_form, quiet)?;
    }
    say_new(&mapped.file, "", "", quiet);
    Ok(())
}

/// Chooses a mixture, prints it, and writes what was asked for. `report`: the JSON of a report, whose quants the
/// page draws too.
///
/// # Errors
/// If no recipe can be found, or an output cannot be written.
pub fn show_recipe(
    settings: &RecipeSettings,
    outputs: &Outputs,
    report: Option<&Path>,
    engine: &dyn Engine,
    terminal: &Terminal<'_>,
    quiet: bool,
) -> Result<()> {
    let wanted = [
        (&outputs.json, Form::Json(r#""map_path":"#)),
        (&outputs.html, Form::Page),
    ];
    let mut results = Results::new(wanted, outputs.existing)?;
    let quants = report.map(quants_of).transpose()?.unwrap_or_default();
    let (report, imatrix) = recipe::recipe(settings, engine, terminal)?;
    if let Some(path) = report.types_path.as_deref() {
        say_wrote(path, quiet);
    }
    let in_form = |form| match form {
        Form::Page => recipe_page::recipe_html(&report, &quants).context(NO_PAGE),
        Form::Json(_) | Form::Csv(_) => Ok(json_text(&report)?),
    };
    results.print_text(&recipe_text(&report));
    // The other forms name the file that this writes, so they come after it.
    recipe::quantize(settings, &report.recipe, imatrix.as_ref(), engine, terminal)?;
    results.save(in_form)?;
    results.finish(|| json_text(&report), quiet)
}

/// Runs a check and shows its result. The exit code says whether anything is wrong.
///
/// # Errors
/// Why it cannot be checked, or the JSON not be written.
pub fn show_check(
    settings: &CheckSettings,
    outputs: &Outputs,
    engine: &dyn Engine,
    terminal: &Terminal<'_>,
    quiet: bool,
) -> Result<ExitCode> {
    let wanted = [(&outputs.json, Form::Json(r#""verdict":"#))];
    let results = Results::new(wanted, outputs.existing)?;
    let check = commands::check(settings, engine, terminal)?;
    results.write(|| check.text(), |_| Ok(json_text(&check)?), quiet)?;
    let is_wrong = check.verdict == Outcome::Wrong;
    Ok(ExitCode::from(if is_wrong { EXIT_CONDITION } else { 0 }))
}

/// The quants of a `kl report`.
fn quants_of(path: &Path) -> Result<Vec<ReportedQuant>> {
    let quants = ReportedQuant::of_json(&read_json(path, "kl report --json")?);
    quants.map_err(|why| anyhow!("{} {why}", path.display()))
}
