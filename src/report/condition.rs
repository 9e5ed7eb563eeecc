//! Conditions on a model's numbers, for scripts that have to decide: `kld.mean > 0.01`.

use std::str::FromStr;

use thiserror::Error;

use super::named_numbers::{known_names, named_numbers};
use super::result::{ModelReport, Reason, Verdict};

/// A comparison of one of a model's numbers with a bound. A model for which it holds fails.
#[derive(Clone, Debug)]
pub struct Condition {
    expression: String,
    name: String,
    holds: Comparison,
    bound: f64,
}

type Comparison = fn(&f64, &f64) -> bool;

/// The operators; of two that start alike, the longer comes first.
const COMPARISONS: [(&str, Comparison); 6] = [
    (">=", f64::ge),
    ("<=", f64::le),
    ("==", f64::eq),
    ("!=", f64::ne),
    (">", f64::gt),
    ("<", f64::lt),
];

/// Why an expression is not a condition.
#[derive(Error, Clone, Debug, PartialEq, Eq)]
pub enum ConditionError {
    #[error("expected a name, one of > >= < <= == != and a number, as in 'kld.mean > 0.01'")]
    NoComparison,
    #[error("'{0}' is not a finite number")]
    NotANumber(String),
    #[error("the result has no number named '{name}'; similar names: {}", similar.join(", "))]
    UnknownName { name: String, similar: Vec<String> },
}

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, comparison) = text
            .find(['<', '>', '=', '!'])
            .map(|index| text.split_at(index))
            .ok_or(ConditionError::NoComparison)?;
        let (holds, bound) = COMPARISONS
            .iter()
            .find_map(|(operator, holds)| Some((*holds, comparison.strip_prefix(operator)?.trim())))
            .ok_or(ConditionError::NoComparison)?;
        let name = name.trim();
        let known = known_names();
        if !known.iter().any(|known| known == name) {
            return Err(ConditionError::UnknownName {
                name: name.to_owned(),
                similar: similar(name, known),
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

/// The known names that are closest to `name` by edit distance.
fn similar(name: &str, mut known: Vec<String>) -> Vec<String> {
    const LISTED: usize = 5;
    known.sort_by_cached_key(|known| strsim::levenshtein(name, known));
    known.truncate(LISTED);
    known
}

impl Condition {
    /// The first key of its number's path: the section of the report that the number is in.
    #[must_use]
    pub fn section(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// The condition, as given.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }
}

/// Checks `conditions` against the numbers of `report`.
///
/// A condition on a missing number fails: one on perplexity, for instance, where no token has a
/// next one. Unless `allow_excluded`, every condition fails where tokens are left out or have an
/// infinite KLD, and one on a number that leaves out infinite values of its own: a model that gives
/// NaN where it is worst would pass.
#[must_use]
pub fn judge(conditions: &[Condition], report: &ModelReport, allow_excluded: bool) -> Vec<Verdict> {
    if conditions.is_empty() {
        return Vec::new();
    }
    let numbers = named_numbers(report);
    let summary = &report.summary;
    let n_infinite = |condition: &Condition| {
        let of_section = match condition.section() {
            "reverse_kld" => summary.reverse_kld.as_ref().map(|of| of.n_infinite),
            "perplexity" | "delta_p" => summary.perplexity.map(|of| of.n_infinite + of.n_unknown),
            _ => None,
        };
        summary.n_infinite().max(of_section.unwrap_or(0))
    };
    conditions
        .iter()
        .map(|condition| {
            let value = numbers.get(&condition.name).copied().flatten();
            let (n_excluded, n_infinite) = (summary.n_excluded, n_infinite(condition));
            let is_partial = !allow_excluded && n_excluded + n_infinite > 0;
            let reason = match value {
                None => Some(Reason::NoValue),
                Some(value) if (condition.holds)(&value, &condition.bound) => Some(Reason::Holds),
                Some(_) => is_partial.then_some(Reason::LeftOut),
            };
            Verdict {
                expression: condition.expression.clone(),
                value,
                failed: reason.is_some(),
                reason,
                left_out: (n_excluded, n_infinite),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_names_are_known() {
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
    fn errors_name_what_is_wrong() {
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
}
