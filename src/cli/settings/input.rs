//! The flags of what a model runs over: a text, several, or prompts.

use std::path::{Path, PathBuf};

use kl_formats::{Kind, Sampling};

use super::wrong;
use crate::cli::args::InputArgs;
use crate::commands::settings::DEFAULT_N_CTX;
use crate::input::{
    GROUP_NAMES, NamedText, PromptSource, ScoreFrom, Source, TemplateChoice, TextSource, Windowing,
    is_group_name,
};
use crate::pipeline::DEFAULT_SEED;

/// The text or prompts to run the reference model over, if any are given.
pub fn input(
    args: &mut InputArgs,
    format: Kind,
    n_ctx: Option<u32>,
    sampling: Option<Sampling>,
) -> Result<Option<Source>, String> {
    if let Some(path) = args.prompts.take() {
        let prompts = PromptSource {
            sampling,
            ..prompts(args, path, format, n_ctx)?
        };
        return Ok(Some(Source::Prompts(prompts)));
    }
    if args.no_chat_template || args.chat_template_file.is_some() || args.generate.is_some() {
        return wrong("--no-chat-template, --chat-template-file and --generate need --prompts");
    }
    if !args.span.is_empty() {
        return wrong("--span needs --prompts: it names parts of answers");
    }
    if args.score == Some(ScoreFrom::Answers) {
        return wrong("--score answers needs --prompts with conversations: a text has no answers");
    }
    let default_score = match format {
        Kind::KlPy => ScoreFrom::All,
        _ => ScoreFrom::default(),
    };
    let windowing = Windowing {
        n_ctx: n_ctx.unwrap_or(DEFAULT_N_CTX),
        stride: args.stride,
        score: args.score.unwrap_or(default_score),
        max_windows: args.max_windows,
    };
    let parse_special = args.parse_special;
    let texts = args.text_path.iter().map(|path| text(path));
    let texts: Vec<NamedText> = texts.collect::<Result<_, _>>()?;
    if texts.is_empty() {
        return Ok(None);
    }
    let unnamed = texts.iter().find(|text| text.group.is_none());
    if let Some(text) = unnamed.filter(|_| texts.len() > 1) {
        return wrong(format!(
            "-t {}: several texts each need a name: use -t NAME=PATH",
            text.path.display()
        ));
    }
    if unnamed.is_none() && format != Kind::Kl {
        return wrong("-t NAME=PATH needs --format kl: no other format can hold groups");
    }
    let from_stdin = texts.iter().filter(|text| text.path.as_os_str() == "-");
    if from_stdin.count() > 1 {
        return wrong("-t: standard input can be read once only: name a file for the other text");
    }
    Ok(Some(Source::Texts(TextSource {
        texts,
        windowing,
        parse_special,
    })))
}

/// The way to choose the tokens of answers; `None`: greedily. Takes `--top-k`, which otherwise lists
/// tokens.
///
/// # Errors
/// Flags of answers without `--generate`, or of random numbers without a temperature above 0.
pub fn sampling(args: &InputArgs, top_k: &mut Option<u32>) -> Result<Option<Sampling>, String> {
    let flags = [
        ("--temp", args.temp.is_some()),
        ("--top-p", args.top_p.is_some()),
        ("--min-p", args.min_p.is_some()),
        ("--seed", args.seed.is_some()),
    ];
    let Some((flag, _)) = flags.into_iter().rfind(|(_, is_given)| *is_given) else {
        return Ok(None);
    };
    if args.generate.is_none() {
        return wrong(format!(
            "{flag} needs --generate N, whose tokens it chooses"
        ));
    }
    match args.temp.filter(|&temp| temp > 0.0) {
        None if flag == "--temp" => Ok(None),
        None => wrong(format!(
            "{flag} needs --temp T above 0: without it, the top token is chosen"
        )),
        Some(temp) => Ok(Some(Sampling {
            temp,
            top_k: top_k.take().unwrap_or(0),
            top_p: args.top_p.unwrap_or(1.0),
            min_p: args.min_p.unwrap_or(0.0),
            seed: args.seed.unwrap_or(DEFAULT_SEED as u32),
        })),
    }
}

/// The path of a text, and its group where it is given as `NAME=PATH`. What exists as a file, or has
/// a folder before its `=`, is a path.
fn text(given: &Path) -> Result<NamedText, String> {
    let parts = given.to_str().and_then(|text| text.split_once('='));
    let parts = parts.filter(|(group, _)| !given.exists() && !group.contains(['/', '\\']));
    let Some((group, path)) = parts else {
        let (group, path) = (None, given.to_owned());
        return Ok(NamedText { group, path });
    };
    if path.is_empty() || !is_group_name(group) {
        return wrong(format!(
            "-t {}: expected PATH or NAME=PATH; for NAME {GROUP_NAMES}",
            given.display()
        ));
    }
    Ok(NamedText {
        group: Some(group.to_owned()),
        path: path.into(),
    })
}

fn prompts(
    args: &mut InputArgs,
    path: PathBuf,
    format: Kind,
    n_ctx: Option<u32>,
) -> Result<PromptSource, String> {
    if format != Kind::Kl {
        return wrong("--prompts needs --format kl: no other format can hold prompts");
    }
    let score = match (args.score.unwrap_or_default(), args.generate) {
        (ScoreFrom::Text, Some(_)) => None,
        (score @ (ScoreFrom::Text | ScoreFrom::Answers | ScoreFrom::Position(_)), None) => {
            Some(score)
        }
        (ScoreFrom::All, _) => Some(ScoreFrom::All),
        (ScoreFrom::Answers, Some(_)) => {
            return wrong(
                "--score answers is for the answers that conversations have; without it, --generate \
                 scores what it generates",
            );
        }
        (_, Some(_)) => {
            return wrong(
                "--score can only be all with --generate; without --score, only the generated tokens \
                 are scored",
            );
        }
        (ScoreFrom::Half | ScoreFrom::New, None) => {
            return wrong(
                "--score can only be all, answers or a position with --prompts: prompts differ in length \
                 and do not overlap",
            );
        }
    };
    let has_answers = args.generate.is_some() || score == Some(ScoreFrom::Answers);
    if !has_answers && !args.span.is_empty() {
        return wrong("--span names parts of answers: use it with --generate or --score answers");
    }
    let template = match (args.chat_template_file.take(), args.no_chat_template) {
        (Some(path), _) => TemplateChoice::File(path),
        (None, true) => TemplateChoice::None,
        (None, false) => TemplateChoice::OfModel,
    };
    Ok(PromptSource {
        path: path.into(),
        template,
        parse_special: args.parse_special,
        n_ctx,
        max_prompts: args.max_windows,
        generate: args.generate,
        sampling: None,
        score,
        spans: std::mem::take(&mut args.span),
    })
}

/// Refuses windows that leave nothing to score.
pub fn check_score(input: &Source) -> Result<(), String> {
    // With a BOS, the default starts at position 1, which every window has.
    match input.windowing() {
        Some(windowing) if windowing.score.first(windowing.n_ctx, false) >= windowing.n_ctx => {
            wrong("--score must be less than --n-ctx: no position is left to score")
        }
        _ => Ok(()),
    }
}

/// The files that are read for an input, and the model that runs over it.
pub fn files(input: &Source, model: &Path) -> Vec<PathBuf> {
    let mut files = vec![model.to_owned()];
    files.extend(input.paths().into_iter().map(Path::to_owned));
    if let Source::Prompts(prompts) = input
        && let TemplateChoice::File(template) = &prompts.template
    {
        files.push(template.clone());
    }
    files
}
