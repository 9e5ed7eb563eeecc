//! Prompts become windows: the chat template turns them into texts, the tokenizer into tokens, and
//! the model may answer them.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use kl_formats::{
    Groups, MAX_N_CTX, Messages, Prompt, PromptContent, TextIdentity, Variables, WindowSpec,
    longest_window,
};

use super::chat_template::{self, ChatTemplate, Given, TemplateError, Turn};
use super::generation::{Answers, Asked, Conversation, Generation, GenerationStep, answer};
use super::prompt_file::{self, PromptLine};
use super::spans::Spans;
use super::{Plan, PreparedInput, PromptSource, Selection, TemplateChoice};
use crate::engine::Model;
use crate::report::Warning;

/// Prompts that were read, and the chat template if it comes from a file.
pub struct RawPrompts<'s> {
    pub(super) source: &'s PromptSource,
    text: TextIdentity,
    lines: Vec<PromptLine>,
    /// The chat template of a file.
    template: Option<String>,
}

impl<'s> RawPrompts<'s> {
    /// Reads the prompts, and the template if it is in a file.
    pub fn read(source: &'s PromptSource, warnings: &mut Vec<Warning>) -> Result<Self> {
        let (text, lines) = prompt_file::read(&source.path, source.max_prompts, warnings)?;
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

    /// Makes the windows of the prompts with `model`'s tokenizer.
    pub fn prepare<M: Model>(
        mut self,
        model: &M,
        selection: &Selection,
        mut generation: Generation<'_>,
    ) -> Result<PreparedInput> {
        let template = self.template(model)?;
        let lines = std::mem::take(&mut self.lines);
        let groups = lines.iter().map(|line| line.group.as_deref());
        let groups = groups.collect::<Option<Vec<_>>>().map(Groups::of_each);
        let (mut windows, mut prompts) = (Vec::new(), Vec::new());
        let (mut n_tokens, mut add_bos) = (0, true);
        for (number, line) in (0..).zip(lines) {
            (generation.on_step)(GenerationStep::Prompt)?;
            let (window, prompt, has_inserted_bos) =
                self.window(number, line, template.as_ref(), model)?;
            // The prompts' own tokens.
            n_tokens += u64::from(prompt.n_tokens) - u64::from(has_inserted_bos);
            add_bos &= has_inserted_bos;
            windows.push(window);
            prompts.push(prompt);
        }
        self.text.n_tokens = Some(n_tokens);
        let source = self.source;
        let plan = Plan::of(windows);
        if plan.n_rows() == 0 {
            bail!(
                "{}: no prompt is long enough for a scored position: lower --score",
                source.path.display()
            );
        }
        let first_scored = plan.windows.iter().map(|window| window.first_scored).min();
        let longest_of_all = longest_window(&plan.windows);
        let mut plan = plan.limited(selection.max_rows);
        let longest_window = longest_window(&plan.windows);
        if let Some(most) = source.generate {
            let n_first = plan.first(selection.n_first_rows).len();
            if let Some(part) = selection.part {
                // Refused before hours of work.
                part.of(plan.windows.len(), plan.n_rows())?;
            }
            let is_wanted = |i| i < n_first || selection.part.is_none_or(|part| part.has(i));
            let planned = plan.windows.clone();
            let windows = plan.windows.iter_mut().enumerate();
            let windows = windows.filter_map(|(i, window)| is_wanted(i).then_some(window));
            let answers = Answers {
                most,
                n_ctx: longest_of_all,
                sampling: source.sampling,
            };
            answer_prompts(
                &mut windows.collect::<Vec<_>>(),
                &prompts,
                &answers,
                model,
                &mut generation,
            )?;
            plan.was_planned_as(planned, n_first);
        }
        let shard = plan.keep(selection.part)?;
        let mut span_names = Vec::new();
        if source.generate.is_some() {
            let spans = Spans::new(
                self.template_source(model).map(|(text, _)| text),
                &source.spans,
            );
            for window in &plan.windows {
                if let Some(prompt) = prompts.get_mut(window.window as usize) {
                    prompt.spans = spans.of_window(&window.tokens, prompt.n_tokens, model);
                }
            }
            span_names = spans.names().to_vec();
        }
        Ok(PreparedInput {
            shard,
            n_ctx: source.n_ctx.unwrap_or(longest_of_all),
            longest_window,
            first_scored: first_scored.unwrap_or(0),
            add_bos,
            text: self.text,
            groups,
            plan,
            prompts: Some(prompts),
            chat_template: template.map(|template| template.sha256),
            generated: source.generate,
            spans: span_names,
            sampling: source.sampling,
            ..PreparedInput::default()
        })
    }

    /// Compiles the template that is applied to each prompt, if there is one.
    fn template<M: Model>(&self, model: &M) -> Result<Option<ChatTemplate>> {
        let Some((source, path)) = self.template_source(model) else {
            return Ok(None);
        };
        let (bos, eos) = model.facts().bos_and_eos_text.clone();
        let template = ChatTemplate::new(source, bos, eos).map_err(|error| {
            anyhow!(
                "{}: its chat template cannot be used: {error}; choose another with --chat-template-file, or use --no-chat-template",
                path.display()
            )
        })?;
        Ok(Some(template))
    }

    /// The source of the chat template, if there is one, and the file that holds it.
    fn template_source<'a, M: Model>(&'a self, model: &'a M) -> Option<(&'a str, &'a Path)> {
        let facts = model.facts();
        match (&self.source.template, &self.template, &facts.chat_template) {
            (TemplateChoice::File(path), Some(source), _) => Some((source, path)),
            (TemplateChoice::OfModel, _, Some(source)) => Some((source, &facts.path)),
            _ => None,
        }
    }

    /// An error about one prompt, in one line with the file and its line.
    fn fault(&self, line: &PromptLine, what: impl Display) -> anyhow::Error {
        anyhow!(
            "{}: line {}: {what}",
            self.source.path.display(),
            line.number
        )
    }

    /// Tokenizes a prompt. Returns its window, what a header records of it, and whether a BOS was
    /// inserted, as it is where the model wants one and the prompt does not start with it already.
    ///
    /// Tokens that are to be generated are 0 in the window. The last row of a prompt is scored like that
    /// of a text; the row of the last generated token is not.
    fn window<M: Model>(
        &self,
        number: u32,
        mut line: PromptLine,
        template: Option<&ChatTemplate>,
        model: &M,
    ) -> Result<(WindowSpec, Prompt, bool)> {
        let source = self.source;
        let mut tokens = match (template, &line.content) {
            (Some(template), content) => {
                let (text, given) = rendered(template, content, &line.variables)
                    .map_err(|error| self.fault(&line, error))?;
                line.variables.retain(|name| given.is_used(name));
                model.tokenize(&text, true)?
            }
            (None, PromptContent::Text(text)) => model.tokenize(text, source.parse_special)?,
            (None, PromptContent::Messages(_)) => {
                let advice = match source.template {
                    TemplateChoice::OfModel => {
                        "the model has none: give one with --chat-template-file"
                    }
                    _ => "leave --no-chat-template out",
                };
                bail!(self.fault(&line, format!("messages need a chat template: {advice}")))
            }
        };
        let bos = model
            .facts()
            .bos()
            .filter(|bos| tokens.first() != Some(bos));
        tokens.splice(0..0, bos);
        self.check_length(&line, tokens.len())?;
        let bos_token = model.facts().bos_token;
        let begins_with_bos = bos_token.is_some() && tokens.first() == bos_token.as_ref();
        let n_prompt = tokens.len() as u32;
        let n_tokens = n_prompt + source.generate.unwrap_or(0);
        tokens.resize(n_tokens as usize, 0);
        let first_scored = match source.score {
            Some(score) => score.first(n_tokens, begins_with_bos),
            None => n_prompt.saturating_sub(1),
        };
        let scored_end = n_tokens - u32::from(source.generate.is_some());
        let window = WindowSpec {
            window: number,
            tokens,
            first_scored,
            n_rows: scored_end.saturating_sub(first_scored),
        };
        let mut prompt = Prompt::new(line.content, n_prompt);
        if template.is_some() {
            prompt.variables = line.variables;
        }
        Ok((window, prompt, bos.is_some()))
    }

    /// Refuses a prompt that is too short or too long: it needs a token to predict and one to
    /// predict it from, and must fit in a window together with what is generated.
    fn check_length(&self, line: &PromptLine, n_tokens: usize) -> Result<()> {
        let (generated, least, too_few) = match self.source.generate {
            Some(n) => (n as usize, 1, "no token"),
            None => (0, 2, "fewer than two tokens"),
        };
        if n_tokens < least {
            let what = format!(
                "the prompt has {too_few}: leave it out, or use a chat template that adds some"
            );
            return Err(self.fault(line, what));
        }
        let most = self.source.n_ctx.unwrap_or(MAX_N_CTX) as usize;
        if n_tokens.saturating_add(generated) > most {
            let and_generated = match generated {
                0 => String::new(),
                n => format!(" and {n} generated"),
            };
            let what = format!(
                "a prompt of {n_tokens} tokens{and_generated} does not fit in a window of {most}: raise --n-ctx, or shorten it"
            );
            return Err(self.fault(line, what));
        }
        Ok(())
    }
}

/// Renders a prompt up to where the model answers; a text becomes a message of the user. Returns the
/// variables too, which know what the template has used.
fn rendered(
    template: &ChatTemplate,
    content: &PromptContent,
    variables: &Variables,
) -> Result<(String, Given), String> {
    let messages = match content {
        PromptContent::Messages(messages) => messages.clone(),
        PromptContent::Text(text) => Messages::of_user(text),
    };
    let rendered = || {
        let given = Given::new(variables)?;
        let messages = chat_template::messages(messages.json())?;
        let text = template.render(&messages, &given, Turn::ToAnswer)?;
        Ok((text, given))
    };
    rendered().map_err(|error: TemplateError| format!("the chat template refuses it: {error}"))
}

/// A prompt that is answered once.
struct OneTurn(Option<Vec<u32>>);

impl Conversation for OneTurn {
    fn next(&mut self, _answer: Option<&[u32]>) -> Result<Option<Vec<u32>>> {
        Ok(self.0.take())
    }
}

/// Lets the model answer the prompts of these windows, which are planned for the longest answers: an
/// answer replaces the tokens that follow each prompt. `n_ctx` is the longest window of all, be it one
/// of these or not, so that every part of the prompts is answered by the same context.
fn answer_prompts<M: Model>(
    windows: &mut [&mut WindowSpec],
    prompts: &[Prompt],
    answers: &Answers,
    model: &M,
    generation: &mut Generation<'_>,
) -> Result<()> {
    // A window that `-n` has cut may end within its prompt.
    let mut windows: Vec<(usize, &mut &mut WindowSpec)> = windows
        .iter_mut()
        .filter_map(|window| {
            let n_prompt = prompts.get(window.window as usize)?.n_tokens as usize;
            (n_prompt < window.tokens.len()).then_some((n_prompt, window))
        })
        .collect();
    let asked = windows.iter().map(|(n_prompt, window)| {
        let prompt = window.tokens.iter().take(*n_prompt);
        Asked {
            first_window: window.window,
            conversation: Box::new(OneTurn(Some(prompt.copied().collect()))),
        }
    });
    let asked: Vec<Asked<'_>> = asked.collect();
    (generation.on_step)(GenerationStep::Begin {
        n_prompts: asked.len() as u64,
        n_tokens: asked.len() as u64 * u64::from(answers.most),
    })?;
    let answered = answer(model, asked, answers, generation)?;
    for ((n_prompt, window), turn) in windows.iter_mut().zip(answered.iter().flatten()) {
        let n_planned = window.tokens.len();
        window.tokens.truncate(*n_prompt);
        window.tokens.extend(&turn.answer);
        window.tokens.truncate(n_planned);
        let scored_end = window.tokens.len().saturating_sub(1) as u32;
        window.n_rows = scored_end.saturating_sub(window.first_scored);
    }
    Ok(())
}
