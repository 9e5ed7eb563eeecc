//! Conversations that the model answers, one turn after the other.

use std::collections::BTreeMap;

use anyhow::Result;
use kl_formats::{Prompt, WindowSpec};

use super::chat::Chat;
use super::generation::{
    Answered, Answers, Asked, Conversation, Generation, GenerationStep, Next, answer,
};
use super::spans::opening_at_end;
use crate::engine::Model;

/// A prompt to answer, or several of one conversation, each of which becomes a window.
pub struct Dialogue<'t> {
    /// The window of the first prompt; those of the others follow.
    pub first_window: u32,
    /// The line of the file, for messages.
    pub line: String,
    pub turns: Turns<'t>,
}

/// Windows that have no answer and so no rows, because their conversations ended before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    pub n_windows: u64,
    /// The reason, of the first of those conversations, with its file and line.
    pub why: String,
}

/// The prompts of a conversation.
pub enum Turns<'t> {
    /// One, of these tokens.
    One(Vec<u32>),
    /// One after each of these numbers of messages.
    Chat(Chat<'t>, Vec<usize>),
}

impl Dialogue<'_> {
    fn n_turns(&self) -> u32 {
        match &self.turns {
            Turns::One(_) => 1,
            Turns::Chat(_, ends) => ends.len() as u32,
        }
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

/// Lets the model answer the prompts of these windows, which are planned for the longest answers, and
/// all prompts that come before one of them in its conversation. Each window gets its prompt and its
/// answer, and no more rows than it was planned for; `first_scored` gives the first scored position
/// of a window's tokens, of which so many are its prompt. A window whose conversation has ended before
/// it loses its tokens and its rows: it stays in the plan, since parts share that.
///
/// # Errors
/// Those of [`answer`].
pub fn answer_prompts<M: Model>(
    windows: &mut [&mut WindowSpec],
    prompts: &mut [Prompt],
    dialogues: Vec<Dialogue<'_>>,
    first_scored: impl Fn(&[u32], u32) -> u32,
    answers: &Answers,
    model: &M,
    generation: &mut Generation<'_>,
) -> Result<Option<Unanswered>> {
    // A window that `-n` has cut may end within its prompt.
    let is_cut = |window: &WindowSpec, prompts: &[Prompt]| {
        let prompt = prompts.get(window.window as usize);
        prompt.is_some_and(|of| !of.continues && window.tokens.len() <= of.n_tokens as usize)
    };
    let wanted = windows.iter().filter(|window| !is_cut(window, prompts));
    let mut wanted: Vec<u32> = wanted.map(|window| window.window).collect();
    wanted.sort_unstable();
    let mut asked = Vec::new();
    let mut firsts = Vec::new();
    let mut n_answers = 0;
    for dialogue in dialogues {
        let (first, n_turns) = (dialogue.first_window, dialogue.n_turns());
        let line = dialogue.line;
        let end = wanted.partition_point(|window| *window < first + n_turns);
        let last = end
            .checked_sub(1)
            .and_then(|last| wanted.get(last).copied());
        let Some(n) = last.and_then(|last| last.checked_sub(first)).map(|n| n + 1) else {
            continue;
        };
        n_answers += u64::from(n);
        firsts.push(first);
        let conversation: Box<dyn Conversation + '_> = match dialogue.turns {
            Turns::One(prompt) => Box::new(OneTurn(Some(prompt))),
            Turns::Chat(chat, mut ends) => {
                ends.truncate(n as usize);
                Box::new(OpenChat {
                    chat,
                    ends: ends.into_iter(),
                    end: 0,
                    n_inserted: 0,
                    opened: String::new(),
                    model,
                })
            }
        };
        asked.push(Asked {
            first_window: first,
            line,
            conversation,
        });
    }
    (generation.on_step)(GenerationStep::Begin {
        n_prompts: n_answers,
        n_tokens: n_answers * u64::from(answers.most),
    })?;
    let mut answered = answer(model, asked, answers, generation)?;
    let why = answered.iter_mut().find_map(|turns| turns.cut_off.take());
    let of_dialogues = firsts.into_iter().zip(answered);
    let of_windows = of_dialogues.flat_map(|(first, turns)| (first..).zip(turns.answered));
    let mut of_windows: BTreeMap<u32, Answered> = of_windows.collect();
    let mut n_unanswered = 0;
    for window in windows {
        let turn = of_windows.remove(&window.window);
        if turn.is_none() && wanted.binary_search(&window.window).is_err() {
            continue;
        }
        let n_prompt = turn.as_ref().map_or(0, |turn| turn.prompt.len() as u32);
        if let Some(prompt) = prompts.get_mut(window.window as usize) {
            prompt.n_tokens = n_prompt;
        }
        let Some(turn) = turn else {
            n_unanswered += 1;
            (window.tokens, window.first_scored, window.n_rows) = (Vec::new(), 0, 0);
            continue;
        };
        window.tokens = [turn.prompt, turn.answer].concat();
        window.first_scored = first_scored(&window.tokens, n_prompt);
        let scored_end = window.tokens.len().saturating_sub(1) as u32;
        let n_rows = scored_end.saturating_sub(window.first_scored);
        if window.n_rows < n_rows {
            // `-n` has cut it: the token after the last row stays.
            let n_tokens = window.first_scored + window.n_rows + 1;
            window.tokens.truncate(n_tokens as usize);
        }
        window.n_rows = window.n_rows.min(n_rows);
    }
    let why = why.filter(|_| n_unanswered > 0);
    Ok(why.map(|why| Unanswered {
        n_windows: n_unanswered,
        why,
    }))
}

/// A prompt that is answered once.
struct OneTurn(Option<Vec<u32>>);

impl Conversation for OneTurn {
    fn next(&mut self, _answer: Option<&[u32]>) -> Result<Next> {
        Ok(self.0.take().map_or(Next::End, Next::Prompt))
    }
}

/// A conversation under way.
struct OpenChat<'t, 'm, M> {
    chat: Chat<'t>,
    /// The numbers of given messages after which the model answers.
    ends: std::vec::IntoIter<usize>,
    /// The last of them, for which a prompt was made.
    end: usize,
    /// The answers among the messages.
    n_inserted: usize,
    /// The end of the prompt that began the answer.
    opened: String,
    model: &'m M,
}

impl<M: Model> Conversation for OpenChat<'_, '_, M> {
    fn next(&mut self, answer: Option<&[u32]>) -> Result<Next> {
        let Some(end) = self.ends.next() else {
            return Ok(Next::End);
        };
        if let Some(answer) = answer {
            let ended = answer.split_last();
            let ended = ended.filter(|(last, _)| self.model.is_end_of_generation(**last));
            let text = self.model.text(ended.map_or(answer, |(_, said)| said));
            let index = self.end + self.n_inserted;
            self.chat.insert(index, &self.opened, &text);
            self.n_inserted += 1;
        }
        self.end = end;
        let text = match self.chat.prompt(end + self.n_inserted) {
            Ok(text) => text,
            Err(error) => {
                let what = "the chat template refuses the conversation with the model's answers";
                return Ok(Next::CutOff(format!("{what}: {error}")));
            }
        };
        opening_at_end(&text)
            .unwrap_or_default()
            .clone_into(&mut self.opened);
        let tokens = self.model.tokenize(&text, true)?;
        Ok(Next::Prompt(with_bos(self.model, tokens).0))
    }
}
