//! Conditions on a model's numbers, for scripts that have to decide: `kld.mean > 0.01`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use kl_formats::{ModelIdentity, Row, TokenRecord};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::model::{ModelInfo, ModelReport, TimingInfo};
use super::text::significant_percent;
use crate::pipeline::Timing;
use crate::score::logit_metrics;
use crate::stats::{Confidence, LlamaPerplexity, LogitSummary, Summary, TokenLocation};

/// A comparison of one of a model's numbers with a bound. A model that meets it fails.
#[derive(Clone, Debug)]
pub struct Condition {
    expression: String,
    name: String,
    holds: Comparison,
    bound: f64,
}

type Comparison = fn(&f64, &f64) -> bool;

/// The longer of two that begin alike comes first.
const COMPARISONS: [(&str, Comparison); 6] = [
    (">=", f64::ge),
    ("<=", f64::le),
    ("==", f64::eq),
    ("!=", f64::ne),
    (">", f64::gt),
    ("<", f64::lt),
];

/// Why an expression is no condition.
#[derive(Error, Clone, Debug, PartialEq, Eq)]
pub enum ConditionError {
    #[error("expected a name, one of > >= < <= == != and a number, as in 'kld.mean > 0.01'")]
    NoComparison,
    #[error("'{0}' is not a finite number")]
    NotANumber(String),
    #[error("no number of the result is named '{name}': the nearest are {}", nearest.join(", "))]
    UnknownName { name: String, nearest: Vec<String> },
}

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, comparison) = text
            .find(['<', '>', '=', '!'])
            .map(|place| text.split_at(place))
            .ok_or(ConditionError::NoComparison)?;
        let (holds, bound) = COMPARISONS
            .iter()
            .find_map(|(sign, holds)| Some((*holds, comparison.strip_prefix(sign)?.trim())))
            .ok_or(ConditionError::NoComparison)?;
        let name = name.trim();
        let known = known();
        if !known.contains_key(name) {
            return Err(ConditionError::UnknownName {
                name: name.to_owned(),
                nearest: nearest(name, &known),
            });
        }
        Ok(Self {
            expression: text.trim().to_owned(),
            name: name.to_owned(),
            holds,
            bound: bound
                .parse()
                .ok()
                .filter(|bound: &f64| bound.is_finite())
                .ok_or_else(|| ConditionError::NotANumber(bound.to_owned()))?,
        })
    }
}

/// What became of a condition; its fields are the JSON's keys.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Verdict {
    /// As given.
    pub expression: String,
    /// What the number is; null where there is none.
    pub value: Option<f64>,
    /// Whether the condition holds, or cannot be told from no number.
    pub failed: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            expression, value, ..
        } = self;
        let Some(value) = value else {
            return write!(
                f,
                "failed: {expression} cannot be told: there is no such value"
            );
        };
        let said = if self.failed {
            format!("failed: {expression} holds")
        } else {
            format!("passed: {expression} does not hold")
        };
        // All digits, since six may look equal to the bound.
        if *value != 0.0 && value.abs() < 1e-5 {
            write!(f, "{said}: {value:e}")
        } else {
            write!(f, "{said}: {value}")
        }
    }
}

impl Condition {
    /// The key of the model's object that its number is under.
    #[must_use]
    pub fn section(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// As it was given.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }
}

/// What becomes of `conditions` with the numbers of `report`. One whose number is missing, as a
/// perplexity where no token has a next one, has failed.
#[must_use]
pub fn judge(conditions: &[Condition], report: &ModelReport) -> Vec<Verdict> {
    if conditions.is_empty() {
        return Vec::new();
    }
    let numbers = numbers(report);
    conditions
        .iter()
        .map(|condition| {
            let value = numbers.get(&condition.name).copied().flatten();
            Verdict {
                expression: condition.expression.clone(),
                value,
                failed: value.is_none_or(|value| (condition.holds)(&value, &condition.bound)),
            }
        })
        .collect()
}

/// A model's numbers by their names: the dotted paths of the JSON. An object with a `value` goes
/// by its own name too; a quantile is `q` and its per cent, 50 % also `median`.
type Numbers = BTreeMap<String, Option<f64>>;

fn numbers(report: &ModelReport) -> Numbers {
    let mut numbers = Numbers::new();
    // Without JSON there are no numbers, and every condition fails.
    collect(
        "",
        &serde_json::to_value(report).unwrap_or_default(),
        &mut numbers,
    );
    numbers
}

fn collect(name: &str, value: &Value, numbers: &mut Numbers) {
    match value {
        Value::Null | Value::Number(_) => {
            numbers.insert(name.to_owned(), value.as_f64());
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                match (key.as_str(), field) {
                    ("quantiles", Value::Array(quantiles)) => {
                        collect_quantiles(name, quantiles, numbers);
                    }
                    ("value", _) => {
                        numbers.insert(name.to_owned(), field.as_f64());
                        numbers.insert(join(name, key), field.as_f64());
                    }
                    _ => collect(&join(name, key), field, numbers),
                }
            }
        }
        Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
    }
}

fn collect_quantiles(of: &str, quantiles: &[Value], numbers: &mut Numbers) {
    for quantile in quantiles {
        let Some(p) = quantile.get("p").and_then(Value::as_f64) else {
            continue;
        };
        collect(
            &join(of, &format!("q{}", significant_percent(p))),
            quantile,
            numbers,
        );
        if p == 0.5 {
            collect(&join(of, "median"), quantile, numbers);
        }
    }
}

fn join(name: &str, key: &str) -> String {
    if name.is_empty() {
        key.to_owned()
    } else {
        format!("{name}.{key}")
    }
}

/// Every name that a report can have, from one that has them all.
fn known() -> Numbers {
    let record = |window, position| TokenRecord {
        window,
        position,
        token: 0,
        flags: 0,
        ref_top: 0,
        eval_top: 0,
        ref_top_rank: 1,
        eval_top_rank: 1,
        kld: 0.0,
        reverse_kld: 0.0,
        ref_nll: 0.0,
        eval_nll: 0.0,
        ref_entropy: 0.0,
    };
    let identity = ModelIdentity {
        file_name: String::new(),
        name: Some(String::new()),
        architecture: Some(String::new()),
        size_bytes: 0,
        n_params: 0,
        file_bytes: 0,
        metadata_sha256: String::new(),
        sample_sha256: None,
    };
    // More than llama-perplexity asks for, in two windows.
    let records: Vec<TokenRecord> = (0..240).map(|i| record(i / 120, i % 120)).collect();
    numbers(&ModelReport {
        model: ModelInfo::new(Path::new(""), &identity),
        n_vocab_compared: 1,
        is_reference_model: false,
        summary: Summary::from_records(&records, Confidence::default()),
        max_at_text: Some(String::new()),
        sidecar: Some(String::new()),
        interrupted: None,
        n_resumed: 0,
        timing: Some(TimingInfo::new(&Timing::default(), 0.0, 0.0, 0)),
        llama_perplexity: LlamaPerplexity::of_records(&records),
        logits: Some(LogitSummary::from_metrics(
            &[logit_metrics(Row::F32(&[0.0, 1.0]), &[0.0, 1.0]); 2],
            &[&records[0], &records[1]].map(TokenLocation::of),
            Confidence::default(),
        )),
        not_available: Vec::new(),
        conditions: Vec::new(),
        prompts: None,
        top: None,
        tokens: None,
    })
}

/// The known names that take the fewest changes to reach.
fn nearest(name: &str, known: &Numbers) -> Vec<String> {
    const LISTED: usize = 5;
    let mut names: Vec<&String> = known.keys().collect();
    names.sort_by_cached_key(|known| distance(name, known));
    names.into_iter().take(LISTED).cloned().collect()
}

/// Characters to insert, delete or replace to make `b` of `a` (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = row[j] + usize::from(from != *to);
            next.push(replaced.min(row[j + 1] + 1).min(next[j] + 1));
        }
        row = next;
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_the_names_is_so() {
        for name in [
            "kld.mean",
            "kld.mean.value",
            "kld.mean.hi",
            "kld.mean.cluster_hi",
            "kld.std",
            "kld.max",
            "kld.max_at.window",
            "kld.median",
            "kld.median.lo",
            "kld.q50",
            "kld.q90",
            "kld.q95",
            "kld.q99",
            "kld.q99.hi",
            "kld.q99.9",
            "kld.q99.9.lo",
            "reverse_kld.mean",
            "agreement.ref_top1",
            "agreement.ref_top1.lo",
            "perplexity.ref",
            "perplexity.ratio",
            "perplexity.ln_ratio.se",
            "delta_p.rms",
            "delta_p.q0.1",
            "n_tokens",
            "n_excluded",
            "confidence",
            "model.size_bytes",
            "model.bpw",
            "timing.tokens_per_s",
        ] {
            let condition: Condition = format!("{name}>0").parse().expect(name);
            assert_eq!(condition.name, name);
        }
    }

    #[test]
    fn comparisons_compare() {
        for (sign, below, equal, above) in [
            (">", false, false, true),
            (">=", false, true, true),
            ("<", true, false, false),
            ("<=", true, true, false),
            ("==", false, true, false),
            ("!=", true, false, true),
        ] {
            for space in ["", " ", "  "] {
                let text = format!("{space}kld.mean{space}{sign}{space}-1.5e-2{space}");
                let condition: Condition = text.parse().unwrap();
                let holds = |value: f64| (condition.holds)(&value, &condition.bound);
                assert_eq!(
                    (holds(-0.02), holds(-0.015), holds(-0.01)),
                    (below, equal, above),
                    "{text}"
                );
                assert_eq!(condition.expression, text.trim());
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("", "as in 'kld.mean > 0.01'"),
            ("kld.mean", "as in"),
            ("kld.mean 0.01", "as in"),
            ("kld.mean = 0.01", "one of >"),
            ("kld.mean ! 0.01", "one of >"),
            ("kld.mean >", "'' is not"),
            ("kld.mean >> 1", "'> 1' is not"),
            ("kld.mean > 1 %", "'1 %' is not"),
            ("kld.mean > NaN", "'NaN' is not"),
            ("kld.mean < inf", "'inf' is not"),
            ("kld.meen > 1", "kld.mean"),
            ("kld.quantiles > 1", "named 'kld.quantiles'"),
            ("kld.p99 > 1", "kld.q99"),
            ("kl.mean > 1", "kld.mean"),
            ("perplexity.ln_ration > 1", "perplexity.ln_ratio"),
            ("kld > 1", "named 'kld'"),
            ("model.name == 1", "named 'model.name'"),
            ("> 1", "named ''"),
        ] {
            let message = text.parse::<Condition>().unwrap_err().to_string();
            assert!(message.contains(said), "{text}: {message}");
            assert!(!message.contains('\n'), "{text}: one line");
        }
    }

    #[test]
    fn changes_are_counted() {
        for (a, b, n) in [
            ("", "", 0),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
            ("é", "e", 1),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (n, n), "{a} {b}");
        }
    }

    #[test]
    fn verdicts_show_every_digit() {
        let verdict = |value, failed| {
            Verdict {
                expression: "kld.mean > 0.01".to_owned(),
                value,
                failed,
            }
            .to_string()
        };
        assert_eq!(
            verdict(Some(0.010_000_000_000_1), true),
            "failed: kld.mean > 0.01 holds: 0.0100000000001"
        );
        assert_eq!(
            verdict(Some(7.9e-10), false),
            "passed: kld.mean > 0.01 does not hold: 7.9e-10"
        );
        assert_eq!(
            verdict(None, true),
            "failed: kld.mean > 0.01 cannot be told: there is no such value"
        );
    }
}
