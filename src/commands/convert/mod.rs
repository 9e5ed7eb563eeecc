//! Converts a reference to another kind, without the model. Rows of hidden states are computed on
//! the CPU.

mod losses;

use std::collections::HashMap;
use std::io::Read;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_formats::{About, Reference, States, WindowSpec, Writer, longest_window, n_rows};

use super::context::writer;
use super::observer::{Observer, Watch};
use super::output::{Existing, NewFile, PartialFile, check_free_space};
use super::reference::{open_rows, read_windows, refuse_folder};
use super::settings::{Bos, ConvertSettings};
use crate::engine::Engine;
use crate::pipeline::{FileRows, Sources, write_reference};
use crate::report::Warning;
use losses::{begin_alike, check_kinds};

/// Writes the new reference.
///
/// # Errors
/// What is wrong with the input, what the new kind cannot hold, and why it cannot be written.
pub fn convert<E: Engine>(
    settings: &ConvertSettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<NewFile> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let target = settings.target().map_err(anyhow::Error::msg)?;
    let (path, existing) = (&settings.output, Existing::asked(settings.force, None));
    let output = PartialFile::create(path, existing == Existing::Replace, existing)?;
    refuse_folder(&settings.input)?;
    let mut reference = Reference::open(&settings.input)?;
    check_kinds(reference.about(), target)?;
    let mut windows = windows(&mut reference, settings, watch)?;
    let about = reference.about().clone();
    let mut losses = losses::plan(&about, &mut windows, target)?;
    if let Some(Bos::Token(_)) = settings.bos {
        losses.push(losses::lost(
            "the text's own first token of each window: the BOS replaces it",
        ));
    }
    let losses = losses.into_iter();
    watch.warn_all(losses.map(|loss| Warning::new("conversion_loss", loss)));
    let windows = &windows;
    let head = |states: &States, section: &mut dyn Read| {
        engine.load_head(states, section, settings.threads)
    };
    let rows = open_rows(reference, head, watch)?;
    let size = target.projected_bytes(&about, windows);
    check_free_space(output.path(), &settings.output, size)?;

    let writer = Writer::create(
        output.writer(0)?,
        output.path(),
        target,
        &describe(about, windows),
        windows,
    )?;
    let n_rows = n_rows(windows);
    let phase = watch.begin("converting", Some(windows.len() as u64), Some(n_rows));
    let source = Sources::ready(FileRows::new(&rows, HashMap::new()));
    let written = write_reference(source, windows, writer, |step| phase.step(step))?;
    drop(phase);
    watch.warn_all(Warning::of_forms(written.forms));
    Ok(NewFile {
        path: settings.output.display().to_string(),
        is_map: false,
        was_whole: false,
        file_bytes: output.commit_writer(written.output)?,
        n_rows,
        wall_s: started.elapsed().as_secs_f64(),
    })
}

/// Reads the windows of the file, with their tokens as they were decoded.
fn windows(
    reference: &mut Reference,
    settings: &ConvertSettings,
    watch: &Watch<'_>,
) -> Result<Vec<WindowSpec>> {
    let hides_bos = reference.about().hides_bos;
    if settings.bos.is_some() && !hides_bos {
        bail!(
            "--bos is for llama.cpp's base files, which {} is not: leave it out",
            settings.input.display()
        );
    }
    let windows = read_windows(reference, watch)?;
    let first = windows.first().and_then(|window| window.tokens.first());
    match settings.bos {
        // If all start with the same token, it is the BOS, or there is only one window.
        None if hides_bos && !begin_alike(&windows) => bail!(
            "{}: does not record whether its model replaces each window's first token by a BOS: \
             use --bos with that token's id (its text starts with token {}, which is the BOS if \
             there is one), or --bos none",
            settings.input.display(),
            first.copied().unwrap_or_default()
        ),
        Some(Bos::Token(bos)) => {
            if let Some(&first) = first.filter(|&&first| first != bos) {
                let message = format!(
                    "the file's text starts with token {first}, not with --bos {bos}: if {first} is the BOS, every window is evaluated with a wrong first token"
                );
                watch.warn(Warning::new("other_bos", message));
            }
            reference.set_bos(Some(bos));
            read_windows(reference, watch)
        }
        None | Some(Bos::None) => Ok(windows),
    }
}

/// Describes the new file. An old one that does not name its writer records little: the rest
/// follows from its windows, or stays unknown.
fn describe(mut about: About, windows: &[WindowSpec]) -> About {
    if about.writer.is_none() {
        about.writer = Some(format!("{}, from a file of {}", writer(), about.kind));
        about.n_ctx = longest_window(windows).max(1);
        about.add_bos = Some(windows.len() > 1 && begin_alike(windows));
        about.first_scored = Some(windows.first().map_or(0, |window| window.first_scored));
    }
    about.states = None;
    about.n_windows = Some(windows.len() as u32);
    about.n_rows = Some(n_rows(windows));
    about
}
