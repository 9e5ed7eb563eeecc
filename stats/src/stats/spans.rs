//! The spans that tokens are in: reasoning, tool calls, code, and the rest of an answer.

use std::iter::repeat_n;

/// The span of each of some tokens, in their order: its index among the spans' names. Adjacent tokens
/// mostly share one, and take no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSpans(Vec<(u32, usize)>);

impl TokenSpans {
    /// Adds the next token.
    pub fn push(&mut self, span: u32) {
        match self.0.last_mut() {
            Some((last, n)) if *last == span => *n += 1,
            _ => self.0.push((span, 1)),
        }
    }

    /// The span of each token.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(span, n)| repeat_n(*span, *n))
    }
}

impl FromIterator<u32> for TokenSpans {
    fn from_iter<I: IntoIterator<Item = u32>>(spans: I) -> Self {
        let mut of_tokens = Self::default();
        spans.into_iter().for_each(|span| of_tokens.push(span));
        of_tokens
    }
}

/// The names of parts of the tokens, by the numbers that records have for them.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartNames<'n> {
    /// The names of groups; empty without groups.
    pub groups: &'n [String],
    /// The names of spans; empty without spans.
    pub spans: &'n [String],
}
