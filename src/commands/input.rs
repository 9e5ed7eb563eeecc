//! The text or the prompts that a reference model runs over: read, made into windows, and described.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use kl_formats::{About, BackendIdentity, Kind, Prompts, longest_window};

use super::context::{Decoding, Precedent, check_windows, context_options, writer};
use super::observer::{Phase, Watch};
use super::settings::RunSettings;
use crate::engine::{ContextOptions, Model};
use crate::input::{
    AnswerFile, Generation, GenerationStep, PreparedInput, RawInput, Selection, Source,
};
use crate::report::number::{count, count_of, sampled};
use crate::report::{Warning, empty_groups};

/// Reads the input before a model is loaded, and warns of bytes that are not text.
///
/// # Errors
/// What is wrong with the files, or that the observer asks to stop.
pub fn read<'s>(source: &'s Source, watch: &Watch<'_>) -> Result<RawInput<'s>> {
    let mut doubts = Vec::new();
    let raw = RawInput::read(source, &mut doubts)?;
    let warnings = doubts.into_iter();
    watch.warn_all(warnings.map(|(kind, message)| Warning::new(kind, message)));
    watch.check()?;
    Ok(raw)
}

/// Where answers are kept, and what is checked before the first of them is generated.
pub struct Answering<'a> {
    /// The answers of an earlier run, to which this one adds its own; `None`: none are kept.
    pub kept: Option<&'a mut AnswerFile>,
    /// Gets the windows of all parts as they are planned; its error ends the run.
    pub check: &'a dyn Fn(&PreparedInput) -> Result<()>,
}

/// Tokenizes the input, and lets the model continue prompts if it should.
///
/// `in_chunks`: cut as llama-perplexity cuts a text, for its base file. `run` is how the model runs.
///
/// # Errors
/// Those of [`RawInput::prepare`], and windows that are too long for the model.
pub fn prepare<M: Model>(
    raw: RawInput<'_>,
    model: &M,
    run: &RunSettings,
    in_chunks: bool,
    selection: &Selection,
    answering: Option<Answering<'_>>,
    watch: &Watch<'_>,
) -> Result<PreparedInput> {
    if model.facts().lacks_pre_tokenizer {
        watch.warn(Warning::new(
            "no_pre_tokenizer",
            "the model's file does not record how its tokenizer splits a text (tokenizer.ggml.pre is missing): llama.cpp uses a default, and the tokens may not be those that the model was trained on; convert the model again",
        ));
    }
    let (lacks_chat_template, advice) = (raw.lacks_chat_template(model), raw.to_shorten());
    let (kept, check) = match answering {
        Some(Answering { kept, check }) => (kept, Some(check)),
        None => (None, None),
    };
    let context = |n_ctx| answer_context(run, model, n_ctx);
    let mut phase: Option<Phase<'_>> = None;
    let mut on_step = |step: GenerationStep| {
        match (step, &phase) {
            (GenerationStep::Begin { n_prompts: n, .. }, _) => {
                phase = Some(watch.begin("generating", Some(n), None));
            }
            (GenerationStep::Done, Some(phase)) => phase.window(None),
            (GenerationStep::Token, Some(phase)) => phase.rows(1),
            _ => {}
        }
        Ok(watch.check()?)
    };
    // Generating tokens can take hours, so warn before that.
    let mut on_plan = |planned: &PreparedInput| {
        if lacks_chat_template {
            watch.warn(Warning::new(
                "no_chat_template",
                "the model has no chat template: prompts are used as they are (--chat-template-file gives one; --no-chat-template silences this)",
            ));
        }
        warn_of_input(planned, watch);
        // With -c, conversations may grow longer than they were planned, but seldom do.
        let longest = longest_window(&planned.plan.windows);
        check_windows(longest, model, advice, watch)?;
        check.map_or(Ok(()), |check| check(planned))
    };
    let generation = Generation {
        context: &context,
        on_plan: &mut on_plan,
        on_step: &mut on_step,
        kept,
    };
    let input = raw.prepare(model, in_chunks, selection, generation)?;
    drop(phase);
    if let Some((n, why)) = &input.unanswered {
        let answers = count_of(*n, "answer");
        let what =
            format!("{answers} of conversations that could not be continued, the first one: {why}");
        left_out(watch, "turns_left_out", what);
    }
    Ok(input)
}

/// The options of a context in which `model` answers prompts, in windows of `n_ctx` tokens.
pub fn answer_context(run: &RunSettings, model: &impl Model, n_ctx: u32) -> ContextOptions {
    let decoding = Decoding::of(model, 1);
    ContextOptions {
        n_seq: decoding.n_answers(run.n_parallel, n_ctx),
        has_own_caches: true,
        ..context_options(run, n_ctx, decoding.one_by_one(), Precedent::default())
    }
}

fn warn_of_input(input: &PreparedInput, watch: &Watch<'_>) {
    if input.n_left_out > 0 {
        let tokens = count_of(input.n_left_out, "token");
        let what = format!("the last {tokens}, too few to fill a window");
        left_out(watch, "tokens_left_out", what);
    }
    if input.n_turns_left_out > 0 {
        let answers = count_of(input.n_turns_left_out, "answer");
        let what = format!(
            "{answers} of conversations that grow longer than a window (--n-ctx makes windows longer)"
        );
        left_out(watch, "turns_left_out", what);
    }
    let windows = input.plan.windows.iter().filter(|window| window.n_rows > 0);
    if let Some(groups) = &input.groups {
        let scored: BTreeSet<u32> = windows
            .map(|window| groups.of_window(window.window))
            .collect();
        let empty = (0..)
            .zip(groups.names())
            .filter(|(group, _)| !scored.contains(group));
        watch.warn_all(empty_groups(empty.map(|(_, name)| name)));
    }
    let n = input.plan.n_unscored as u64;
    let (kind, unscored) = match &input.prompts {
        Some(_) => ("unscored_prompts", count_of(n, "prompt")),
        None => (
            "unscored_windows",
            format!("the last {}", count_of(n, "window")),
        ),
    };
    if n > 0 {
        let what = format!("{unscored}, too short to hold a scored position");
        left_out(watch, kind, what);
    }
}

fn left_out(watch: &Watch<'_>, kind: &'static str, what: String) {
    watch.warn(Warning::left_out(kind, &what));
}

/// Describes in full the reference of this kind and path that `model` makes of `input`, which was
/// read from `source`.
pub fn describe<M: Model>(
    kind: Kind,
    path: &Path,
    model: &M,
    source: &Source,
    input: &PreparedInput,
    backend: BackendIdentity,
) -> About {
    let mut about = About::new(kind, path, input.n_ctx, model.facts().n_vocab);
    about.writer = Some(writer());
    about.model = Some(model.facts().identity.clone());
    about.model_path = Some(model.facts().path.display().to_string());
    about.tokenizer = model.facts().tokenizer.clone();
    about.text = Some(input.text.clone());
    about.texts.clone_from(&input.texts);
    about.text_path = Some(source.to_string());
    about.add_bos = Some(input.add_bos);
    about.first_scored = Some(input.first_scored);
    about.n_windows = Some(input.plan.windows.len() as u32);
    about.n_rows = Some(input.plan.n_rows());
    about.seed = input.plan.seed;
    about.stride = input.stride;
    about.groups.clone_from(&input.groups);
    about.shard = input.shard;
    about.backend = Some(backend);
    about.prompts.clone_from(&input.prompts);
    about
}

/// Describes the input and its windows, one line each: a name and a text.
pub fn in_words(
    input: &PreparedInput,
    source: &Source,
    in_chunks: bool,
) -> [(&'static str, String); 2] {
    let n_tokens = count_of(input.text.n_tokens.unwrap_or(0), "token");
    let n_rows = count_of(input.plan.n_rows(), "scored position");
    let n_windows = count(input.plan.windows.len() as u64);
    let bos = match (input.add_bos, in_chunks) {
        (false, _) => "",
        (true, true) => ", each with a BOS for its first token",
        (true, false) => ", each with a BOS",
    };
    let (name, what, shape) = match &input.prompts {
        None => {
            let stride = input.stride;
            let stride = stride.map_or(String::new(), |stride| format!(", one every {stride}"));
            (
                "text",
                String::new(),
                format!("of {} tokens{stride}", count(input.n_ctx.into())),
            )
        }
        Some(prompts) => {
            let longest = count(longest_window(&input.plan.windows).into());
            let generated = prompts.generated.map_or(String::new(), |n| {
                let sampled = sampled(prompts.sampling.as_ref());
                format!(", at most {n} of them generated{sampled}")
            });
            (
                "prompts",
                prompts_in_words(prompts),
                format!("of at most {longest} tokens{generated}"),
            )
        }
    };
    [
        (name, format!("{source}{what}, {n_tokens}")),
        ("windows", format!("{n_windows} {shape}{bos}, {n_rows}")),
    ]
}

/// The number of prompts, and whether they are in a chat template.
fn prompts_in_words(prompts: &Prompts) -> String {
    // Without those that their conversations did not reach.
    let reached = prompts.list.iter().filter(|prompt| prompt.n_tokens > 0);
    let begun = prompts.list.iter().filter(|prompt| !prompt.continues);
    let (n_windows, n_begun) = (reached.count() as u64, begun.count() as u64);
    let number = if n_begun < n_windows {
        let conversations = count_of(n_begun, "conversation");
        format!("{} in {conversations}", count_of(n_windows, "answer"))
    } else {
        count(n_windows)
    };
    let template = match prompts.chat_template {
        Some(_) => "in a chat template",
        None => "as they are",
    };
    format!(", {number} {template}")
}
