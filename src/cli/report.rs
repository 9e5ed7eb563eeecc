//! `kl report`: prints and writes a comparison.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result};

use super::results::Results;
use super::say_wrote;
use super::settings::{ReportOutputs, Shown};
use super::terminal::Terminal;
use crate::commands::output::{OnPartial, Overwrite, PartialFile};
use crate::commands::settings::ReportSettings;
use crate::commands::{self, Reported};
use crate::report::comparison::{CSV_START, Comparison};
use crate::report::{json_text, page};

/// What a page has near its start: its generator.
const PAGE_MARK: &str = "content=\"kl ";

/// Compares what the settings name, and shows it.
///
/// # Errors
/// If nothing can be compared, or an output cannot be written.
pub fn show_report(settings: &ReportSettings, outputs: &ReportOutputs) -> Result<()> {
    // Created first, so that a bad path is found before the work is done.
    let json = create(outputs.json.as_deref(), outputs.force, is_report_json)?;
    let csv = create(outputs.csv.as_deref(), outputs.force, |start| {
        start.starts_with(CSV_START)
    })?;
    let html = create(outputs.html.as_deref(), outputs.force, |start| {
        start.contains(PAGE_MARK)
    })?;
    let terminal = Terminal::new(outputs.quiet, Results::as_text());
    let reported = commands::report(settings, &terminal)?;
    for warning in reported.warnings() {
        say!("kl: warning: {warning}");
    }
    let mut results = terminal.into_results();
    match &reported {
        Reported::Pair(pair) => {
            write(outputs.json.as_deref(), json, outputs.quiet, || {
                Ok(json_text(&pair)?)
            })?;
            results.print_text(&match outputs.shown {
                Shown::Json => json_text(&pair)?,
                _ => pair.text(),
            });
        }
        Reported::Comparison(comparison) => {
            results.print_text(&shown(comparison, outputs)?);
            write(outputs.json.as_deref(), json, outputs.quiet, || {
                Ok(json_text(&comparison)?)
            })?;
            write(outputs.csv.as_deref(), csv, outputs.quiet, || {
                Ok(comparison.csv())
            })?;
            write(outputs.html.as_deref(), html, outputs.quiet, || {
                Ok(page::html(comparison)?)
            })?;
        }
    }
    results.close()
}

fn shown(comparison: &Comparison, outputs: &ReportOutputs) -> Result<String> {
    if outputs.shown == Shown::Text
        && let Some(report) = comparison.only_report(outputs.breakdown)
    {
        return Ok(report);
    }
    Ok(match outputs.shown {
        Shown::Text if outputs.breakdown => {
            format!("{}{}", comparison.text(), comparison.breakdown_text())
        }
        Shown::Text => comparison.text(),
        Shown::Markdown => comparison.markdown(outputs.breakdown),
        Shown::ModelCard => comparison.model_card(),
        Shown::Json => json_text(&comparison)?,
        Shown::Csv => comparison.csv(),
    })
}

/// Whether a file starts like the JSON of a report, and not like that of an evaluation, which took
/// a model to make.
fn is_report_json(start: &str) -> bool {
    let start: String = start.split_whitespace().collect();
    start.starts_with(r#"{"kl_version":"#) && start.contains(r#""reference":{"file_name":"#)
}

/// Creates an output. A report is made again and again, so an earlier one is replaced; any other
/// file is refused unless `force`. `is_report` recognises an earlier one by how it starts.
fn create(
    path: Option<&Path>,
    force: bool,
    is_report: impl Fn(&str) -> bool,
) -> Result<Option<PartialFile>> {
    /// How much of a file is looked at.
    const START_BYTES: u64 = 1024;
    let Some(path) = path else { return Ok(None) };
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(START_BYTES).read_to_end(&mut start));
    let is_report = read.is_ok() && is_report(&String::from_utf8_lossy(&start));
    let overwrite = Overwrite {
        replace_target: force || is_report,
        on_partial: OnPartial::Replace,
    };
    PartialFile::create(path, overwrite).map(Some)
}

/// Writes a file, and prints its name.
fn write(
    path: Option<&Path>,
    output: Option<PartialFile>,
    quiet: bool,
    text: impl FnOnce() -> Result<String>,
) -> Result<()> {
    let Some((path, output)) = path.zip(output) else {
        return Ok(());
    };
    let written = output.file()?.write_all(text()?.as_bytes());
    written.with_context(|| format!("{}: cannot be written", output.path().display()))?;
    output.commit()?;
    say_wrote(&path.display().to_string(), quiet);
    Ok(())
}
