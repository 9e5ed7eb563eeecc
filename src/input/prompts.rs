//! Prompts become windows: the chat template turns them into texts, the tokenizer into tokens, and
//! the model may answer them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use kl_formats::{Groups, TextIdentity, longest_window};

use super::chat_template::ChatTemplate;
use super::dialogue::answer_prompts;
use super::generation::{Answers, Generation, GenerationStep};
use super::prompt_file::{self, PromptLine};
use super::prompt_windows::PromptWindows;
use super::spans::Spans;
use super::{Plan, PreparedInput, PromptSource, Selection, TemplateChoice};
use crate::engine::Model;
use crate::report::Warning;

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
        let source = self.source;
        let maker = PromptWindows {
            source,
            template: template.as_ref(),
            model,
        };
        let (mut windows, mut prompts, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        let (mut n_tokens, mut add_bos, mut n_turns_left_out) = (0, true, 0);
        let mut dialogues = Vec::new();
        for line in lines {
            (generation.on_step)(GenerationStep::Prompt)?;
            let group = line.group.clone();
            let planned = maker.of(windows.len() as u32, line)?;
            n_tokens += planned.n_tokens;
            n_turns_left_out += planned.n_left_out;
            add_bos &= planned.has_inserted_bos;
            for (window, prompt) in planned.windows {
                windows.push(window);
                prompts.push(prompt);
                groups.push(group.clone());
            }
            dialogues.extend(planned.dialogue);
        }
        self.text.n_tokens = Some(n_tokens);
        let groups: Option<Vec<&str>> = groups.iter().map(Option::as_deref).collect();
        let groups = groups.map(Groups::of_each);
        let plan = Plan::of(windows);
        if plan.n_rows() == 0 {
            bail!(
                "{}: no prompt is long enough for a scored position: lower --score",
                source.path.display()
            );
        }
        let first_scored = plan.windows.iter().map(|window| window.first_scored).min();
        let longest_of_all = longest_window(&plan.windows);
        let plan = plan.limited(selection.max_rows);
        // Answers can make later prompts longer than they were planned.
        let may_grow = source.generate.is_some() && prompts.iter().any(|prompt| prompt.continues);
        let n_ctx = source.n_ctx.filter(|_| may_grow);
        let spans = source.has_answers().then(|| {
            let template = self.template_source(model).map(|(text, _)| text);
            Spans::new(template, &source.spans)
        });
        // Refused before hours of work.
        let part = selection.part;
        let shard = part.map(|part| part.of(plan.windows.len(), plan.n_rows()));
        let mut input = PreparedInput {
            shard: shard.transpose()?,
            n_ctx: source.n_ctx.unwrap_or(longest_of_all),
            longest_window: n_ctx.unwrap_or_else(|| longest_window(&plan.windows)),
            first_scored: first_scored.unwrap_or(0),
            add_bos,
            text: self.text.clone(),
            groups,
            plan,
            chat_template: template.as_ref().map(|template| template.sha256.clone()),
            generated: source.generate,
            spans: spans
                .as_ref()
                .map_or_else(Vec::new, |spans| spans.names().to_vec()),
            sampling: source.sampling,
            n_turns_left_out,
            prompts: Some(prompts),
            ..PreparedInput::default()
        };
        (generation.on_plan)(&input)?;
        let (plan, prompts) = (&mut input.plan, input.prompts.get_or_insert_default());
        if let Some(most) = source.generate {
            let n_first = plan.first(selection.n_first_rows).len();
            let is_wanted = |i| i < n_first || part.is_none_or(|part| part.has(i));
            let planned = plan.windows.clone();
            let windows = plan.windows.iter_mut().enumerate();
            let windows = windows.filter_map(|(i, window)| is_wanted(i).then_some(window));
            let answers = Answers {
                most,
                n_ctx: n_ctx.unwrap_or(longest_of_all),
                sampling: source.sampling,
            };
            input.unanswered = answer_prompts(
                &mut windows.collect::<Vec<_>>(),
                prompts,
                dialogues,
                |tokens, n_prompt| maker.first_scored(tokens, n_prompt),
                &answers,
                model,
                &mut generation,
            )?;
            plan.was_planned_as(planned, n_first);
        }
        plan.keep(part)?;
        if let Some(spans) = spans {
            for window in &plan.windows {
                if let Some(prompt) = prompts.get_mut(window.window as usize) {
                    prompt.spans = spans.of_window(&window.tokens, prompt.n_tokens, model);
                }
            }
        }
        Ok(input)
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
}
