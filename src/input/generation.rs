//! Lets a model answer prompts, several at once.

use std::collections::BTreeMap;
use std::mem::take;

use anyhow::{Context as _, Result};

use super::chat::Chat;
use super::{AnswerFile, PreparedInput, Source};
use crate::engine::{Appended, ContextOptions, Decoder as _, Model, Sampler, top_token};

/// The way to run the model where it is to answer prompts.
pub struct Generation<'g> {
    /// Gives the options of a context for windows of this many tokens.
    pub context: &'g dyn Fn(u32) -> ContextOptions,
    /// Called once, with the windows of all parts as they are planned, before the first answer; an
    /// error ends the work.
    pub on_plan: &'g mut dyn FnMut(&PreparedInput) -> Result<()>,
    /// Called after each decode call, among others; an error ends the work.
    pub on_step: &'g mut dyn FnMut(GenerationStep) -> Result<()>,
    /// The answers of an earlier run, to which new ones are added; `None`: none are kept.
    pub kept: Option<&'g mut AnswerFile>,
}

/// A step in the preparation of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationStep {
    /// So many prompts are about to be answered.
    Begin(u64),
    /// A token was generated.
    Token,
    /// A prompt has its answer.
    Done,
    /// A prompt is about to be tokenized, or a decode call ended.
    Other,
}

/// A prompt to answer, or several of one conversation. Each becomes a window.
pub struct Dialogue<'t> {
    /// The file and the line that it comes from, for messages.
    pub line: String,
    /// The window of the prompt; those of later prompts follow.
    pub window: u32,
    /// The prompts that are left.
    pub n_left: u32,
    /// The conversation after its first prompt; `None` for a prompt without a chat template.
    pub conversation: Option<Chat<'t>>,
    /// The prompt and its answer so far; before any is answered, the first prompt.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt that is answered; 0 before the first.
    pub n_prompt: usize,
    /// Chooses the answer's tokens; `None`: the top token is chosen.
    pub sampler: Option<Sampler>,
}

impl Dialogue<'_> {
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
    fn prompt_after<M: Model>(&mut self, model: &M) -> Result<Option<Result<Vec<u32>, String>>> {
        let ended = self.answer().split_last();
        let ended = ended.filter(|(last, _)| model.is_end_of_generation(**last));
        let said = model.text(ended.map_or(self.answer(), |(_, said)| said));
        let conversation = self.conversation.as_mut();
        match conversation.and_then(|of| of.next(&said)) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(Ok(with_bos(model, model.tokenize(&text, true)?).0))),
            Some(Err(error)) => Ok(Some(Err(format!(
                "the chat template refuses the conversation with the model's answers: {error}"
            )))),
        }
    }

    /// Adds the token that a row gives to the answer.
    fn push(&mut self, row: &[f32], model: &impl Model) -> Result<()> {
        let token = match &mut self.sampler {
            Some(sampler) => sampler.choose(row),
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

/// The tokens of a prompt, a BOS before them where the model wants one and they do not begin with it;
/// and true if it was inserted.
pub fn with_bos<M: Model>(model: &M, mut tokens: Vec<u32>) -> (Vec<u32>, bool) {
    let bos = model.facts().bos();
    let bos = bos.filter(|bos| tokens.first() != Some(bos));
    tokens.splice(0..0, bos);
    (tokens, bos.is_some())
}

/// By window, a prompt and its answer with the prompt's length; or, of the first prompt that a conversation
/// does not reach, the reason, with the file and the line.
pub type Answered = BTreeMap<u32, Result<(Vec<u32>, usize), String>>;

/// Lets `model` answer these conversations as `source` asks, each prompt and its answer in `n_ctx` tokens.
/// As many are open at a time as the context has sequences. Each prompt is decoded by itself, in calls of
/// a batch; then the open answers grow together, by one token each in a call. A conversation ends before
/// a prompt that leaves no room for an answer.
///
/// # Errors
/// Those of the conversations, of the model and of `generation`, and a row without a top token.
pub fn answer<M: Model>(
    model: &M,
    dialogues: Vec<Dialogue<'_>>,
    source: &Source,
    n_ctx: u32,
    generation: &mut Generation<'_>,
) -> Result<Answered> {
    // The last token is not decoded here, but will be part of a window.
    model.facts().check_window(n_ctx.into())?;
    let mut options = (generation.context)(n_ctx);
    let n_dialogues = u32::try_from(dialogues.len()).unwrap_or(u32::MAX);
    options.n_seq = options.n_seq.min(n_dialogues).max(1);
    let mut answering = Answering {
        model,
        decoder: model.decoder(&options)?,
        n_batch: options.calls.n_batch.max(1) as usize,
        source,
        n_ctx: n_ctx as usize,
        generation,
        done: Answered::default(),
    };
    let mut waiting = dialogues.into_iter();
    let mut open: Vec<Option<Dialogue<'_>>> = (0..options.n_seq).map(|_| None).collect();
    loop {
        for (sequence, slot) in open.iter_mut().enumerate() {
            while slot.as_ref().is_none_or(|of| answering.has_ended(of)) {
                let Some(of) = slot.take().or_else(|| waiting.next()) else {
                    break;
                };
                *slot = answering.next(of, sequence)?;
            }
        }
        let slots = open.iter_mut().enumerate();
        let growing = slots.filter_map(|(sequence, of)| Some((sequence, of.as_mut()?)));
        let growing: Vec<(usize, &mut Dialogue<'_>)> = growing.collect();
        if growing.is_empty() {
            return Ok(answering.done);
        }
        answering.grow(growing)?;
    }
}

/// Conversations that are answered, and what answers them.
struct Answering<'r, 'g, M: Model> {
    model: &'r M,
    decoder: M::Decoder<'r>,
    /// Most tokens of a decode call.
    n_batch: usize,
    source: &'r Source,
    /// Most tokens of a prompt and its answer together.
    n_ctx: usize,
    generation: &'r mut Generation<'g>,
    done: Answered,
}

impl<M: Model> Answering<'_, '_, M> {
    /// Whether a conversation has no prompt to answer: none yet, or one whose answer ends the
    /// generation, or has no room for more.
    fn has_ended(&self, of: &Dialogue<'_>) -> bool {
        let ends = |&last: &u32| self.model.is_end_of_generation(last);
        of.n_prompt == 0
            || of.answer().len() >= self.source.generate.unwrap_or(0) as usize
            || of.tokens.len() >= self.n_ctx
            || of.answer().last().is_some_and(ends)
    }

    /// Takes a conversation, whose answer has ended, to the first token of the next answer; `None`:
    /// the conversation ends.
    fn next<'c>(&mut self, mut of: Dialogue<'c>, sequence: usize) -> Result<Option<Dialogue<'c>>> {
        let next = if of.n_prompt == 0 {
            (of.n_left > 0).then(|| Ok(take(&mut of.tokens)))
        } else {
            self.finish(&mut of)?
        };
        of.n_left = of.n_left.saturating_sub(1);
        let fitting = next.map(|next| match next? {
            prompt if (1..self.n_ctx).contains(&prompt.len()) => Ok(prompt),
            prompt => Err(format!(
                "a prompt of {} tokens and an answer do not fit in a window of {}: use a larger --n-ctx",
                prompt.len(),
                self.n_ctx
            )),
        });
        match fitting {
            None => return Ok(None),
            Some(Ok(prompt)) => (of.n_prompt, of.tokens) = (prompt.len(), prompt),
            Some(Err(why)) => {
                self.done
                    .insert(of.window, Err(format!("{}: {why}", of.line)));
                return Ok(None);
            }
        }
        self.begin(&mut of, sequence)?;
        Ok(Some(of))
    }

    /// Keeps the answer, which has ended, and returns the prompt after it as [`Dialogue::prompt_after`]
    /// does.
    fn finish(&mut self, of: &mut Dialogue<'_>) -> Result<Option<Result<Vec<u32>, String>>> {
        // Before the next prompt, which may fail.
        if let Some(kept) = &mut self.generation.kept {
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
        self.step(GenerationStep::Done)?;
        Ok(next)
    }

    /// Begins the answer to a prompt. One that is known is whole. Otherwise the prompt is decoded, in
    /// place of what the sequence held, and the first token of the answer chosen.
    fn begin(&mut self, of: &mut Dialogue<'_>, sequence: usize) -> Result<()> {
        let kept = self.generation.kept.as_ref();
        if let Some(answer) = kept.and_then(|kept| kept.answer(of.window, &of.tokens)) {
            of.tokens.extend(answer);
            // `-n` may have cut a window that was stored.
            if self.has_ended(of) {
                return Ok(());
            }
            of.tokens.truncate(of.n_prompt);
        }
        let sampling = self.source.sampling();
        of.sampler = sampling.map(|sampling| Sampler::new(&sampling, of.window));
        self.decoder.forget(sequence)?;
        let mut start = 0;
        while start < of.n_prompt {
            let end = of.n_prompt.min(start + self.n_batch);
            let rows = self.decoder.append(&[Appended {
                sequence,
                window: of.window,
                tokens: of.tokens.get(..end).unwrap_or_default(),
                start,
            }])?;
            if let Some(row) = rows.last().filter(|_| end == of.n_prompt) {
                of.push(row, self.model)?;
                self.step(GenerationStep::Token)?;
            }
            start = end;
            self.step(GenerationStep::Other)?;
        }
        Ok(())
    }

    /// Adds one token to each of these answers, which come with their sequences.
    fn grow(&mut self, mut open: Vec<(usize, &mut Dialogue<'_>)>) -> Result<()> {
        for together in open.chunks_mut(self.n_batch) {
            let appended = together.iter().map(|(sequence, of)| Appended {
                sequence: *sequence,
                window: of.window,
                tokens: &of.tokens,
                start: of.tokens.len().saturating_sub(1),
            });
            let rows = self.decoder.append(&appended.collect::<Vec<_>>())?;
            let n_rows = rows.len();
            for ((_, of), row) in together.iter_mut().zip(rows) {
                of.push(row, self.model)?;
            }
            (0..n_rows).try_for_each(|_| self.step(GenerationStep::Token))?;
            self.step(GenerationStep::Other)?;
        }
        Ok(())
    }

    fn step(&mut self, step: GenerationStep) -> Result<()> {
        (self.generation.on_step)(step)
    }
}

#[cfg(test)]
mod tests;
