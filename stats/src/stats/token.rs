//! A scored token: its location, and whether the statistics count it.

use kl_formats::TokenRecord;
use serde::Serialize;

/// The position of a scored token.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct TokenLocation {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window; its row predicts the token at the next position.
    pub position: u32,
    /// The id of the actual next token; `None` for a window's last row.
    pub token: Option<u32>,
}

impl TokenLocation {
    /// Locates a record.
    pub fn of(record: &TokenRecord) -> Self {
        Self {
            window: record.window,
            position: record.position,
            token: record.next_token(),
        }
    }
}

/// A scored token that was left out, and why.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ExcludedToken {
    /// The window, in text order.
    pub window: u32,
    /// The position in the window.
    pub position: u32,
    /// Why it was left out.
    pub which: ExclusionReason,
}

/// Why a scored token is left out.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExclusionReason {
    /// The reference's row has a NaN or +∞, or no finite logit.
    Ref,
    /// The evaluated model's row has.
    Eval,
    /// Both rows have.
    Both,
    /// A score cannot be right, though neither row has.
    Score,
}

impl ExclusionReason {
    /// Why `record` is left out; `None` if it is counted.
    ///
    /// An infinite divergence or NLL is a result: one model finds impossible what the other does
    /// not. So is an NLL of NaN: it is not known, as in llama.cpp's base file.
    pub fn of(record: &TokenRecord) -> Option<Self> {
        let flag = |bit| record.flags & bit != 0;
        match (
            flag(TokenRecord::REF_NOT_FINITE),
            flag(TokenRecord::EVAL_NOT_FINITE),
        ) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Ref),
            (false, true) => Some(Self::Eval),
            (false, false) => {
                /// No exponential of less overflows.
                const MOST_NEGATIVE_NLL: f64 = -700.0;
                let is_divergence = |x: f64| x > f64::NEG_INFINITY;
                let may_overflow = |nll: f64| nll < MOST_NEGATIVE_NLL;
                let is_right = is_divergence(record.kld)
                    && is_divergence(record.reverse_kld)
                    && !((may_overflow(record.ref_nll) || may_overflow(record.eval_nll))
                        && delta_p(record).is_infinite());
                (!is_right).then_some(Self::Score)
            }
        }
    }
}

/// `q(next) − p(next)`; NaN without a next token, and where a probability is not known.
pub(super) fn delta_p(record: &TokenRecord) -> f64 {
    (-record.eval_nll).exp() - (-record.ref_nll).exp()
}

/// Returns true if the statistics count `record`.
pub fn is_counted(record: &TokenRecord) -> bool {
    ExclusionReason::of(record).is_none()
}
