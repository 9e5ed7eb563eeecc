//! Lets a model answer prompts, several at once.

mod pace;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem::take;
use std::time::Instant;

use anyhow::{Context as _, Result};
use kl_engine::{Appended, ContextOptions, Decoder, Model, Sampler, top_token};
use kl_formats::Sampling;

use super::AnswerFile;
use super::chat::Chat;
pub use pace::Generated;
use pace::{Pace, Waiting};

/// A prompt to answer, or several of one conversation. Each becomes a window.
pub struct Dialogue {
    /// The file and the line that it comes from, for messages.
    pub line: String,
    /// The window of the prompt; those of later prompts follow.
    pub window: u32,
    /// The prompts that are left.
    pub n_left: u32,
    /// The conversation after its first prompt; `None` for a prompt without a chat template.
    pub conversation: Option<Chat>,
    /// The prompt and its answer so far; before any is answered, the first prompt.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt that is answered; 0 before the first.
    pub n_prompt: usize,
    /// Chooses the answer's tokens; `None`: the top token is chosen.
    pub sampler: Option<Sampler>,
}

impl Dialogue {
    /// The answer so far: at least one token where a prompt is answered. Its last token ends
    /// it, or is where the room was full.
    fn answer(&self) -> &[u32] {
        self.tokens.get(self.n_prompt..).unwrap_or_default()
    }

    /// The tokens of the prompt after this answer: all that the model sees before it answers. `None` if
    /// nothing is left to answer, or the reason why the chat template refuses the conversation.
    ///
    /// # Errors
    /// A prompt that cannot be tokenized.
    fn prompt_after(&mut self, model: &dyn Model) -> Result<Option<Result<Vec<u32>, String>>> {
        let tokens_before_end = match self.answer().split_last() {
            Some((last, before)) if model.is_end_of_generation(*last) => before,
            _ => self.answer(),
        };
        let answer_text = model.text(tokens_before_end);
        let conversation = self.conversation.as_mut();
        match conversation.and_then(|conversation| conversation.next(&answer_text)) {
            None => Ok(None),
            Some(Ok(text)) => {
                let tokens = model.tokenize(&text, true);
                let tokens = tokens.with_context(|| self.line.clone())?;
                Ok(Some(Ok(with_bos(model, tokens).0)))
            }
            Some(Err(error)) => Ok(Some(Err(format!(
                "the chat template refuses the conversation with the model's answers: {error}"
            )))),
        }
    }

    /// Adds the token that a row gives to the answer.
    fn push(&mut self, row: &[f32], model: &dyn Model) -> Result<()> {
        let row = &*without_suppressed(row, &model.facts().suppressed_tokens);
        let token = match &mut self.sampler {
            Some(sampler) => sampler.choose(row)?,
            None => top_token(row),
        };
        self.tokens.push(token.with_context(|| {
            let (path, line) = (model.facts().path.display(), &self.line);
            let last = self.tokens.len().saturating_sub(1);
            format!(
                "{path}: {line}: cannot generate a token after position {last}: the logits are not finite: leave out the prompt, or use another model"
            )
        })?);
        Ok(())
    }
}

/// The row without the logits of these tokens, as llama.cpp's sampler (`common_sampler_init`) has it.
fn without_suppressed<'r>(row: &'r [f32], suppressed: &[u32]) -> Cow<'r, [f32]> {
    let mut row = Cow::Borrowed(row);
    for &token in suppressed {
        if let Some(logit) = row.to_mut().get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    row
}

/// The tokens of a prompt, a BOS before them where the model wants one and they do not begin with it;
/// and true if it was inserted.
pub fn with_bos(model: &dyn Model, mut tokens: Vec<u32>) -> (Vec<u32>, bool) {
    let bos_to_insert = model
        .facts()
        .bos()
        .filter(|bos| tokens.first() != Some(bos));
    tokens.splice(0..0, bos_to_insert);
    (tokens, bos_to_insert.is_some())
}

/// By window, a prompt and its answer with the prompt's length; or, of the first prompt that a conversation
/// does not reach, the reason, with the file and the line.
pub type Answered = BTreeMap<u32, Result<(Vec<u32>, usize), String>>;

/// Gets what has been generated so far, after each decode call and each answer; its error ends the work.
pub type OnGenerated<'s> = &'s mut dyn FnMut(Generated) -> Result<()>;

/// A model and its decoder at work on the answers of conversations.
pub struct Answering<'a> {
    model: &'a dyn Model,
    decoder: Box<dyn Decoder + 'a>,
    options: ContextOptions,
    /// Most tokens of an answer.
    max_tokens: usize,
    /// The way to choose them; `None`: greedily.
    sampling: Option<Sampling>,
    answer_file: Option<&'a mut AnswerFile>,
    on_step: OnGenerated<'a>,
    pace: Pace,
    answered: Answered,
}

impl<'a> Answering<'a> {
    /// Creates a context with these options, for answers of at most `max_tokens` tokens.
    ///
    /// # Errors
    /// A window that the model cannot have, or not enough memory.
    pub fn new(
        model: &'a dyn Model,
        options: ContextOptions,
        (max_tokens, sampling): (usize, Option<Sampling>),
        answer_file: Option<&'a mut AnswerFile>,
        on_step: OnGenerated<'a>,
    ) -> Result<Self> {
        // The last token is not decoded here, but will be part of a window.
        model.facts().check_window(options.n_ctx.into())?;
        Ok(Self {
            model,
            decoder: model.decoder(&options)?,
            options,
            max_tokens,
            sampling,
            answer_file,
            on_step,
            pace: Pace::new(Waiting::default()),
            answered: Answered::default(),
        })
    }

    /// Answers conversations. Each sequence of the context holds one open conversation. Each prompt is
    /// decoded by itself, in calls of a batch; then the open answers grow together, by one token each in a
    /// call. A conversation ends before a prompt that leaves no room for an answer.
    ///
    /// # Errors
    /// Those of the conversations, of the model and of `on_step`, and a row without a top token.
    pub fn answer(mut self, dialogues: Vec<Dialogue>) -> Result<(Answered, Generated)> {
        let (max_tokens, n_ctx) = self.limits();
        self.pace = Pace::new(Waiting::new(&dialogues, max_tokens, n_ctx));
        let mut slots: Vec<Option<Dialogue>> = (0..self.options.n_seq).map(|_| None).collect();
        let mut waiting = dialogues.into_iter();
        loop {
            for (sequence, slot) in slots.iter_mut().enumerate() {
                while slot
                    .as_ref()
                    .is_none_or(|dialogue| self.has_ended(dialogue))
                {
                    let mut begin_next = || {
                        let dialogue = waiting.next()?;
                        self.pace.waiting.begin(&dialogue, max_tokens, n_ctx);
                        Some(dialogue)
                    };
                    let Some(dialogue) = slot.take().or_else(&mut begin_next) else {
                        break;
                    };
                    *slot = self.next_prompt(dialogue, sequence)?;
                }
            }
            let growing: Vec<(usize, &mut Dialogue)> = slots
                .iter_mut()
                .enumerate()
                .filter_map(|(sequence, slot)| Some((sequence, slot.as_mut()?)))
                .collect();
            if growing.is_empty() {
                return Ok((self.answered, self.pace.generated()));
            }
            self.grow(growing)?;
        }
    }

    /// True if a conversation has no prompt to answer: none yet, or one whose answer ends the
    /// generation, or has no room for more.
    fn has_ended(&self, dialogue: &Dialogue) -> bool {
        let answer = dialogue.answer();
        dialogue.n_prompt == 0
            || answer.len() >= self.max_tokens
            || dialogue.tokens.len() >= self.options.n_ctx as usize
            || answer
                .last()
                .is_some_and(|&last| self.model.is_end_of_generation(last))
    }

    /// Decodes a conversation, whose last answer has ended, up to the first token of its next answer;
    /// `None`: the conversation ends.
    fn next_prompt(&mut self, mut dialogue: Dialogue, sequence: usize) -> Result<Option<Dialogue>> {
        let prompt = if dialogue.n_prompt == 0 {
            (dialogue.n_left > 0).then(|| Ok(take(&mut dialogue.tokens)))
        } else {
            self.finish(&mut dialogue)?
        };
        let (Some(prompt), n_ctx) = (prompt, self.options.n_ctx) else {
            return Ok(None);
        };
        dialogue.n_left = dialogue.n_left.saturating_sub(1);
        let fitting_prompt = prompt.and_then(|prompt| match prompt.len() {
            n if (1..n_ctx as usize).contains(&n) => Ok(prompt),
            n => Err(format!(
                "a prompt of {n} tokens and an answer do not fit in a window of {n_ctx}: use a larger --n-ctx"
            )),
        });
        match fitting_prompt {
            Ok(prompt) => (dialogue.n_prompt, dialogue.tokens) = (prompt.len(), prompt),
            Err(reason) => {
                let reason = format!("{}: {reason}", dialogue.line);
                self.answered.insert(dialogue.window, Err(reason));
                return Ok(None);
            }
        }
        self.begin(&mut dialogue, sequence)?;
        Ok(Some(dialogue))
    }

    /// Keeps the answer, which has ended, and returns the prompt after it as [`Dialogue::prompt_after`]
    /// does.
    fn finish(&mut self, dialogue: &mut Dialogue) -> Result<Option<Result<Vec<u32>, String>>> {
        // Before the next prompt, which may fail.
        if let Some(answer_file) = &mut self.answer_file {
            let (prompt, answer) = dialogue.tokens.split_at(dialogue.n_prompt);
            answer_file.keep(dialogue.window, prompt, answer)?;
        }
        let mut next_prompt = None;
        if dialogue.n_left > 0 {
            next_prompt = dialogue.prompt_after(self.model)?;
        }
        let answered = (take(&mut dialogue.tokens), dialogue.n_prompt);
        self.answered.insert(dialogue.window, Ok(answered));
        dialogue.window += 1;
        self.pace.end_answer();
        (self.on_step)(self.pace.generated())?;
        Ok(next_prompt)
    }

    /// Begins the answer to a prompt. One that is known is whole. Otherwise the prompt is decoded, in
    /// place of what the sequence held, and the first token of the answer chosen.
    fn begin(&mut self, dialogue: &mut Dialogue, sequence: usize) -> Result<()> {
        let known_answer = self
            .answer_file
            .as_ref()
            .and_then(|answer_file| answer_file.answer(dialogue.window, &dialogue.tokens));
        if let Some(answer) = known_answer {
            dialogue.tokens.extend(answer);
            // `-n` may have cut a window that was stored.
            if self.has_ended(dialogue) {
                return Ok(());
            }
            dialogue.tokens.truncate(dialogue.n_prompt);
        }
        dialogue.sampler = self
            .sampling
            .as_ref()
            .map(|sampling| Sampler::new(sampling, dialogue.window))
            .transpose()?;
        self.decoder.forget(sequence)?;
        for start in (0..dialogue.n_prompt).step_by(self.n_batch()) {
            let end = dialogue.n_prompt.min(start + self.n_batch());
            let started = Instant::now();
            let rows = self.decoder.append(&[Appended {
                sequence,
                window: dialogue.window,
                tokens: dialogue.tokens.get(..end).unwrap_or_default(),
                start,
            }])?;
            if let Some(row) = rows.last().filter(|_| end == dialogue.n_prompt) {
                dialogue.push(row, self.model)?;
            }
            let time = started.elapsed();
            self.pace
                .read_prompt(end - start, dialogue.answer().len(), time);
            (self.on_step)(self.pace.generated())?;
        }
        Ok(())
    }

    /// Adds one token to each of these answers, which come with their sequences.
    fn grow(&mut self, mut open: Vec<(usize, &mut Dialogue)>) -> Result<()> {
        let (started, n_open) = (Instant::now(), open.len());
        for dialogues in open.chunks_mut(self.n_batch()) {
            let appended: Vec<Appended<'_>> = dialogues
                .iter()
                .map(|(sequence, dialogue)| Appended {
                    sequence: *sequence,
                    window: dialogue.window,
                    tokens: &dialogue.tokens,
                    start: dialogue.tokens.len().saturating_sub(1),
                })
                .collect();
            let rows = self.decoder.append(&appended)?;
            for ((_, dialogue), row) in dialogues.iter_mut().zip(rows) {
                dialogue.push(row, self.model)?;
            }
        }
        let tokens_left: Vec<(u64, u64)> = open
            .iter()
            .map(|(_, dialogue)| self.tokens_left(dialogue))
            .collect();
        let n_seq = self.options.n_seq.into();
        self.pace
            .grow(n_open, started.elapsed(), tokens_left.into_iter(), n_seq);
        (self.on_step)(self.pace.generated())
    }

    /// The most tokens that a conversation may still generate, and those of its prompts that are left.
    fn tokens_left(&self, dialogue: &Dialogue) -> (u64, u64) {
        let (max_tokens, n_ctx) = self.limits();
        let room = n_ctx.saturating_sub(dialogue.tokens.len() as u64);
        let mut left_of_answer =
            room.min(max_tokens.saturating_sub(dialogue.answer().len() as u64));
        if self.has_ended(dialogue) {
            left_of_answer = 0;
        }
        let n_later = u64::from(dialogue.n_left);
        (left_of_answer + n_later * max_tokens, n_later * n_ctx)
    }

    /// The most tokens of an answer and of a window.
    fn limits(&self) -> (u64, u64) {
        (self.max_tokens as u64, self.options.n_ctx.into())
    }

    /// Most tokens of a decode call.
    fn n_batch(&self) -> usize {
        self.options.calls.n_batch.max(1) as usize
    }
}

#[cfg(test)]
mod tests;
