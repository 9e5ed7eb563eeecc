//! The outcome of a condition.

use std::fmt;

use serde::Serialize;

/// The outcome of one condition for one model.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The condition, as given.
    pub expression: String,
    /// The number that it names; null if the result has none.
    pub value: Option<f64>,
    /// Whether the condition holds, or cannot be checked for want of a number.
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
                "failed: {expression} cannot be checked: this result has no such value"
            );
        };
        if self.failed {
            write!(f, "failed: {expression} holds: ")?;
        } else {
            write!(f, "passed: {expression} does not hold: ")?;
        }
        // All digits, because six may look equal to the bound.
        if *value != 0.0 && value.abs() < 1e-5 {
            write!(f, "{value:e}")
        } else {
            write!(f, "{value}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digit_is_shown() {
        let shown = |value, failed| {
            Verdict {
                expression: "kld.mean > 0.01".to_owned(),
                value,
                failed,
            }
            .to_string()
        };
        assert_eq!(
            shown(Some(0.010_000_000_000_1), true),
            "failed: kld.mean > 0.01 holds: 0.0100000000001"
        );
        assert_eq!(
            shown(Some(7.9e-10), false),
            "passed: kld.mean > 0.01 does not hold: 7.9e-10"
        );
        assert_eq!(
            shown(None, true),
            "failed: kld.mean > 0.01 cannot be checked: this result has no such value"
        );
    }
}
