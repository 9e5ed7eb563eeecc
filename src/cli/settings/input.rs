//! The flags of what a model runs over: a text, several, or prompts.

use std::mem::take;
use std::path::{Path, PathBuf};

use kl_formats::{Kind, Sampling};

use super::wrong;
use crate::cli::args::InputArgs;
use crate::commands::settings::DEFAULT_N_CTX;
use crate::input::{PromptSource, ScoreFrom, Source, TemplateChoice, TextSource, Windowing};
use crate::pipeline::DEFAULT_SEED;

/// The text or prompts to run the reference model over, if any are given.
pub fn input(
    args: &mut InputArgs,
    format: Kind,
    n_ctx: Option<u32>,
    sampling: Option<Sampling>,
) -> Result<Option<Source>, String> {
    if let Some(path) = args.prompts.take() {
        let prompts = prompts(args, path, format, n_ctx, sampling)?;
        return Ok(Some(Source::Prompts(prompts)));
    }
    let of_prompts =
        args.no_chat_template || args.chat_template_file.is_some() || args.generate.is_some();
    let n_unnamed = args
        .text_path
        .iter()
        .filter(|text| text.group.is_none())
        .count();
    let of_stdin = args
        .text_path
        .iter()
        .filter(|text| text.path.as_os_str() == "-");
    if of_prompts {
        return wrong("--no-chat-template, --chat-template-file and --generate need --prompts");
    } else if !args.span.is_empty() {
        return wrong("--span needs --prompts: it names parts of answers");
    } else if args.score == Some(ScoreFrom::Answers) {
        return wrong("--score answers needs --prompts with conversations: a text has no answers");
    } else if n_unnamed > 0 && args.text_path.len() > 1 {
        return wrong("-t: several texts each need a name: use -t NAME=PATH");
    } else if n_unnamed < args.text_path.len() && format != Kind::Kl {
        return wrong("-t NAME=PATH needs --format kl: no other format can hold groups");
    } else if of_stdin.count() > 1 {
        return wrong("-t: standard input can be read once only: name a file for the other text");
    }
    if args.text_path.is_empty() {
        return Ok(None);
    }
    let default_score = match format {
        Kind::KlPy => ScoreFrom::All,
        _ => ScoreFrom::default(),
    };
    Ok(Some(Source::Texts(TextSource {
        texts: take(&mut args.text_path),
        windowing: Windowing {
            n_ctx: n_ctx.unwrap_or(DEFAULT_N_CTX),
            stride: args.stride,
            score: args.score.unwrap_or(default_score),
            max_windows: args.max_windows,
        },
        parse_special: args.parse_special,
    })))
}

/// The way to choose the tokens of answers; `None`: greedily. Takes `--top-k`, which otherwise lists
/// tokens.
///
/// # Errors
/// Flags of answers without `--generate`, or of random numbers without a temperature above 0.
pub fn sampling(args: &InputArgs, top_k: &mut Option<u32>) -> Result<Option<Sampling>, String> {
    let temp = args.temp.filter(|&temp| temp > 0.0);
    let is_shaped = args.top_p.is_some() || args.min_p.is_some() || args.seed.is_some();
    if (args.temp.is_some() || is_shaped) && args.generate.is_none() {
        return wrong(
            "--temp, --top-p, --min-p and --seed need --generate N, whose tokens they choose",
        );
    } else if is_shaped && temp.is_none() {
        return wrong(
            "--top-p, --min-p and --seed need --temp T above 0: without it, the top token is chosen",
        );
    }
    Ok(temp.map(|temp| Sampling {
        temp,
        top_k: top_k.take().unwrap_or(0),
        top_p: args.top_p.unwrap_or(1.0),
        min_p: args.min_p.unwrap_or(0.0),
        seed: args.seed.unwrap_or(DEFAULT_SEED as u32),
    }))
}

fn prompts(
    args: &mut InputArgs,
    path: PathBuf,
    format: Kind,
    n_ctx: Option<u32>,
    sampling: Option<Sampling>,
) -> Result<PromptSource, String> {
    use ScoreFrom::{All, Answers, Half, New, Text};
    let (score, generates) = (args.score.unwrap_or_default(), args.generate.is_some());
    if format != Kind::Kl {
        return wrong("--prompts needs --format kl: no other format can hold prompts");
    } else if generates && score == Answers {
        return wrong(
            "--score answers is for the answers that conversations have; without it, --generate \
             scores what it generates",
        );
    } else if generates && !matches!(score, Text | All) {
        return wrong(
            "--score can only be all with --generate; without --score, only the generated tokens \
             are scored",
        );
    } else if matches!(score, Half | New) {
        return wrong(
            "--score can only be all, answers or a position with --prompts: prompts differ in length \
             and do not overlap",
        );
    } else if !generates && score != Answers && !args.span.is_empty() {
        return wrong("--span names parts of answers: use it with --generate or --score answers");
    }
    Ok(PromptSource {
        path,
        template: match args.chat_template_file.take() {
            Some(path) => TemplateChoice::File(path),
            None if args.no_chat_template => TemplateChoice::None,
            None => TemplateChoice::OfModel,
        },
        parse_special: args.parse_special,
        n_ctx,
        max_prompts: args.max_windows,
        generate: args.generate,
        sampling,
        score: Some(score).filter(|score| !generates || *score == All),
        spans: take(&mut args.span),
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
