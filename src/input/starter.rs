//! The prompts that come with `kl`.

use kl_formats::{TextIdentity, hex};
use sha2::{Digest, Sha256};

use super::text::Text;

/// The word that asks for them.
pub const STARTER: &str = "starter";

/// Their name and version in references: another set of prompts needs another version.
const IDENTITY: &str = "starter-1";

const PROMPTS: &str = include_str!("../../prompts/starter.jsonl");

/// The prompts as a file of them holds them, in JSONL.
pub fn text() -> Text {
    let mut identity = TextIdentity::named(IDENTITY);
    identity.bytes = Some(PROMPTS.len() as u64);
    identity.sha256 = Some(hex(&Sha256::digest(PROMPTS)));
    Text {
        text: PROMPTS.to_owned(),
        identity,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value;

    use super::*;

    /// References of one version are comparable only if its prompts never change.
    #[test]
    fn the_prompts_of_a_version_stay_the_same() {
        let identity = text().identity;
        let sha256 = identity.sha256.unwrap();
        assert_eq!(
            (identity.name.as_deref(), &*sha256),
            (
                Some("starter-1"),
                "70ed9edde0cae66f2215cf137f9d0b5126f5c26b25bcddbdcf39e1feb0b8db51"
            )
        );
    }

    #[test]
    fn each_prompt_is_unlike_the_others_and_has_a_group() {
        let lines: Vec<Value> = PROMPTS
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let mut groups = BTreeMap::new();
        for line in &lines {
            *groups.entry(line["group"].as_str().unwrap()).or_insert(0) += 1;
        }
        let expected = [
            ("code", 42),
            ("instruction", 50),
            ("languages", 42),
            ("long documents", 11),
            ("reasoning", 30),
            ("tool calls", 25),
        ];
        assert_eq!(groups, BTreeMap::from(expected));
        let texts: BTreeSet<&str> = lines
            .iter()
            .map(|line| line["prompt"].as_str().unwrap())
            .collect();
        assert_eq!(texts.len(), 200);
        // The first prompts are of every group, for `--max-windows`.
        let first: BTreeSet<&str> = lines[..20]
            .iter()
            .map(|line| line["group"].as_str().unwrap())
            .collect();
        assert_eq!(first.len(), expected.len());
    }

    #[test]
    fn tools_are_functions_whose_parameters_are_described() {
        let is_of = |line: &Value, group: &str| line["group"] == group;
        for line in PROMPTS.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let tools = line["tools"].as_array();
            assert_eq!(tools.is_some(), is_of(&line, "tool calls"));
            for tool in tools.into_iter().flatten() {
                let function = &tool["function"];
                assert_eq!(tool["type"], "function");
                assert!(function["name"].is_string() && function["description"].is_string());
                let parameters = &function["parameters"];
                let properties = parameters["properties"].as_object().unwrap();
                let required = parameters["required"].as_array().unwrap();
                for name in required {
                    assert!(properties.contains_key(name.as_str().unwrap()), "{tool}");
                }
                for property in properties.values() {
                    assert!(property["type"].is_string() && property["description"].is_string());
                }
            }
        }
    }
}
