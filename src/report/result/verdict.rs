//! The outcome of a condition.

use std::fmt;

use serde::Serialize;

use crate::report::number::left_out;

/// The outcome of one condition for one model.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Verdict {
    /// The condition, as given.
    pub expression: String,
    /// The number that it names; null if the result has none.
    pub value: Option<f64>,
    /// True if the model fails.
    pub failed: bool,
    /// Why it fails; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The tokens that the number leaves out: those that no statistic counts, and those with an
    /// infinite KLD or for which the number itself is infinite. The JSON has them elsewhere.
    #[serde(skip)]
    pub left_out: (u64, u64),
}

/// Why a model fails a condition.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The condition holds.
    Holds,
    /// The result has no such number.
    NoValue,
    /// The condition does not hold, but its number leaves out tokens, which may be the worst.
    LeftOut,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (outcome, expression) = (
            if self.failed { "failed" } else { "passed" },
            &self.expression,
        );
        write!(f, "{outcome}: {expression} ")?;
        match self.reason {
            Some(Reason::NoValue) => {
                return f.write_str("cannot be checked: this result has no such value");
            }
            Some(Reason::Holds) => f.write_str("holds")?,
            None => f.write_str("does not hold")?,
            Some(Reason::LeftOut) => {
                let (n_excluded, n_infinite) = self.left_out;
                let left_out = left_out([
                    (n_excluded, "with a row that is not finite"),
                    (n_infinite, "with an infinite or unknown value"),
                ]);
                let accepts = "(--allow-excluded accepts that)";
                write!(f, "does not hold, but {left_out} left out {accepts}")?;
            }
        }
        // All digits, because six may look equal to the bound.
        match self.value {
            Some(value) if value != 0.0 && value.abs() < 1e-5 => write!(f, ": {value:e}"),
            Some(value) => write!(f, ": {value}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(value: Option<f64>, reason: Option<Reason>) -> String {
        let verdict = Verdict {
            expression: "kld.mean > 0.01".to_owned(),
            value,
            failed: reason.is_some(),
            reason,
            left_out: (0, 0),
        };
        verdict.to_string()
    }

    #[test]
    fn every_digit_is_shown() {
        assert_eq!(
            shown(Some(0.010_000_000_000_1), Some(Reason::Holds)),
            "failed: kld.mean > 0.01 holds: 0.0100000000001"
        );
        assert_eq!(
            shown(Some(7.9e-10), None),
            "passed: kld.mean > 0.01 does not hold: 7.9e-10"
        );
        assert_eq!(
            shown(None, Some(Reason::NoValue)),
            "failed: kld.mean > 0.01 cannot be checked: this result has no such value"
        );
    }

    #[test]
    fn what_the_numbers_leave_out_is_said() {
        let said = |n_excluded, n_infinite| {
            let verdict = Verdict {
                expression: "kld.mean > 0.01".to_owned(),
                value: Some(0.5),
                failed: true,
                reason: Some(Reason::LeftOut),
                left_out: (n_excluded, n_infinite),
            };
            let shown = verdict.to_string();
            let (_, said) = shown.split_once("but ").unwrap();
            said.split(" left out").next().unwrap().to_owned()
        };
        assert_eq!(said(1, 0), "1 token with a row that is not finite is");
        assert_eq!(said(0, 2), "2 tokens with an infinite or unknown value are");
        let both = "3 tokens with a row that is not finite and 1 token with an infinite or unknown value are";
        assert_eq!(said(3, 1), both);
        let json = serde_json::to_value(Reason::LeftOut);
        assert_eq!(json.unwrap(), "left_out");
    }
}
