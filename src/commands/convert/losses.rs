//! The parts of a reference that each kind of file can hold, and so the losses of a conversion.
//! They are decided and reported before anything is written.

use std::fmt::Display;
use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{About, Encoding, Target, Values, WindowSpec, longest_window, n_rows};

use crate::report::number::{count, kld};

/// Plans what a file of kind `target` can hold of a reference with these windows: leaves in them the
/// rows that the new file will have, and returns the losses, one sentence each.
///
/// # Errors
/// If the file cannot hold the reference at all.
pub fn plan(about: &About, windows: &mut Vec<WindowSpec>, target: Target) -> Result<Vec<String>> {
    let mut losses = Vec::new();
    if let Some(error) = about.states.as_ref().map(|states| &states.check)
        && error.max_kld > 0.0
    {
        losses.push(lost(format!(
            "the record of its hidden states' own error: a mean KLD of {}, largest {}",
            kld(error.mean_kld.into()),
            kld(error.max_kld.into())
        )));
    }
    losses.extend(match target {
        Target::Kl(encoding) => for_native(about, windows, encoding),
        Target::KlPy => for_kl_py(about, windows)?,
        Target::LlamaCpp => for_llama_cpp(about, windows)?,
    });
    Ok(losses)
}

/// States that the new file will not have `what`.
pub fn lost(what: impl Display) -> String {
    format!("the conversion loses {what}")
}

/// The losses of kl's own kind.
fn for_native(about: &About, windows: &[WindowSpec], encoding: Encoding) -> Vec<String> {
    let longest = longest_window(windows);
    let has_folder = |path: &String| {
        let name = Path::new(path).file_name().unwrap_or_default();
        name != path.as_str()
    };
    let mut paths = [&about.model_path, &about.text_path].into_iter().flatten();
    let others: Vec<&str> = about.others.iter().map(|(key, _)| key.as_str()).collect();
    let mut losses = Vec::new();
    if about.n_ctx_is_padded && about.n_ctx != longest {
        losses.push(lost(format!(
            "the header's n_ctx of {}: it becomes {longest}, the longest window",
            about.n_ctx
        )));
    }
    if paths.any(has_folder) {
        losses.push(lost("the folders of model and text (their names stay)"));
    }
    if !others.is_empty() {
        let others = others.join(", ");
        losses.push(lost(format!("kl.py's header entries {others}")));
    }
    match about.values {
        Values::FlooredLogProbabilities => losses.push(
            "a base file holds no logits: the rows stay log-probabilities, floored at 16 below \
             each row's largest, not normalised"
                .to_owned(),
        ),
        Values::LogProbabilities => {
            losses.push("the file holds no logits: the rows stay log-probabilities".to_owned());
        }
        _ => {}
    }
    if encoding == Encoding::U16 {
        losses.push(lost(
            "what u16 rounds off: half a step at most, 1/131,070 of a row's range \
             (--encoding f32 keeps it)",
        ));
    }
    losses
}

fn for_kl_py(about: &About, windows: &[WindowSpec]) -> Result<Vec<String>> {
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
    let losses = always.into_iter().chain(of_structure(about, windows));
    Ok(losses.map(lost).collect())
}

fn for_llama_cpp(about: &About, windows: &mut Vec<WindowSpec>) -> Result<Vec<String>> {
    let path = about.path.display();
    let n_ctx = longest_window(windows);
    let half = n_ctx / 2;
    let (windows_before, rows_before) = (windows.len(), n_rows(windows));
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
    let mut losses = vec![lost(
        "the logits: log-probabilities in 16 bits, floored at 16 below each row's largest, not \
         normalised",
    )];
    if rows_before > n_rows(windows) {
        losses.push(lost(format!(
            "{} of {} rows: each window keeps those of positions {half} to {}",
            count(rows_before - n_rows(windows)),
            count(rows_before),
            n_ctx - 2
        )));
    }
    let left_out = windows_before - windows.len();
    if left_out > 0 {
        losses.push(lost(format!(
            "{left_out} of {windows_before} windows: those without {n_ctx} tokens and rows to \
             their end"
        )));
    }
    losses.push(lost(
        "all checksums, and what the header records of model, tokenizer, text and how the rows \
         were computed",
    ));
    losses.extend(of_structure(about, windows).map(lost));
    if !begin_alike(windows) {
        losses.push(lost(
            "the first token of each window, where the model adds a BOS: llama-perplexity \
             decodes the BOS instead, and so gets other rows than these",
        ));
    }
    Ok(losses)
}

/// The losses of a kind that numbers its windows from 0 and knows no prompts, groups or parts.
fn of_structure(about: &About, windows: &[WindowSpec]) -> impl Iterator<Item = &'static str> {
    let numbers = windows.iter().map(|window| window.window);
    let losses = [
        (!numbers.eq(0..windows.len() as u32), "the windows' numbers"),
        (about.seed.is_some(), "the seed of the windows' order"),
        (about.shard.is_some(), "that it is one part of all"),
        (about.stride.is_some(), "that windows overlap"),
        (about.groups.is_some(), "the groups of windows"),
        (about.prompts.is_some(), "the prompts and their answers"),
    ];
    let lost = losses.into_iter().filter(|(is_lost, _)| *is_lost);
    lost.map(|(_, what)| what)
}

/// Refuses what the kinds alone rule out, before any window is read.
///
/// # Errors
/// If the file cannot or need not be converted.
pub fn check_kinds(about: &About, target: Target) -> Result<()> {
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
pub fn begin_alike(windows: &[WindowSpec]) -> bool {
    let mut firsts = windows.iter().map(|window| window.tokens.first());
    let first = firsts.next();
    firsts.all(|token| Some(token) == first)
}
