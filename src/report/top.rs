//! The tokens that diverge most, in their context.

use kl_formats::TokenRecord;
use serde::Serialize;

use crate::pipeline::{ScoredWindow, TopP};

/// Characters of context that are shown.
const CONTEXT_CHARS: usize = 40;

/// Tokens that hold as many: one is a byte at least, and a character 4 at most.
const CONTEXT_TOKENS: usize = 4 * CONTEXT_CHARS;

/// What is to be known of a token besides its record to show it.
#[derive(Debug)]
pub struct Surroundings {
    /// The last tokens up to its position.
    before: Vec<u32>,
    top_p: TopP,
}

impl Surroundings {
    /// Of a position in a window.
    #[must_use]
    pub fn new<X>(window: &ScoredWindow<X>, position: u32, top_p: TopP) -> Self {
        let end = window.tokens.len().min(position as usize + 1);
        let start = end.saturating_sub(CONTEXT_TOKENS);
        Self {
            before: window.tokens.get(start..end).unwrap_or_default().to_vec(),
            top_p,
        }
    }
}

/// One token; its fields are the JSON's keys.
#[derive(Serialize, Debug)]
pub struct TopToken {
    /// The window, in text order.
    pub window: u32,
    /// Place in the window.
    pub position: u32,
    /// KL(reference ‖ model), in nats.
    pub kld: f64,
    /// The last characters up to the position, which both models have seen.
    pub context: String,
    /// The actual next token; null at a window's end.
    pub token: Option<u32>,
    /// Its text.
    pub token_text: Option<String>,
    /// What the reference puts first.
    pub ref_top: Choice,
    /// What the model puts first.
    pub eval_top: Choice,
}

/// A model's first choice.
#[derive(Serialize, Debug)]
pub struct Choice {
    /// The token's id.
    pub token: u32,
    /// Its text.
    pub text: String,
    /// Its probability under that model.
    pub p: f64,
}

impl TopToken {
    /// `text` gives the text of tokens.
    #[must_use]
    pub fn new(
        record: &TokenRecord,
        surroundings: &Surroundings,
        text: impl Fn(&[u32]) -> String,
    ) -> Self {
        let choice = |token, p| Choice {
            token,
            text: text(&[token]),
            p,
        };
        let token = record.next_token();
        Self {
            window: record.window,
            position: record.position,
            kld: record.kld,
            context: last_chars(&text(&surroundings.before), CONTEXT_CHARS).to_owned(),
            token,
            token_text: token.map(|token| text(&[token])),
            ref_top: choice(record.ref_top, surroundings.top_p.reference),
            eval_top: choice(record.eval_top, surroundings.top_p.evaluated),
        }
    }
}

fn last_chars(text: &str, n: usize) -> &str {
    let start = text.char_indices().rev().take(n).last();
    start.map_or("", |(start, _)| &text[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(n_tokens: u32) -> ScoredWindow {
        ScoredWindow {
            tokens: (0..n_tokens).collect(),
            records: Vec::new(),
            top_p: Vec::new(),
            extras: Vec::new(),
        }
    }

    #[test]
    fn the_context_ends_with_the_position_itself() {
        let top_p = TopP {
            reference: 0.5,
            evaluated: 0.25,
        };
        let before = |position| Surroundings::new(&window(1000), position, top_p).before;
        assert_eq!(before(0), [0]);
        assert_eq!(before(2), [0, 1, 2]);
        assert_eq!(before(999), (840..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_last_characters_are_whole() {
        assert_eq!(last_chars("", 3), "");
        assert_eq!(last_chars("ab", 3), "ab");
        assert_eq!(last_chars("aébç", 3), "ébç");
        assert_eq!(last_chars("ab", 0), "");
    }
}
