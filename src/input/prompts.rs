//! Prompts become windows: the chat template turns them into texts, and the tokenizer these into
//! tokens. A prompt has one window, or a conversation one for each of its answers.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use kl_formats::{
    Groups, MAX_N_CTX, Messages, Prompt, PromptContent, Prompts, WindowSpec, longest_window,
};

use super::chat::{Chat, answered, unanswered};
use super::chat_template::{ChatTemplate, TemplateError};
use super::generation::{Dialogue, Generation, GenerationStep, answer, with_bos};
use super::prompt_file::PromptLine;
use super::spans::Spans;
use super::{Plan, PreparedInput, RawInput, ScoreFrom, Selection, Source};
use crate::engine::{Model, ModelFacts};

/// The fault of a prompt whose answers are to be scored.
const NO_ANSWER: &str = "has no answer to score: --score answers needs \"messages\" with one of role \
     assistant after another message; to let the model answer, use --generate";
/// The fault of a conversation that is to be answered.
const NOTHING_TO_ANSWER: &str = "has nothing to answer: no message of role user or tool is \
     without an answer; leave it out, or use --score answers instead of --generate to score the \
     answers that it has";

/// Plans the windows of the prompts, has the plan checked, and lets the model answer them if it
/// should.
///
/// # Errors
/// A prompt's fault, in one line with the file and the prompt's place in it; those of `generation`.
pub fn prepare<M: Model>(
    raw: RawInput<'_>,
    model: &M,
    selection: &Selection,
    mut generation: Generation<'_>,
) -> Result<PreparedInput> {
    let source = raw.source;
    let found = found_template(&raw, model.facts());
    let spans =
        (source.has_answers()).then(|| Spans::new(found.map(|(text, _)| text), &source.span));
    let template = found.map(|(text, path)| compile(text, path, model));
    let template = template.transpose()?;
    let mut windows = PromptWindows {
        source,
        template: template.as_ref(),
        model,
        input: PreparedInput::new(source, model),
        groups: Vec::new(),
        dialogues: Vec::new(),
    };
    windows.input.provenance.text = Some(raw.text);
    windows.input.provenance.add_bos = Some(true);
    windows.input.prompts = Some(Prompts {
        chat_template: template.as_ref().map(|template| template.sha256.clone()),
        generated: source.generate,
        sampling: source.sampling(),
        spans: spans
            .as_ref()
            .map_or_else(Vec::new, |spans| spans.names.clone()),
        ..Prompts::default()
    });
    for line in raw.prompts {
        (generation.on_step)(GenerationStep::Other)?;
        let name = format!("{source}: {}", line.place);
        let added = windows.add(&name, line);
        added.map_err(|error| anyhow!("{name}: {error:#}"))?;
    }
    let (mut input, dialogues, n_ctx) = windows.plan(selection.max_rows)?;
    input.check(selection, &mut generation)?;
    if source.generate.is_some() {
        answer_prompts(
            &mut input,
            dialogues,
            source,
            n_ctx,
            selection,
            model,
            &mut generation,
        )?;
    }
    input.plan.keep(selection.part);
    let prompts = &mut input.prompts.get_or_insert_default().list;
    for window in &input.plan.windows {
        if let (Some(spans), Some(prompt)) = (&spans, prompts.get_mut(window.window as usize)) {
            prompt.spans = spans.of_window(&window.tokens, prompt.n_tokens, model);
        }
    }
    Ok(input)
}

/// The text of the chat template that is applied, if one is, and the file that holds it.
fn found_template<'t>(raw: &'t RawInput<'_>, facts: &'t ModelFacts) -> Option<(&'t str, &'t Path)> {
    match (&raw.source.chat_template_file, &raw.template) {
        (Some(path), Some(text)) => Some((text, path)),
        _ if raw.source.no_chat_template => None,
        _ => Some((facts.chat_template.as_ref()?, &facts.path)),
    }
}

/// Compiles a chat template, which this file holds, with the texts of the model's tokens.
fn compile<M: Model>(text: &str, path: &Path, model: &M) -> Result<ChatTemplate> {
    let (bos, eos) = model.facts().bos_and_eos_text.clone();
    ChatTemplate::new(text, bos, eos).map_err(|error| {
        anyhow!(
            "{}: its chat template cannot be used: {error}; choose another with --chat-template-file, or use --no-chat-template",
            path.display()
        )
    })
}

/// The way from prompts to their windows.
struct PromptWindows<'p, M> {
    source: &'p Source,
    /// The chat template that is applied to each prompt, if there is one.
    template: Option<&'p ChatTemplate>,
    model: &'p M,
    /// The windows so far. Tokens that are to be generated are 0, and so are those of prompts that depend
    /// on them.
    input: PreparedInput,
    /// The group of each window, if there are groups.
    groups: Vec<String>,
    /// The prompts of each line, in the order in which the model is to answer them.
    dialogues: Vec<Dialogue<'p>>,
}

/// A prompt, and the answer to it: the given one, or as many tokens 0 as are to be generated. Both are a
/// window.
struct Turn {
    content: PromptContent,
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl<'p, M: Model> PromptWindows<'p, M> {
    /// Adds the windows of a line, which messages call `name`.
    ///
    /// # Errors
    /// The line's fault, without its name.
    fn add(&mut self, name: &str, mut line: PromptLine) -> Result<()> {
        let (turns, conversation) = self.turns(&line)?;
        let template = self.template;
        let is_named = |name: &str| template.is_some_and(|template| template.names(name));
        line.variables.retain(is_named);
        let first_window = self.input.plan.windows.len() as u32;
        let (n_turns, mut first_prompt, mut n_tokens) = (turns.len(), Vec::new(), 0);
        for (index, turn) in turns.into_iter().enumerate() {
            let n_own = turn.prompt.len() as u64;
            let (mut tokens, has_inserted_bos) = with_bos(self.model, turn.prompt);
            if index == 0 {
                first_prompt.clone_from(&tokens);
            }
            // Later prompts hold answers that are not known yet.
            tokens.resize(tokens.len() + index * self.room(), 0);
            let mut prompt = Prompt::new(turn.content, tokens.len() as u32);
            prompt.continues = index > 0;
            prompt.variables = std::mem::take(&mut line.variables);
            match self.window(first_window + index as u32, tokens, turn.answer) {
                Ok(window) => self.input.plan.windows.push(window),
                Err(fault) if index == 0 => return Err(fault),
                Err(_) => {
                    self.input.n_turns_left_out += (n_turns - index) as u64;
                    break;
                }
            }
            n_tokens = n_own;
            if !has_inserted_bos {
                self.input.provenance.add_bos = Some(false);
            }
            self.input.prompts.get_or_insert_default().list.push(prompt);
            self.groups.extend(line.group.clone());
        }
        let text = self.input.provenance.text.get_or_insert_default();
        *text.n_tokens.get_or_insert(0) += n_tokens;
        self.dialogues.push(Dialogue {
            line: name.to_owned(),
            window: first_window,
            n_left: self.input.plan.windows.len() as u32 - first_window,
            conversation,
            tokens: first_prompt,
            n_prompt: 0,
            sampler: None,
        });
        Ok(())
    }

    /// The turns of a line. If the model is to answer a conversation, also the conversation after its first
    /// prompt.
    fn turns(&self, line: &PromptLine) -> Result<(Vec<Turn>, Option<Chat<'p>>)> {
        let scores_given = self.source.scores_given_answers();
        let generated = vec![0; self.source.generate.unwrap_or(0) as usize];
        let content = &line.content;
        let (template, messages) = match (self.template, content) {
            (Some(template), PromptContent::Messages(messages)) => (template, messages.clone()),
            (Some(template), PromptContent::Text(text)) => (template, Messages::of_user(text)),
            (None, PromptContent::Text(_)) if scores_given => bail!(NO_ANSWER),
            (None, PromptContent::Text(text)) => {
                let turn = Turn {
                    content: content.clone(),
                    prompt: self.model.tokenize(text, self.source.parse_special)?,
                    answer: generated,
                };
                return Ok((vec![turn], None));
            }
            _ if self.source.no_chat_template => {
                bail!("messages need a chat template: leave --no-chat-template out")
            }
            _ => bail!(
                "messages need a chat template: the model has none: give one with --chat-template-file"
            ),
        };
        let chat = Chat::new(template, &messages, &line.variables).map_err(refused)?;
        let roles = messages.roles();
        let (ends, fault) = match self.source.generate {
            _ if scores_given => (answered(&roles), NO_ANSWER),
            Some(_) => (unanswered(&roles), NOTHING_TO_ANSWER),
            None => (vec![roles.len()], NO_ANSWER),
        };
        if ends.is_empty() {
            bail!(fault);
        }
        let mut asked = chat.clone();
        asked.ends.clone_from(&ends);
        let mut after_first = None;
        let (mut turns, mut start) = (Vec::new(), 0);
        for &end in &ends {
            let (prompt, answer) = if scores_given {
                let (prompt, answer) = chat.answer(end).map_err(refused)?;
                if answer.is_empty() {
                    bail!("the chat template makes nothing of message {}", end + 1);
                }
                self.joined(&prompt, &answer)?
            } else {
                let prompt = asked.next("").unwrap_or_else(|| chat.prompt(end));
                after_first.get_or_insert_with(|| asked.clone());
                let prompt = self.model.tokenize(&prompt.map_err(refused)?, true)?;
                (prompt, generated.clone())
            };
            turns.push(Turn {
                content: some_of(content, &messages, start..end)?,
                prompt,
                answer,
            });
            start = end + usize::from(scores_given);
        }
        Ok((turns, after_first))
    }

    /// The input with these windows, or with a sample of `max_rows` rows; the dialogues that a model may
    /// answer; and the most tokens of a prompt and its answer.
    ///
    /// # Errors
    /// If no position is scored.
    fn plan(self, max_rows: Option<u64>) -> Result<(PreparedInput, Vec<Dialogue<'p>>, u32)> {
        let (source, mut input) = (self.source, self.input);
        let plan = Plan::from_windows(input.plan.windows);
        if plan.n_rows() == 0 {
            bail!("{source}: no prompt is long enough for a scored position: lower --score");
        }
        let groups = self.groups.iter().map(String::as_str);
        input.groups = (groups.len() > 0).then(|| Groups::of_each(groups));
        let first_scored = plan.windows.iter().map(|window| window.first_scored).min();
        let longest = longest_window(&plan.windows);
        input.provenance.n_ctx = source.n_ctx.unwrap_or(longest);
        input.provenance.first_scored = first_scored;
        input.plan = plan.limited(max_rows);
        // Answers can make later prompts longer than they were planned.
        let mut prompts = input.prompts.iter().flat_map(|prompts| &prompts.list);
        let may_grow = source.generate.is_some() && prompts.any(|prompt| prompt.continues);
        let n_ctx = source.n_ctx.filter(|_| may_grow);
        input.longest_window = n_ctx.unwrap_or_else(|| longest_window(&input.plan.windows));
        Ok((input, self.dialogues, n_ctx.unwrap_or(longest)))
    }

    /// The tokens of a prompt and of the answer after it, up to the first token that ends one. Their
    /// texts are tokenized as one; where a token would span both, each by itself, unless the tokenizer
    /// adds a space to the answer: then that token is the answer's first.
    fn joined(&self, prompt: &str, answer: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let model = self.model;
        let of_prompt = model.tokenize(prompt, true)?;
        let mut whole = model.tokenize(&format!("{prompt}{answer}"), true)?;
        let alike = whole.iter().zip(&of_prompt);
        let n_alike = alike.take_while(|(one, other)| one == other).count();
        let mut of_answer = whole.split_off(n_alike);
        if n_alike < of_prompt.len() {
            let alone = model.tokenize(answer, true)?;
            let bytes = alone.iter().filter_map(|&token| model.token_bytes(token));
            if bytes.map(|bytes| bytes.len()).sum::<usize>() == answer.len() {
                (whole, of_answer) = (of_prompt, alone);
            }
        }
        let ends = |token: &u32| model.is_end_of_generation(*token);
        if let Some(end) = of_answer.iter().position(ends) {
            of_answer.truncate(end + 1);
        }
        Ok((whole, of_answer))
    }

    /// The window of a prompt, a BOS included, and of its answer.
    ///
    /// The last row of a prompt is scored like that of a text; the row of an answer's last token is
    /// not.
    ///
    /// # Errors
    /// A prompt that is too short or too long: it needs a token to predict and one to predict it from, and
    /// must fit in a window together with its answer.
    fn window(&self, number: u32, mut tokens: Vec<u32>, answer: Vec<u32>) -> Result<WindowSpec> {
        let (source, n_prompt) = (self.source, tokens.len() as u32);
        let has_answer = source.has_answers();
        tokens.extend(answer);
        let n_tokens = tokens.len() as u32;
        if n_prompt == 0 || n_tokens < 2 {
            bail!(
                "the prompt has fewer than two tokens: leave it out, or use a chat template that adds some"
            );
        }
        let most = source.n_ctx.unwrap_or(MAX_N_CTX);
        if n_tokens > most {
            let with_answer = if has_answer { " with its answer" } else { "" };
            bail!(
                "a prompt of {n_tokens} tokens{with_answer} does not fit in a window of {most}: raise --n-ctx, or shorten it"
            );
        }
        let bos = self.model.facts().bos_token;
        let begins_with_bos = bos.is_some() && tokens.first() == bos.as_ref();
        let first_scored = match source.score {
            None | Some(ScoreFrom::Answers) if has_answer => n_prompt - 1,
            score => score.unwrap_or_default().first(n_tokens, begins_with_bos),
        };
        let scored_end = n_tokens - u32::from(has_answer);
        Ok(WindowSpec {
            window: number,
            tokens,
            first_scored,
            n_rows: scored_end.saturating_sub(first_scored),
        })
    }

    /// Tokens to leave in a prompt for each answer that it will hold. Read again as text, an answer
    /// can have a few more tokens than it was generated with, and a template adds some.
    fn room(&self) -> usize {
        let generate = self.source.generate.map(|most| most as usize);
        generate.map_or(0, |most| most + most / 8 + 32)
    }
}

fn refused(error: TemplateError) -> anyhow::Error {
    anyhow!("the chat template refuses it: {error}")
}

/// The messages with these indices, which keep their bytes, as does the list of all; a text stays one.
fn some_of(
    content: &PromptContent,
    messages: &Messages,
    indices: Range<usize>,
) -> Result<PromptContent> {
    let each = messages.each();
    if matches!(content, PromptContent::Text(_)) || indices == (0..each.len()) {
        return Ok(content.clone());
    }
    let some = Messages::from_each(each.get(indices).unwrap_or_default());
    Ok(PromptContent::Messages(some?))
}

/// Lets the model answer the prompts of the selected windows, which are planned for the longest
/// answers, and all prompts that come before one of them in its conversation. A window whose
/// conversation has ended before it loses its tokens and its rows: it stays in the plan, since
/// parts share that.
///
/// # Errors
/// Those of [`answer`].
fn answer_prompts<M: Model>(
    input: &mut PreparedInput,
    mut dialogues: Vec<Dialogue<'_>>,
    source: &Source,
    n_ctx: u32,
    selection: &Selection,
    model: &M,
    generation: &mut Generation<'_>,
) -> Result<()> {
    let prompts = &mut input.prompts.get_or_insert_default().list;
    let planned = input.plan.windows.clone();
    let n_first = input.plan.first(selection.n_first_rows).len();
    let is_selected = |i| i < n_first || selection.part.is_none_or(|part| part.has(i));
    let windows = input.plan.windows.iter_mut().enumerate();
    let windows = windows.filter(|(i, of)| is_selected(*i) && !ends_in_its_prompt(of, prompts));
    let windows: Vec<&mut WindowSpec> = windows.map(|(_, window)| window).collect();
    let wanted: BTreeSet<u32> = windows.iter().map(|window| window.window).collect();
    // The prompts after the last wanted window of a conversation are left out.
    dialogues.retain_mut(|of| {
        let last = wanted.range(of.window..of.window + of.n_left).next_back();
        of.n_left = last.map_or(0, |last| last + 1 - of.window);
        last.is_some()
    });
    let n_prompts = dialogues.iter().map(|of| u64::from(of.n_left)).sum();
    (generation.on_step)(GenerationStep::Begin(n_prompts))?;
    let mut answered = answer(model, dialogues, source, n_ctx, generation)?;
    let why = answered.values().find_map(|of| of.clone().err());
    let mut n_unanswered = 0;
    for window in windows {
        let found = answered.remove(&window.window).and_then(Result::ok);
        n_unanswered += u64::from(found.is_none());
        let (tokens, n_prompt) = found.unwrap_or_default();
        if let Some(prompt) = prompts.get_mut(window.window as usize) {
            prompt.n_tokens = n_prompt as u32;
        }
        fill(window, tokens, n_prompt, source.score.is_some());
    }
    input.unanswered = why.map(|why| (n_unanswered, why)).filter(|(n, _)| *n > 0);
    input.plan.was_planned_as(planned, n_first);
    Ok(())
}

/// Whether `-n` has cut a window within its prompt, so that it needs no answer.
fn ends_in_its_prompt(window: &WindowSpec, prompts: &[Prompt]) -> bool {
    let prompt = prompts.get(window.window as usize);
    prompt.is_some_and(|of| !of.continues && window.tokens.len() <= of.n_tokens as usize)
}

/// Puts a prompt and its answer into the window that was planned for them, with at most the rows that
/// were planned. Without tokens, since its conversation has ended, it is empty.
fn fill(window: &mut WindowSpec, tokens: Vec<u32>, n_prompt: usize, is_prompt_scored: bool) {
    if tokens.is_empty() || !is_prompt_scored {
        window.first_scored = (n_prompt as u32).saturating_sub(1);
    }
    let scored_end = tokens.len().saturating_sub(1) as u32;
    let n_rows = scored_end.saturating_sub(window.first_scored);
    window.tokens = tokens;
    if window.n_rows < n_rows {
        // `-n` has cut it: the token after the last row stays.
        let n_tokens = window.first_scored + window.n_rows + 1;
        window.tokens.truncate(n_tokens as usize);
    }
    window.n_rows = window.n_rows.min(n_rows);
}
