//! The windows of prompts get the model's answers.

use std::collections::BTreeSet;

use anyhow::Result;
use kl_formats::{Prompt, WindowSpec};

use super::generation::{Answered, Answers, Dialogue, Generation, GenerationStep, answer};
use super::{PreparedInput, Selection};
use crate::engine::Model;

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
