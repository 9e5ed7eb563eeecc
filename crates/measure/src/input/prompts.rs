//! Prompts become windows: the chat template turns them into texts, and the tokenizer these into
//! tokens. A prompt has one window, or a conversation one for each of its answers.

use std::collections::BTreeSet;
use std::mem::take;
use std::ops::Range;

use anyhow::{Context as _, Result, bail};
use kl_engine::{ContextOptions, Model};
use kl_formats::{
    Groups, MAX_N_CTX, Messages, Prompt, PromptContent, Prompts, WindowSpec, longest_window,
};

use super::chat::{Chat, GivenAnswer, answered, unanswered};
use super::faults::Faults;
use super::generation::{Answering, Dialogue, OnGenerated, with_bos};
use super::prompt_file::PromptLine;
use super::spans::Spans;
use super::templates::{AppliedTemplate, Templates, end_of_turn, has_items};
use super::{AnswerFile, Plan, PreparedInput, RawInput, ScoreFrom, Selection, Source};

/// The fault of a prompt that the chat template does not take; its reason follows.
const REFUSED: &str = "the chat template refuses it";
/// The fault of a prompt whose answers are to be scored.
const NO_ANSWER: &str = "has no answer to score: --score answers needs \"messages\" with one of role \
     assistant after another message; to let the model answer, use --generate";
/// The fault of messages where no chat template is applied.
const NO_TEMPLATE: &str = "messages need a chat template: leave --no-chat-template out, or give the \
     model one with --chat-template-file";
/// The fault of a conversation that is to be answered.
const NOTHING_TO_ANSWER: &str = "has nothing to answer: no message of role user or tool is \
     without an answer; leave it out, or use --score answers instead of --generate to score the \
     answers that it has";

/// Plans the windows of the prompts. `check` is called before each prompt; its error ends the work.
///
/// # Errors
/// A prompt's fault, in one line with the file and the prompt's place in it; those of `check`.
pub fn plan(
    raw: RawInput<'_>,
    model: &dyn Model,
    selection: &Selection,
    check: &dyn Fn() -> Result<()>,
) -> Result<PreparedInput> {
    let (source, templates) = (raw.source, Templates::new(&raw, model)?);
    if templates.default.is_none()
        && let Some(line) = raw
            .prompts
            .iter()
            .find(|line| matches!(line.content, PromptContent::Messages(_)))
    {
        bail!("{source}: {}: {NO_TEMPLATE}", line.place);
    }
    let offers_tools = raw
        .prompts
        .iter()
        .any(|line| has_items(&line.variables, "tools"));
    let is_token = |text: &str| {
        model
            .tokenize(text, true)
            .is_ok_and(|tokens| tokens.len() == 1)
    };
    let spans = (source.has_answers()).then(|| {
        let template = templates.source();
        Spans::new(Some(&template), is_token, offers_tools, &source.spans)
    });
    let mut input = PreparedInput::new(source, model);
    input.provenance.text = Some(raw.text);
    input.provenance.add_bos = Some(true);
    input.prompts = Some(Prompts {
        generated: source.generate,
        sampling: source.sampling(),
        spans: (spans.as_ref()).map_or_else(Vec::new, |spans| spans.names.clone()),
        ..Prompts::default()
    });
    input.spans = spans;
    let mut windows = PromptWindows {
        source,
        templates,
        model,
        input,
        groups: Vec::new(),
        dialogues: Vec::new(),
    };
    let (mut faults, n_prompts) = (Faults::default(), raw.prompts.len());
    for line in raw.prompts {
        check()?;
        let place = line.place.clone();
        let added = windows.add(&format!("{source}: {place}"), line);
        // A template that was stopped renders nothing else: the other prompts may be good.
        let stopped = windows.templates.stopped();
        let is_stopped = stopped.is_some();
        if let Some(fault) = added.err().map(|error| format!("{error:#}")).or(stopped) {
            faults.push(&place, fault);
        }
        if is_stopped {
            break;
        }
    }
    if let Some(message) = faults.message(n_prompts) {
        bail!("{source}: {message}");
    }
    windows.plan(selection)
}

/// The way from prompts to their windows.
struct PromptWindows<'p> {
    source: &'p Source,
    templates: Templates,
    model: &'p dyn Model,
    /// The windows so far. Tokens that are to be generated are 0, and so are those of prompts that depend
    /// on them.
    input: PreparedInput,
    /// The group of each window, if there are groups.
    groups: Vec<String>,
    /// The prompts of each line, in the order in which the model is to answer them.
    dialogues: Vec<Dialogue>,
}

/// A prompt, and the answer to it: the given one, or as many tokens 0 as are to be generated. Both are a
/// window.
struct Turn {
    content: PromptContent,
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl PromptWindows<'_> {
    /// Adds the windows of a line, which messages call `name`.
    ///
    /// # Errors
    /// The line's fault, without its name.
    fn add(&mut self, name: &str, mut line: PromptLine) -> Result<()> {
        let (turns, conversation) = self.turns(&line)?;
        let applied = self.templates.of(&line.variables);
        let is_named = |name: &str| applied.is_some_and(|applied| applied.template.names(name));
        for (name, n_ignored) in &mut self.input.n_ignored {
            let is_ignored =
                applied.is_some() && has_items(&line.variables, name) && !is_named(name);
            *n_ignored += u64::from(is_ignored);
        }
        line.variables.retain(is_named);
        let first_window = self.input.plan.windows.len() as u32;
        // Read again as text, an answer can have a few more tokens than it was generated with, and a template
        // adds some.
        let answer_room = self
            .source
            .generate
            .map_or(0, |max_tokens| (max_tokens + max_tokens / 8 + 32) as usize);
        let (n_turns, mut first_prompt, mut n_tokens) = (turns.len(), Vec::new(), 0);
        for (index, turn) in turns.into_iter().enumerate() {
            let n_prompt_tokens = turn.prompt.len() as u64;
            let (mut tokens, has_inserted_bos) = with_bos(self.model, turn.prompt);
            if index == 0 {
                first_prompt.clone_from(&tokens);
            }
            // Later prompts hold answers that are not known yet.
            tokens.resize(tokens.len() + index * answer_room, 0);
            let mut prompt = Prompt::new(turn.content, tokens.len() as u32);
            prompt.continues = index > 0;
            prompt.variables = take(&mut line.variables);
            match self.window(first_window + index as u32, tokens, turn.answer) {
                Ok(window) => self.input.plan.windows.push(window),
                Err(fault) if index == 0 => return Err(fault),
                Err(_) => {
                    self.input.n_turns_left_out += (n_turns - index) as u64;
                    break;
                }
            }
            n_tokens = n_prompt_tokens;
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
    fn turns(&self, line: &PromptLine) -> Result<(Vec<Turn>, Option<Chat>)> {
        let (source, model, content) = (self.source, self.model, &line.content);
        let scores_given = source.scores_given_answers();
        let planned_answer = vec![0; source.generate.unwrap_or(0) as usize];
        let (applied, messages) = match (self.templates.of(&line.variables), content) {
            (Some(applied), PromptContent::Messages(messages)) => (applied, messages.clone()),
            (Some(applied), PromptContent::Text(text)) => (applied, Messages::of_user(text)),
            (None, PromptContent::Text(_)) if scores_given => bail!(NO_ANSWER),
            (None, PromptContent::Text(text)) => {
                let turn = Turn {
                    content: content.clone(),
                    prompt: model.tokenize(text, source.parse_special)?,
                    answer: planned_answer,
                };
                return Ok((vec![turn], None));
            }
            (None, PromptContent::Messages(_)) => bail!(NO_TEMPLATE),
        };
        let roles = messages.roles();
        let (ends, fault) = match source.generate {
            _ if scores_given => (answered(&roles), NO_ANSWER),
            Some(_) => (unanswered(&roles), NOTHING_TO_ANSWER),
            None => (vec![roles.len()], NO_ANSWER),
        };
        if ends.is_empty() {
            bail!(fault);
        }
        let mut chat = Chat::new(&applied.template, &messages, &line.variables).context(REFUSED)?;
        chat.ends.clone_from(&ends);
        let (mut turns, mut after_first, mut start) = (Vec::new(), None, 0);
        for end in ends {
            let (prompt, answer) = if scores_given {
                self.tokens_of_given(&chat.answer(end)?, applied)?
            } else {
                let text = chat.next("").unwrap_or_else(|| chat.prompt(end));
                after_first.get_or_insert_with(|| chat.clone());
                let prompt = model.tokenize(&text.context(REFUSED)?, true)?;
                (prompt, planned_answer.clone())
            };
            turns.push(Turn {
                content: content_of_messages(content, &messages, start..end)?,
                prompt,
                answer,
            });
            start = end + usize::from(scores_given);
        }
        Ok((turns, after_first))
    }

    /// The input with these windows, or with a sample of them.
    ///
    /// # Errors
    /// If no position is scored.
    fn plan(self, selection: &Selection) -> Result<PreparedInput> {
        let (source, mut input) = (self.source, self.input);
        let plan = Plan::from_windows(input.plan.windows);
        if plan.n_rows() == 0 {
            bail!("{source}: no prompt is long enough for a scored position: lower --score");
        }
        let groups = self.groups.iter().map(String::as_str);
        if let Some(prompts) = &mut input.prompts {
            prompts.chat_template = self.templates.sha256();
        }
        input.groups = (groups.len() > 0).then(|| Groups::of_each(groups));
        let longest = longest_window(&plan.windows);
        input.provenance.n_ctx = source.n_ctx.unwrap_or(longest);
        let first_scored = plan.windows.iter().map(|window| window.first_scored);
        input.provenance.first_scored = first_scored.min();
        input.plan = plan.limited(selection.max_rows);
        input.longest_window = longest_window(&input.plan.windows);
        if source.generate.is_some() {
            let prompts = input.prompts.iter().flat_map(|prompts| &prompts.list);
            let mut n_ctx = longest;
            if let Some(max_n_ctx) = source.n_ctx
                && prompts.clone().any(|prompt| prompt.continues)
            {
                // Answers can make later prompts longer than they were planned.
                (n_ctx, input.longest_window) = (max_n_ctx, max_n_ctx);
            }
            input.questions = Some(questions(&input, self.dialogues, selection, n_ctx));
        }
        Ok(input)
    }

    /// The tokens of a given answer and of the prompt before it. Without a token that ends its turn, it gets
    /// the one that the template writes after answers: some write it only once a conversation goes on.
    fn tokens_of_given(
        &self,
        given: &GivenAnswer,
        applied: &AppliedTemplate,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let (prompt, answer) = self.joined(&given.prompt, &given.text)?;
        let is_end = |token: &u32| self.model.is_end_of_generation(*token);
        if answer.last().is_some_and(is_end) {
            return Ok((prompt, answer));
        }
        let mut end = end_of_turn(&given.rest, self.model)?;
        if end.is_none() && !given.has_calls {
            end = applied.end_of_turn(self.model)?;
        }
        let Some(end) = end else {
            return Ok((prompt, answer));
        };
        // Blanks before the end that the answer has already.
        let (blanks, mark) = end.split_at(end.len() - end.trim_start().len());
        let end = if given.text.ends_with(blanks) {
            mark
        } else {
            &end
        };
        self.joined(&given.prompt, &format!("{}{end}", given.text))
    }

    /// The tokens of a prompt and of the answer after it, up to the first token that ends one. Their texts
    /// are tokenized as one. Where a token would span both, each text is tokenized by itself, unless the
    /// tokenizer adds a space to the answer: then that token is the answer's first.
    fn joined(&self, prompt: &str, answer: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let model = self.model;
        let prompt_alone = model.tokenize(prompt, true)?;
        let mut prompt_tokens = model.tokenize(&format!("{prompt}{answer}"), true)?;
        let n_alike = prompt_tokens
            .iter()
            .zip(&prompt_alone)
            .take_while(|(joined, alone)| joined == alone)
            .count();
        let mut answer_tokens = prompt_tokens.split_off(n_alike);
        if n_alike < prompt_alone.len() {
            let answer_alone = model.tokenize(answer, true)?;
            let n_bytes: usize = answer_alone
                .iter()
                .filter_map(|&token| model.token_bytes(token))
                .map(|bytes| bytes.len())
                .sum();
            if n_bytes == answer.len() {
                (prompt_tokens, answer_tokens) = (prompt_alone, answer_alone);
            }
        }
        let end = answer_tokens
            .iter()
            .position(|token| model.is_end_of_generation(*token));
        if let Some(end) = end {
            answer_tokens.truncate(end + 1);
        }
        Ok((prompt_tokens, answer_tokens))
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
        let max_tokens = source.n_ctx.unwrap_or(MAX_N_CTX);
        if n_tokens > max_tokens {
            let with_answer = if has_answer { " with its answer" } else { "" };
            bail!(
                "a prompt of {n_tokens} tokens{with_answer} does not fit in a window of {max_tokens}: raise --n-ctx, or shorten it"
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
}

/// The content of the messages with these indices, which keep their bytes, as does the list of all; a text stays one.
fn content_of_messages(
    content: &PromptContent,
    messages: &Messages,
    indices: Range<usize>,
) -> Result<PromptContent> {
    let all = messages.each();
    if matches!(content, PromptContent::Text(_)) || indices == (0..all.len()) {
        return Ok(content.clone());
    }
    let selected = Messages::from_each(all.get(indices).unwrap_or_default())?;
    Ok(PromptContent::Messages(selected))
}

/// The prompts that a model is to answer.
pub struct Questions {
    /// Their conversations, each up to its last prompt that is wanted.
    dialogues: Vec<Dialogue>,
    /// The windows whose answers are wanted.
    wanted: BTreeSet<u32>,
    /// The most tokens of a prompt and its answer.
    pub n_ctx: u32,
    /// The number of prompts.
    pub n: u64,
}

/// The prompts of the selected windows, and all prompts that come before one of them in its
/// conversation.
fn questions(
    input: &PreparedInput,
    mut dialogues: Vec<Dialogue>,
    selection: &Selection,
    n_ctx: u32,
) -> Questions {
    let (plan, prompts) = (&input.plan, input.prompts.as_ref());
    let n_first = plan.first(selection.n_first_rows).len();
    let is_selected = |i| i < n_first || selection.part.is_none_or(|part| part.has(i));
    // `-n` has cut it within its prompt, so that it needs no answer.
    let ends_in_its_prompt = |window: &WindowSpec| {
        let prompt = prompts.and_then(|prompts| prompts.list.get(window.window as usize));
        prompt.is_some_and(|prompt| {
            !prompt.continues && window.tokens.len() <= prompt.n_tokens as usize
        })
    };
    let wanted: BTreeSet<u32> = plan
        .windows
        .iter()
        .enumerate()
        .filter(|(i, window)| is_selected(*i) && !ends_in_its_prompt(window))
        .map(|(_, window)| window.window)
        .collect();
    dialogues.retain_mut(|dialogue| {
        let windows = dialogue.window..dialogue.window + dialogue.n_left;
        let last_wanted = wanted.range(windows).next_back();
        dialogue.n_left = last_wanted.map_or(0, |last| last + 1 - dialogue.window);
        last_wanted.is_some()
    });
    Questions {
        n: dialogues
            .iter()
            .map(|dialogue| u64::from(dialogue.n_left))
            .sum(),
        dialogues,
        wanted,
        n_ctx,
    }
}

impl PreparedInput {
    /// Lets the model answer the prompts, if it is to, in a context with these options. `answer_file` has the
    /// answers of an earlier run, and new ones are added to it; `None`: none are kept.
    ///
    /// A window whose conversation has ended before it loses its tokens and its rows: it stays in the
    /// plan, since parts share that.
    ///
    /// # Errors
    /// Those of the model, of `answer_file` and of `on_step`, and a row without a top token.
    pub fn answer(
        &mut self,
        model: &dyn Model,
        mut options: ContextOptions,
        answer_file: Option<&mut AnswerFile>,
        on_step: OnGenerated<'_>,
    ) -> Result<()> {
        let Some(questions) = self.questions.take() else {
            return Ok(());
        };
        options.n_seq = options
            .n_seq
            .clamp(1, questions.dialogues.len().max(1) as u32);
        let prompts = self.prompts.get_or_insert_default();
        let max_tokens = prompts.generated.unwrap_or(0) as usize;
        let answering = Answering::new(
            model,
            options,
            (max_tokens, prompts.sampling),
            answer_file,
            on_step,
        )?;
        let (mut answered, generated) = answering.answer(questions.dialogues)?;
        self.generated = Some(generated);
        let first_reason = answered
            .values()
            .find_map(|prompt_and_answer| prompt_and_answer.clone().err());
        let (planned, mut n_unanswered) = (self.plan.windows.clone(), 0);
        for window in self
            .plan
            .windows
            .iter_mut()
            .filter(|window| questions.wanted.contains(&window.window))
        {
            let prompt_and_answer = answered.remove(&window.window).and_then(Result::ok);
            n_unanswered += u64::from(prompt_and_answer.is_none());
            let (tokens, n_prompt) = prompt_and_answer.unwrap_or_default();
            if let Some(prompt) = prompts.list.get_mut(window.window as usize) {
                // Else the prompt's last row, which predicts the answer, is the first.
                let is_prompt_scored = window.first_scored + 1 < prompt.n_tokens;
                prompt.n_tokens = n_prompt as u32;
                fill(window, tokens, n_prompt, is_prompt_scored);
            }
        }
        self.unanswered = first_reason
            .map(|reason| (n_unanswered, reason))
            .filter(|(n, _)| *n > 0);
        self.plan
            .was_planned_as(planned, self.selection.n_first_rows);
        Ok(())
    }
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
