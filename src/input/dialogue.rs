//! The windows of prompts get the model's answers.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use kl_formats::{Prompt, WindowSpec};

use super::chat::Exchange;
use super::generation::{Answered, Answers, Generation, GenerationStep, answer};
use super::prompts::with_bos;
use super::{PreparedInput, Selection};
use crate::engine::{Model, Sampler, top_token};

/// A prompt to answer, or several of one conversation. Each becomes a window.
pub struct Dialogue<'t> {
    /// The file and the line that it comes from, for messages.
    pub line: String,
    /// The window of the prompt; those of later prompts follow.
    pub window: u32,
    /// The prompts that are left.
    pub n_left: u32,
    /// The conversation after its first prompt; `None` for a prompt without a chat template.
    pub exchange: Option<Exchange<'t>>,
    /// The prompt and its answer so far; before the first call of [`Self::next`], the first prompt.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt that is answered; 0 before the first.
    pub n_prompt: usize,
    /// Chooses the answer's tokens; `None`: the top token is chosen.
    pub sampler: Option<Sampler>,
}

/// The next step of a conversation.
pub enum Next {
    /// The tokens of a prompt: all that the model sees before it answers.
    Prompt(Vec<u32>),
    /// Nothing is left to answer.
    End,
    /// The chat template refuses the conversation with the last answer, for this reason.
    CutOff(String),
}

impl Dialogue<'_> {
    /// The next prompt, after the answer to the last one. The first call has no answer.
    ///
    /// # Errors
    /// A prompt that cannot be tokenized.
    pub fn next<M: Model>(&mut self, answer: Option<&[u32]>, model: &M) -> Result<Next> {
        if answer.is_some() {
            self.window += 1;
        }
        let Some(n_left) = self.n_left.checked_sub(1) else {
            return Ok(Next::End);
        };
        self.n_left = n_left;
        let Some(answer) = answer else {
            return Ok(Next::Prompt(std::mem::take(&mut self.tokens)));
        };
        let ended = answer.split_last();
        let ended = ended.filter(|(last, _)| model.is_end_of_generation(**last));
        let said = model.text(ended.map_or(answer, |(_, said)| said));
        match self
            .exchange
            .as_mut()
            .and_then(|exchange| exchange.next(&said))
        {
            None => Ok(Next::End),
            Some(Ok(text)) => {
                let (tokens, _) = with_bos(model, model.tokenize(&text, true)?);
                Ok(Next::Prompt(tokens))
            }
            Some(Err(error)) => Ok(Next::CutOff(format!(
                "the chat template refuses the conversation with the model's answers: {error}"
            ))),
        }
    }

    /// The prompt and the answer, if it has a prompt.
    pub fn answered(&self) -> Option<Answered> {
        let (prompt, answer) = self.tokens.split_at_checked(self.n_prompt)?;
        (!prompt.is_empty()).then(|| Answered {
            prompt: prompt.to_vec(),
            answer: answer.to_vec(),
        })
    }

    /// Adds the token that a row gives to the answer.
    pub fn push(&mut self, row: &[f32], model: &impl Model) -> Result<()> {
        let token = match &mut self.sampler {
            Some(sampler) => sampler.choose(row),
            None => top_token(row),
        };
        let (line, last) = (&self.line, self.tokens.len().saturating_sub(1));
        let token = token.ok_or_else(|| {
            let path = model.facts().path.display();
            anyhow!(
                "{path}: {line}: cannot generate a token after position {last}: the logits are not finite: leave out the prompt, or use another model"
            )
        })?;
        self.tokens.push(token);
        Ok(())
    }

    /// Leaves out the prompts after the last wanted window; returns whether any is wanted.
    fn ends_with_the_last_of(&mut self, wanted: &BTreeSet<u32>) -> bool {
        let windows = self.window..self.window + self.n_left;
        let last = wanted.range(windows).next_back();
        self.n_left = last.map_or(0, |last| last + 1 - self.window);
        last.is_some()
    }
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
        let mut windows = Vec::new();
        for (index, window) in input.plan.windows.iter_mut().enumerate() {
            if is_selected(index) && !ends_in_its_prompt(window, prompts) {
                windows.push(window);
            }
        }
        let wanted: BTreeSet<u32> = windows.iter().map(|window| window.window).collect();
        self.dialogues
            .retain_mut(|of| of.ends_with_the_last_of(&wanted));
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
