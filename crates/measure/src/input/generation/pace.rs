//! How far a model is with its answers, and the most time that the rest can take.

use std::time::{Duration, Instant};

use super::Dialogue;

/// What has been generated so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Generated {
    /// Answers that are done, those of an earlier run included.
    pub n_answers: u64,
    /// Tokens that this run has generated.
    pub n_tokens: u64,
    /// The time that it took.
    pub time: Duration,
    /// The time that the rest takes if every answer is as long as it may be; `None` before the first tokens
    /// have shown how long one takes.
    pub most_left: Option<Duration>,
}

/// Work of one kind: its amount, and the time that it took.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    amount: u64,
    time: Duration,
}

impl Work {
    fn add(&mut self, amount: u64, time: Duration) {
        self.amount += amount;
        self.time += time;
    }

    /// The time that as much as this takes; `None` before any was done.
    fn time_of(&self, amount: u64) -> Option<Duration> {
        let time_of_one = self.time.as_secs_f64() / self.amount as f64;
        Duration::try_from_secs_f64(time_of_one * amount as f64).ok()
    }
}

/// The most that is left of conversations that have not begun.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Waiting {
    /// Tokens of prompts: those of the first ones, and a whole window for each later one.
    prompt_tokens: u64,
    /// Tokens of answers.
    tokens: u64,
    /// The most tokens of one conversation's answers, of all that were to be answered.
    longest: u64,
}

impl Waiting {
    /// What conversations have left, with answers of at most `max_tokens` tokens in windows of `n_ctx`.
    pub(super) fn new(dialogues: &[Dialogue], max_tokens: u64, n_ctx: u64) -> Self {
        let mut waiting = Self::default();
        for dialogue in dialogues {
            let first_prompt_tokens = dialogue.tokens.len() as u64;
            let n_later_prompts = u64::from(dialogue.n_left.saturating_sub(1));
            waiting.prompt_tokens += first_prompt_tokens + n_later_prompts * n_ctx;
            let tokens = u64::from(dialogue.n_left) * max_tokens;
            waiting.tokens += tokens;
            waiting.longest = waiting.longest.max(tokens);
        }
        waiting
    }

    /// Leaves out a conversation that begins.
    pub(super) fn begin(&mut self, dialogue: &Dialogue, max_tokens: u64, n_ctx: u64) {
        let begun = Self::new(std::slice::from_ref(dialogue), max_tokens, n_ctx);
        self.prompt_tokens = self.prompt_tokens.saturating_sub(begun.prompt_tokens);
        self.tokens = self.tokens.saturating_sub(begun.tokens);
    }
}

/// The pace of a run: what is done, how long it took, and what is left.
#[derive(Debug)]
pub(super) struct Pace {
    started: Instant,
    n_answers: u64,
    /// Tokens of prompts that were decoded.
    prompts: Work,
    /// Decode calls, each of which adds a token to every open answer.
    calls: Work,
    n_tokens: u64,
    pub(super) waiting: Waiting,
    /// Tokens of prompts that are left, at most.
    prompt_tokens_left: u64,
    /// Decode calls that are left, at most; `None` before the first.
    calls_left: Option<u64>,
}

impl Pace {
    pub(super) fn new(waiting: Waiting) -> Self {
        Self {
            started: Instant::now(),
            n_answers: 0,
            prompts: Work::default(),
            calls: Work::default(),
            n_tokens: 0,
            waiting,
            prompt_tokens_left: waiting.prompt_tokens,
            calls_left: None,
        }
    }

    /// Notes that a part of a prompt was decoded, which gave `n_chosen` tokens of its answer.
    pub(super) fn read_prompt(&mut self, n_tokens: usize, n_chosen: usize, time: Duration) {
        self.prompts.add(n_tokens as u64, time);
        self.n_tokens += n_chosen as u64;
    }

    /// Notes that an answer is done.
    pub(super) fn end_answer(&mut self) {
        self.n_answers += 1;
    }

    /// Notes that `n_chosen` answers have grown by a token. `open` are, for each conversation that is open
    /// of at most `n_seq`, the tokens that it may still generate, and those of the prompts between them.
    pub(super) fn grow(
        &mut self,
        n_chosen: usize,
        time: Duration,
        open: impl Iterator<Item = (u64, u64)>,
        n_seq: u64,
    ) {
        self.calls.add(1, time);
        self.n_tokens += n_chosen as u64;
        let (mut longest, mut open_tokens, mut open_prompt_tokens) = (0, 0, 0);
        for (tokens, prompt_tokens) in open {
            longest = longest.max(tokens);
            open_tokens += tokens;
            open_prompt_tokens += prompt_tokens;
        }
        let waiting = self.waiting;
        self.prompt_tokens_left = open_prompt_tokens + waiting.prompt_tokens;
        self.calls_left = Some(if waiting.tokens == 0 {
            longest
        } else {
            // No schedule that keeps all sequences busy takes longer than this (Graham 1966).
            let longest = longest.max(waiting.longest);
            (open_tokens + waiting.tokens).div_ceil(n_seq.max(1)) + longest
        });
    }

    /// The state now.
    pub(super) fn generated(&self) -> Generated {
        let prompt_time = self.prompts.time_of(self.prompt_tokens_left);
        let call_time = self.calls_left.and_then(|n| self.calls.time_of(n));
        Generated {
            n_answers: self.n_answers,
            n_tokens: self.n_tokens,
            time: self.started.elapsed(),
            most_left: prompt_time
                .zip(call_time)
                .map(|(prompts, calls)| prompts + calls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialogue(n_prompt: usize, n_left: u32) -> Dialogue {
        Dialogue {
            line: String::new(),
            window: 0,
            n_left,
            conversation: None,
            tokens: vec![0; n_prompt],
            n_prompt: 0,
            sampler: None,
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_time_left_is_that_of_the_longest_answers() {
        // Ten prompts of 20 tokens, two at a time, 100 tokens each: 5 rounds of 100 calls.
        let dialogues: Vec<Dialogue> = (0..10).map(|_| dialogue(20, 1)).collect();
        let mut pace = Pace::new(Waiting::new(&dialogues, 100, 500));
        for of in &dialogues[..2] {
            pace.waiting.begin(of, 100, 500);
            pace.read_prompt(20, 1, 2 * SECOND);
        }
        assert_eq!(pace.generated().most_left, None, "before the first call");
        pace.grow(2, SECOND, [(98, 0), (98, 0)].into_iter(), 2);
        let left = pace.generated().most_left.unwrap().as_secs();
        // The rest of this round, four more, and at most one answer's length of idling; eight prompts.
        let (exact, idle) = (98 + 4 * 100 + 8 * 2, 100);
        assert!((exact..=exact + idle).contains(&left), "{left}");
        assert_eq!(pace.generated().n_tokens, 4);

        // Nothing waits: the longest that is open.
        for of in &dialogues[2..] {
            pace.waiting.begin(of, 100, 500);
        }
        pace.grow(2, SECOND, [(40, 0), (70, 0)].into_iter(), 2);
        assert_eq!(pace.generated().most_left.unwrap().as_secs(), 70);
        pace.grow(1, SECOND, [(39, 0)].into_iter(), 2);
        assert_eq!(pace.generated().most_left.unwrap().as_secs(), 39);
    }

    #[test]
    fn later_prompts_of_a_conversation_fill_their_windows_at_most() {
        let dialogues = [dialogue(20, 3)];
        let waiting = Waiting::new(&dialogues, 10, 200);
        let expected = Waiting {
            prompt_tokens: 20 + 2 * 200,
            tokens: 30,
            longest: 30,
        };
        assert_eq!(waiting, expected);
        let mut pace = Pace::new(waiting);
        pace.waiting.begin(&dialogues[0], 10, 200);
        pace.read_prompt(20, 1, 2 * SECOND);
        pace.grow(1, SECOND, [(28, 400)].into_iter(), 4);
        assert_eq!(pace.generated().most_left.unwrap().as_secs(), 28 + 40);
    }
}
