//! `kl sensitivity`, which measures a map and shows what it says, and `kl recipe`, which prints and
//! writes the recipe that it makes of one.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};

use super::results::{Forms, Remade, Results};
use super::terminal::{Terminal, stdout_width};
use super::{say_new, say_wrote};
use crate::commands;
use crate::commands::settings::{RecipeSettings, SensitivitySettings};
use crate::engine::LlamaCpp;
use crate::report::page::ReportedQuant;
use crate::report::recipe::recipe_text;
use crate::report::sensitivity::Sensitivity;
use crate::report::{json_text, page};

/// A form of a result beside its text.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Csv,
    Page,
}

/// Measures a map and shows it.
///
/// # Errors
/// Why it cannot be measured, or an output not be written.
pub fn show_sensitivity(
    settings: &SensitivitySettings,
    engine: &LlamaCpp,
    quiet: bool,
) -> Result<ExitCode> {
    let forms = Forms::create(
        [
            (&settings.json, Form::Json, Remade::Json(r#""model":{"#)),
            (&settings.csv, Form::Csv, Remade::Csv("tensor,role,")),
            (&settings.html, Form::Page, Remade::Page),
        ],
        settings.force,
    )?;
    if settings.part.is_some() && !forms.is_empty() {
        bail!("--shard: a part has no results of its own: join the parts with kl merge first");
    }
    let terminal = Terminal::new(quiet, Results::default());
    let mapped = commands::sensitivity(settings, engine, &terminal)?;
    let mut results = terminal.into_results();
    if let Some(sensitivity) = &mapped.sensitivity {
        results.print_text(&match forms.printed {
            None => sensitivity.text(&mapped.file.path, stdout_width()),
            Some(form) => sensitivity_text(sensitivity, form)?,
        });
        forms.write(|form| sensitivity_text(sensitivity, form), quiet)?;
    }
    say_new(&mapped.file, "", "", quiet);
    results.close()?;
    Ok(ExitCode::SUCCESS)
}

fn sensitivity_text(sensitivity: &Sensitivity, form: Form) -> Result<String> {
    Ok(match form {
        Form::Json => json_text(sensitivity)?,
        Form::Csv => sensitivity.csv(),
        Form::Page => page::sensitivity_html(sensitivity).context("cannot render the page")?,
    })
}

/// Chooses a mixture, prints it, and writes what was asked for.
///
/// # Errors
/// If there is no recipe, or an output cannot be written.
pub fn show_recipe(settings: &RecipeSettings, engine: &LlamaCpp, quiet: bool) -> Result<ExitCode> {
    let forms = Forms::create(
        [
            (&settings.json, Form::Json, Remade::Json(r#""map_path":"#)),
            (&settings.html, Form::Page, Remade::Page),
        ],
        settings.force,
    )?;
    let quants = settings.report.as_deref().map(quants_of).transpose()?;
    let quants = quants.unwrap_or_default();
    let terminal = Terminal::new(quiet, Results::default());
    let report = commands::recipe(settings, engine, &terminal)?;
    if let Some(path) = report.types_path.as_deref() {
        say_wrote(path, quiet);
    }
    let text = |form| -> Result<String> {
        Ok(match form {
            Form::Page => page::recipe_html(&report, &quants).context("cannot render the page")?,
            Form::Json | Form::Csv => json_text(&report)?,
        })
    };
    let printed = forms.printed.map(text).transpose()?;
    forms.write(text, quiet)?;
    let mut results = terminal.into_results();
    results.print_text(&printed.unwrap_or_else(|| recipe_text(&report)));
    results.close()?;
    let terminal = Terminal::new(quiet, Results::default());
    commands::quantize(settings, &report, engine, &terminal)?;
    Ok(ExitCode::SUCCESS)
}

/// The quants of a `kl report`.
fn quants_of(path: &Path) -> Result<Vec<ReportedQuant>> {
    let shown = path.display();
    let json = fs::read_to_string(path).with_context(|| format!("{shown}: cannot be read"))?;
    ReportedQuant::of_json(&json).map_err(|why| anyhow!("{shown} {why}"))
}
