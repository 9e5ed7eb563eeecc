//! What is given -> what is decoded, and what a header says of it.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{Prompt, TextIdentity};

use super::prompts::PromptFile;
use super::settings::{Input, PromptSettings, RunSettings, WriteKind};
use super::{Warning, text, warn};
use crate::engine::Model;
use crate::report::number::count;
use crate::windows::{Plan, Windowing, with_bos};

/// What is to be decoded.
pub struct Job {
    pub plan: Plan,
    /// Most tokens in a window.
    pub n_ctx: u32,
    /// First scored position of a full window; of prompts, the first of any.
    pub first_scored: u32,
    pub stride: Option<u32>,
    /// Whether each window starts with an inserted BOS.
    pub add_bos: bool,
    pub text: TextIdentity,
    /// All tokens, where the file is llama.cpp's.
    pub chunked: Vec<u32>,
    pub prompts: Option<Vec<Prompt>>,
    /// SHA-256 of the chat template applied.
    pub chat_template: Option<String>,
    /// Tokens that the model has put behind each prompt.
    pub generated: Option<u32>,
}

/// What was given, read before the model is loaded.
pub enum Given<'s> {
    Text(GivenText<'s>),
    Prompts(PromptFile<'s>),
}

/// A text, and how it is cut.
pub struct GivenText<'s> {
    path: &'s Path,
    text: String,
    identity: TextIdentity,
    windowing: &'s Windowing,
    parse_special: bool,
}

impl<'s> Given<'s> {
    pub fn read(input: &'s Input) -> Result<Self> {
        Ok(match input {
            Input::Prompts(settings) => Self::Prompts(PromptFile::read(settings)?),
            Input::Text {
                path,
                windowing,
                parse_special,
            } => {
                let (text, identity) = text::read(path)?;
                Self::Text(GivenText {
                    path,
                    text,
                    identity,
                    windowing,
                    parse_special: *parse_special,
                })
            }
        })
    }

    /// What `model` is to decode of it, for a file of this kind.
    pub fn job(self, kind: WriteKind, run: &RunSettings, model: &Model<'_>) -> Result<Job> {
        match self {
            Self::Text(text) => text.job(kind, run, model),
            Self::Prompts(prompts) => prompt_job(prompts, run, model),
        }
    }
}

impl GivenText<'_> {
    fn job(self, kind: WriteKind, run: &RunSettings, model: &Model<'_>) -> Result<Job> {
        let tokens = model.tokenize(&self.text, self.parse_special)?;
        if tokens.len() < 2 {
            bail!(
                "{}: gives {} token(s): give a text of at least two",
                self.path.display(),
                tokens.len()
            );
        }
        let (windowing, bos) = (self.windowing, model.bos());
        let chunked = match kind {
            WriteKind::LlamaCpp => with_bos(&tokens, bos),
            WriteKind::Native(_) | WriteKind::KlPy => Vec::new(),
        };
        let plan = match kind {
            WriteKind::LlamaCpp => Plan::chunks(&chunked, windowing.n_ctx, bos),
            WriteKind::Native(_) | WriteKind::KlPy => {
                check_stride(windowing, bos)?;
                Plan::cut(&tokens, windowing, bos).limited(run.max_rows)
            }
        };
        self.check_plan(kind, &plan, tokens.len())?;
        if plan.n_unscored > 0 {
            warn(&Warning::Unscored(plan.n_unscored));
        }
        Ok(Job {
            n_ctx: windowing.n_ctx,
            first_scored: windowing.score.first(windowing.n_ctx),
            stride: windowing.stride,
            add_bos: bos.is_some(),
            text: TextIdentity {
                n_tokens: tokens.len() as u64,
                ..self.identity
            },
            chunked: whole_windows(chunked, &plan),
            plan,
            prompts: None,
            chat_template: None,
            generated: None,
        })
    }

    /// Refuses a text without a scored position.
    fn check_plan(&self, kind: WriteKind, plan: &Plan, n_tokens: usize) -> Result<()> {
        let text = self.path.display();
        match kind {
            _ if plan.n_rows() > 0 => Ok(()),
            WriteKind::LlamaCpp => bail!(
                "{text}: gives {n_tokens} tokens, too few for a whole window of {}: lower --n-ctx",
                self.windowing.n_ctx
            ),
            WriteKind::Native(_) | WriteKind::KlPy => bail!(
                "{text}: gives {n_tokens} tokens, too few for a scored position with --score {}",
                self.windowing.score
            ),
        }
    }
}

/// A stride must not leave tokens out.
fn check_stride(windowing: &Windowing, bos: Option<u32>) -> Result<()> {
    let longest = windowing.longest_stride(bos);
    match windowing.stride {
        Some(stride) if stride > longest => bail!(
            "--stride {stride} leaves tokens out: windows of {} hold {longest} of the text{}",
            windowing.n_ctx,
            if bos.is_some() { " and a BOS" } else { "" }
        ),
        _ => Ok(()),
    }
}

/// The tokens of the windows of `plan`, as the text has them. Says how many come behind the last.
fn whole_windows(mut chunked: Vec<u32>, plan: &Plan) -> Vec<u32> {
    let n_whole = plan.n_tokens() as usize;
    if chunked.len() > n_whole {
        warn(&Warning::NoWholeWindow((chunked.len() - n_whole) as u64));
    }
    chunked.truncate(n_whole);
    chunked
}

fn prompt_job(file: PromptFile<'_>, run: &RunSettings, model: &Model<'_>) -> Result<Job> {
    let settings: &PromptSettings = file.settings;
    let made = file.windows(run, model)?;
    let plan = Plan::of(made.windows);
    if plan.n_rows() == 0 {
        bail!(
            "{}: no prompt is long enough for a scored position: lower --score",
            settings.path.display()
        );
    }
    if plan.n_unscored > 0 {
        warn(&Warning::UnscoredPrompts(plan.n_unscored));
    }
    let first_scored = plan.windows.iter().map(|window| window.first_scored).min();
    Ok(Job {
        n_ctx: settings.n_ctx.unwrap_or(plan.longest_window()),
        first_scored: first_scored.unwrap_or(0),
        stride: None,
        add_bos: made.add_bos,
        text: made.identity,
        chunked: Vec::new(),
        plan: plan.limited(run.max_rows),
        prompts: Some(made.prompts),
        chat_template: made.chat_template,
        generated: settings.generate,
    })
}

impl Job {
    /// What there is to read and what windows it makes, for a person: names and texts of two lines.
    pub fn describe(&self, input: &Input, kind: WriteKind) -> [(&'static str, String); 2] {
        let path = input.path().display();
        let n_tokens = count(self.text.n_tokens);
        let n_rows = count(self.plan.n_rows());
        let n_windows = count(self.plan.windows.len() as u64);
        let bos = match (self.add_bos, kind) {
            (false, _) => "",
            (true, WriteKind::LlamaCpp) => ", each with a BOS for its first token",
            (true, _) => ", each with a BOS",
        };
        let Some(prompts) = &self.prompts else {
            let stride = self.stride;
            let stride = stride.map_or(String::new(), |stride| format!(", one every {stride}"));
            let n_ctx = self.n_ctx;
            return [
                ("text", format!("{path}, {n_tokens} tokens")),
                (
                    "windows",
                    format!(
                        "{n_windows} of {n_ctx} tokens{stride}{bos}, {n_rows} scored positions"
                    ),
                ),
            ];
        };
        let n_prompts = count(prompts.len() as u64);
        let template = match self.chat_template {
            Some(_) => "in a chat template",
            None => "as they are",
        };
        let longest = count(self.plan.longest_window().into());
        let generated = self.generated;
        let generated = generated.map_or(String::new(), |n| format!(", {n} of them generated"));
        [
            (
                "prompts",
                format!("{path}, {n_prompts} {template}, {n_tokens} tokens"),
            ),
            (
                "windows",
                format!(
                    "{n_windows} of {longest} tokens at most{generated}{bos}, {n_rows} scored positions"
                ),
            ),
        ]
    }

    /// Bytes that the prompts take in the header.
    pub fn prompt_bytes(&self) -> u64 {
        let prompts = self.prompts.iter().flatten();
        // Escapes can make a text longer, seldom twice as long.
        prompts
            .map(|prompt| 2 * prompt.content.bytes() as u64 + 64)
            .sum()
    }
}
