//! The flags of write mode.

use std::path::{Path, PathBuf};

use kl_formats::{Encoding, Kind, Target, native};

use super::paths;
use super::run::run_settings;
use super::usage_error::{UsageError, wrong};
use crate::cli::args::{Args, WriteArgs};
use crate::commands::settings::{DEFAULT_N_CTX, EncodingChoice, WriteSettings};
use crate::input::{
    GROUP_NAMES, GroupedSource, NamedText, PromptSource, ScoreFrom, Source, TemplateChoice,
    TextSource, Windowing, is_group_name,
};

/// The text or prompts to write a reference for, if any are given.
pub(super) fn input(
    args: &mut WriteArgs,
    n_ctx: Option<u32>,
) -> Result<Option<Source>, UsageError> {
    if let Some(path) = args.prompts_file.take() {
        return prompts(args, path, n_ctx).map(|prompts| Some(Source::Prompts(prompts)));
    }
    if args.no_chat_template || args.chat_template_file.is_some() || args.generate.is_some() {
        return wrong(
            "--no-chat-template, --chat-template-file and --generate need --prompts-file",
        );
    }
    let windowing = Windowing {
        n_ctx: n_ctx.unwrap_or(DEFAULT_N_CTX),
        stride: args.stride,
        score: args.score.unwrap_or(default_score(args.format)),
        max_windows: args.max_windows,
    };
    let parse_special = args.parse_special;
    let mut paths = std::mem::take(&mut args.text_path);
    if let [path] = &paths[..]
        && named_text(path)?.is_none()
    {
        return Ok(paths.pop().map(|path| {
            Source::Text(TextSource {
                path,
                windowing,
                parse_special,
            })
        }));
    }
    let texts = paths.iter().map(|path| match named_text(path)? {
        Some(named) => Ok(named),
        None => wrong(format!(
            "-t {}: several texts each need a name: use -t NAME=PATH",
            path.display()
        )),
    });
    let texts: Vec<NamedText> = texts.collect::<Result<_, _>>()?;
    if texts.is_empty() {
        return Ok(None);
    }
    if args.format != native::KIND {
        return wrong("-t NAME=PATH needs --format kl: no other format can hold groups");
    }
    let from_stdin = texts.iter().filter(|text| text.path.as_os_str() == "-");
    if from_stdin.count() > 1 {
        return wrong("-t: standard input can be read once only: name a file for the other text");
    }
    Ok(Some(Source::Texts(GroupedSource {
        texts,
        windowing,
        parse_special,
    })))
}

/// The group and the path of a text given as `NAME=PATH`. What exists as a file, or has a folder
/// before its `=`, is a path.
fn named_text(given: &Path) -> Result<Option<NamedText>, UsageError> {
    let parts = given.to_str().and_then(|text| text.split_once('='));
    let Some((group, path)) = parts.filter(|_| !given.exists()) else {
        return Ok(None);
    };
    if group.contains(['/', '\\']) {
        return Ok(None);
    }
    if path.is_empty() || !is_group_name(group) {
        return wrong(format!(
            "-t {}: expected PATH or NAME=PATH; for NAME {GROUP_NAMES}",
            given.display()
        ));
    }
    Ok(Some(NamedText {
        group: group.to_owned(),
        path: path.into(),
    }))
}

/// Which positions are scored where the flags do not say.
fn default_score(format: Kind) -> ScoreFrom {
    match Target::new(format, None).is_ok_and(Target::has_all_rows) {
        true => ScoreFrom::All,
        false => ScoreFrom::default(),
    }
}

fn prompts(
    args: &mut WriteArgs,
    path: PathBuf,
    n_ctx: Option<u32>,
) -> Result<PromptSource, UsageError> {
    if args.format != native::KIND {
        return wrong("--prompts-file needs --format kl: no other format can hold prompts");
    }
    let score = match (args.score.unwrap_or_default(), args.generate) {
        (ScoreFrom::Text, Some(_)) => None,
        (score @ (ScoreFrom::Text | ScoreFrom::Position(_)), None) => Some(score),
        (ScoreFrom::All, _) => Some(ScoreFrom::All),
        (_, Some(_)) => {
            return wrong(
                "--score can only be all with --generate; without --score, only the generated tokens \
                 are scored",
            );
        }
        (ScoreFrom::Half | ScoreFrom::New, None) => {
            return wrong(
                "--score can only be all or a position with --prompts-file: prompts differ in length \
                 and do not overlap",
            );
        }
    };
    let template = match (args.chat_template_file.take(), args.no_chat_template) {
        (Some(path), _) => TemplateChoice::File(path),
        (None, true) => TemplateChoice::None,
        (None, false) => TemplateChoice::OfModel,
    };
    Ok(PromptSource {
        path,
        template,
        parse_special: args.parse_special,
        n_ctx,
        max_prompts: args.max_windows,
        generate: args.generate,
        score,
    })
}

pub(super) fn write_settings(
    args: Args,
    input: Source,
    output: PathBuf,
) -> Result<WriteSettings, UsageError> {
    let WriteArgs {
        format,
        encoding,
        score,
        ..
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
    let windowing = match &input {
        Source::Text(text) => Some(&text.windowing),
        Source::Texts(texts) => Some(&texts.windowing),
        Source::Prompts(_) => None,
    };
    if let Some(windowing) = windowing {
        check_windowing(windowing, target, score, run.max_rows)?;
    }
    let mut inputs = vec![model.clone()];
    inputs.extend(input.paths().into_iter().map(Path::to_owned));
    if let Source::Prompts(prompts) = &input
        && let TemplateChoice::File(template) = &prompts.template
    {
        inputs.push(template.clone());
    }
    paths::check(&inputs, std::slice::from_ref(&output))?;
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
    if kind == native::KIND {
        return match choice.unwrap_or_default() {
            EncodingChoice::Is(encoding) => Ok((target(kind, Some(encoding))?, false)),
            EncodingChoice::Auto => Ok((target(kind, Some(Encoding::U16))?, true)),
        };
    }
    let encoding = match choice {
        None => None,
        Some(EncodingChoice::Is(encoding)) if !encoding.holds_states() => Some(encoding),
        Some(_) => {
            return wrong(
                "--encoding hidden, hidden16 and auto need --format kl: no other format can hold hidden states",
            );
        }
    };
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

/// Refuses windows that leave nothing to score, or that the format cannot express.
fn check_windowing(
    windowing: &Windowing,
    target: Target,
    score: Option<ScoreFrom>,
    max_rows: Option<u64>,
) -> Result<(), UsageError> {
    // With a BOS, the default starts at position 1, which every window has.
    if windowing.score.first(windowing.n_ctx, false) >= windowing.n_ctx {
        return wrong("--score must be less than --n-ctx: no position is left to score");
    }
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
