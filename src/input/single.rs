//! One text, cut into the windows of a reference.

use std::path::Path;

use anyhow::{Result, bail};

use super::text::{self, InvalidUtf8, Text};
use super::windows::with_bos;
use super::{Plan, PreparedInput, TextSource, Windowing};
use crate::engine::Model;

/// A text that was read, not yet tokenized, and how it is to be cut.
pub struct RawText<'s> {
    source: &'s TextSource,
    text: Text,
}

impl<'s> RawText<'s> {
    /// Reads the text.
    pub fn read(source: &'s TextSource) -> Result<Self> {
        let text = text::read(&source.path)?;
        Ok(Self { source, text })
    }

    /// The bytes that are not UTF-8.
    pub fn invalid_utf8(&self) -> Option<InvalidUtf8> {
        self.text.invalid_utf8
    }

    /// Cuts windows that each start with an inserted BOS, where the model wants one.
    pub fn in_windows<M: Model>(self, model: &M, max_rows: Option<u64>) -> Result<PreparedInput> {
        let (windowing, path) = (&self.source.windowing, self.path());
        let tokens = self.tokens(model)?;
        let plan = cut(&tokens, path, windowing, model.facts().bos())?.limited(max_rows);
        Ok(self.prepared(plan, tokens.len(), model.facts().bos()))
    }

    /// Cuts whole windows whose first token the BOS replaces, where the model wants one.
    pub fn in_chunks<M: Model>(self, model: &M) -> Result<PreparedInput> {
        let (tokens, bos) = (self.tokens(model)?, model.facts().bos());
        let n_ctx = self.source.windowing.n_ctx;
        let mut stream = with_bos(&tokens, bos);
        let plan = Plan::chunks(&stream, n_ctx, bos);
        if plan.n_rows() == 0 {
            bail!(
                "{}: has {} tokens, too few for a whole window of {n_ctx}: use a longer text, or lower --n-ctx",
                self.path().display(),
                tokens.len()
            );
        }
        let n_whole = plan.n_tokens() as usize;
        let n_left_out = stream.len().saturating_sub(n_whole) as u64;
        stream.truncate(n_whole);
        Ok(PreparedInput {
            text_tokens: stream,
            n_left_out,
            ..self.prepared(plan, tokens.len(), bos)
        })
    }

    fn tokens<M: Model>(&self, model: &M) -> Result<Vec<u32>> {
        tokenize(
            model,
            &self.text.text,
            self.path(),
            self.source.parse_special,
        )
    }

    fn prepared(&self, plan: Plan, n_tokens: usize, bos: Option<u32>) -> PreparedInput {
        let windowing = &self.source.windowing;
        let mut identity = self.text.identity.clone();
        identity.n_tokens = Some(n_tokens as u64);
        PreparedInput::of_text(plan, windowing, bos, identity)
    }

    /// The file, as given.
    pub fn path(&self) -> &Path {
        &self.source.path
    }
}

/// Tokenizes the text of a file.
pub(super) fn tokenize<M: Model>(
    model: &M,
    text: &str,
    path: &Path,
    parse_special: bool,
) -> Result<Vec<u32>> {
    let tokens = model.tokenize(text, parse_special)?;
    if tokens.len() < 2 {
        bail!(
            "{}: has fewer than two tokens: use a longer text",
            path.display()
        );
    }
    Ok(tokens)
}

/// Cuts the tokens of a file into windows that each start with `bos`, if there is one.
pub(super) fn cut(
    tokens: &[u32],
    path: &Path,
    windowing: &Windowing,
    bos: Option<u32>,
) -> Result<Plan> {
    check_stride(windowing, bos)?;
    let plan = Plan::cut(tokens, windowing, bos);
    if plan.n_rows() == 0 {
        bail!(
            "{}: has {} tokens, too few for a scored position: use a longer text, or lower --score",
            path.display(),
            tokens.len()
        );
    }
    Ok(plan)
}

/// Refuses a stride that would skip tokens.
fn check_stride(windowing: &Windowing, bos: Option<u32>) -> Result<()> {
    let longest = windowing.longest_stride(bos);
    match windowing.stride {
        Some(stride) if stride > longest => bail!(
            "--stride {stride}: leaves tokens out, because a window of {} holds {longest} tokens of text{}: use at most {longest}",
            windowing.n_ctx,
            if bos.is_some() { " and a BOS" } else { "" }
        ),
        _ => Ok(()),
    }
}
