//! The commands that make their results of finished files, again and again: `kl report`, `kl
//! sensitivity` and `kl recipe`. Each prints its result in one form, and writes others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};

use super::args::ReportArgs;
use super::results::{Remade, Results, create_text, write_text};
use super::terminal::{Terminal, show_conditions, stdout_width, view};
use super::{EXIT_CONDITION, say_new, say_wrote};
use crate::commands::output::PartialFile;
use crate::commands::settings::{RecipeSettings, SensitivitySettings};
use crate::commands::{self, Reported};
use crate::engine::LlamaCpp;
use crate::report::comparison::CSV_START;
use crate::report::layout::View;
use crate::report::page::{self, ReportedQuant};
use crate::report::recipe::recipe_text;
use crate::report::{Verdict, json_text, judge, judge_pair};

/// How the JSON of a report starts after its versions: not like that of an evaluation, which took a model
/// to make.
const FIRST_KEY: &str = r#""reference":{"file_name":"#;

/// The error of a page.
const NO_PAGE: &str = "cannot render the page";

/// The forms in which a command writes its result: some to files, and at most one to stdout.
struct Forms<'p> {
    files: Vec<(&'p Path, PartialFile, Remade)>,
    /// The form that is printed in place of the text.
    printed: Option<Remade>,
}

impl<'p> Forms<'p> {
    /// Creates the files, so that a bad path is found before the work is done. The path `-` is stdout. An
    /// existing file that is not in its form is refused without `force`.
    fn create<const N: usize>(
        wanted: [(&'p Option<PathBuf>, Remade); N],
        force: bool,
    ) -> Result<Self> {
        let (mut files, mut printed) = (Vec::new(), None);
        for (path, form) in wanted {
            match path.as_deref() {
                Some(path) if path.as_os_str() == "-" => printed = Some(form),
                Some(path) => {
                    let file = create_text(path, force || form.is_form_of(path))?;
                    files.push((path, file, form));
                }
                None => {}
            }
        }
        Ok(Self { files, printed })
    }

    /// Prints the result in the form for stdout, or as `text`, and writes each file. `in_form` makes the
    /// other forms.
    fn write(
        self,
        text: impl FnOnce() -> String,
        in_form: impl Fn(Remade) -> Result<String>,
        quiet: bool,
    ) -> Result<()> {
        let mut results = Results::default();
        results.print_text(&self.printed.map_or_else(|| Ok(text()), &in_form)?);
        for (path, file, form) in self.files {
            write_text(file, &in_form(form)?)?;
            say_wrote(&path.display().to_string(), quiet);
        }
        results.close()
    }
}

/// Lets glibc use the columns of one evaluation again for the next. It would give each back to the system
/// and take it anew, page by page: a quarter of the time of a large report.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(parameter: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        const M_TRIM_THRESHOLD: std::ffi::c_int = -1;
        const M_MMAP_THRESHOLD: std::ffi::c_int = -3;
        // SAFETY: the signature is glibc's, and it accepts any value.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, 32 << 20);
            mallopt(M_TRIM_THRESHOLD, 256 << 20);
        }
    }
}

/// Compares the evaluations that the flags name.
///
/// # Errors
/// If nothing can be compared, or an output cannot be written.
pub fn show_report(args: &ReportArgs, terminal: &Terminal<'_>) -> Result<ExitCode> {
    let forms = Forms::create(
        [
            (&args.json, Remade::Json(FIRST_KEY)),
            (&args.csv, Remade::Csv(CSV_START)),
            (&args.html, Remade::Page),
        ],
        args.force,
    )?;
    keep_freed_memory();
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
    let text = || report_text(args, &reported, view(args.full, args.breakdown));
    let in_form = |form| match (&reported, form) {
        (Reported::Pair(pair), _) => Ok(json_text(pair)?),
        (Reported::Comparison(comparison), Remade::Json(_)) => Ok(json_text(comparison)?),
        (Reported::Comparison(comparison), Remade::Csv(_)) => Ok(comparison.csv()),
        (Reported::Comparison(comparison), Remade::Page) => page::html(comparison).context(NO_PAGE),
    };
    forms.write(text, in_form, args.quiet)?;
    Ok(code)
}

fn report_text(args: &ReportArgs, reported: &Reported, view: View) -> String {
    match reported {
        Reported::Pair(pair) => pair.text(view),
        Reported::Comparison(of) if args.markdown => of.markdown(view.breakdown),
        Reported::Comparison(of) if args.model_card => of.model_card(),
        Reported::Comparison(of) => of.only_report(view).unwrap_or_else(|| of.text(view)),
    }
}

/// Measures a map and shows it.
///
/// # Errors
/// Why it cannot be measured, or an output not be written.
pub fn show_sensitivity(settings: &SensitivitySettings, engine: &LlamaCpp) -> Result<()> {
    let forms = Forms::create(
        [
            (&settings.json, Remade::Json(r#""model":{"#)),
            (&settings.csv, Remade::Csv("tensor,role,")),
            (&settings.html, Remade::Page),
        ],
        settings.force,
    )?;
    if settings.part.is_some() && (forms.printed.is_some() || !forms.files.is_empty()) {
        bail!("--shard: a part has no results of its own: join the parts with kl merge first");
    }
    let terminal = Terminal::new(settings.quiet, Results::default());
    let mapped = commands::sensitivity(settings, engine, &terminal)?;
    if let Some(sensitivity) = &mapped.sensitivity {
        let text = || sensitivity.text(&mapped.file.path, stdout_width());
        let in_form = |form| match form {
            Remade::Json(_) => Ok(json_text(sensitivity)?),
            Remade::Csv(_) => Ok(sensitivity.csv()),
            Remade::Page => page::sensitivity_html(sensitivity).context(NO_PAGE),
        };
        forms.write(text, in_form, settings.quiet)?;
    }
    say_new(&mapped.file, "", "", settings.quiet);
    Ok(())
}

/// Chooses a mixture, prints it, and writes what was asked for.
///
/// # Errors
/// If no recipe can be found, or an output cannot be written.
pub fn show_recipe(settings: &RecipeSettings, engine: &LlamaCpp) -> Result<()> {
    let forms = Forms::create(
        [
            (&settings.json, Remade::Json(r#""map_path":"#)),
            (&settings.html, Remade::Page),
        ],
        settings.force,
    )?;
    let quants = settings.report.as_deref().map(quants_of).transpose()?;
    let quants = quants.unwrap_or_default();
    let terminal = Terminal::new(settings.quiet, Results::default());
    let report = commands::recipe(settings, engine, &terminal)?;
    if let Some(path) = report.types_path.as_deref() {
        say_wrote(path, settings.quiet);
    }
    let in_form = |form| match form {
        Remade::Page => page::recipe_html(&report, &quants).context(NO_PAGE),
        Remade::Json(_) | Remade::Csv(_) => Ok(json_text(&report)?),
    };
    forms.write(|| recipe_text(&report), in_form, settings.quiet)?;
    commands::quantize(settings, &report.recipe, engine, &terminal)?;
    Ok(())
}

/// The quants of a `kl report`.
fn quants_of(path: &Path) -> Result<Vec<ReportedQuant>> {
    let shown = path.display();
    let json = fs::read_to_string(path).with_context(|| format!("{shown}: cannot be read"))?;
    ReportedQuant::of_json(&json).map_err(|why| anyhow!("{shown} {why}"))
}
