//! Input that is ready to decode.

use std::borrow::Cow;

use kl_formats::{Groups, Prompt, Shard, TextIdentity, WindowSpec};

use super::{Plan, Windowing};

/// The windows to decode, and what a header records of where they come from.
pub struct PreparedInput {
    /// The windows, in the order in which they are decoded.
    pub plan: Plan,
    /// Which part of all windows these are; `None`: all.
    pub shard: Option<Shard>,
    /// The most tokens in a window.
    pub n_ctx: u32,
    /// Tokens of the longest window, be it of this part or of another: what a context has to hold.
    pub longest_window: u32,
    /// First scored position of a full window; for prompts, the lowest of all windows.
    pub first_scored: u32,
    /// Tokens from the start of a window to the start of the next, where windows overlap.
    pub stride: Option<u32>,
    /// Whether each window starts with an inserted BOS.
    pub add_bos: bool,
    /// The file that was read, or all of them together.
    pub text: TextIdentity,
    /// Each of several texts; else empty.
    pub texts: Vec<TextIdentity>,
    /// Which group each window belongs to, if there are groups.
    pub groups: Option<Groups>,
    /// For a text cut into llama-perplexity's chunks, the text's own tokens in all windows; else
    /// empty.
    pub text_tokens: Vec<u32>,
    /// How many tokens after the last whole chunk are left out.
    pub n_left_out: u64,
    /// The prompts, where the windows are prompts.
    pub prompts: Option<Vec<Prompt>>,
    /// SHA-256 of the chat template that was applied.
    pub chat_template: Option<String>,
    /// How many tokens the model generated after each prompt.
    pub generated: Option<u32>,
}

impl PreparedInput {
    /// The windows of one or several texts: `text` identifies all that was read. Of the rest, there
    /// is none.
    pub(super) fn of_text(
        plan: Plan,
        windowing: &Windowing,
        bos: Option<u32>,
        text: TextIdentity,
    ) -> Self {
        Self {
            shard: None,
            n_ctx: windowing.n_ctx,
            longest_window: plan.longest_window(),
            first_scored: windowing.score.first(windowing.n_ctx, bos.is_some()),
            stride: windowing.stride,
            add_bos: bos.is_some(),
            text,
            texts: Vec::new(),
            groups: None,
            text_tokens: Vec::new(),
            n_left_out: 0,
            plan,
            prompts: None,
            chat_template: None,
            generated: None,
        }
    }

    /// The windows with the text's own tokens: a base file holds those, though a BOS replaces the
    /// first of each when it is decoded.
    #[must_use]
    pub fn windows_of_the_text(&self) -> Cow<'_, [WindowSpec]> {
        if self.text_tokens.is_empty() {
            return Cow::Borrowed(&self.plan.windows);
        }
        let chunks = self.text_tokens.chunks(self.n_ctx as usize);
        let windows = chunks.zip(&self.plan.windows);
        windows
            .map(|(tokens, window)| WindowSpec {
                tokens: tokens.to_vec(),
                ..window.clone()
            })
            .collect()
    }

    /// About the most bytes that the prompts can take in a header.
    #[must_use]
    pub fn prompt_bytes(&self) -> u64 {
        let prompts = self.prompts.iter().flatten();
        // Escaping can make a text longer, but seldom doubles it.
        prompts
            .map(|prompt| 2 * prompt.content.bytes() as u64 + 64)
            .sum()
    }
}
