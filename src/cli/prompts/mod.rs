//! Prompts -> windows: the chat template makes texts of them, texts become tokens, and the model may
//! go on behind them.

mod file;

use std::fmt::Display;
use std::fs;

use anyhow::{Context, Result, anyhow, bail};
use kl_formats::{MAX_N_CTX, Prompt, PromptContent, TextIdentity, WindowHead};

use super::progress::Progress;
use super::settings::{PromptSettings, RunSettings, TemplateChoice};
use super::setup::{Precedent, context_options};
use super::{Warning, stop, warn};
use crate::chat_template::ChatTemplate;
use crate::engine::Model;
use crate::pipeline;
use file::Given;

/// What was given, read before the model is loaded.
pub struct PromptFile<'s> {
    pub settings: &'s PromptSettings,
    prompts: Vec<Given>,
    identity: TextIdentity,
    /// The template in place of the model's.
    template: Option<String>,
}

/// The windows of prompts, and what a header says of them.
pub struct PromptWindows {
    /// One a prompt, in their order; without rows where a prompt ends before its first scored
    /// position.
    pub windows: Vec<WindowHead>,
    pub prompts: Vec<Prompt>,
    /// SHA-256 of the template applied.
    pub chat_template: Option<String>,
    /// Whether each window starts with an inserted BOS.
    pub add_bos: bool,
    pub identity: TextIdentity,
}

/// What makes texts of prompts.
#[allow(clippy::large_enum_variant)] // one per run
enum Template {
    Chat(ChatTemplate),
    /// Nothing: they are texts, and messages cannot be, with what to do about it.
    None(&'static str),
}

/// A prompt's tokens, an inserted BOS included.
struct Tokens {
    ids: Vec<u32>,
    has_inserted_bos: bool,
}

impl<'s> PromptFile<'s> {
    /// Reads prompts, and the template if it is in a file.
    pub fn read(settings: &'s PromptSettings) -> Result<Self> {
        let (prompts, identity) = file::read(&settings.path, settings.max_prompts)?;
        let template = match &settings.template {
            TemplateChoice::File(path) => {
                let template = fs::read_to_string(path);
                Some(template.with_context(|| format!("{}: cannot be read", path.display()))?)
            }
            TemplateChoice::OfModel | TemplateChoice::None => None,
        };
        Ok(Self {
            settings,
            prompts,
            identity,
            template,
        })
    }

    /// The windows that `model` makes of them.
    pub fn windows(mut self, run: &RunSettings, model: &Model<'_>) -> Result<PromptWindows> {
        let template = self.template(model)?;
        let mut tokens = Vec::with_capacity(self.prompts.len());
        for given in &self.prompts {
            stop::check()?;
            tokens.push(self.tokenize(given, &template, model)?);
        }
        self.identity.n_tokens = tokens.iter().map(Tokens::n_own).sum();
        let add_bos = tokens.iter().all(|tokens| tokens.has_inserted_bos);
        let mut windows: Vec<Vec<u32>> = tokens.into_iter().map(|tokens| tokens.ids).collect();
        let lengths: Vec<u32> = windows.iter().map(|tokens| tokens.len() as u32).collect();
        if let Some(n) = self.settings.generate {
            generate(&mut windows, n, run, model)?;
        }
        let heads = windows.into_iter().zip(&lengths).zip(0..);
        let prompts = self.prompts.into_iter().zip(&lengths);
        Ok(PromptWindows {
            windows: heads
                .map(|((tokens, &n_tokens), window)| head(self.settings, window, tokens, n_tokens))
                .collect(),
            prompts: prompts
                .map(|(given, &n_tokens)| Prompt {
                    content: given.content,
                    n_tokens,
                })
                .collect(),
            chat_template: match &template {
                Template::Chat(template) => Some(template.sha256().to_owned()),
                Template::None(_) => None,
            },
            add_bos,
            identity: self.identity,
        })
    }

    /// What is applied to each prompt.
    fn template(&self, model: &Model<'_>) -> Result<Template> {
        let (source, path) = match (&self.settings.template, &self.template) {
            (TemplateChoice::File(path), Some(source)) => (source.clone(), path.as_path()),
            (TemplateChoice::OfModel, _) => match model.chat_template() {
                Some(source) => (source, model.path()),
                None => {
                    warn(&Warning::NoChatTemplate);
                    return Ok(Template::None(
                        "the model has none: give one with --chat-template-file",
                    ));
                }
            },
            (TemplateChoice::None | TemplateChoice::File(_), _) => {
                return Ok(Template::None("leave --no-chat-template out"));
            }
        };
        let (bos, eos) = model.bos_and_eos_text();
        let template = ChatTemplate::new(&source, bos, eos).map_err(|error| {
            anyhow!(
                "{}: its chat template cannot be used: {error}; give another with --chat-template-file, or --no-chat-template",
                path.display()
            )
        })?;
        Ok(Template::Chat(template))
    }

    /// What is wrong with a prompt, in one line with its place.
    fn fault(&self, given: &Given, what: impl Display) -> anyhow::Error {
        anyhow!(
            "{}: line {}: {what}",
            self.settings.path.display(),
            given.line
        )
    }

    /// A prompt's tokens. The BOS is inserted where the model wants one and none is there yet.
    fn tokenize(&self, given: &Given, template: &Template, model: &Model<'_>) -> Result<Tokens> {
        let mut ids = match (template, &given.content) {
            (Template::Chat(template), content) => {
                let text = template.apply(&messages(content)?).map_err(|error| {
                    self.fault(given, format!("the chat template refuses it: {error}"))
                })?;
                model.tokenize(&text, true)?
            }
            (Template::None(_), PromptContent::Text(text)) => {
                model.tokenize(text, self.settings.parse_special)?
            }
            (Template::None(why), PromptContent::Messages(_)) => {
                bail!(self.fault(given, format!("messages need a chat template: {why}")))
            }
        };
        let bos = model.bos().filter(|bos| ids.first() != Some(bos));
        ids.splice(0..0, bos);
        self.check_length(given, ids.len())?;
        Ok(Tokens {
            ids,
            has_inserted_bos: bos.is_some(),
        })
    }

    /// A prompt needs a token to predict and one to predict it from, and with what is generated it has
    /// to fit a window.
    fn check_length(&self, given: &Given, n_tokens: usize) -> Result<()> {
        let (generated, least) = match self.settings.generate {
            Some(n) => (n as usize, 1),
            None => (0, 2),
        };
        if n_tokens < least {
            return Err(self.fault(
                given,
                format!(
                    "a prompt of {n_tokens} token(s): it must have at least {least}; leave it out, or give a chat template that makes more of it"
                ),
            ));
        }
        let most = self.settings.n_ctx.unwrap_or(MAX_N_CTX) as usize;
        if n_tokens.saturating_add(generated) > most {
            let behind = match generated {
                0 => String::new(),
                n => format!(" and {n} generated"),
            };
            return Err(self.fault(
                given,
                format!("a prompt of {n_tokens} tokens{behind} does not fit a window of {most}: raise --n-ctx, or shorten it"),
            ));
        }
        Ok(())
    }
}

impl Tokens {
    /// Those of the prompt itself.
    fn n_own(&self) -> u64 {
        self.ids.len() as u64 - u64::from(self.has_inserted_bos)
    }
}

/// A prompt as a chat: a text is what the user says.
fn messages(content: &PromptContent) -> Result<String> {
    Ok(match content {
        PromptContent::Messages(messages) => messages.json().to_owned(),
        PromptContent::Text(text) => {
            let text = serde_json::to_string(text)?;
            format!(r#"[{{"role":"user","content":{text}}}]"#)
        }
    })
}

/// Lets the model put `n` tokens behind each prompt.
fn generate(prompts: &mut [Vec<u32>], n: u32, run: &RunSettings, model: &Model<'_>) -> Result<()> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) as u32;
    // The last token is not decoded, but will be part of a window.
    let options = context_options(run, longest + n, model.n_vocab(), Precedent::default());
    let mut decoder = model.decoder(&options)?;
    let n_prompts = prompts.len() as u64;
    let mut progress = Progress::new(
        "generating",
        Some(n_prompts),
        Some(n_prompts * u64::from(n)),
        run.quiet,
    );
    let mut extend = |(window, tokens): (u32, &mut Vec<u32>)| {
        let done = decoder.extend(window, tokens, n, || {
            progress.rows(1);
            stop::check()
        });
        progress.window(None);
        done
    };
    let done: Result<(), pipeline::Error> = (0..).zip(prompts).try_for_each(&mut extend);
    progress.finish();
    Ok(done?)
}

/// The window of a prompt of `n_tokens`, of which `tokens` may hold more. A prompt's last row is
/// scored like any, as a text's is; behind the last token generated there is none.
fn head(settings: &PromptSettings, window: u32, tokens: Vec<u32>, n_tokens: u32) -> WindowHead {
    let first_scored = settings.first_scored.unwrap_or(n_tokens.saturating_sub(1));
    let scored_end = tokens.len() as u32 - u32::from(settings.generate.is_some());
    WindowHead {
        window,
        tokens,
        first_scored,
        n_rows: scored_end.saturating_sub(first_scored),
    }
}
