//! Cuts the tokens of a text into windows, and chooses the positions to score.
//!
//! A window holds at most `n_ctx` tokens. Where the model wants a BOS, every window starts with
//! one, inserted, so that it carries `n_ctx - 1` tokens of text and none is lost. The row of
//! logits at position `i` predicts the token at `i + 1`.

use std::str::FromStr;

use kl_formats::{WindowSpec, n_rows};

use super::Source;
use crate::pipeline::{DEFAULT_SEED, Part, shuffled};

/// First position of each window that is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScoreFrom {
    /// From the first position that has seen text: 1 where the window begins with a BOS, else 0. The
    /// row after an inserted BOS is the same in every window: one observation, not one per window.
    #[default]
    Text,
    /// Every position, the first one included.
    All,
    /// From `n_ctx / 2` on: what llama-perplexity scores.
    Half,
    /// From this position on.
    Position(u32),
    /// Of conversations, the positions that predict what the assistant says.
    Answers,
    /// Where windows overlap, the positions whose last token no earlier window had.
    New,
}

impl ScoreFrom {
    /// The first scored position of the first window, of `n_ctx` tokens.
    pub fn first(self, n_ctx: u32, begins_with_bos: bool) -> u32 {
        match self {
            Self::Text => u32::from(begins_with_bos),
            Self::All | Self::New | Self::Answers => 0,
            Self::Half => n_ctx / 2,
            Self::Position(first) => first,
        }
    }
}

impl FromStr for ScoreFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "answers" => Ok(Self::Answers),
            "half" => Ok(Self::Half),
            "new" => Ok(Self::New),
            number => number.parse().map(Self::Position).map_err(|_| {
                "expected 'all', 'half', 'new', 'answers' or the first position to score".to_owned()
            }),
        }
    }
}

/// Tokens of text in a window, and so the longest stride that leaves none out.
pub fn text_per_window(n_ctx: u32, bos: Option<u32>) -> usize {
    n_ctx as usize - usize::from(bos.is_some())
}

/// Tokens of a text that its first `--max-windows` need; all, without a limit.
pub fn tokens_needed(source: &Source, bos: Option<u32>) -> usize {
    let Some(max) = source.max_windows else {
        return usize::MAX;
    };
    let length = text_per_window(source.text_n_ctx(), bos);
    let stride = source.stride.map_or(length, |stride| stride as usize);
    let last_start = (max as usize).saturating_sub(1).saturating_mul(stride);
    last_start.saturating_add(length)
}

/// The windows of a run's texts or prompts, in the order in which they are decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Windows with at least one scored position.
    pub windows: Vec<WindowSpec>,
    /// The windows of all parts, where those above are one part, or where answers have made them
    /// shorter than they were planned.
    whole: Option<Vec<WindowSpec>>,
    /// The first windows of the whole with their answers, where answers were generated.
    first: Option<Vec<WindowSpec>>,
    /// The seed of their order; `None`: text order.
    pub seed: Option<u64>,
    /// Windows left out because they end before the first scored position.
    pub n_unscored: usize,
}

impl Plan {
    /// Cuts `tokens` (the text's, without BOS) into windows, which overlap if the stride is shorter than a
    /// window. The first window that reaches the end of the text is the last one.
    ///
    /// # Panics
    /// If a window has no room for a token beside the BOS, or the stride is 0: the caller checks
    /// it.
    pub fn cut(tokens: &[u32], source: &Source, bos: Option<u32>) -> Self {
        let n_ctx = source.text_n_ctx();
        let length = text_per_window(n_ctx, bos);
        assert!(length > 0, "a window must hold text");
        let stride = source.stride.map_or(length, |stride| stride as usize);
        assert!(stride > 0, "windows must move on");
        // A text that ends with a window has none that starts there.
        let n_windows = match tokens.len() {
            0 => 0,
            n => n.saturating_sub(length).div_ceil(stride) + 1,
        };
        let max_windows = source.max_windows.map_or(usize::MAX, |max| max as usize);
        let windows = (0..n_windows.min(max_windows)).map(|window| {
            let tokens_left = tokens.get(window * stride..).unwrap_or_default();
            let text = tokens_left.get(..length).unwrap_or(tokens_left);
            let tokens: Vec<u32> = bos.iter().chain(text).copied().collect();
            let first_scored = match source.score.unwrap_or_default() {
                // The tokens before it were the end of the previous window.
                ScoreFrom::New if window > 0 => n_ctx - (stride as u32).min(n_ctx),
                score => score.first(n_ctx, bos.is_some()),
            };
            WindowSpec {
                window: window as u32,
                n_rows: (tokens.len() as u32).saturating_sub(first_scored),
                tokens,
                first_scored,
            }
        });
        Self::from_windows(windows.collect())
    }

    /// Makes a plan of these windows, without those that have no scored position.
    pub fn from_windows(mut windows: Vec<WindowSpec>) -> Self {
        let n_given = windows.len();
        windows.retain(|window| window.n_rows > 0);
        Self {
            n_unscored: n_given - windows.len(),
            windows,
            ..Self::default()
        }
    }

    /// Adds the windows of another text, whose numbers continue this one's.
    pub fn append(&mut self, mut other: Self) {
        let n_cut = (self.windows.len() + self.n_unscored) as u32;
        for window in &mut other.windows {
            window.window += n_cut;
        }
        self.windows.append(&mut other.windows);
        self.n_unscored += other.n_unscored;
    }

    /// Cuts a plan of more than `max_rows` rows down to a sample of exactly `max_rows`: windows in
    /// a seeded random order, the last one cut short.
    pub fn limited(mut self, max_rows: Option<u64>) -> Self {
        if let Some(max) = max_rows.filter(|&max| max < self.n_rows()) {
            self.windows = self.sample(max);
            self.seed = Some(DEFAULT_SEED);
        }
        self
    }

    /// The windows of all parts with which this plan would have at most `max_rows` rows: a smaller sample
    /// begins as a larger one does.
    fn sample(&self, max_rows: u64) -> Vec<WindowSpec> {
        let (whole, mut n_rows_left) = (self.whole(), max_rows);
        let order = match self.seed {
            Some(_) => (0..whole.len()).collect(),
            None => shuffled(whole.len(), DEFAULT_SEED),
        };
        let mut windows = Vec::new();
        for window in order.into_iter().filter_map(|index| whole.get(index)) {
            if n_rows_left == 0 {
                break;
            }
            let mut window = window.clone();
            if n_rows_left < u64::from(window.n_rows) {
                window.n_rows = n_rows_left as u32;
                // The token after the last scored row stays, so that its likelihood is still known.
                let scored_end = window.first_scored + window.n_rows;
                window.tokens.truncate(scored_end as usize + 1);
            }
            n_rows_left -= u64::from(window.n_rows);
            windows.push(window);
        }
        windows
    }

    /// The windows that this plan, or this part of it, would have with at most `max_rows` rows in all.
    pub fn with_rows(&self, max_rows: u64, part: Option<Part>) -> Vec<WindowSpec> {
        let windows = self.sample(max_rows);
        match part {
            Some(part) => part.keep(windows),
            None => windows,
        }
    }

    /// Keeps one part of the windows; all of them without a part.
    pub fn keep(&mut self, part: Option<Part>) {
        if let Some(part) = part {
            let windows = std::mem::take(&mut self.windows);
            self.windows = part.keep(windows.clone());
            self.whole.get_or_insert(windows);
        }
    }

    /// Records how these windows were planned before their answers were generated. The
    /// [first](Self::first) `n_first_rows` have their answers in every part.
    pub fn was_planned_as(&mut self, planned: Vec<WindowSpec>, n_first_rows: u64) {
        self.whole = Some(planned);
        let n_first = self.first(n_first_rows).len();
        self.first = self.windows.get(..n_first).map(<[WindowSpec]>::to_vec);
    }

    /// The windows of all parts, or of the plan where it has no parts. Where answers were generated,
    /// these are the windows as they were planned, which every part records: with the longest answers,
    /// of tokens 0.
    pub fn whole(&self) -> &[WindowSpec] {
        self.whole.as_ref().unwrap_or(&self.windows)
    }

    /// The first windows of the whole that were planned to have at least `n_rows` rows together; all
    /// of them if they have fewer. They are the same for every part.
    pub fn first(&self, n_rows: u64) -> &[WindowSpec] {
        let (whole, mut n_rows_left) = (self.whole(), n_rows);
        let is_wanted = |window: &&WindowSpec| {
            let is_wanted = n_rows_left > 0;
            n_rows_left = n_rows_left.saturating_sub(window.n_rows.into());
            is_wanted
        };
        let n_first = whole.iter().take_while(is_wanted).count();
        let windows = self.first.as_deref().unwrap_or(whole);
        windows.get(..n_first).unwrap_or(windows)
    }

    /// Cuts windows as llama-perplexity does: `text`, with a BOS before all of it, in chunks of `n_ctx`
    /// tokens, each decoded with `bos` in place of its first token, and scored from `n_ctx / 2` to the last position
    /// that has a next token. Tokens after the last whole chunk are left out.
    pub fn chunks(text: &[u32], n_ctx: u32, bos: Option<u32>) -> Self {
        let first_scored = ScoreFrom::Half.first(n_ctx, bos.is_some());
        let window = |(window, chunk): (usize, &[u32])| {
            let text_tokens = chunk.iter().skip(usize::from(bos.is_some()));
            WindowSpec {
                window: window as u32,
                tokens: bos.iter().chain(text_tokens).copied().collect(),
                first_scored,
                n_rows: n_ctx.saturating_sub(1 + first_scored),
            }
        };
        let chunks = text.chunks_exact(n_ctx.max(1) as usize);
        Self::from_windows(chunks.enumerate().map(window).collect())
    }

    /// Scored rows of all windows.
    pub fn n_rows(&self) -> u64 {
        n_rows(&self.windows)
    }

    /// Most scored rows of a window in the whole plan, even if this is a part of it; where answers were
    /// generated, as it was planned.
    pub fn max_rows_of_window(&self) -> u32 {
        self.whole()
            .iter()
            .map(|window| window.n_rows)
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
