//! Converts a reference to another kind, without the model. Rows of hidden states are computed on
//! the CPU. What the new kind cannot hold is reported before anything is written.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_engine::Engine;
use kl_formats::{
    About, Encoding, Reference, States, Target, Values, WindowSpec, Writer, longest_window, n_rows,
};
use kl_report::Warning;
use kl_report::number::{count, kld};

use super::context::writer;
use super::finite_rows::FiniteRows;
use super::observer::{Observer, Watch};
use super::output::{ANOTHER_DISK, Existing, NewFile, PartialFile, check_free_space};
use super::reference::{open_rows, read_windows, refuse_folder};
use super::settings::{Bos, ConvertSettings};
use crate::pipeline::{FileRows, NotFinite, Sources, Step, write_reference};

/// Writes the new reference.
///
/// # Errors
/// What is wrong with the input, what the new kind cannot hold, and why it cannot be written.
pub fn convert(
    settings: &ConvertSettings,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<NewFile> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let (target, path, existing) = (settings.target, &settings.output, settings.existing);
    let output = PartialFile::create(path, existing == Existing::Replace, existing)?;
    refuse_folder(&settings.input)?;
    let mut reference = Reference::open(&settings.input)?;
    check_kinds(reference.about(), target)?;
    let mut windows = windows(&mut reference, settings, watch)?;
    let about = reference.about().clone();
    let mut losses = plan(&about, &mut windows, target)?;
    losses.push((
        matches!(settings.bos, Some(Bos::Token(_))),
        lost("the text's own first token of each window: the BOS replaces it"),
    ));
    watch.warn_all(
        losses
            .into_iter()
            .filter(|(occurs, _)| *occurs)
            .map(|(_, loss)| Warning::new("conversion_loss", loss)),
    );
    let load_head = |states: &States, section: &mut dyn Read| {
        engine.load_head(states, section, settings.threads)
    };
    let rows = open_rows(reference, load_head, watch)?;
    let size = target.projected_bytes(&about, &windows);
    check_free_space(output.path(), &settings.output, size, |_| {
        ANOTHER_DISK.to_owned()
    })?;

    let writer = Writer::create(
        output.writer(0)?,
        output.path(),
        target,
        &describe(about, &windows),
        &windows,
    )?;
    let n_rows = n_rows(&windows);
    let phase = watch.begin("converting", Some(windows.len() as u64), Some(n_rows));
    let source = Sources::ready(FileRows::new(&rows, HashMap::new()));
    let finite_rows = FiniteRows::of_file(settings.input.display().to_string(), watch);
    let written = write_reference(source, &windows, writer, |step| {
        if let Step::Window((_, not_finite)) = &step {
            finite_rows.add(*not_finite);
        }
        phase.step(step)
    })?;
    drop(phase);
    finite_rows.conclude(NotFinite::default(), || false)?;
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
    let first_token = windows.first().and_then(|window| window.tokens.first());
    match settings.bos {
        // If all windows start with one token, it is the BOS, or there is only one window.
        None if hides_bos && !begin_alike(&windows) => bail!(
            "{}: does not record whether its model replaces each window's first token by a BOS: \
             use --bos with that token's id (its text starts with token {}, which is the BOS if \
             there is one), or --bos none",
            settings.input.display(),
            first_token.copied().unwrap_or_default()
        ),
        Some(Bos::Token(bos)) => {
            if let Some(&first) = first_token.filter(|&&first| first != bos) {
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

/// Describes the new file. An old file that does not name its writer records little: the rest
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

/// Possible losses of a conversion: true for one that occurs, and a sentence that states it.
type Losses = Vec<(bool, String)>;

/// Reduces the windows of a reference to the rows that a file of kind `target` can hold, and returns the
/// losses.
///
/// # Errors
/// If the file cannot hold the reference at all.
fn plan(about: &About, windows: &mut Vec<WindowSpec>, target: Target) -> Result<Losses> {
    let mut losses = match target {
        Target::Kl(encoding) => losses_of_native(about, windows, encoding),
        Target::KlPy => losses_of_kl_py(about, windows)?,
        Target::LlamaCpp => losses_of_llama_cpp(about, windows)?,
    };
    if let Some(states) = &about.states {
        let [mean, max] = [states.check.mean_kld, states.check.max_kld].map(f64::from);
        let error = format!(
            "the record of its hidden states' own error: a mean KLD of {}, largest {}",
            kld(mean),
            kld(max)
        );
        losses.insert(0, (max > 0.0, lost(error)));
    }
    Ok(losses)
}

/// States that the new file will not have `contents`.
fn lost(contents: impl Display) -> String {
    format!("the conversion loses {contents}")
}

/// The losses of kl's own kind.
fn losses_of_native(about: &About, windows: &[WindowSpec], encoding: Encoding) -> Losses {
    let longest = longest_window(windows);
    let has_folder = |path: &String| {
        let name = Path::new(path).file_name().unwrap_or_default();
        name != path.as_str()
    };
    let mut paths = [&about.model_path, &about.text_path].into_iter().flatten();
    let other_keys: Vec<&str> = about.others.iter().map(|(key, _)| key.as_str()).collect();
    let n_ctx = format!(
        "the header's n_ctx of {}: it becomes {longest}, the longest window",
        about.n_ctx
    );
    let folders = "the folders of model and text (their names stay)";
    let entries = format!("kl.py's header entries {}", other_keys.join(", "));
    let floored = "a base file holds no logits: the rows stay log-probabilities, floored at 16 below \
                   each row's largest, not normalised";
    let no_logits = "the file holds no logits: the rows stay log-probabilities";
    let rounded = "what u16 rounds off: half a step at most, 1/131,070 of a row's range \
                   (--encoding f32 keeps it)";
    let is_floored = about.values == Values::FlooredLogProbabilities;
    vec![
        (about.n_ctx_is_padded && about.n_ctx != longest, lost(n_ctx)),
        (paths.any(has_folder), lost(folders)),
        (!other_keys.is_empty(), lost(entries)),
        (is_floored, floored.to_owned()),
        (
            about.values == Values::LogProbabilities,
            no_logits.to_owned(),
        ),
        (encoding == Encoding::U16, lost(rounded)),
    ]
}

fn losses_of_kl_py(about: &About, windows: &[WindowSpec]) -> Result<Losses> {
    if let Some(window) = windows.iter().find(|window| window.first_scored != 0) {
        bail!(
            "{}: its rows start at position {} of a window, and kl.py's file needs them from each \
             window's first token on: use a reference written with --score all",
            about.path.display(),
            window.first_scored
        );
    }
    let always = [
        "all checksums but gzip's own, and the index: the file is read as one stream",
        "what identifies tokenizer, model and text (their names stay), and how the rows were \
         computed (the batch stays)",
    ];
    let mut losses = Vec::from(always.map(|contents| (true, lost(contents))));
    losses.extend(losses_of_structure(about, windows));
    Ok(losses)
}

fn losses_of_llama_cpp(about: &About, windows: &mut Vec<WindowSpec>) -> Result<Losses> {
    let path = about.path.display();
    let n_ctx = longest_window(windows);
    let half = n_ctx / 2;
    let (n_windows_before, n_rows_before) = (windows.len(), n_rows(windows));
    if let Some(window) = windows.iter().find(|window| window.first_scored > half) {
        bail!(
            "{path}: its rows start at position {} of window {}, and llama.cpp's base file \
             needs them from {half} on: it cannot be converted",
            window.first_scored,
            window.window
        );
    }
    windows.retain_mut(|window| {
        let scored_end = window.first_scored + window.n_rows;
        (window.first_scored, window.n_rows) = (half, n_ctx.saturating_sub(1 + half));
        window.tokens.len() == n_ctx as usize && scored_end + 1 >= n_ctx
    });
    if windows.is_empty() || n_ctx < 3 {
        bail!(
            "{path}: has no window of {n_ctx} tokens with rows to its end, and llama.cpp's \
             base file holds only such windows, of at least 3 tokens: it cannot be converted"
        );
    }
    let n_rows_lost = n_rows_before.saturating_sub(n_rows(windows));
    let rows = format!(
        "{} of {} rows: each window keeps those of positions {half} to {}",
        count(n_rows_lost),
        count(n_rows_before),
        n_ctx - 2
    );
    let n_left_out = n_windows_before - windows.len();
    let whole_windows = format!(
        "{n_left_out} of {n_windows_before} windows: those without {n_ctx} tokens and rows to \
         their end"
    );
    let logits = "the logits: log-probabilities in 16 bits, floored at 16 below each row's \
                  largest, not normalised";
    let header = "all checksums, and what the header records of model, tokenizer, text and how the \
                  rows were computed";
    let bos = "the first token of each window, where the model adds a BOS: llama-perplexity decodes \
               the BOS instead, and so gets other rows than these";
    let mut losses = vec![
        (true, lost(logits)),
        (n_rows_lost > 0, lost(rows)),
        (n_left_out > 0, lost(whole_windows)),
        (true, lost(header)),
    ];
    losses.extend(losses_of_structure(about, windows));
    losses.push((!begin_alike(windows), lost(bos)));
    Ok(losses)
}

/// The losses of a kind that numbers its windows from 0 and records no prompts, groups or parts.
fn losses_of_structure(about: &About, windows: &[WindowSpec]) -> [(bool, String); 6] {
    let numbers = windows.iter().map(|window| window.window);
    let losses = [
        (!numbers.eq(0..windows.len() as u32), "the windows' numbers"),
        (about.seed.is_some(), "the seed of the windows' order"),
        (about.shard.is_some(), "that it is one part of all"),
        (about.stride.is_some(), "that windows overlap"),
        (about.groups.is_some(), "the groups of windows"),
        (about.prompts.is_some(), "the prompts and their answers"),
    ];
    losses.map(|(occurs, contents)| (occurs, lost(contents)))
}

/// Refuses a conversion that the kinds alone rule out, before any window is read.
///
/// # Errors
/// If the file cannot or need not be converted.
fn check_kinds(about: &About, target: Target) -> Result<()> {
    let path = about.path.display();
    if !about.is_decodable {
        bail!(
            "{path}: is a file of kind {}, which kl convert cannot convert: use kl compare, which reads it as it is",
            about.kind
        );
    }
    // A _logits2 file is not what is written as a base file.
    let is_alike = about.kind == target.kind()
        && (target != Target::LlamaCpp || about.values == Values::FlooredLogProbabilities);
    if is_alike && about.encoding == target.encoding().to_string() {
        bail!("{path}: already has that format and encoding: copy it");
    }
    if about.values == Values::FlooredLogProbabilities && target == Target::LlamaCpp {
        bail!(
            "{path}: holds the floored log-probabilities of a base file, and a base file of those \
             would have another floor: use the original"
        );
    }
    Ok(())
}

/// True if all windows start with the same token, as with a BOS.
fn begin_alike(windows: &[WindowSpec]) -> bool {
    let mut first_tokens = windows.iter().map(|window| window.tokens.first());
    let first = first_tokens.next();
    first_tokens.all(|token| Some(token) == first)
}
