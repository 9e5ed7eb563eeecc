//! Lets a model answer prompts, several at once.

use anyhow::{Result, anyhow, bail};
use kl_formats::Sampling;

use super::{AnswerFile, PreparedInput};
use crate::engine::{Appended, ContextOptions, Decoder as _, Model, Sampler, top_token};

/// A conversation with the model, which answers one prompt after the other.
pub trait Conversation {
    /// The next prompt, after the answer to the last one. The first call has no answer.
    ///
    /// # Errors
    /// A prompt that cannot be made whatever the answer was.
    fn next(&mut self, answer: Option<&[u32]>) -> Result<Next>;
}

/// The next step of a conversation.
pub enum Next {
    /// The tokens of a prompt: all that the model sees before it answers.
    Prompt(Vec<u32>),
    /// Nothing is left to answer.
    End,
    /// What is left cannot follow the last answer, for this reason.
    CutOff(String),
}

/// A conversation, and the number of the window that its first prompt becomes; later ones become
/// the windows after that.
pub struct Asked<'c> {
    pub first_window: u32,
    /// The file and the line that it comes from, for messages.
    pub line: String,
    pub conversation: Box<dyn Conversation + 'c>,
}

/// A prompt, and the model's answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    pub prompt: Vec<u32>,
    /// At least one token. The last one ends the generation, unless there is no room for more.
    pub answer: Vec<u32>,
}

/// The turns of a conversation that the model has answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turns {
    pub answered: Vec<Answered>,
    /// The reason why later turns have no answer, with the file and the line.
    pub cut_off: Option<String>,
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
    /// So many prompts are about to be answered, by at most so many tokens in all.
    Begin {
        /// The prompts.
        n_prompts: u64,
        /// The tokens.
        n_tokens: u64,
    },
    /// A decode call ended.
    Call,
    /// A token was generated.
    Token,
    /// A prompt has its answer.
    Done,
}

/// Lets `model` answer these conversations, and returns the turns of each. As many are open at a time
/// as the context has sequences. Each prompt is decoded by itself, in calls of a batch; then the open
/// answers grow together, by one token each in a call. A conversation ends before a prompt that leaves
/// no room for an answer.
///
/// # Errors
/// Those of the conversations, of the model and of `generation`, a first prompt that leaves no room for
/// an answer, and a row without a top token.
pub fn answer<M: Model>(
    model: &M,
    asked: Vec<Asked<'_>>,
    answers: &Answers,
    generation: &mut Generation<'_>,
) -> Result<Vec<Turns>> {
    // The last token is not decoded here, but will be part of a window.
    model.facts().check_window(answers.n_ctx.into())?;
    let mut options = (generation.context)(answers.n_ctx);
    let n_asked = u32::try_from(asked.len()).unwrap_or(u32::MAX);
    options.n_seq = options.n_seq.min(n_asked).max(1);
    let mut run = Run {
        model,
        decoder: model.decoder(&options)?,
        n_batch: options.calls.n_batch.max(1) as usize,
        answers,
        generation,
        done: asked.iter().map(|_| Turns::default()).collect(),
    };
    let mut waiting = asked.into_iter().enumerate();
    let mut open: Vec<Option<Open<'_>>> = (0..options.n_seq).map(|_| None).collect();
    loop {
        for (sequence, slot) in open.iter_mut().enumerate() {
            while slot.as_ref().is_none_or(|of| run.has_ended(of)) {
                let of = slot.take();
                let next = || Some(Open::new(waiting.next()?, sequence));
                let Some(of) = of.or_else(next) else {
                    break;
                };
                *slot = run.next(of)?;
            }
        }
        let growing: Vec<&mut Open<'_>> = open.iter_mut().flatten().collect();
        if growing.is_empty() {
            return Ok(run.done);
        }
        run.grow(growing)?;
    }
}

/// A conversation under way, in a sequence of the context.
struct Open<'c> {
    /// Its index among all conversations.
    index: usize,
    line: String,
    turns: Turns,
    conversation: Box<dyn Conversation + 'c>,
    sequence: usize,
    /// The window that its prompt becomes.
    window: u32,
    /// The prompt and its answer so far; empty before the first prompt.
    tokens: Vec<u32>,
    /// Tokens of the prompt.
    n_prompt: usize,
    /// Chooses the answer's tokens; `None`: the top token is chosen.
    sampler: Option<Sampler>,
}

impl<'c> Open<'c> {
    fn new((index, asked): (usize, Asked<'c>), sequence: usize) -> Self {
        Self {
            index,
            line: asked.line,
            turns: Turns::default(),
            conversation: asked.conversation,
            sequence,
            window: asked.first_window,
            tokens: Vec::new(),
            n_prompt: 0,
            sampler: None,
        }
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
}

/// Conversations that are answered, and what answers them.
struct Run<'r, 'g, M: Model> {
    model: &'r M,
    decoder: M::Decoder<'r>,
    /// Most tokens of a decode call.
    n_batch: usize,
    answers: &'r Answers,
    generation: &'r mut Generation<'g>,
    /// The turns of each conversation that has ended.
    done: Vec<Turns>,
}

impl<M: Model> Run<'_, '_, M> {
    /// Returns true if a conversation has no prompt to answer: none yet, or one whose answer ends
    /// the generation, or has no room for more.
    fn has_ended(&self, of: &Open<'_>) -> bool {
        let Some((last, n_more)) = of
            .tokens
            .split_last()
            .map(|(last, rest)| (*last, rest.len()))
        else {
            return true;
        };
        let n_answer = (n_more + 1).saturating_sub(of.n_prompt);
        n_answer >= self.answers.most as usize
            || n_more + 1 >= self.answers.n_ctx as usize
            || self.model.is_end_of_generation(last)
    }

    /// Takes a conversation, whose answer has ended, to the first token of the next answer; `None`:
    /// the conversation ends.
    fn next<'c>(&mut self, mut of: Open<'c>) -> Result<Option<Open<'c>>> {
        let answered = of.answered();
        // Before the next prompt, which may fail.
        if let (Some(answered), Some(kept)) = (&answered, &mut self.generation.kept) {
            kept.keep(of.window, answered)?;
        }
        let answer = answered.as_ref().map(|answered| &answered.answer[..]);
        let next = of.conversation.next(answer)?;
        let is_first = answered.is_none();
        if let Some(answered) = answered {
            of.window += 1;
            of.turns.answered.push(answered);
            self.step(GenerationStep::Done)?;
        }
        let n_ctx = self.answers.n_ctx;
        let cut_off = match next {
            Next::Prompt(prompt) if (1..n_ctx as usize).contains(&prompt.len()) => {
                return self.ask(of, prompt).map(Some);
            }
            Next::Prompt(prompt) => Some(format!(
                "a prompt of {} tokens and an answer do not fit in a window of {n_ctx}: use a larger --n-ctx",
                prompt.len()
            )),
            Next::CutOff(why) => Some(why),
            Next::End => None,
        };
        let cut_off = cut_off.map(|why| format!("{}: {why}", of.line));
        if let (Some(why), true) = (&cut_off, is_first) {
            bail!("{why}");
        }
        of.turns.cut_off = cut_off;
        if let Some(done) = self.done.get_mut(of.index) {
            *done = of.turns;
        }
        Ok(None)
    }

    /// Begins the answer to a prompt; one that is known is whole.
    fn ask<'c>(&mut self, mut of: Open<'c>, prompt: Vec<u32>) -> Result<Open<'c>> {
        let n_prompt = prompt.len();
        (of.tokens, of.n_prompt) = (prompt, n_prompt);
        let kept = self.generation.kept.as_ref();
        let kept = kept.and_then(|kept| kept.answer(of.window, &of.tokens));
        if let Some(answer) = kept {
            of.tokens.extend(answer);
            // `-n` may have cut a window that was stored.
            if self.has_ended(&of) {
                return Ok(of);
            }
            of.tokens.truncate(n_prompt);
        }
        let sampling = self.answers.sampling.as_ref();
        of.sampler = sampling.map(|sampling| Sampler::new(sampling, of.window));
        self.begin(&mut of)?;
        Ok(of)
    }

    /// Decodes a prompt, in place of what its sequence held, and chooses the first token of the
    /// answer.
    fn begin(&mut self, of: &mut Open<'_>) -> Result<()> {
        self.decoder.forget(of.sequence)?;
        let mut start = 0;
        while start < of.n_prompt {
            let end = of.n_prompt.min(start + self.n_batch);
            let rows = self.decoder.append(&[Appended {
                sequence: of.sequence,
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

    /// Adds one token to each of these answers.
    fn grow(&mut self, mut open: Vec<&mut Open<'_>>) -> Result<()> {
        for together in open.chunks_mut(self.n_batch) {
            let appended = together.iter().map(|of| Appended {
                sequence: of.sequence,
                window: of.window,
                tokens: &of.tokens,
                start: of.tokens.len().saturating_sub(1),
            });
            let rows = self.decoder.append(&appended.collect::<Vec<_>>())?;
            let n_rows = rows.len();
            for (of, row) in together.iter_mut().zip(rows) {
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
mod tests {
    use kl_formats::Calls;

    use super::*;
    use crate::engine::{Engine as _, FakeEngine, FakeModel, ModelOptions};

    const END: u32 = 7;

    /// A model whose rows have so few entries that answers end soon.
    fn model() -> FakeModel {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, "model").unwrap();
        let engine = FakeEngine {
            n_vocab: 10,
            end_of_generation: Some(END),
            ..FakeEngine::default()
        };
        engine.load(&path, &ModelOptions::default()).unwrap()
    }

    /// Asks `n_left` times; each prompt holds the answer before it.
    struct Asks {
        start: u32,
        n_left: u32,
    }

    impl Conversation for Asks {
        fn next(&mut self, answer: Option<&[u32]>) -> Result<Next> {
            let Some(n_left) = self.n_left.checked_sub(1) else {
                return Ok(Next::End);
            };
            self.n_left = n_left;
            let start = [self.start % 6, self.start / 6, n_left];
            let prompt = [&start[..], answer.unwrap_or_default()];
            Ok(Next::Prompt(prompt.concat()))
        }
    }

    /// The turns of these conversations, `n_seq` at a time in calls of `n_batch` tokens, and the
    /// steps that were reported.
    fn turns(
        n_turns: &[u32],
        answers: &Answers,
        n_seq: u32,
        n_batch: u32,
    ) -> Result<(Vec<Turns>, Vec<GenerationStep>)> {
        let mut first_window = 0;
        let asked = n_turns.iter().zip(1..).map(|(&n_left, start)| {
            let asked = Asked {
                first_window,
                line: format!("line {start}"),
                conversation: Box::new(Asks { start, n_left }),
            };
            first_window += n_left;
            asked
        });
        let mut steps = Vec::new();
        let context = |n_ctx| ContextOptions {
            n_ctx,
            n_seq,
            calls: Calls {
                n_batch,
                n_ubatch: n_batch,
                is_equal: false,
            },
            ..ContextOptions::default()
        };
        let mut generation = Generation {
            context: &context,
            on_plan: &mut |_| Ok(()),
            on_step: &mut |step| {
                steps.push(step);
                Ok(())
            },
            kept: None,
        };
        let turns = answer(&model(), asked.collect(), answers, &mut generation)?;
        Ok((turns, steps))
    }

    fn answers(most: u32, n_ctx: u32, seed: Option<u32>) -> Answers {
        let sampling = seed.map(|seed| Sampling {
            temp: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed,
        });
        Answers {
            most,
            n_ctx,
            sampling,
        }
    }

    #[test]
    fn answers_depend_on_their_prompts_and_seeds_alone() {
        let n_turns = [1, 3, 0, 2, 1, 1, 1, 4];
        for seed in [None, Some(1), Some(2)] {
            let answers = answers(20, 500, seed);
            let (alone, _) = turns(&n_turns, &answers, 1, 512).unwrap();
            assert_eq!(
                alone
                    .iter()
                    .map(|turns| turns.answered.len())
                    .collect::<Vec<_>>(),
                n_turns.map(|n| n as usize)
            );
            for (n_seq, n_batch) in [(2, 512), (3, 2), (8, 4), (20, 1)] {
                let (together, _) = turns(&n_turns, &answers, n_seq, n_batch).unwrap();
                assert_eq!(together, alone, "{n_seq} {n_batch}");
            }
        }
        let sampled = |seed| turns(&[1; 5], &answers(20, 500, seed), 1, 512).unwrap().0;
        assert_ne!(sampled(Some(1)), sampled(Some(2)));
        assert_ne!(sampled(Some(1)), sampled(None));
        // The same prompt in another window is answered with other random numbers.
        let same = |turns: Vec<Turns>| {
            let [one, other] = [0, 1].map(|i: usize| &turns[i].answered[0].answer);
            one == other
        };
        assert!(!same(sampled(Some(1))));
    }

    #[test]
    fn an_answer_ends_where_the_model_ends_it_or_where_there_is_no_room() {
        let (all, steps) = turns(&[1; 40], &answers(6, 500, None), 4, 512).unwrap();
        let mut n_ended = 0;
        let all: Vec<&Answered> = all.iter().flat_map(|turns| &turns.answered).collect();
        for turn in &all {
            let ends = turn.answer.iter().position(|&token| token == END);
            assert_eq!(turn.answer.len(), ends.map_or(6, |end| end + 1));
            n_ended += usize::from(ends.is_some());
        }
        assert!((5..36).contains(&n_ended), "{n_ended}");
        let n_tokens: usize = all.iter().map(|turn| turn.answer.len()).sum();
        let count = |of| steps.iter().filter(|&&step| step == of).count();
        assert_eq!(count(GenerationStep::Token), n_tokens);
        assert_eq!(count(GenerationStep::Done), 40);
        // Each prompt holds the answer before it, so the second one leaves less room.
        let (turns_of, _) = turns(&[2], &answers(12, 16, Some(5)), 1, 512).unwrap();
        for turn in turns_of.iter().flat_map(|turns| &turns.answered) {
            assert!(turn.prompt.len() + turn.answer.len() <= 16);
        }
        let full = turns(&[1], &answers(12, 3, None), 1, 512)
            .unwrap_err()
            .to_string();
        let what = "line 1: a prompt of 3 tokens and an answer do not fit in a window of 3";
        assert!(full.contains(what), "{full}");
    }

    #[test]
    fn a_conversation_ends_before_a_prompt_that_leaves_no_room() {
        // A later prompt has 3 tokens and those of the answer before it.
        let n_turns = [3, 1, 3, 2, 3, 3];
        let n_cut = [10, 15, 500].map(|n_ctx| {
            let answers = answers(12, n_ctx, Some(5));
            let (all, _) = turns(&n_turns, &answers, 2, 512).unwrap();
            let mut n_cut = 0;
            for ((of, n), line) in all.iter().zip(n_turns).zip(1..) {
                let Some(why) = &of.cut_off else {
                    assert_eq!(of.answered.len(), n as usize);
                    continue;
                };
                let n_next = 3 + of.answered.last().unwrap().answer.len();
                assert!(n_next >= n_ctx as usize && of.answered.len() < n as usize);
                let what =
                    format!("line {line}: a prompt of {n_next} tokens and an answer do not fit");
                assert!(why.starts_with(&what), "{why}");
                n_cut += 1;
            }
            n_cut
        });
        assert!(
            n_cut[0] > 0 && n_cut[0] >= n_cut[1] && n_cut[2] == 0,
            "{n_cut:?}"
        );
    }

    #[test]
    fn an_error_of_a_step_ends_the_work() {
        let context = |n_ctx| ContextOptions {
            n_ctx,
            ..ContextOptions::default()
        };
        let mut n_left = 5;
        let mut generation = Generation {
            context: &context,
            on_plan: &mut |_| Ok(()),
            on_step: &mut |_| {
                n_left -= 1;
                match n_left {
                    0 => bail!("stop"),
                    _ => Ok(()),
                }
            },
            kept: None,
        };
        let asked = Asked {
            first_window: 0,
            line: "line 1".to_owned(),
            conversation: Box::new(Asks {
                start: 1,
                n_left: 100,
            }),
        };
        let stopped = answer(
            &model(),
            vec![asked],
            &answers(5, 50, None),
            &mut generation,
        );
        assert_eq!(stopped.unwrap_err().to_string(), "stop");
    }
}
