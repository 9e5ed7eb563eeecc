//! Prompts become windows: the chat template turns them into texts, and the tokenizer these into
//! tokens. A prompt has one window, or a conversation one for each of its answers.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use kl_formats::{
    Groups, MAX_N_CTX, Messages, Prompt, PromptContent, Prompts, TextIdentity, WindowSpec,
    longest_window,
};

use super::chat::{Chat, Conversation, answered, unanswered};
use super::chat_template::{ChatTemplate, TemplateError};
use super::generation::{
    Answered, Answers, Dialogue, Generation, GenerationStep, answer, with_bos,
};
use super::prompt_file::{self, PromptLine};
use super::spans::Spans;
use super::texts::Doubt;
use super::{Plan, PreparedInput, PromptSource, ScoreFrom, Selection, TemplateChoice};
use crate::engine::Model;

/// The fault of a prompt whose answers are to be scored.
const NO_ANSWER: &str = "has no answer to score: --score answers needs \"messages\" with one of role \
     assistant after another message; to let the model answer, use --generate";
/// The fault of a conversation that is to be answered.
const NOTHING_TO_ANSWER: &str = "has nothing to answer: no message of role user or tool is \
     without an answer; leave it out, or use --score answers instead of --generate to score the \
     answers that it has";

/// Prompts that were read, and the chat template if it comes from a file.
pub struct RawPrompts<'s> {
    pub(super) source: &'s PromptSource,
    pub(super) text: TextIdentity,
    lines: Vec<PromptLine>,
    /// The chat template of a file.
    template: Option<String>,
}

impl<'s> RawPrompts<'s> {
    /// Reads the prompts, and the template if it is in a file.
    pub fn read(source: &'s PromptSource, doubts: &mut Vec<Doubt>) -> Result<Self> {
        let (text, lines) = prompt_file::read(source, doubts)?;
        let template = match &source.template {
            TemplateChoice::File(path) => {
                let template = fs::read_to_string(path);
                Some(template.with_context(|| format!("{}: cannot be read", path.display()))?)
            }
            TemplateChoice::OfModel | TemplateChoice::None => None,
        };
        Ok(Self {
            source,
            text,
            lines,
            template,
        })
    }

    /// Plans the windows of the prompts, has the plan checked, and lets the model answer them if it
    /// should.
    pub fn prepare<M: Model>(
        self,
        model: &M,
        selection: &Selection,
        mut generation: Generation<'_>,
    ) -> Result<PreparedInput> {
        let source = self.source;
        // The text of the chat template, if there is one, and the file that holds it.
        let facts = model.facts();
        let found = match (&source.template, &self.template, &facts.chat_template) {
            (TemplateChoice::File(path), Some(text), _) => Some((text, path)),
            (TemplateChoice::OfModel, _, Some(text)) => Some((text, &facts.path)),
            _ => None,
        };
        let spans = (source.has_answers())
            .then(|| Spans::new(found.map(|(text, _)| &**text), &source.spans));
        let template = found
            .map(|(text, path)| compile(text, path, model))
            .transpose()?;
        let prompts = Prompts {
            chat_template: template.as_ref().map(|template| template.sha256.clone()),
            generated: source.generate,
            sampling: source.sampling,
            spans: spans.iter().flat_map(Spans::names).cloned().collect(),
            ..Prompts::default()
        };
        let mut windows = PromptWindows {
            source,
            template: template.as_ref(),
            model,
            input: PreparedInput {
                text: self.text,
                prompts: Some(prompts),
                ..PreparedInput::default()
            },
            groups: Vec::new(),
            n_without_bos: 0,
            dialogues: Vec::new(),
        };
        for line in self.lines {
            (generation.on_step)(GenerationStep::Prompt)?;
            windows.add(line)?;
        }
        let (planned, asked) = windows.plan(selection.max_rows)?;
        let mut input = planned.checked(selection, &mut generation)?;
        if let Some(asked) = asked {
            asked.answer(&mut input, selection, model, &mut generation)?;
        }
        input.plan.keep(selection.part);
        if let (Some(spans), Some(prompts)) = (spans, &mut input.prompts) {
            for window in &input.plan.windows {
                if let Some(prompt) = prompts.list.get_mut(window.window as usize) {
                    prompt.spans = spans.of_window(&window.tokens, prompt.n_tokens, model);
                }
            }
        }
        Ok(input)
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

/// The way from a prompt to its windows.
struct PromptWindows<'p, M> {
    source: &'p PromptSource,
    /// The chat template that is applied to each prompt, if there is one.
    template: Option<&'p ChatTemplate>,
    model: &'p M,
    /// The windows so far. Tokens that are to be generated are 0, and so are those of prompts that depend
    /// on them.
    input: PreparedInput,
    /// The group of each window.
    groups: Vec<Option<String>>,
    /// The windows that do not begin with an inserted BOS.
    n_without_bos: usize,
    /// The prompts of each line, in the order in which the model is to answer them.
    dialogues: Vec<Dialogue<'p>>,
}

/// A prompt, and the answer to it if it is given: a window.
struct Turn {
    content: PromptContent,
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl<'p, M: Model> PromptWindows<'p, M> {
    /// Adds the windows of a line.
    ///
    /// # Errors
    /// The line's fault, in one line with the file and the line's number.
    fn add(&mut self, mut line: PromptLine) -> Result<()> {
        let (turns, conversation) = match self.template {
            None => (vec![self.as_it_is(&line)?], None),
            Some(template) => {
                let chat = Chat::new(template, &line.messages(), &line.variables);
                let chat = chat.map_err(|error| self.refused(&line, &error))?;
                let turns = self.of_chat(&chat, &line)?;
                line.variables.retain(|name| chat.is_used(name));
                turns
            }
        };
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
            if let Some(fault) = self.length_fault(tokens.len(), turn.answer.len()) {
                if index == 0 {
                    bail!(self.fault(&line, &fault));
                }
                self.input.n_turns_left_out += (n_turns - index) as u64;
                break;
            }
            n_tokens = n_own;
            self.n_without_bos += usize::from(!has_inserted_bos);
            let mut prompt = Prompt::new(turn.content, tokens.len() as u32);
            prompt.continues = index > 0;
            if index == 0 && self.template.is_some() {
                prompt.variables = std::mem::take(&mut line.variables);
            }
            let number = first_window + index as u32;
            let window = self.window(number, tokens, turn.answer);
            self.input.plan.windows.push(window);
            self.input.prompts.get_or_insert_default().list.push(prompt);
            self.groups.push(line.group.clone());
        }
        *self.input.text.n_tokens.get_or_insert(0) += n_tokens;
        self.dialogues.push(Dialogue {
            line: self.name(&line),
            window: first_window,
            n_left: self.input.plan.windows.len() as u32 - first_window,
            conversation,
            tokens: first_prompt,
            n_prompt: 0,
            sampler: None,
        });
        Ok(())
    }

    /// The input with these windows, or with a sample of `max_rows` rows, and the dialogues that the
    /// model is to answer, if it should.
    ///
    /// # Errors
    /// If no position is scored.
    fn plan(self, max_rows: Option<u64>) -> Result<(PreparedInput, Option<Asked<'p>>)> {
        let (source, mut input) = (self.source, self.input);
        let plan = Plan::of(input.plan.windows);
        if plan.n_rows() == 0 {
            bail!(
                "{}: no prompt is long enough for a scored position: lower --score",
                source.path.display()
            );
        }
        let groups: Option<Vec<&str>> = self.groups.iter().map(Option::as_deref).collect();
        input.groups = groups.map(Groups::of_each);
        input.add_bos = self.n_without_bos == 0;
        let first_scored = plan.windows.iter().map(|window| window.first_scored).min();
        input.first_scored = first_scored.unwrap_or(0);
        let longest = longest_window(&plan.windows);
        input.n_ctx = source.n_ctx.unwrap_or(longest);
        input.plan = plan.limited(max_rows);
        // Answers can make later prompts longer than they were planned.
        let mut prompts = input.prompts.iter().flat_map(|prompts| &prompts.list);
        let may_grow = source.generate.is_some() && prompts.any(|prompt| prompt.continues);
        let n_ctx = source.n_ctx.filter(|_| may_grow);
        input.longest_window = n_ctx.unwrap_or_else(|| longest_window(&input.plan.windows));
        let asked = source.generate.map(|most| Asked {
            dialogues: self.dialogues,
            answers: Answers {
                most,
                n_ctx: n_ctx.unwrap_or(longest),
                sampling: source.sampling,
            },
            is_prompt_scored: source.score.is_some(),
        });
        Ok((input, asked))
    }

    /// A prompt without a template.
    fn as_it_is(&self, line: &PromptLine) -> Result<Turn> {
        let fault = match (&line.content, &self.source.template) {
            (PromptContent::Text(_), _) if self.source.scores_given_answers() => NO_ANSWER,
            (PromptContent::Text(text), _) => {
                return Ok(Turn {
                    content: line.content.clone(),
                    prompt: self.model.tokenize(text, self.source.parse_special)?,
                    answer: Vec::new(),
                });
            }
            (_, TemplateChoice::OfModel) => {
                "messages need a chat template: the model has none: give one with --chat-template-file"
            }
            _ => "messages need a chat template: leave --no-chat-template out",
        };
        bail!(self.fault(line, fault))
    }

    /// The turns of a conversation. If the model is to answer, it also returns the conversation after
    /// its first prompt.
    fn of_chat(
        &self,
        chat: &Chat<'p>,
        line: &PromptLine,
    ) -> Result<(Vec<Turn>, Option<Conversation<'p>>)> {
        let messages = line.messages();
        let roles = messages.roles();
        let scores_given = self.source.scores_given_answers();
        let (ends, fault) = match self.source.generate {
            _ if scores_given => (answered(&roles), NO_ANSWER),
            Some(_) => (unanswered(&roles), NOTHING_TO_ANSWER),
            None => (vec![roles.len()], NO_ANSWER),
        };
        if ends.is_empty() {
            bail!(self.fault(line, fault));
        }
        let mut asked = Conversation::new(chat.clone(), ends.clone());
        let mut after_first = None;
        let (mut turns, mut start) = (Vec::new(), 0);
        for &end in &ends {
            let texts = if scores_given {
                chat.answer(end)
            } else {
                let prompt = asked.next("").unwrap_or_else(|| chat.prompt(end));
                after_first.get_or_insert_with(|| asked.clone());
                prompt.map(|prompt| (prompt, String::new()))
            };
            let (prompt, answer) = texts.map_err(|error| self.refused(line, &error))?;
            if scores_given && answer.is_empty() {
                let what = format!("the chat template makes nothing of message {}", end + 1);
                bail!(self.fault(line, &what));
            }
            let (prompt, answer) = self.joined(&prompt, &answer)?;
            turns.push(Turn {
                content: some_of(&line.content, &messages, start..end)?,
                prompt,
                answer,
            });
            start = end + usize::from(scores_given);
        }
        Ok((turns, after_first))
    }

    /// The tokens of a prompt and of the answer after it, up to the first token that ends one. Their
    /// texts are tokenized as one; where a token would span both, each by itself, unless the tokenizer
    /// adds a space to the answer: then that token is the answer's first.
    fn joined(&self, prompt: &str, answer: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let model = self.model;
        let of_prompt = model.tokenize(prompt, true)?;
        if answer.is_empty() {
            return Ok((of_prompt, Vec::new()));
        }
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

    /// The window of a prompt, a BOS included, and of the answer: the given one, or one to generate.
    ///
    /// The last row of a prompt is scored like that of a text; the row of an answer's last token is
    /// not.
    fn window(&self, number: u32, mut tokens: Vec<u32>, answer: Vec<u32>) -> WindowSpec {
        let n_prompt = tokens.len() as u32;
        tokens.extend(answer);
        tokens.resize(tokens.len() + self.source.generate.unwrap_or(0) as usize, 0);
        let bos = self.model.facts().bos_token;
        let begins_with_bos = bos.is_some() && tokens.first() == bos.as_ref();
        let first_scored = match self.source.score {
            None | Some(ScoreFrom::Answers) => n_prompt.saturating_sub(1),
            Some(score) => score.first(tokens.len() as u32, begins_with_bos),
        };
        let scored_end = tokens.len() as u32 - u32::from(self.source.has_answers());
        WindowSpec {
            window: number,
            tokens,
            first_scored,
            n_rows: scored_end.saturating_sub(first_scored),
        }
    }

    /// Tokens to leave in a prompt for each answer that it will hold. Read again as text, an answer
    /// can have a few more tokens than it was generated with, and a template adds some.
    fn room(&self) -> usize {
        let generate = self.source.generate.map(|most| most as usize);
        generate.map_or(0, |most| most + most / 8 + 32)
    }

    /// The fault of a prompt that is too short or too long: it needs a token to predict and one to
    /// predict it from, and must fit in a window together with its answer.
    fn length_fault(&self, n_prompt: usize, n_given: usize) -> Option<String> {
        let generated = self.source.generate.unwrap_or(0) as usize;
        let (least, too_few, and_more) = match (generated, n_given) {
            (0, 0) => (2, "fewer than two tokens", String::new()),
            (0, n) => (1, "no token", format!(" and an answer of {n}")),
            (n, _) => (1, "no token", format!(" and {n} generated")),
        };
        if n_prompt < least {
            return Some(format!(
                "the prompt has {too_few}: leave it out, or use a chat template that adds some"
            ));
        }
        let most = self.source.n_ctx.unwrap_or(MAX_N_CTX) as usize;
        (n_prompt.saturating_add(generated + n_given) > most).then(|| {
            format!(
                "a prompt of {n_prompt} tokens{and_more} does not fit in a window of {most}: raise --n-ctx, or shorten it"
            )
        })
    }

    /// The file and the prompt's place in it, for messages.
    fn name(&self, line: &PromptLine) -> String {
        format!("{}: {}", self.source.path.display(), line.place)
    }

    /// An error about one prompt, in one line with the file and its line.
    fn fault(&self, line: &PromptLine, what: &str) -> anyhow::Error {
        anyhow!("{}: {what}", self.name(line))
    }

    fn refused(&self, line: &PromptLine, error: &TemplateError) -> anyhow::Error {
        self.fault(line, &format!("the chat template refuses it: {error}"))
    }
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

/// The dialogues of an input, which a model is to answer.
pub struct Asked<'t> {
    pub dialogues: Vec<Dialogue<'t>>,
    pub answers: Answers,
    /// True if the first scored position is not the one before the answer.
    pub is_prompt_scored: bool,
}

impl Asked<'_> {
    /// Lets the model answer the prompts of the selected windows, which are planned for the longest
    /// answers, and all prompts that come before one of them in its conversation. A window whose
    /// conversation has ended before it loses its tokens and its rows: it stays in the plan, since
    /// parts share that.
    ///
    /// # Errors
    /// Those of [`answer`].
    pub fn answer<M: Model>(
        mut self,
        input: &mut PreparedInput,
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
        self.dialogues.retain_mut(|of| {
            let last = wanted.range(of.window..of.window + of.n_left).next_back();
            of.n_left = last.map_or(0, |last| last + 1 - of.window);
            last.is_some()
        });
        let n_prompts = self.dialogues.iter().map(|of| u64::from(of.n_left)).sum();
        (generation.on_step)(GenerationStep::Begin {
            n_prompts,
            n_tokens: n_prompts * u64::from(self.answers.most),
        })?;
        let mut generated = answer(model, self.dialogues, &self.answers, generation)?;
        let mut n_unanswered = 0;
        for window in windows {
            let answered = generated.answers.remove(&window.window);
            n_unanswered += u64::from(answered.is_none());
            let n_prompt = answered.as_ref().map_or(0, |of| of.prompt.len() as u32);
            if let Some(prompt) = prompts.get_mut(window.window as usize) {
                prompt.n_tokens = n_prompt;
            }
            fill(window, answered, self.is_prompt_scored);
        }
        let why = generated.cut_off.into_values().next();
        input.unanswered = why.map(|why| (n_unanswered, why)).filter(|(n, _)| *n > 0);
        input.plan.was_planned_as(planned, n_first);
        Ok(())
    }
}

/// Whether `-n` has cut a window within its prompt, so that it needs no answer.
fn ends_in_its_prompt(window: &WindowSpec, prompts: &[Prompt]) -> bool {
    let prompt = prompts.get(window.window as usize);
    prompt.is_some_and(|of| !of.continues && window.tokens.len() <= of.n_tokens as usize)
}

/// Puts a prompt and its answer into the window that was planned for them, with at most the rows that
/// were planned; without an answer it is empty.
fn fill(window: &mut WindowSpec, answered: Option<Answered>, is_prompt_scored: bool) {
    let Some(Answered { prompt, answer }) = answered else {
        (window.tokens, window.first_scored, window.n_rows) = (Vec::new(), 0, 0);
        return;
    };
    if !is_prompt_scored {
        window.first_scored = (prompt.len() as u32).saturating_sub(1);
    }
    window.tokens = [prompt, answer].concat();
    let scored_end = window.tokens.len().saturating_sub(1) as u32;
    let n_rows = scored_end.saturating_sub(window.first_scored);
    if window.n_rows < n_rows {
        // `-n` has cut it: the token after the last row stays.
        let n_tokens = window.first_scored + window.n_rows + 1;
        window.tokens.truncate(n_tokens as usize);
    }
    window.n_rows = window.n_rows.min(n_rows);
}
