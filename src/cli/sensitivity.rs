//! `kl sensitivity`: measures a map, prints what it says, and writes other forms of it.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use super::results::{Remade, Results, write_text};
use super::say_wrote;
use super::settings::SensitivityOutputs;
use super::terminal::{Terminal, stdout_width};
use crate::commands::settings::SensitivitySettings;
use crate::commands::{self, Mapped};
use crate::engine::LlamaCpp;
use crate::report::number::{bytes, count_of, duration};
use crate::report::sensitivity::Sensitivity;
use crate::report::{json_text, page};

/// A form of the result.
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
    outputs: &SensitivityOutputs,
    engine: &LlamaCpp,
    quiet: bool,
) -> Result<ExitCode> {
    let forms = [
        (&outputs.json, Form::Json, Remade::Json(r#""model":{"#)),
        (&outputs.csv, Form::Csv, Remade::Csv("tensor,role,")),
        (&outputs.html, Form::Page, Remade::Page),
    ];
    // Created first, so that a bad path is found before the work is done.
    let (mut files, mut printed) = (Vec::new(), None);
    for (path, form, remade) in forms {
        match path {
            Some(path) if path.as_os_str() == "-" => printed = Some(form),
            Some(path) => files.push((path, remade.create(path, outputs.force)?, form)),
            None => {}
        }
    }
    if settings.part.is_some() && (printed.is_some() || !files.is_empty()) {
        bail!("--shard: a part has no results of its own: join the parts with kl merge first");
    }
    let terminal = Terminal::new(quiet, Results::default());
    let mapped = commands::sensitivity(settings, engine, &terminal)?;
    let mut results = terminal.into_results();
    if let Some(sensitivity) = &mapped.sensitivity {
        results.print_text(&match printed {
            None => sensitivity.text(&mapped.path, stdout_width()),
            Some(form) => text(sensitivity, form)?,
        });
        for (path, output, form) in files {
            write_text(output, &text(sensitivity, form)?)?;
            say_wrote(&path.display().to_string(), quiet);
        }
    }
    say_mapped(&mapped, quiet);
    results.close()?;
    Ok(ExitCode::SUCCESS)
}

fn text(sensitivity: &Sensitivity, form: Form) -> Result<String> {
    Ok(match form {
        Form::Json => json_text(sensitivity)?,
        Form::Csv => sensitivity.csv(),
        Form::Page => page::sensitivity_html(sensitivity).context("cannot render the page")?,
    })
}

/// Prints that a map was written.
fn say_mapped(mapped: &Mapped, quiet: bool) {
    if mapped.was_whole {
        say!("kl: {}: is already complete", mapped.path);
    } else if !quiet {
        say!(
            "wrote {}: {}, {} in {}",
            mapped.path,
            bytes(mapped.file_bytes),
            count_of(mapped.n_cells, "cell"),
            duration(mapped.wall_s)
        );
    }
}
