//! The flags of what a model runs over: a text, several, or prompts.

use std::path::{Path, PathBuf};

use kl_formats::Kind;

use super::wrong;
use crate::input::{DEFAULT_N_CTX, ScoreFrom, Source};

/// Checks the flags for a text or prompts, and fills in what other flags decide: the window's length, and
/// `--top-k`, which otherwise lists tokens.
pub fn check(
    source: &mut Source,
    format: Kind,
    n_ctx: Option<u32>,
    top_k: &mut Option<u32>,
) -> Result<(), String> {
    check_sampling(source)?;
    if source.sampling().is_some() {
        source.top_k = top_k.take();
    }
    source.n_ctx = n_ctx;
    if source.prompts.is_some() {
        return check_prompts(source, format);
    }
    check_texts(source, format)?;
    source.n_ctx.get_or_insert(DEFAULT_N_CTX);
    if format == Kind::KlPy {
        source.score.get_or_insert(ScoreFrom::All);
    }
    Ok(())
}

fn check_texts(source: &Source, format: Kind) -> Result<(), String> {
    let texts = || source.text_path.iter();
    let of_prompts =
        source.no_chat_template || source.chat_template_file.is_some() || source.generate.is_some();
    let n_unnamed = texts().filter(|text| text.group.is_none()).count();
    let of_stdin = texts().filter(|text| text.path.as_os_str() == "-");
    if of_prompts {
        wrong("--no-chat-template, --chat-template-file and --generate need --prompts")
    } else if !source.span.is_empty() {
        wrong("--span needs --prompts: it names parts of answers")
    } else if source.scores_given_answers() {
        wrong("--score answers needs --prompts with conversations: a text has no answers")
    } else if n_unnamed > 0 && texts().len() > 1 {
        wrong("-t: several texts each need a name: use -t NAME=PATH")
    } else if n_unnamed < texts().len() && format != Kind::Kl {
        wrong("-t NAME=PATH needs --format kl: no other format can hold groups")
    } else if of_stdin.count() > 1 {
        wrong("-t: standard input can be read once only: name a file for the other text")
    } else {
        Ok(())
    }
}

/// Refuses flags of answers without `--generate`, and of random numbers without a temperature above 0.
fn check_sampling(source: &Source) -> Result<(), String> {
    let is_shaped = source.top_p.is_some() || source.min_p.is_some() || source.seed.is_some();
    if (source.temp.is_some() || is_shaped) && source.generate.is_none() {
        wrong("--temp, --top-p, --min-p and --seed need --generate N, whose tokens they choose")
    } else if is_shaped && source.sampling().is_none() {
        wrong(
            "--top-p, --min-p and --seed need --temp T above 0: without it, the top token is chosen",
        )
    } else {
        Ok(())
    }
}

fn check_prompts(source: &Source, format: Kind) -> Result<(), String> {
    use ScoreFrom::{All, Answers, Half, New};
    let (score, generates) = (source.score, source.generate.is_some());
    if format != Kind::Kl {
        wrong("--prompts needs --format kl: no other format can hold prompts")
    } else if generates && score == Some(Answers) {
        wrong(
            "--score answers is for the answers that conversations have; without it, --generate \
             scores what it generates",
        )
    } else if generates && !matches!(score, None | Some(All)) {
        wrong(
            "--score can only be all with --generate; without --score, only the generated tokens \
             are scored",
        )
    } else if matches!(score, Some(Half | New)) {
        wrong(
            "--score can only be all, answers or a position with --prompts: prompts differ in length \
             and do not overlap",
        )
    } else if !generates && score != Some(Answers) && !source.span.is_empty() {
        wrong("--span names parts of answers: use it with --generate or --score answers")
    } else {
        Ok(())
    }
}

/// Refuses windows of a text that leave nothing to score.
pub fn check_score(source: &Source) -> Result<(), String> {
    // With a BOS, the default starts at position 1, which every window has.
    let (score, n_ctx) = (source.score.unwrap_or_default(), source.text_n_ctx());
    if source.prompts.is_none() && score.first(n_ctx, false) >= n_ctx {
        return wrong("--score must be less than --n-ctx: no position is left to score");
    }
    Ok(())
}

/// The files that are read for an input, and the model that runs over it.
pub fn files(source: &Source, model: &Path) -> Vec<PathBuf> {
    let mut files = vec![model.to_owned()];
    files.extend(source.paths().into_iter().map(Path::to_owned));
    files.extend(source.chat_template_file.clone());
    files
}
