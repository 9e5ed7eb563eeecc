//! `kl recipe`: chooses a mixture of types by a map.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};

use super::{Request, Session};
use crate::cli::results::{Form, NO_PAGE, Outputs, Results};
use crate::cli::say_wrote;
use crate::input::Source;
use crate::recipe;
use crate::recipe::report::page::{ReportedQuant, recipe_html};
use crate::recipe::report::recipe::recipe_text;
use crate::recipe::settings::RecipeSettings;
use crate::report::json_text;
use crate::whole_file::read_json;

#[derive(Debug)]
pub struct RecipeRequest {
    pub settings: RecipeSettings,
    pub outputs: Outputs,
    /// The JSON of a report, whose quants the page draws beside the recipe.
    pub report: Option<PathBuf>,
}

impl Request for RecipeRequest {
    fn inputs(&self) -> Vec<&Path> {
        let text = self.settings.text.as_ref();
        let mut files = text.map_or_else(Vec::new, Source::files);
        files.extend(self.report.as_deref());
        files.extend(self.settings.imatrix.as_deref());
        files
    }

    /// Chooses a mixture, prints it, and writes what was asked for.
    fn run(&self, session: &Session) -> Result<ExitCode> {
        let (settings, outputs, quiet) = (&self.settings, &self.outputs, session.quiet);
        let (engine, terminal) = (&session.engine, &session.terminal());
        let wanted = [
            (&outputs.json, Form::Json(r#""map_path":"#)),
            (&outputs.html, Form::Page),
        ];
        let mut results = Results::new(wanted, outputs.existing)?;
        let quants = self.report.as_deref().map(quants_of).transpose()?;
        let quants = quants.unwrap_or_default();
        let (report, imatrix) = recipe::recipe(settings, engine, terminal)?;
        if let Some(path) = report.types_path.as_deref() {
            say_wrote(path, quiet);
        }
        let in_form = |form| match form {
            Form::Page => recipe_html(&report, &quants).context(NO_PAGE),
            Form::Json(_) | Form::Csv(_) => Ok(json_text(&report)?),
        };
        results.print_text(&recipe_text(&report));
        // The other forms name the file that this writes, so they come after it.
        recipe::quantize(settings, &report.recipe, imatrix.as_ref(), engine, terminal)?;
        results.save(in_form)?;
        results.finish(|| json_text(&report), quiet)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The quants of a `kl report`.
fn quants_of(path: &Path) -> Result<Vec<ReportedQuant>> {
    let quants = ReportedQuant::of_json(&read_json(path, "kl report --json")?);
    quants.map_err(|why| anyhow!("{} {why}", path.display()))
}
