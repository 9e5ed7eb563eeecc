//! The tokens that diverge most, in their context.

use kl_formats::TokenRecord;
use serde::Serialize;

/// The number of characters of context that are shown.
const CONTEXT_CHARS: usize = 40;

/// The number of tokens that hold at least as many characters: a token is at least one byte, a
/// character at most 4.
const CONTEXT_TOKENS: usize = 4 * CONTEXT_CHARS;

/// The context of a token that is shown, besides its record: the tokens up to and including its
/// position, at most `CONTEXT_TOKENS` of them.
#[derive(Debug)]
pub struct TokenContext(Vec<u32>);

impl TokenContext {
    /// Copies the context of a position in the window of `tokens`.
    #[must_use]
    pub fn new(tokens: &[u32], position: u32) -> Self {
        let end = tokens.len().min(position as usize + 1);
        let start = end.saturating_sub(CONTEXT_TOKENS);
        Self(tokens.get(start..end).unwrap_or_default().to_vec())
    }
}

/// A token with a large KLD.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DivergentToken {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window; its row predicts the token at the next position.
    pub position: u32,
    /// KL(reference ‖ model), in nats; null if it is infinite.
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
    pub kld: f64,
    /// The last characters up to the position, which both models have seen.
    pub context: String,
    /// The actual next token; null at a window's end.
    pub token: Option<u32>,
    /// The text of `token`.
    pub token_text: Option<String>,
    /// The reference's top token.
    pub ref_top: TopToken,
    /// The model's top token.
    pub eval_top: TopToken,
}

/// The token that a model finds most probable at a position.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TopToken {
    /// The token's id.
    pub token: u32,
    /// Its text.
    pub text: String,
    /// Its probability under that model.
    pub p: f64,
}

impl DivergentToken {
    /// Describes a record; `text` gives the text of tokens.
    #[must_use]
    pub fn new(
        record: &TokenRecord,
        context: &TokenContext,
        text: impl Fn(&[u32]) -> String,
    ) -> Self {
        let top = |token, p| TopToken {
            token,
            text: text(&[token]),
            p,
        };
        let token = record.next_token();
        Self {
            window: record.window,
            position: record.position,
            kld: record.kld,
            context: last_chars(&text(&context.0), CONTEXT_CHARS).to_owned(),
            token,
            token_text: token.map(|token| text(&[token])),
            ref_top: top(record.ref_top, record.ref_top_p),
            eval_top: top(record.eval_top, record.eval_top_p),
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

    #[test]
    fn the_context_ends_with_the_position_itself() {
        let window: Vec<u32> = (0..1000).collect();
        let before = |position| TokenContext::new(&window, position).0;
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
