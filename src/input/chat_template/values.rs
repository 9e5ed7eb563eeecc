//! The variables that a template can look up.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kl_formats::Variables;
use minijinja::Value;
use minijinja::value::Object;

use super::TemplateError;
use crate::lock::locked;

/// The variables that come with a prompt, beside its messages, and the names of those that a template
/// has looked up. A clone shares these names.
#[derive(Debug, Clone, Default)]
pub struct Given {
    values: Arc<Vec<(String, Value)>>,
    used: Arc<Mutex<BTreeSet<String>>>,
}

impl Given {
    /// Reads the values of variables.
    ///
    /// # Errors
    /// A value that cannot be read, such as a number too large for a double, with its name.
    pub fn new(variables: &Variables) -> Result<Self, TemplateError> {
        let value = |(name, json): (&str, &str)| match serde_json::from_str(json) {
            Ok(value) => Ok((name.to_owned(), value)),
            Err(error) => Err(TemplateError(format!("{name:?} cannot be read: {error}"))),
        };
        let values = variables.iter().map(value);
        Ok(Self {
            values: Arc::new(values.collect::<Result<_, _>>()?),
            used: Arc::default(),
        })
    }

    /// Returns true if a template has looked up this variable.
    pub fn is_used(&self, name: &str) -> bool {
        locked(&self.used).contains(name)
    }

    fn get(&self, name: &str) -> Option<Value> {
        let (_, value) = self.values.iter().find(|(other, _)| other == name)?;
        locked(&self.used).insert(name.to_owned());
        Some(value.clone())
    }
}

/// All that a template gets. As in transformers, a prompt's own variables come before the texts of
/// special tokens, and after what the call itself decides.
#[derive(Debug)]
pub(super) struct Values {
    pub messages: Value,
    pub add_generation_prompt: bool,
    pub bos_token: String,
    pub eos_token: String,
    pub given: Given,
}

impl Object for Values {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let name = key.as_str()?;
        match name {
            "messages" => return Some(self.messages.clone()),
            "add_generation_prompt" => return Some(self.add_generation_prompt.into()),
            _ => {}
        }
        self.given.get(name).or_else(|| match name {
            "bos_token" => Some(Value::from(&self.bos_token)),
            "eos_token" => Some(Value::from(&self.eos_token)),
            "tools" | "documents" => Some(Value::from(())),
            _ => None,
        })
    }
}
