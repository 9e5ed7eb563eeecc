//! `kl recipe`: prints and writes a recipe, and has its file written.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};

use super::results::{Remade, Results, write_text};
use super::say_wrote;
use super::terminal::Terminal;
use crate::commands;
use crate::commands::output::Existing;
use crate::commands::settings::RecipeSettings;
use crate::engine::LlamaCpp;
use crate::report::json_text;
use crate::report::page::{self, ReportedQuant};
use crate::report::recipe::recipe_text;

/// How the JSON of a recipe starts after its versions.
const FIRST_KEY: &str = r#""map_path":"#;

/// Chooses a mixture, prints it, and writes what was asked for.
///
/// # Errors
/// If there is no recipe, or an output cannot be written.
pub fn show_recipe(settings: &RecipeSettings, engine: &LlamaCpp, quiet: bool) -> Result<ExitCode> {
    let json = settings.json.as_ref();
    let path = json.filter(|path| path.as_os_str() != "-");
    // Created first, so that a bad path is found before the work is done.
    let force = settings.existing == Existing::Replace;
    let file = path.map(|path| Remade::Json(FIRST_KEY).create(path, force));
    let page = settings.html.as_deref();
    let page = page.map(|path| Remade::Page.create(path, force));
    let (file, page) = (file.transpose()?, page.transpose()?);
    let quants = settings.report.as_deref().map(quants_of).transpose()?;
    let is_printed = json.is_some() && path.is_none();
    let terminal = Terminal::new(quiet, Results::printed(is_printed));
    let report = commands::recipe(settings, engine, &terminal)?;
    if let Some(path) = report.types_path.as_deref() {
        say_wrote(path, quiet);
    }
    if let (Some(path), Some(file)) = (path, file) {
        write_text(file, &json_text(&report)?)?;
        say_wrote(&path.display().to_string(), quiet);
    }
    if let (Some(path), Some(page)) = (&settings.html, page) {
        let html = page::recipe_html(&report, &quants.unwrap_or_default());
        write_text(page, &html.context("cannot render the page")?)?;
        say_wrote(&path.display().to_string(), quiet);
    }
    let mut results = terminal.into_results();
    results.print_text(&recipe_text(&report));
    results.finish(|| json_text(&report), false)?;
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
