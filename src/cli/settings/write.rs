//! The flags of write mode.

use std::path::PathBuf;

use kl_formats::{Encoding, Kind, Target, native};

use super::input::{check_score, files, windowing};
use super::paths;
use super::run::run_settings;
use super::usage_error::{UsageError, wrong};
use crate::cli::args::{Args, EncodingChoice, WriteArgs};
use crate::commands::settings::WriteSettings;
use crate::input::{ScoreFrom, Source, Windowing};

pub(super) fn write_settings(
    args: Args,
    input: Source,
    output: PathBuf,
) -> Result<WriteSettings, UsageError> {
    let WriteArgs {
        format, encoding, ..
    } = args.write;
    let [model] = <[PathBuf; 1]>::try_from(args.model.clone()).or_else(|models| {
        wrong(format!(
            "{} models given: -w writes the reference of one model only",
            models.len()
        ))
    })?;
    if model.is_dir() {
        return wrong(format!(
            "{}: is a folder: -w writes the reference of one model, -r evaluates all models of a folder",
            model.display()
        ));
    }
    if args.resume && format != native::KIND {
        return wrong(
            "--resume needs --format kl, whose checksums show which windows are whole: write that, \
             then use kl convert",
        );
    }
    if args.shard.is_some() && format != native::KIND {
        return wrong(
            "--shard needs --format kl, whose parts kl merge can join: write that, then use kl \
             convert",
        );
    }
    let (target, auto) = stored(format, encoding)?;
    let run = run_settings(&args);
    check_score(&input)?;
    if let Some(windowing) = windowing(&input) {
        check_windowing(windowing, target, args.input.score, run.max_rows)?;
    }
    let inputs = files(&input, std::slice::from_ref(&model));
    paths::check(&inputs, paths::none, std::slice::from_ref(&output))?;
    Ok(WriteSettings {
        model,
        input,
        output,
        target,
        auto,
        part: args.shard,
        resume: args.resume,
        run,
    })
}

/// How rows are stored, and whether hidden states may be stored instead.
fn stored(kind: Kind, choice: Option<EncodingChoice>) -> Result<(Target, bool), UsageError> {
    let encoding = choice.map(EncodingChoice::encoding);
    let auto = choice == Some(EncodingChoice::Auto);
    if kind == native::KIND {
        return Ok((target(kind, encoding.or(Some(Encoding::U16)))?, auto));
    }
    if auto || encoding.is_some_and(Encoding::holds_states) {
        return wrong(
            "--encoding hidden, hidden16 and auto need --format kl: no other format can hold hidden states",
        );
    }
    Ok((target(kind, encoding)?, false))
}

pub(super) fn target(kind: Kind, encoding: Option<Encoding>) -> Result<Target, UsageError> {
    let target = Target::new(kind, encoding)
        .or_else(|error| wrong(format!("--encoding: {error}: omit it")))?;
    match target.is_base_file() && encoding.is_some() {
        true => wrong(format!(
            "--format {kind} always stores 16-bit log-probabilities: omit --encoding"
        )),
        false => Ok(target),
    }
}

/// Refuses windows that the format cannot express.
fn check_windowing(
    windowing: &Windowing,
    target: Target,
    score: Option<ScoreFrom>,
    max_rows: Option<u64>,
) -> Result<(), UsageError> {
    if target.has_all_rows() && windowing.score != ScoreFrom::All {
        return wrong(format!(
            "--format {} scores every position: omit --score",
            target.kind()
        ));
    }
    match target.is_base_file() {
        true => check_base_file(windowing, score, max_rows),
        false => Ok(()),
    }
}

/// Refuses what llama.cpp's base file cannot express.
fn check_base_file(
    windowing: &Windowing,
    score: Option<ScoreFrom>,
    max_rows: Option<u64>,
) -> Result<(), UsageError> {
    let n_ctx = windowing.n_ctx;
    if windowing.stride.is_some() || windowing.max_windows.is_some() {
        return wrong(
            "--format llama.cpp holds every whole window of a text, without overlap: omit --stride \
             and --max-windows",
        );
    }
    if score.is_some_and(|score| score.first(n_ctx, false) != n_ctx / 2) {
        return wrong("--format llama.cpp scores the second half of each window: omit --score");
    }
    if n_ctx < 3 {
        return wrong("--n-ctx must be at least 3 with --format llama.cpp: no position is scored");
    }
    if max_rows.is_some() {
        return wrong(
            "--format llama.cpp holds all windows in text order: omit --n-tokens and give a shorter \
             text",
        );
    }
    Ok(())
}
