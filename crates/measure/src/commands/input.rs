//! The text or the prompts that a reference model runs over: read, made into windows, and described.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use kl_engine::{ContextOptions, Model};
use kl_formats::{About, BackendIdentity, Kind, Provenance, longest_window};
use kl_report::number::count_of;
use kl_report::{Info, Warning, empty_groups, planned_lines};

use super::context::{Decoding, check_windows, context_options, writer};
use super::info::reference_info;
use super::observer::{Event, Watch};
use super::server_keys;
use super::settings::RunSettings;
use crate::input::{AnswerFile, PreparedInput, RawInput, Selection, Source};

/// Reads the input before a model is loaded, and warns of bytes that are not text.
///
/// # Errors
/// What is wrong with the files, or that the observer asks to stop.
pub fn read<'s>(source: &'s Source, watch: &Watch<'_>) -> Result<RawInput<'s>> {
    let mut doubts = Vec::new();
    let raw = RawInput::read(source, &mut doubts)?;
    watch.warn_all(doubts);
    watch.check()?;
    Ok(raw)
}

/// Tokenizes the input and plans its windows. Of a text without parts, they are complete.
///
/// # Errors
/// Those of [`RawInput::plan`], and windows that are too long for the model.
pub fn plan(
    raw: RawInput<'_>,
    model: &dyn Model,
    selection: &Selection,
    watch: &Watch<'_>,
) -> Result<PreparedInput> {
    let (source, facts) = (raw.source, model.facts());
    if facts.lacks_pre_tokenizer {
        watch.warn(Warning::new(
            "no_pre_tokenizer",
            "the model's file does not record how its tokenizer splits a text (tokenizer.ggml.pre is missing): llama.cpp uses a default, and the tokens may not be those that the model was trained on; convert the model again",
        ));
    }
    let input = raw.plan(model, selection, &|| Ok(watch.check()?))?;
    let lacks_template = source.prompts.is_some()
        && !source.no_chat_template
        && source.chat_template_file.is_none()
        && facts.default_template().is_none();
    if lacks_template {
        watch.warn(Warning::new(
            "no_chat_template",
            "the model has no chat template: prompts are used as they are (--chat-template-file gives one; --no-chat-template silences this)",
        ));
    }
    if source.prompts.is_some() && facts.add_eos {
        watch.warn(Warning::new(
            "add_eos_ignored",
            "the model's file asks for an EOS after each text (tokenizer.ggml.add_eos_token), which llama-server puts between a prompt and its answer: kl leaves it out",
        ));
    }
    watch.warn_all(server_keys::of_sampling(source, facts));
    warn_of_input(&input, watch);
    // With -c, conversations may grow longer than they were planned, but seldom do.
    let longest = longest_window(&input.plan.windows);
    check_windows(longest, model, watch)?;
    Ok(input)
}

/// Completes what is planned: lets the model answer prompts if it should, run like this, and keeps the part
/// that is selected. `kept` are the answers of an earlier run, to which this one adds its own; `None`: none
/// are kept.
///
/// # Errors
/// Those of [`PreparedInput::answer`].
pub fn complete(
    mut input: PreparedInput,
    model: &dyn Model,
    run: &RunSettings,
    kept: Option<&mut AnswerFile>,
    watch: &Watch<'_>,
) -> Result<PreparedInput> {
    if let Some(questions) = &input.questions {
        let phase = watch.begin("generating", Some(questions.n), None);
        let options = answer_context(run, model, questions.n_ctx, input.provenance.n_ctx);
        input.answer(model, options, kept, &mut |so_far| {
            phase.generated(so_far);
            Ok(watch.check()?)
        })?;
    }
    if let Some((n, why)) = &input.unanswered {
        let answers = count_of(*n, "answer");
        let left_out =
            format!("{answers} of conversations that could not be continued, the first one: {why}");
        watch.warn(Warning::left_out("turns_left_out", &left_out));
    }
    input.keep_part(model);
    if input.n_with_tools > 0 && input.n_with_calls == 0 {
        let answers = count_of(input.n_with_tools, "answer");
        watch.warn(Warning::new(
            "no_tool_calls",
            format!("{answers} to prompts that offer tools, and none calls one in a form that kl knows: if they hold calls (kl info --prompts prints them), --span 'tool call=OPEN..CLOSE' tells how these begin and end"),
        ));
    }
    Ok(input)
}

/// The options of a context in which `model` answers prompts, in windows of at most `longest` tokens of a
/// reference of `n_ctx`.
pub fn answer_context(
    run: &RunSettings,
    model: &dyn Model,
    longest: u32,
    n_ctx: u32,
) -> ContextOptions {
    let decoding = Decoding::from_model(model, 1, n_ctx);
    ContextOptions {
        n_seq: decoding.n_answers(run, longest),
        has_own_caches: true,
        ..context_options(run, longest, decoding.one_by_one(), [None; 2])
    }
}

fn warn_of_input(input: &PreparedInput, watch: &Watch<'_>) {
    let warn_of_left_out = |n: u64, kind, [before, unit, why]: [&str; 3]| {
        if n > 0 {
            let left_out = format!("{before}{}{why}", count_of(n, unit));
            watch.warn(Warning::left_out(kind, &left_out));
        }
    };
    warn_of_left_out(
        input.n_left_out,
        "tokens_left_out",
        ["the last ", "token", ", too few to fill a window"],
    );
    warn_of_left_out(
        input.n_turns_left_out,
        "turns_left_out",
        [
            "",
            "answer",
            " of conversations that grow longer than a window (--n-ctx makes windows longer)",
        ],
    );
    for (name, n) in input.n_ignored {
        let kind = if name == "tools" {
            "tools_ignored"
        } else {
            "documents_ignored"
        };
        let prompts = count_of(n, "prompt");
        let message = format!(
            "{prompts} with {name} that the chat template does not print, so that the model does not see them (--chat-template-file gives another template)"
        );
        watch.warn_all((n > 0).then(|| Warning::new(kind, message)));
    }
    if let Some(groups) = &input.groups {
        let scored_groups: BTreeSet<u32> = input
            .plan
            .windows
            .iter()
            .filter(|window| window.n_rows > 0)
            .map(|window| groups.of_window(window.window))
            .collect();
        let empty_names = (0..)
            .zip(groups.names())
            .filter(|(group, _)| !scored_groups.contains(group))
            .map(|(_, name)| name);
        watch.warn_all(empty_groups(empty_names));
    }
    let (kind, before, unit) = match &input.prompts {
        Some(_) => ("unscored_prompts", "", "prompt"),
        None => ("unscored_windows", "the last ", "window"),
    };
    warn_of_left_out(
        input.plan.n_unscored as u64,
        kind,
        [before, unit, ", too short to hold a scored position"],
    );
}

/// Describes in full the reference of this kind and path that a model makes of `input`.
pub fn describe(kind: Kind, path: &Path, input: &PreparedInput, backend: BackendIdentity) -> About {
    let mut about = About::new(kind, path, 0, 0);
    about.provenance = Provenance {
        writer: Some(writer()),
        backend: Some(backend),
        ..input.provenance.clone()
    };
    about.n_windows = Some(input.plan.windows.len() as u32);
    about.n_rows = Some(input.plan.n_rows());
    about.groups.clone_from(&input.groups);
    about.prompts.clone_from(&input.prompts);
    about
}

/// Reports what a reference will be of: the model, the text or the prompts, and their windows.
pub fn announce(about: &About, watch: &Watch<'_>) {
    let info = Info {
        encoding: None,
        ..reference_info(about)
    };
    for (name, text) in planned_lines(&info) {
        watch.event(&Event::Plan(name, &text));
    }
}
