//! The flags of a call that writes a reference.

use std::path::PathBuf;
use std::slice::from_ref;

use kl_formats::{Encoding, Kind, Target};

use super::input::{check_score, files};
use super::{Command, classic_run, paths, wrong};
use crate::cli::args::Args;
use crate::commands::output::Existing;
use crate::commands::settings::{WriteSettings, target};
use crate::input::{ScoreFrom, Source, Windowing};

/// `-w`: writes what the one model makes of the input.
pub fn write(mut args: Args, input: Source, output: PathBuf) -> Result<Command, String> {
    let (kind, n_models) = (args.write.format, args.model.len());
    let model = args.model.pop().filter(|_| n_models == 1).ok_or_else(|| {
        format!("{n_models} models given: -w writes the reference of one model only")
    })?;
    if model.is_dir() {
        return wrong(format!(
            "{}: is a folder: -w writes the reference of one model, -r evaluates all models of a folder",
            model.display()
        ));
    }
    if args.resume && kind != Kind::Kl {
        return wrong(
            "--resume needs --format kl, whose checksums show which windows are whole: write that, \
             then use kl convert",
        );
    }
    if args.shard.is_some() && kind != Kind::Kl {
        return wrong(
            "--shard needs --format kl, whose parts kl merge can join: write that, then use kl \
             convert",
        );
    }
    let encoding = args.write.encoding;
    if encoding.is_some_and(Encoding::holds_states) && kind != Kind::Kl {
        return wrong(
            "--encoding hidden needs --format kl: no other format can hold hidden states",
        );
    }
    let target = target(kind, encoding)?;
    let run = classic_run(&args);
    check_score(&input)?;
    if let Some(windowing) = input.windowing() {
        check_windowing(windowing, target, args.input.score, run.max_rows)?;
    }
    paths::check(&files(&input, &model), |_| false, from_ref(&output))?;
    Ok(Command::Write(WriteSettings {
        model,
        input,
        output,
        target,
        part: args.shard,
        existing: Existing::asked(args.force, (kind == Kind::Kl).then_some(args.resume)),
        run,
    }))
}

/// Refuses windows that the format cannot express.
fn check_windowing(
    windowing: &Windowing,
    target: Target,
    score: Option<ScoreFrom>,
    max_rows: Option<u64>,
) -> Result<(), String> {
    if target == Target::KlPy && windowing.score != ScoreFrom::All {
        return wrong(format!(
            "--format {} scores every position: omit --score",
            target.kind()
        ));
    }
    if target != Target::LlamaCpp {
        return Ok(());
    }
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
