//! Lets a model answer prompts, several at once.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use kl_formats::Sampling;

use super::chat::Conversation;
use super::{AnswerFile, PreparedInput};
use crate::engine::{Appended, ContextOptions, Decoder as _, Model, Sampler, top_token};

/// A prompt, and the model's answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    pub prompt: Vec<u32>,
    /// At least one token. The last one ends the generation, unless there is no room for more.
    pub answer: Vec<u32>,
}

/// The answers of a model.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// By the window that each belongs to.
    pub answers: BTreeMap<u32, Answered>,
    /// The reason why the rest of a conversation has no answer, with the file and the line: by the
    /// first window that has none.
    pub cut_off: BTreeMap<u32, String>,
}

/// The way to choose the tokens of an answer, and how many.
#[derive(Debug, Clone, Copy)]
pub struct Answers {
    /// Most tokens of an answer.
    pub most: u32,
    /// Most tokens of a prompt and its answer together.
    pub n_ctx: u32,
    /// The way to choose; `None`: greedily, the first of equals.
    pub sampling: Option<Sampling>,
}

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
    /// A prompt is about to be tokenized.
    Prompt,
    /// Prompts are about to be answered.
    Begin {
        /// The number of prompts.
        n_prompts: u64,
        /// The most tokens that the answers can have together.
        n_tokens: u64,
    },
    /// A decode call ended.
    Call,
    /// A token was generated.
    Token,
    /// A prompt has its answer.
    Done,
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
    pub conversation: Option<Conversation<'t>>,
    /// The prompt and its answer so far; before the first call of [`Self::next`], the first prompt.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt that is answered; 0 before the first.
    pub n_prompt: usize,
    /// Chooses the answer's tokens; `None`: the top token is chosen.
    pub sampler: Option<Sampler>,
}

impl Dialogue<'_> {
    /// The tokens of the next prompt, after the answer to the last one: all that the model sees before it
    /// answers. The first call has no answer. `None` if nothing is left to answer, or the reason why the
    /// chat template refuses the conversation.
    ///
    /// # Errors
    /// A prompt that cannot be tokenized.
    fn next<M: Model>(
        &mut self,
        answer: Option<&[u32]>,
        model: &M,
    ) -> Result<Option<Result<Vec<u32>, String>>> {
        self.window += u32::from(answer.is_some());
        let Some(n_left) = self.n_left.checked_sub(1) else {
            return Ok(None);
        };
        self.n_left = n_left;
        let Some(answer) = answer else {
            return Ok(Some(Ok(std::mem::take(&mut self.tokens))));
        };
        let ended = answer.split_last();
        let ended = ended.filter(|(last, _)| model.is_end_of_generation(**last));
        let said = model.text(ended.map_or(answer, |(_, said)| said));
        let next = self
            .conversation
            .as_mut()
            .and_then(|conversation| conversation.next(&said));
        Ok(match next {
            None => None,
            Some(Ok(text)) => Some(Ok(with_bos(model, model.tokenize(&text, true)?).0)),
            Some(Err(error)) => Some(Err(format!(
                "the chat template refuses the conversation with the model's answers: {error}"
            ))),
        })
    }

    /// The prompt and the answer, if it has a prompt.
    fn answered(&self) -> Option<Answered> {
        let (prompt, answer) = self.tokens.split_at_checked(self.n_prompt)?;
        (!prompt.is_empty()).then(|| Answered {
            prompt: prompt.to_vec(),
            answer: answer.to_vec(),
        })
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

/// Lets `model` answer these conversations. As many are open at a time as the context has sequences.
/// Each prompt is decoded by itself, in calls of a batch; then the open answers grow together, by one
/// token each in a call. A conversation ends before a prompt that leaves no room for an answer.
///
/// # Errors
/// Those of the conversations, of the model and of `generation`, and a row without a top token.
pub fn answer<M: Model>(
    model: &M,
    dialogues: Vec<Dialogue<'_>>,
    answers: &Answers,
    generation: &mut Generation<'_>,
) -> Result<Generated> {
    // The last token is not decoded here, but will be part of a window.
    model.facts().check_window(answers.n_ctx.into())?;
    let mut options = (generation.context)(answers.n_ctx);
    let n_dialogues = u32::try_from(dialogues.len()).unwrap_or(u32::MAX);
    options.n_seq = options.n_seq.min(n_dialogues).max(1);
    let mut answering = Answering {
        model,
        decoder: model.decoder(&options)?,
        n_batch: options.calls.n_batch.max(1) as usize,
        answers,
        generation,
        done: Generated::default(),
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
    answers: &'r Answers,
    generation: &'r mut Generation<'g>,
    done: Generated,
}

impl<M: Model> Answering<'_, '_, M> {
    /// Whether a conversation has no prompt to answer: none yet, or one whose answer ends the
    /// generation, or has no room for more.
    fn has_ended(&self, of: &Dialogue<'_>) -> bool {
        let answer = of.tokens.get(of.n_prompt..).unwrap_or_default();
        let ends = |&last: &u32| self.model.is_end_of_generation(last);
        of.n_prompt == 0
            || answer.len() >= self.answers.most as usize
            || of.tokens.len() >= self.answers.n_ctx as usize
            || answer.last().is_some_and(ends)
    }

    /// Takes a conversation, whose answer has ended, to the first token of the next answer; `None`:
    /// the conversation ends.
    fn next<'c>(&mut self, mut of: Dialogue<'c>, sequence: usize) -> Result<Option<Dialogue<'c>>> {
        let (window, answered, n_ctx) = (of.window, of.answered(), self.answers.n_ctx);
        // Before the next prompt, which may fail.
        if let (Some(answered), Some(kept)) = (&answered, &mut self.generation.kept) {
            kept.keep(window, answered)?;
        }
        let next = of.next(answered.as_ref().map(|of| &of.answer[..]), self.model)?;
        if let Some(answered) = answered {
            self.done.answers.insert(window, answered);
            self.step(GenerationStep::Done)?;
        }
        let fitting = next.map(|next| match next? {
            prompt if (1..n_ctx as usize).contains(&prompt.len()) => Ok(prompt),
            prompt => Err(format!(
                "a prompt of {} tokens and an answer do not fit in a window of {n_ctx}: use a larger --n-ctx",
                prompt.len()
            )),
        });
        match fitting {
            None => return Ok(None),
            Some(Ok(prompt)) => (of.n_prompt, of.tokens) = (prompt.len(), prompt),
            Some(Err(why)) => {
                let why = format!("{}: {why}", of.line);
                self.done.cut_off.insert(of.window, why);
                return Ok(None);
            }
        }
        self.begin(&mut of, sequence)?;
        Ok(Some(of))
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
        let sampling = self.answers.sampling.as_ref();
        of.sampler = sampling.map(|sampling| Sampler::new(sampling, of.window));
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
            self.step(GenerationStep::Call)?;
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
            self.step(GenerationStep::Call)?;
        }
        Ok(())
    }

    fn step(&mut self, step: GenerationStep) -> Result<()> {
        (self.generation.on_step)(step)
    }
}

#[cfg(test)]
mod tests;
