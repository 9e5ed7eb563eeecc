//! The chat templates of a run: which one a prompt gets, and what it writes after an answer.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use anyhow::{Result, anyhow};
use kl_engine::{EngineError, Model};
use kl_formats::Variables;
use serde::de::IgnoredAny;

use super::RawInput;
use super::chat;
use super::chat_template::ChatTemplate;

/// The chat templates that are applied to prompts.
pub struct Templates {
    /// The one of a file, or the model's own; `None`: prompts are used as they are.
    pub default: Option<AppliedTemplate>,
    /// The model's own for prompts with tools, if it has another one for these.
    tool_use: Option<AppliedTemplate>,
}

/// A chat template that is applied to prompts.
pub struct AppliedTemplate {
    pub template: Rc<ChatTemplate>,
    /// What the template writes after an answer, up to the token that ends its turn, once that was looked
    /// for.
    end_of_turn: OnceCell<Option<String>>,
    is_used: Cell<bool>,
}

impl Templates {
    /// Compiles the template of a file or else those of the model, as llama-server chooses them
    /// (`common_chat_templates_init` in llama.cpp's `common/chat.cpp`).
    ///
    /// # Errors
    /// A template that is not valid Jinja, with its file and what to do.
    pub fn new(raw: &RawInput<'_>, model: &dyn Model) -> Result<Self> {
        let facts = model.facts();
        let (default, tool_use, path) = match (&raw.source.chat_template_file, &raw.template) {
            (Some(path), Some(text)) => (Some(&**text), None, path),
            _ if raw.source.no_chat_template => (None, None, &facts.path),
            _ => {
                let tool_use = facts.tool_use_template.as_deref();
                (facts.default_template(), tool_use, &facts.path)
            }
        };
        let compile = |text: Option<&str>| {
            let compiled = text.map(|text| {
                let (bos, eos) = facts.bos_and_eos_text.clone();
                ChatTemplate::new(text, bos, eos)
            });
            let template = compiled.transpose().map_err(|error| {
                anyhow!(
                    "{}: its chat template cannot be used: {error}; choose another with --chat-template-file, or use --no-chat-template",
                    path.display()
                )
            })?;
            anyhow::Ok(template.map(|template| AppliedTemplate {
                template: Rc::new(template),
                end_of_turn: OnceCell::new(),
                is_used: Cell::new(false),
            }))
        };
        Ok(Self {
            default: compile(default)?,
            tool_use: compile(tool_use.filter(|text| default != Some(*text)))?,
        })
    }

    /// The reason why a template was stopped while it rendered, and what to do; `None` where none was.
    pub fn stopped(&self) -> Option<String> {
        self.all().find_map(|applied| applied.template.stopped())
    }

    /// The template for a prompt with these variables.
    pub fn of(&self, variables: &Variables) -> Option<&AppliedTemplate> {
        let for_tools = self
            .tool_use
            .as_ref()
            .filter(|_| has_items(variables, "tools"));
        let chosen = for_tools.or(self.default.as_ref());
        if let Some(chosen) = chosen {
            chosen.is_used.set(true);
        }
        chosen
    }

    fn all(&self) -> impl Iterator<Item = &AppliedTemplate> {
        self.default.iter().chain(&self.tool_use)
    }

    /// The sources of all, one after another.
    pub fn source(&self) -> String {
        let sources: Vec<&str> = self
            .all()
            .map(|applied| &*applied.template.source)
            .collect();
        sources.join("\n")
    }

    /// The SHA-256 of the first one that was used.
    pub fn sha256(&self) -> Option<String> {
        let first_used = self.all().find(|applied| applied.is_used.get());
        let applied = first_used.or(self.default.as_ref())?;
        Some(applied.template.sha256.clone())
    }
}

impl AppliedTemplate {
    /// What the template writes after an answer, up to the token that ends its turn, if one does.
    ///
    /// # Errors
    /// A text that cannot be tokenized.
    pub fn end_of_turn(&self, model: &dyn Model) -> Result<Option<String>, EngineError> {
        if let Some(end) = self.end_of_turn.get() {
            return Ok(end.clone());
        }
        let mut end = None;
        for text_after in chat::texts_after_an_answer(&self.template) {
            end = end_of_turn(&text_after, model)?;
            if end.is_some() {
                break;
            }
        }
        Ok(self.end_of_turn.get_or_init(|| end).clone())
    }
}

/// The beginning of the text after an answer up to the token that ends its turn, if only blanks are
/// before that.
///
/// # Errors
/// A text that cannot be tokenized.
pub fn end_of_turn(text_after: &str, model: &dyn Model) -> Result<Option<String>, EngineError> {
    let tokens = model.tokenize(text_after, true)?;
    let end_token = tokens
        .iter()
        .enumerate()
        .find(|(_, token)| model.is_end_of_generation(**token));
    let Some((n_before, end_token)) = end_token else {
        return Ok(None);
    };
    let before = model.text(tokens.get(..n_before).unwrap_or_default());
    let mark = model.text(&[*end_token]);
    let mark_start = text_after.find(&mark).filter(|_| before.trim().is_empty());
    Ok(mark_start
        .and_then(|start| text_after.get(..start + mark.len()))
        .map(str::to_owned))
}

/// True if the variable of this name is a list that is not empty.
pub fn has_items(variables: &Variables, name: &str) -> bool {
    variables
        .iter()
        .filter(|(other, _)| *other == name)
        .any(|(_, json)| {
            serde_json::from_str(json).is_ok_and(|items: Vec<IgnoredAny>| !items.is_empty())
        })
}
