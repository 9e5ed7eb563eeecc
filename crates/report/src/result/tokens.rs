//! The lists of a report: the values of every token, the tokens with the largest KLDs, and prompts.

use kl_formats::TokenRecord;
use kl_stats::stats::PromptStats;
use serde::Serialize;

use crate::number::finite;

/// One column per value, with one entry per scored token, in the order of the sidecar.
///
/// A null stands for a missing value: the last position of a window has no next token, and a pair of
/// rows that is not finite has no scores.
#[derive(Serialize, Debug, Default, PartialEq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct TokenColumns {
    /// The window, in text order.
    pub window: Vec<u32>,
    /// The position in the window; its row predicts the token at the next position.
    pub position: Vec<u32>,
    /// The actual next token.
    pub token: Vec<Option<u32>>,
    /// The text of `token`.
    pub text: Vec<Option<String>>,
    /// KL(reference ‖ model), in nats.
    pub kld: Vec<Option<f64>>,
    /// KL(model ‖ reference), in nats.
    pub reverse_kld: Vec<Option<f64>>,
    /// −ln p(token) under the reference.
    pub ref_nll: Vec<Option<f64>>,
    /// −ln q(token) under the model.
    pub eval_nll: Vec<Option<f64>>,
    /// The reference's top token.
    pub ref_top: Vec<Option<u32>>,
    /// The model's top token.
    pub eval_top: Vec<Option<u32>>,
    /// The rank of `ref_top` in the model's row, from 1.
    pub ref_top_rank: Vec<Option<u32>>,
    /// The rank of `eval_top` in the reference's row, from 1.
    pub eval_top_rank: Vec<Option<u32>>,
    /// Entropy of the reference's distribution, in nats.
    pub ref_entropy: Vec<Option<f64>>,
}

impl TokenColumns {
    /// Arranges records into columns; `text` gives the text of tokens.
    pub fn of(records: &[TokenRecord], text: impl Fn(&[u32]) -> String) -> Self {
        let mut columns = Self::default();
        for record in records {
            let if_scored = |x: u32| (!record.is_excluded()).then_some(x);
            let token = record.next_token();
            columns.window.push(record.window);
            columns.position.push(record.position);
            columns.token.push(token);
            columns.text.push(token.map(|token| text(&[token])));
            columns.kld.push(finite(record.kld));
            columns.reverse_kld.push(finite(record.reverse_kld));
            columns.ref_nll.push(finite(record.ref_nll));
            columns.eval_nll.push(finite(record.eval_nll));
            columns.ref_top.push(if_scored(record.ref_top));
            columns.eval_top.push(if_scored(record.eval_top));
            columns.ref_top_rank.push(if_scored(record.ref_top_rank));
            columns.eval_top_rank.push(if_scored(record.eval_top_rank));
            columns.ref_entropy.push(finite(record.ref_entropy));
        }
        columns
    }
}

/// A token with a large KLD, in the JSON of an evaluation.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct DivergentToken {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window; its row predicts the token at the next position.
    pub position: u32,
    /// KL(reference ‖ model), in nats; null if it is infinite.
    #[cfg_attr(any(test, feature = "testing"), schemars(with = "Option<f64>"))]
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

impl DivergentToken {
    /// The number of characters of context that are shown.
    const CONTEXT_CHARS: usize = 40;

    /// Copies the context of a position in the window of `tokens`: the tokens up to and including
    /// it, no more than enough, as a token is at least one byte and a character at most 4.
    pub fn context_of(tokens: &[u32], position: u32) -> Vec<u32> {
        let end = tokens.len().min(position as usize + 1);
        let start = end.saturating_sub(4 * Self::CONTEXT_CHARS);
        tokens.get(start..end).unwrap_or_default().to_vec()
    }

    /// Describes a record; `text` gives the text of tokens.
    pub fn new(record: &TokenRecord, context: &[u32], text: impl Fn(&[u32]) -> String) -> Self {
        let top_token = |token, p| TopToken {
            token,
            text: Some(text(&[token])),
            p: finite(p),
        };
        let token = record.next_token();
        Self {
            window: record.window,
            position: record.position,
            kld: record.kld,
            context: last_chars(&text(context), Self::CONTEXT_CHARS).to_owned(),
            token,
            token_text: token.map(|token| text(&[token])),
            ref_top: top_token(record.ref_top, record.ref_top_p),
            eval_top: top_token(record.eval_top, record.eval_top_p),
        }
    }
}

/// A token with a large KLD, in the JSON of `kl report`. Texts are null where the sidecar does not
/// hold them.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct WorstToken {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window; its row predicts the token at the next position.
    pub position: u32,
    /// KL(reference ‖ model), in nats; null if it is infinite.
    #[cfg_attr(any(test, feature = "testing"), schemars(with = "Option<f64>"))]
    pub kld: f64,
    /// The actual next token; null at a window's end.
    pub next_token: Option<u32>,
    /// The text around the position.
    pub text: Option<WorstText>,
    /// The reference's top token.
    pub ref_top: TopToken,
    /// The model's top token.
    pub eval_top: TopToken,
}

/// The text around a position.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct WorstText {
    /// The last characters up to the position, which both models have seen.
    pub before: String,
    /// The text of the actual next token; null at a window's end.
    pub next: Option<String>,
}

/// The token that a model finds most probable at a position.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct TopToken {
    /// The token's id.
    pub token: u32,
    /// Its text; null where the sidecar does not hold it.
    pub text: Option<String>,
    /// Its probability under that model; null where the sidecar does not record it.
    pub p: Option<f64>,
}

impl WorstToken {
    /// The number of characters of text that are shown before a position.
    const CONTEXT_CHARS: usize = 60;
    /// The number of tokens before a position that hold enough text: a token has at least one byte,
    /// a character at most four.
    pub const CONTEXT_TOKENS: usize = 4 * Self::CONTEXT_CHARS;

    /// Describes a record. `before` are the known tokens up to its position;
    /// `text` gives the text of tokens, and `None` where it is not known.
    pub fn new(
        record: &TokenRecord,
        before: &[u32],
        text: impl Fn(&[u32]) -> Option<String>,
    ) -> Self {
        let top_token = |token, p: f64| TopToken {
            token,
            text: text(&[token]),
            p: finite(p),
        };
        let next_token = record.next_token();
        let text_around = text(before).map(|before| WorstText {
            before: last_chars(&before, Self::CONTEXT_CHARS).to_owned(),
            next: next_token.and_then(|token| text(&[token])),
        });
        Self {
            window: record.window,
            position: record.position,
            kld: record.kld,
            next_token,
            text: text_around,
            ref_top: top_token(record.ref_top, record.ref_top_p),
            eval_top: top_token(record.eval_top, record.eval_top_p),
        }
    }
}

fn last_chars(text: &str, n: usize) -> &str {
    let start = text.char_indices().rev().take(n).last();
    start.map_or("", |(start, _)| &text[start..])
}

/// One prompt and its numbers.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct PromptReport {
    /// Its text, or the text of the user's last message.
    pub prompt: String,
    /// Its numbers.
    #[serde(flatten)]
    pub stats: PromptStats,
}

impl PromptReport {
    /// Labels each prompt's numbers; `labels[i]` is the text of prompt `i`.
    pub fn of_each(labels: &[String], stats: Vec<PromptStats>) -> Vec<Self> {
        stats
            .into_iter()
            .map(|stats| Self {
                prompt: labels
                    .get(stats.window as usize)
                    .cloned()
                    .unwrap_or_default(),
                stats,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_are_null() {
        let record = TokenRecord {
            window: 3,
            position: 7,
            token: 5,
            ref_top: 1,
            eval_top: 2,
            ref_top_rank: 3,
            eval_top_rank: 4,
            kld: 0.5,
            reverse_kld: 0.25,
            ref_nll: 1.5,
            eval_nll: 2.5,
            ref_entropy: 3.5,
            ..TokenRecord::default()
        };
        let at_the_end = TokenRecord {
            token: u32::MAX,
            ref_nll: f64::NAN,
            eval_nll: f64::NAN,
            ..record
        };
        let excluded = TokenRecord {
            flags: TokenRecord::REF_NOT_FINITE,
            kld: f64::NAN,
            reverse_kld: f64::NAN,
            ref_entropy: f64::NAN,
            ..at_the_end
        };
        let columns = TokenColumns::of(&[record, at_the_end, excluded], |ids| format!("{ids:?}"));
        let json = serde_json::to_value(&columns).unwrap();
        let expected = serde_json::json!({
            "window": [3, 3, 3],
            "position": [7, 7, 7],
            "token": [5, null, null],
            "text": ["[5]", null, null],
            "kld": [0.5, 0.5, null],
            "reverse_kld": [0.25, 0.25, null],
            "ref_nll": [1.5, null, null],
            "eval_nll": [2.5, null, null],
            "ref_top": [1, 1, null],
            "eval_top": [2, 2, null],
            "ref_top_rank": [3, 3, null],
            "eval_top_rank": [4, 4, null],
            "ref_entropy": [3.5, 3.5, null],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn the_context_ends_with_the_position_itself() {
        let window: Vec<u32> = (0..1000).collect();
        let before = |position| DivergentToken::context_of(&window, position);
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
