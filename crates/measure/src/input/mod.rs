//! Text and prompts in, windows out: which tokens are decoded, and which positions are scored.
//!
//! [`Source`] is what the user named, [`RawInput`] what was read from it before the model is
//! loaded, and [`PreparedInput`] the windows that the model's tokenizer and chat template make from
//! it: planned, answered where a model is to answer, and cut to the wanted part.

mod answer_file;
mod chat;
pub mod chat_template;
mod faults;
mod generation;
mod prompt_file;
mod prompts;
mod source;
mod spans;
mod starter;
mod templates;
mod text;
mod texts;
mod windows;

use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use kl_engine::Model;
use kl_formats::{Groups, Prompts, Provenance, TextIdentity, WindowSpec};
use kl_report::Warning;

use crate::pipeline::{InputTime, Part};
use crate::whole_file::read_text;
pub use answer_file::{AnswerFile, AnswerRun};
pub use generation::Generated;
use prompt_file::PromptLine;
use prompts::Questions;
pub use source::{DEFAULT_N_CTX, GROUP_NAMES, NamedText, Source, file, is_group_name};
pub use spans::SpanRule;
use spans::{OfferedTools, Spans};
pub use starter::STARTER;
use texts::RawText;
pub use windows::{Plan, ScoreFrom};

/// The windows of an input that are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection {
    /// True if a text is cut as llama-perplexity cuts it, for its base file.
    pub in_chunks: bool,
    /// The most scored positions in all.
    pub max_rows: Option<u64>,
    /// The part of those windows to use; `None`: all.
    pub part: Option<Part>,
    /// The number of rows of the [first windows of all parts](Plan::first) that are wanted
    /// too.
    pub n_first_rows: u64,
}

/// Texts or prompts that were read, not yet tokenized.
pub struct RawInput<'s> {
    pub source: &'s Source,
    /// The identity of the texts or the prompts; their tokens are not counted yet.
    pub text: TextIdentity,
    texts: Vec<RawText>,
    prompts: Vec<PromptLine>,
    /// The chat template of a file.
    template: Option<String>,
}

impl<'s> RawInput<'s> {
    /// Reads the files that `source` names, and its chat template if that is a file too. Warns of bytes
    /// that are not UTF-8, and in texts what only editors on Windows write.
    ///
    /// # Errors
    /// A file that cannot be read, is empty or too long, or holds no prompts.
    pub fn read(source: &'s Source, doubts: &mut Vec<Warning>) -> Result<Self> {
        let mut raw = Self {
            source,
            text: TextIdentity::default(),
            texts: Vec::new(),
            prompts: Vec::new(),
            template: None,
        };
        if let Some(path) = &source.prompts {
            (raw.text, raw.prompts) = prompt_file::read(path, source, doubts)?;
        } else {
            for named in &source.texts {
                raw.texts.extend(RawText::read(named, doubts)?);
            }
            raw.text = texts::identity(&raw.texts);
        }
        if let Some(path) = &source.chat_template_file {
            raw.template = Some(read_template(path)?);
        }
        Ok(raw)
    }

    /// The prompts that come with `kl`, as one text.
    pub fn starter_text(source: &'s Source) -> Self {
        let text = starter::prompts();
        Self {
            source,
            text: text.identity.clone(),
            texts: vec![RawText {
                group: None,
                shown_name: starter::STARTER.to_owned(),
                text,
            }],
            prompts: Vec::new(),
            template: None,
        }
    }

    /// Tokenizes the input and plans its windows, those of all parts. `check` is called before each prompt;
    /// its error ends the work. [`PreparedInput::answer`] and then [`PreparedInput::keep_part`] complete what
    /// is planned.
    ///
    /// # Errors
    /// If nothing is left to score, there are fewer windows than parts, or the model or its chat template
    /// refuses the input.
    pub fn plan(
        self,
        model: &dyn Model,
        selection: &Selection,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<PreparedInput> {
        let started = Instant::now();
        let mut input = if self.source.prompts.is_some() {
            prompts::plan(self, model, selection, check)
        } else {
            texts::plan(self, model, selection)
        }?;
        let (n_windows, n_rows) = (input.plan.windows.len(), input.plan.n_rows());
        let shard = selection.part.map(|part| part.shard_of(n_windows, n_rows));
        input.provenance.shard = shard.transpose()?;
        input.provenance.seed = input.plan.seed;
        input.selection = *selection;
        input.tokenizing = started.elapsed();
        Ok(input)
    }
}

/// The windows to decode, and what a header records of where they come from.
#[derive(Default)]
pub struct PreparedInput {
    /// The windows, in the order in which they are decoded.
    pub plan: Plan,
    /// The model, the text or the prompts, and the rule by which they became windows; for prompts, the first
    /// scored position is the lowest of all windows.
    pub provenance: Provenance,
    /// Tokens of the longest window, be it of this part or of another: what a context has to hold.
    pub longest_window: u32,
    /// The group that each window belongs to, if there are groups.
    pub groups: Option<Groups>,
    /// For a text cut into llama-perplexity's chunks, the text's own tokens in all windows; else
    /// empty.
    text_tokens: Vec<u32>,
    /// The number of tokens after the last whole chunk, which are left out.
    pub n_left_out: u64,
    /// The prompts, where the windows are prompts.
    pub prompts: Option<Prompts>,
    /// Answers of conversations that are left out because they do not fit in a window, as was known
    /// before any was generated.
    pub n_turns_left_out: u64,
    /// The number of windows that have no answer and so no rows, because their conversations could not be
    /// continued, and the reason, of the first of these, with its file and line.
    pub unanswered: Option<(u64, String)>,
    /// The lists that chat templates can print, and the number of prompts that have one which theirs does
    /// not print.
    pub n_ignored: [(&'static str, u64); 2],
    /// The number of answers to prompts that offer tools, and of those that call one in a form that is known.
    pub n_with_tools: u64,
    pub n_with_calls: u64,
    /// The prompts that the model is to answer.
    pub questions: Option<Questions>,
    /// What the model has generated for them.
    pub generated: Option<Generated>,
    selection: Selection,
    tokenizing: Duration,
    /// The spans of answers, where windows end with one.
    spans: Option<Spans>,
}

impl PreparedInput {
    /// An input without windows, from `source` for this model.
    fn new(source: &Source, model: &dyn Model) -> Self {
        let facts = model.facts();
        Self {
            provenance: Provenance {
                model: Some(facts.identity.clone()),
                model_path: Some(facts.path.display().to_string()),
                tokenizer: facts.tokenizer.clone(),
                n_vocab: facts.n_vocab,
                text_path: Some(source.to_string()),
                ..Provenance::default()
            },
            n_ignored: [("tools", 0), ("documents", 0)],
            ..Self::default()
        }
    }

    /// Keeps the windows of the part that is selected, and finds the spans of their answers.
    pub fn keep_part(&mut self, model: &dyn Model) {
        self.plan.keep(self.selection.part);
        let (Some(spans), Some(prompts)) = (&self.spans, &mut self.prompts) else {
            return;
        };
        let bytes_of_token = |token| model.token_bytes(token).unwrap_or_default();
        let ends_answer = |token| model.is_end_of_generation(token);
        // The prompts of a conversation have the tools of its first one.
        let (mut next, mut tools) = (0, OfferedTools::default());
        for window in &self.plan.windows {
            let index = window.window as usize;
            let new_prompts = prompts.list.get(next..=index).unwrap_or_default();
            if let Some(first) = new_prompts.iter().rfind(|prompt| !prompt.continues) {
                tools = OfferedTools::of(&first.variables);
            }
            next = index + 1;
            if let Some(prompt) = prompts.list.get_mut(index) {
                let n_prompt = prompt.n_tokens;
                prompt.spans = spans.of_window(
                    &window.tokens,
                    n_prompt,
                    &tools,
                    &bytes_of_token,
                    &ends_answer,
                );
                if !tools.is_empty() && !window.tokens.is_empty() {
                    self.n_with_tools += 1;
                    self.n_with_calls += u64::from(spans.has_tool_call(&prompt.spans));
                }
            }
        }
    }

    /// Cuts a text into llama-perplexity's chunks, and keeps its tokens.
    fn cut_in_chunks(&mut self, tokens: &[u32], n_ctx: u32, bos: Option<u32>) -> Plan {
        self.text_tokens = bos.iter().chain(tokens).copied().collect();
        let plan = Plan::chunks(&self.text_tokens, n_ctx, bos);
        let n_whole = plan.windows.len() * n_ctx as usize;
        self.n_left_out = self.text_tokens.len().saturating_sub(n_whole) as u64;
        self.text_tokens.truncate(n_whole);
        plan
    }

    /// The windows with the text's own tokens: a base file holds those, though a BOS replaces the
    /// first of each when it is decoded.
    pub fn windows_of_the_text(&self) -> Cow<'_, [WindowSpec]> {
        if self.text_tokens.is_empty() {
            return Cow::Borrowed(&self.plan.windows);
        }
        self.text_tokens
            .chunks(self.provenance.n_ctx as usize)
            .zip(&self.plan.windows)
            .map(|(tokens, window)| WindowSpec {
                tokens: tokens.to_vec(),
                ..window.clone()
            })
            .collect()
    }

    /// How long it took to prepare this.
    pub fn time(&self) -> InputTime {
        InputTime {
            tokenize: self.tokenizing,
            generate: self.generated.map(|generated| generated.time),
        }
    }

    /// About the most bytes that the prompts can take in a header.
    pub fn prompt_bytes(&self) -> u64 {
        // Escaping can make a text longer, but seldom doubles it.
        self.prompts
            .iter()
            .flat_map(|prompts| &prompts.list)
            .map(|prompt| 2 * (prompt.content.bytes() + prompt.variables.bytes()) as u64 + 64)
            .sum()
    }
}

/// Reads the file of a chat template.
fn read_template(path: &Path) -> Result<String> {
    /// A hundred times as long as the longest that is published.
    const MAX_BYTES: u64 = 4 << 20;
    let bytes = read_text(path, MAX_BYTES, ", more than a chat template has")?;
    let shown_path = path.display();
    if let Some(index) = bytes.iter().position(|&byte| byte == 0) {
        bail!("{shown_path}: not a chat template: byte {index} is 0");
    }
    String::from_utf8(bytes).map_err(|error| {
        let index = error.utf8_error().valid_up_to();
        anyhow!("{shown_path}: not a chat template: byte {index} is not UTF-8")
    })
}
