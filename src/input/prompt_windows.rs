//! Makes the windows of a prompt: one, or one for each answer of a conversation.

use std::fmt::Display;
use std::ops::Range;

use anyhow::{Result, anyhow, bail};
use kl_formats::{MAX_N_CTX, Messages, Prompt, PromptContent, WindowSpec};

use super::chat::{Chat, answered, unanswered};
use super::chat_template::{ChatTemplate, TemplateError};
use super::dialogue::{Dialogue, Turns, with_bos};
use super::prompt_file::PromptLine;
use super::{PromptSource, ScoreFrom, TemplateChoice};
use crate::engine::Model;

/// The fault of a prompt whose answers are to be scored.
const NO_ANSWER: &str = "has no answer to score: --score answers needs \"messages\" with one of role \
     assistant after another message; to let the model answer, use --generate";
/// The fault of a conversation that is to be answered.
const NOTHING_TO_ANSWER: &str = "has nothing to answer: no message of role user or tool is \
     without an answer; leave it out, or use --score answers instead of --generate to score the \
     answers that it has";

/// The way from prompts to windows.
pub struct PromptWindows<'p, M> {
    pub source: &'p PromptSource,
    /// The chat template that is applied to each prompt, if there is one.
    pub template: Option<&'p ChatTemplate>,
    pub model: &'p M,
}

/// The windows of one line.
pub struct Planned<'t> {
    /// Each window, and what a header records of its prompt. Tokens that are to be generated are 0,
    /// and so are those of prompts that depend on them.
    pub windows: Vec<(WindowSpec, Prompt)>,
    /// The prompt's own tokens; of a conversation, those of its last prompt.
    pub n_tokens: u64,
    /// True if each window begins with an inserted BOS.
    pub has_inserted_bos: bool,
    /// Answers that are left out because they do not fit in a window.
    pub n_left_out: u64,
    /// The prompts to answer, if the model is to generate answers.
    pub dialogue: Option<Dialogue<'t>>,
}

/// A prompt, and the answer to it if it is given.
struct Turn {
    content: PromptContent,
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl<'p, M: Model> PromptWindows<'p, M> {
    /// Makes the windows of a line, of which the first has the number `first`.
    ///
    /// # Errors
    /// What is wrong with the line, in one line with the file and the line's number.
    pub fn of(&self, first: u32, mut line: PromptLine) -> Result<Planned<'p>> {
        let name = self.name(&line);
        let (turns, answers) = match self.template {
            None => (vec![self.as_it_is(&line)?], None),
            Some(template) => {
                let refused = |error| self.refused(&line, &error);
                let chat = Chat::new(template, &line.content, &line.variables);
                let chat = chat.map_err(refused)?;
                let (turns, ends) = self.of_chat(&chat, &line)?;
                line.variables.retain(|name| chat.is_used(name));
                (turns, Some(Turns::Chat(chat, ends)))
            }
        };
        let mut planned = Planned {
            windows: Vec::new(),
            n_tokens: 0,
            has_inserted_bos: true,
            n_left_out: 0,
            dialogue: None,
        };
        let n_turns = turns.len();
        let mut answers = answers.or_else(|| {
            let only = turns.first()?;
            Some(Turns::One(with_bos(self.model, only.prompt.clone()).0))
        });
        for (index, turn) in turns.into_iter().enumerate() {
            let (mut tokens, has_inserted_bos) = with_bos(self.model, turn.prompt);
            let n_own = (tokens.len() - usize::from(has_inserted_bos)) as u64;
            // Later prompts hold answers that are not known yet.
            tokens.resize(tokens.len() + index * self.room(), 0);
            if let Some(fault) = self.length_fault(tokens.len(), turn.answer.len()) {
                if index == 0 {
                    bail!("{name}: {fault}");
                }
                planned.n_left_out = (n_turns - index) as u64;
                break;
            }
            planned.n_tokens = n_own;
            planned.has_inserted_bos &= has_inserted_bos;
            let mut prompt = Prompt::new(turn.content, tokens.len() as u32);
            prompt.continues = index > 0;
            if index == 0 && self.template.is_some() {
                prompt.variables = std::mem::take(&mut line.variables);
            }
            let window = self.window(first + index as u32, tokens, turn.answer);
            planned.windows.push((window, prompt));
        }
        if let Some(Turns::Chat(_, ends)) = &mut answers {
            ends.truncate(planned.windows.len());
        }
        planned.dialogue = answers
            .filter(|_| self.source.generate.is_some())
            .map(|turns| Dialogue {
                first_window: first,
                line: name,
                turns,
            });
        Ok(planned)
    }

    /// A prompt without a template.
    fn as_it_is(&self, line: &PromptLine) -> Result<Turn> {
        let text = match &line.content {
            PromptContent::Text(_) if self.source.scores_given_answers() => {
                bail!(self.fault(line, NO_ANSWER))
            }
            PromptContent::Text(text) => text,
            PromptContent::Messages(_) => {
                let advice = match self.source.template {
                    TemplateChoice::OfModel => {
                        "the model has none: give one with --chat-template-file"
                    }
                    _ => "leave --no-chat-template out",
                };
                bail!(self.fault(line, format!("messages need a chat template: {advice}")))
            }
        };
        Ok(Turn {
            content: line.content.clone(),
            prompt: self.model.tokenize(text, self.source.parse_special)?,
            answer: Vec::new(),
        })
    }

    /// The turns of a conversation, and the numbers of messages after which the model is to answer.
    fn of_chat(&self, chat: &Chat<'p>, line: &PromptLine) -> Result<(Vec<Turn>, Vec<usize>)> {
        let messages = match &line.content {
            PromptContent::Messages(messages) => messages.clone(),
            PromptContent::Text(text) => Messages::of_user(text),
        };
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
        let mut chat = chat.clone();
        let (mut turns, mut start) = (Vec::new(), 0);
        for &end in &ends {
            let n_answered = turns.len();
            let texts = match scores_given {
                true => chat.answer(end),
                false => {
                    if n_answered > 0 {
                        chat.insert(start + n_answered - 1, "", "");
                    }
                    let prompt = chat.prompt(end + n_answered);
                    prompt.map(|prompt| (prompt, String::new()))
                }
            };
            let (prompt, answer) = texts.map_err(|error| self.refused(line, &error))?;
            if scores_given && answer.is_empty() {
                let what = format!("the chat template makes nothing of message {}", end + 1);
                bail!(self.fault(line, what));
            }
            let (prompt, answer) = self.joined(&prompt, &answer)?;
            turns.push(Turn {
                content: match &line.content {
                    PromptContent::Text(_) => line.content.clone(),
                    PromptContent::Messages(_) => some_of(&messages, start..end)?,
                },
                prompt,
                answer,
            });
            start = end + usize::from(scores_given);
        }
        Ok((turns, ends))
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
        let whole = model.tokenize(&format!("{prompt}{answer}"), true)?;
        let (of_prompt, mut of_answer) = match whole.strip_prefix(of_prompt.as_slice()) {
            Some(of_answer) => (of_prompt, of_answer.to_vec()),
            None => {
                let alone = model.tokenize(answer, true)?;
                let bytes = alone.iter().filter_map(|&token| model.token_bytes(token));
                match bytes.map(|bytes| bytes.len()).sum::<usize>() == answer.len() {
                    true => (of_prompt, alone),
                    false => {
                        let alike = whole.iter().zip(&of_prompt);
                        let n = alike.take_while(|(one, other)| one == other).count();
                        let (of_prompt, of_answer) = whole.split_at(n);
                        (of_prompt.to_vec(), of_answer.to_vec())
                    }
                }
            }
        };
        let ends = |token: &u32| model.is_end_of_generation(*token);
        if let Some(end) = of_answer.iter().position(ends) {
            of_answer.truncate(end + 1);
        }
        Ok((of_prompt, of_answer))
    }

    /// The window of a prompt, a BOS included, and of the answer: the given one, or one to generate.
    ///
    /// The last row of a prompt is scored like that of a text; the row of an answer's last token is
    /// not.
    fn window(&self, number: u32, mut tokens: Vec<u32>, answer: Vec<u32>) -> WindowSpec {
        let n_prompt = tokens.len() as u32;
        tokens.extend(answer);
        tokens.resize(tokens.len() + self.source.generate.unwrap_or(0) as usize, 0);
        let first_scored = self.first_scored(&tokens, n_prompt);
        let scored_end = tokens.len() as u32 - u32::from(self.source.has_answers());
        WindowSpec {
            window: number,
            tokens,
            first_scored,
            n_rows: scored_end.saturating_sub(first_scored),
        }
    }

    /// The first scored position of a window, of whose tokens so many are the prompt.
    pub fn first_scored(&self, tokens: &[u32], n_prompt: u32) -> u32 {
        let bos = self.model.facts().bos_token;
        let begins_with_bos = bos.is_some() && tokens.first() == bos.as_ref();
        match self.source.score {
            None | Some(ScoreFrom::Answers) => n_prompt.saturating_sub(1),
            Some(score) => score.first(tokens.len() as u32, begins_with_bos),
        }
    }

    /// Tokens to leave in a prompt for each answer that it will hold. Read again as text, an answer
    /// can have a few more tokens than it was generated with, and a template adds some.
    fn room(&self) -> usize {
        let most = self.source.generate.unwrap_or(0) as usize;
        if most == 0 { 0 } else { most + most / 8 + 32 }
    }

    /// The fault of a prompt that is too short or too long: it needs a token to predict and one to
    /// predict it from, and must fit in a window together with its answer.
    fn length_fault(&self, n_prompt: usize, n_given: usize) -> Option<String> {
        let generated = self.source.generate.unwrap_or(0) as usize;
        let (least, too_few) = match generated + n_given {
            0 => (2, "fewer than two tokens"),
            _ => (1, "no token"),
        };
        if n_prompt < least {
            return Some(format!(
                "the prompt has {too_few}: leave it out, or use a chat template that adds some"
            ));
        }
        let most = self.source.n_ctx.unwrap_or(MAX_N_CTX) as usize;
        let and_more = match (generated, n_given) {
            (0, 0) => String::new(),
            (0, n) => format!(" and an answer of {n}"),
            (n, _) => format!(" and {n} generated"),
        };
        let n_tokens = n_prompt.saturating_add(generated + n_given);
        (n_tokens > most).then(|| {
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
    fn fault(&self, line: &PromptLine, what: impl Display) -> anyhow::Error {
        anyhow!("{}: {what}", self.name(line))
    }

    fn refused(&self, line: &PromptLine, error: &TemplateError) -> anyhow::Error {
        self.fault(line, format!("the chat template refuses it: {error}"))
    }
}

/// The messages with these indices, which keep their bytes, as does the list of all.
fn some_of(messages: &Messages, indices: Range<usize>) -> Result<PromptContent> {
    let each = messages.each();
    if indices == (0..each.len()) {
        return Ok(PromptContent::Messages(messages.clone()));
    }
    let some = Messages::of(each.get(indices).unwrap_or_default());
    Ok(PromptContent::Messages(some?))
}
