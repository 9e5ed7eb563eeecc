//! The result of an estimator: a value and its uncertainty.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A point estimate and its interval.
///
/// An end is `None` where the sample is too small to have it: of a mean both are, of a quantile one
/// may be.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Estimate {
    /// The point estimate.
    pub value: f64,
    /// The interval's lower end.
    pub lo: Option<f64>,
    /// The interval's upper end.
    pub hi: Option<f64>,
}

impl Estimate {
    /// A value with the interval `value ± half_width`, or with none if that is not finite.
    pub fn symmetric(value: f64, half_width: f64) -> Self {
        if half_width.is_finite() {
            Self::within(value, value - half_width, value + half_width)
        } else {
            Self::point(value)
        }
    }

    /// A value with an interval.
    pub fn within(value: f64, lo: f64, hi: f64) -> Self {
        Self {
            value,
            lo: Some(lo),
            hi: Some(hi),
        }
    }

    /// A value without an interval.
    pub fn point(value: f64) -> Self {
        Self {
            value,
            lo: None,
            hi: None,
        }
    }
}

/// `Some(x)` if `x` is finite, which JSON can hold.
pub(super) fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

/// Serializes an infinity or NaN as null, whatever the serializer's own way is.
pub(super) fn finite_or_null<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    finite(*x).serialize(serializer)
}

/// The probability with which an interval holds the true value: strictly between 0 and 1.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, PartialOrd)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Confidence(f64);

impl Confidence {
    /// A level with `0 < level < 1`; `None` for any other.
    pub fn new(level: f64) -> Option<Self> {
        (level > 0.0 && level < 1.0).then_some(Self(level))
    }

    /// The probability that the interval holds the true value.
    pub fn level(self) -> f64 {
        self.0
    }

    /// The probability outside the interval, both tails together: `1 - level`.
    pub fn outside(self) -> f64 {
        1.0 - self.0
    }
}

impl Default for Confidence {
    fn default() -> Self {
        Self(0.95)
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Confidence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let level = share(text);
        let level =
            level.ok_or_else(|| format!("expected a level such as 0.95 or 95%, not '{text}'"))?;
        Self::new(level).ok_or_else(|| {
            let text = text.trim();
            format!("expected a level between 0 and 1, such as 0.95 or 95%, not {text}")
        })
    }
}

/// Parses a share, as a fraction or in percent: `0.05` or `5%`.
pub fn share(text: &str) -> Option<f64> {
    let text = text.trim();
    match text.strip_suffix('%') {
        // The digits are moved, not divided, so that both spellings are the same number.
        Some(percent) => format!("{}e-2", percent.trim_end()).parse().ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_is_checked() {
        for (text, level) in [
            ("0.95", 0.95),
            (" 0.5 ", 0.5),
            ("1e-3", 1e-3),
            ("99%", 0.99),
            ("99.9 %", 0.999),
        ] {
            let confidence: Confidence = text.parse().expect(text);
            assert_eq!(confidence.level(), level);
        }
        for text in ["0", "1", "95", "-0.5", "inf", "NaN"] {
            let error = text.parse::<Confidence>().unwrap_err();
            assert!(error.contains("between 0 and 1"), "{error}");
        }
        for text in ["", "%", "high"] {
            let error = text.parse::<Confidence>().unwrap_err();
            assert!(error.ends_with(&format!("not '{text}'")), "{error}");
        }
    }
}
