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
        let parts = self.answer().split_last();
        let ended = parts.filter(|(last, _)| model.is_end_of_generation(**last));
        let said = model.text(ended.map_or(self.answer(), |(_, said)| said));
        let conversation = self.conversation.as_mut();
        match conversation.and_then(|of| of.next(&said)) {
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
        let row = &*allowed(row, &model.facts().suppressed_tokens);
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
fn allowed<'r>(row: &'r [f32], suppressed: &[u32]) -> Cow<'r, [f32]> {
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
    let wanted = model.facts().bos();
    let bos = wanted.filter(|bos| tokens.first() != Some(bos));
    tokens.splice(0..0, bos);
    (tokens, bos.is_some())
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
    most: usize,
    /// The way to choose them; `None`: greedily.
    sampling: Option<Sampling>,
    kept: Option<&'a mut AnswerFile>,
    on_step: OnGenerated<'a>,
    pace: Pace,
    done: Answered,
}

impl<'a> Answering<'a> {
    /// Creates a context with these options, for answers of at most `most` tokens.
    ///
    /// # Errors
    /// A window that the model cannot have, or not enough memory.
    pub fn new(
        model: &'a dyn Model,
        options: ContextOptions,
        (most, sampling): (usize, Option<Sampling>),
        kept: Option<&'a mut AnswerFile>,
        on_step: OnGenerated<'a>,
    ) -> Result<Self> {
        // The last token is not decoded here, but will be part of a window.
        model.facts().check_window(options.n_ctx.into())?;
        Ok(Self {
            model,
            decoder: model.decoder(&options)?,
            options,
            most,
            sampling,
            kept,
            on_step,
            pace: Pace::new(Waiting::default()),
            done: Answered::default(),
        })
    }

    /// Answers conversations. Each sequence of the context holds one open conversation. Each prompt is
    /// decoded by itself, in calls of a batch; then the open answers grow together, by one token each in a
    /// call. A conversation ends before a prompt that leaves no room for an answer.
    ///
    /// # Errors
    /// Those of the conversations, of the model and of `on_step`, and a row without a top token.
    pub fn answer(mut self, dialogues: Vec<Dialogue>) -> Result<(Answered, Generated)> {
        let (most, n_ctx) = self.limits();
        self.pace = Pace::new(Waiting::new(&dialogues, most, n_ctx));
        let mut open: Vec<Option<Dialogue>> = (0..self.options.n_seq).map(|_| None).collect();
        let mut waiting = dialogues.into_iter();
        loop {
            for (sequence, slot) in open.iter_mut().enumerate() {
                while slot.as_ref().is_none_or(|of| self.has_ended(of)) {
                    let mut begin = || {
                        let of = waiting.next()?;
                        self.pace.waiting.begin(&of, most, n_ctx);
                        Some(of)
                    };
                    let Some(of) = slot.take().or_else(&mut begin) else {
                        break;
                    };
                    *slot = self.next(of, sequence)?;
                }
            }
            let slots = open.iter_mut().enumerate();
            let filled = slots.filter_map(|(sequence, of)| Some((sequence, of.as_mut()?)));
            let growing: Vec<(usize, &mut Dialogue)> = filled.collect();
            if growing.is_empty() {
                return Ok((self.done, self.pace.generated()));
            }
            self.grow(growing)?;
        }
    }

    /// True if a conversation has no prompt to answer: none yet, or one whose answer ends the
    /// generation, or has no room for more.
    fn has_ended(&self, of: &Dialogue) -> bool {
        let ends = |&last: &u32| self.model.is_end_of_generation(last);
        of.n_prompt == 0
            || of.answer().len() >= self.most
            || of.tokens.len() >= self.options.n_ctx as usize
            || of.answer().last().is_some_and(ends)
    }

    /// Decodes a conversation, whose last answer has ended, up to the first token of its next answer;
    /// `None`: the conversation ends.
    fn next(&mut self, mut of: Dialogue, sequence: usize) -> Result<Option<Dialogue>> {
        let next = if of.n_prompt == 0 {
            (of.n_left > 0).then(|| Ok(take(&mut of.tokens)))
        } else {
            self.finish(&mut of)?
        };
        let (Some(next), n_ctx) = (next, self.options.n_ctx) else {
            return Ok(None);
        };
        of.n_left = of.n_left.saturating_sub(1);
        let fitting = next.and_then(|prompt| match prompt.len() {
            n if (1..n_ctx as usize).contains(&n) => Ok(prompt),
            n => Err(format!(
                "a prompt of {n} tokens and an answer do not fit in a window of {n_ctx}: use a larger --n-ctx"
            )),
        });
        match fitting {
            Ok(prompt) => (of.n_prompt, of.tokens) = (prompt.len(), prompt),
            Err(why) => {
                let why = format!("{}: {why}", of.line);
                self.done.insert(of.window, Err(why));
                return Ok(None);
            }
        }
        self.begin(&mut of, sequence)?;
        Ok(Some(of))
    }

    /// Keeps the answer, which has ended, and returns the prompt after it as [`Dialogue::prompt_after`]
    /// does.
    fn finish(&mut self, of: &mut Dialogue) -> Result<Option<Result<Vec<u32>, String>>> {
        // Before the next prompt, which may fail.
        if let Some(kept) = &mut self.kept {
            let (prompt, answer) = of.tokens.split_at(of.n_prompt);
            kept.keep(of.window, prompt, answer)?;
        }
        let mut next = None;
        if of.n_left > 0 {
            next = of.prompt_after(self.model)?;
        }
        let answered = (take(&mut of.tokens), of.n_prompt);
        self.done.insert(of.window, Ok(answered));
        of.window += 1;
        self.pace.end_answer();
        (self.on_step)(self.pace.generated())?;
        Ok(next)
    }

    /// Begins the answer to a prompt. One that is known is whole. Otherwise the prompt is decoded, in
    /// place of what the sequence held, and the first token of the answer chosen.
    fn begin(&mut self, of: &mut Dialogue, sequence: usize) -> Result<()> {
        let kept = self.kept.as_ref();
        if let Some(answer) = kept.and_then(|kept| kept.answer(of.window, &of.tokens)) {
            of.tokens.extend(answer);
            // `-n` may have cut a window that was stored.
            if self.has_ended(of) {
                return Ok(());
            }
            of.tokens.truncate(of.n_prompt);
        }
        let sampling = self.sampling.as_ref();
        let sampler = sampling.map(|sampling| Sampler::new(sampling, of.window));
        of.sampler = sampler.transpose()?;
        self.decoder.forget(sequence)?;
        for start in (0..of.n_prompt).step_by(self.n_batch()) {
            let (end, started) = (of.n_prompt.min(start + self.n_batch()), Instant::now());
            let rows = self.decoder.append(&[Appended {
                sequence,
                window: of.window,
                tokens: of.tokens.get(..end).unwrap_or_default(),
                start,
            }])?;
            let last = rows.last().filter(|_| end == of.n_prompt);
            if let Some(row) = last {
                of.push(row, self.model)?;
            }
            let time = started.elapsed();
            self.pace.read_prompt(end - start, of.answer().len(), time);
            (self.on_step)(self.pace.generated())?;
        }
        Ok(())
    }

    /// Adds one token to each of these answers, which come with their sequences.
    fn grow(&mut self, mut open: Vec<(usize, &mut Dialogue)>) -> Result<()> {
        let (started, n_open) = (Instant::now(), open.len());
        for together in open.chunks_mut(self.n_batch()) {
            let appended = together.iter().map(|(sequence, of)| Appended {
                sequence: *sequence,
                window: of.window,
                tokens: &of.tokens,
                start: of.tokens.len().saturating_sub(1),
            });
            let rows = self.decoder.append(&appended.collect::<Vec<_>>())?;
            for ((_, of), row) in together.iter_mut().zip(rows) {
                of.push(row, self.model)?;
            }
        }
        let left = open.iter().map(|(_, of)| self.left(of));
        let n_seq = self.options.n_seq.into();
        let left = left.collect::<Vec<_>>().into_iter();
        self.pace.grow(n_open, started.elapsed(), left, n_seq);
        (self.on_step)(self.pace.generated())
    }

    /// The most tokens that a conversation may still generate, and those of its prompts that are left.
    fn left(&self, of: &Dialogue) -> (u64, u64) {
        let (most, n_ctx) = self.limits();
        let room = n_ctx.saturating_sub(of.tokens.len() as u64);
        let mut own = room.min(most.saturating_sub(of.answer().len() as u64));
        if self.has_ended(of) {
            own = 0;
        }
        let later = u64::from(of.n_left);
        (own + later * most, later * n_ctx)
    }

    /// The most tokens of an answer and of a window.
    fn limits(&self) -> (u64, u64) {
        (self.most as u64, self.options.n_ctx.into())
    }

    /// Most tokens of a decode call.
    fn n_batch(&self) -> usize {
        self.options.calls.n_batch.max(1) as usize
    }
}

#[cfg(test)]
mod tests;
