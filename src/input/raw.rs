//! Input that was read before the model is loaded, so that a bad file fails at once.

use std::path::Path;

use anyhow::{Result, bail};

use super::grouped::RawTexts;
use super::prompts::{Generation, RawPrompts};
use super::text::{self, InvalidUtf8, Text};
use super::windows::with_bos;
use super::{Part, Plan, PreparedInput, Source, TextSource, Windowing};
use crate::engine::Model;

/// A text or prompts, not yet tokenized.
pub enum RawInput<'s> {
    /// A text.
    Text(RawText<'s>),
    /// Several texts.
    Texts(RawTexts<'s>),
    /// Prompts.
    Prompts(RawPrompts<'s>),
}

/// A text, and how it is to be cut.
pub struct RawText<'s> {
    source: &'s TextSource,
    text: Text,
}

impl<'s> RawInput<'s> {
    /// Reads the file that `source` names, and its chat template if that is a file too.
    ///
    /// # Errors
    /// A file that cannot be read, is empty or too long, or holds no prompts.
    pub fn read(source: &'s Source) -> Result<Self> {
        Ok(match source {
            Source::Prompts(source) => Self::Prompts(RawPrompts::read(source)?),
            Source::Texts(source) => Self::Texts(RawTexts::read(source)?),
            Source::Text(source) => Self::Text(RawText {
                source,
                text: text::read(&source.path)?,
            }),
        })
    }

    /// The files that hold bytes that are not UTF-8, and which those are.
    #[must_use]
    pub fn invalid_utf8(&self) -> Vec<(String, InvalidUtf8)> {
        let of = |path: &Path, found: Option<InvalidUtf8>| {
            let named = found.map(|invalid| (path.display().to_string(), invalid));
            named.into_iter().collect()
        };
        match self {
            Self::Text(raw) => of(raw.path(), raw.text.invalid_utf8),
            Self::Texts(raw) => raw.invalid_utf8(),
            Self::Prompts(raw) => of(raw.path(), raw.invalid_utf8),
        }
    }

    /// Whether prompts stay as they are because `model` has no chat template.
    #[must_use]
    pub fn lacks_chat_template(&self, model: &impl Model) -> bool {
        match self {
            Self::Text(_) | Self::Texts(_) => false,
            Self::Prompts(raw) => raw.lacks_chat_template(model),
        }
    }

    /// Tokenizes the input and cuts it into windows, at most `max_rows` scored positions in all, of
    /// which only `part` is kept.
    ///
    /// `in_chunks`: cut as llama-perplexity cuts a text, for its base file. `generation` runs the
    /// model where prompts are to be continued.
    ///
    /// # Errors
    /// If nothing is left to score, or the model or its chat template refuses the input; errors of
    /// `generation`.
    pub fn prepare<M: Model>(
        self,
        model: &M,
        in_chunks: bool,
        max_rows: Option<u64>,
        part: Option<Part>,
        generation: Generation<'_>,
    ) -> Result<PreparedInput> {
        let mut input = match self {
            Self::Prompts(raw) => return raw.prepare(model, max_rows, part, generation),
            Self::Text(raw) if in_chunks => raw.in_chunks(model)?,
            Self::Text(raw) => raw.in_windows(model, max_rows)?,
            Self::Texts(raw) => raw.in_windows(model, max_rows)?,
        };
        input.shard = input.plan.keep(part)?;
        Ok(input)
    }
}

impl RawText<'_> {
    /// Cuts windows that each start with an inserted BOS, where the model wants one.
    fn in_windows<M: Model>(self, model: &M, max_rows: Option<u64>) -> Result<PreparedInput> {
        let (tokens, bos) = (self.tokens(model)?, model.bos());
        let windowing = &self.source.windowing;
        check_stride(windowing, bos)?;
        let plan = Plan::cut(&tokens, windowing, bos).limited(max_rows);
        if plan.n_rows() == 0 {
            bail!(
                "{}: has {} tokens, too few for a scored position: use a longer text, or lower --score",
                self.path().display(),
                tokens.len()
            );
        }
        Ok(self.prepared(plan, tokens.len(), bos))
    }

    /// Cuts whole windows whose first token the BOS replaces, where the model wants one.
    fn in_chunks<M: Model>(self, model: &M) -> Result<PreparedInput> {
        let (tokens, bos) = (self.tokens(model)?, model.bos());
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
        PreparedInput {
            shard: None,
            n_ctx: windowing.n_ctx,
            longest_window: plan.longest_window(),
            first_scored: windowing.score.first(windowing.n_ctx, bos.is_some()),
            stride: windowing.stride,
            add_bos: bos.is_some(),
            text: identity,
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

    fn path(&self) -> &Path {
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

/// Refuses a stride that would skip tokens.
pub(super) fn check_stride(windowing: &Windowing, bos: Option<u32>) -> Result<()> {
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
