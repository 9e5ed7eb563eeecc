//! The tokens that diverge most, as a sidecar can show them.

use kl_formats::TokenRecord;
use serde::Serialize;

/// A token with a large KLD. Texts are null where the sidecar does not hold them.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorstToken {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window; its row predicts the token at the next position.
    pub position: u32,
    /// KL(reference ‖ model), in nats; null if it is infinite.
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
    pub kld: f64,
    /// The actual next token; null at a window's end.
    pub next_token: Option<u32>,
    /// The text around the position.
    pub text: Option<WorstText>,
    /// The reference's top token.
    pub ref_top: WorstTop,
    /// The model's top token.
    pub eval_top: WorstTop,
}

/// The text around a position.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorstText {
    /// The last characters up to the position, which both models have seen.
    pub before: String,
    /// The text of the actual next token; null at a window's end.
    pub next: Option<String>,
}

/// The token that a model finds most probable at a position.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorstTop {
    /// The token's id.
    pub token: u32,
    /// Its text.
    pub text: Option<String>,
    /// Its probability under that model; null where the sidecar does not record it.
    pub p: Option<f64>,
}

/// The number of characters of text that are shown before a position.
const CONTEXT_CHARS: usize = 60;

impl WorstToken {
    /// The number of tokens before a position that hold enough text: a token has at least one byte,
    /// a character at most four.
    pub const CONTEXT_TOKENS: usize = 4 * CONTEXT_CHARS;

    /// Describes a record. `before` are the tokens up to its position, as far as they are known;
    /// `text` gives the text of tokens, and `None` where it is not known.
    #[must_use]
    pub fn new(
        record: &TokenRecord,
        before: &[u32],
        text: impl Fn(&[u32]) -> Option<String>,
    ) -> Self {
        let top = |token, p: f64| WorstTop {
            token,
            text: text(&[token]),
            p: p.is_finite().then_some(p),
        };
        let next_token = record.next_token();
        let next = next_token.and_then(|token| text(&[token]));
        let around = |before: String| WorstText {
            before: last_chars(&before),
            next: next.clone(),
        };
        Self {
            window: record.window,
            position: record.position,
            kld: record.kld,
            next_token,
            text: text(before).map(around),
            ref_top: top(record.ref_top, record.ref_top_p),
            eval_top: top(record.eval_top, record.eval_top_p),
        }
    }
}

fn last_chars(text: &str) -> String {
    let n = text.chars().count();
    text.chars().skip(n.saturating_sub(CONTEXT_CHARS)).collect()
}
