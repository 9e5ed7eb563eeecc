//! The values that a record can have. Any other is damage, even if the checksum matches.

use super::{SidecarHeader, TokenRecord};
use crate::provenance::BackendIdentity;

/// The distance by which rounding may leave a number outside its range. Scores are off by at most
/// 5e-12.
pub(crate) const ROUNDING: f64 = 1e-9;

/// The same for the entropy's upper end, which is far from 0.
const ENTROPY_ROUNDING: f64 = 1e-6;

/// More than any finite divergence or NLL: logits are f32, so that two are at most twice the
/// largest f32 apart. Sums of such numbers and of their powers stay finite.
pub(crate) const MOST_NATS: f64 = 4.0 * f32::MAX as f64;

/// The range of values that a field can have.
#[derive(Clone, Copy)]
enum Range {
    Token,
    Rank,
    Nats,
    NatsOrUnknown,
    OnlyUnknown,
    Entropy,
    Share,
    ShareOrUnknown,
}

impl Range {
    fn holds(self, x: f64, n_vocab: f64) -> bool {
        let is_nats = (-ROUNDING..=MOST_NATS).contains(&x) || x == f64::INFINITY;
        match self {
            Self::Token => x < n_vocab,
            Self::Rank => (1.0..=n_vocab).contains(&x),
            Self::Nats => is_nats,
            Self::NatsOrUnknown => is_nats || x.is_nan(),
            Self::OnlyUnknown => x.is_nan(),
            Self::Entropy => (-ROUNDING..=n_vocab.ln() + ENTROPY_ROUNDING).contains(&x),
            Self::ShareOrUnknown if x.is_nan() => true,
            Self::Share | Self::ShareOrUnknown => (-ROUNDING..=1.0 + ROUNDING).contains(&x),
        }
    }

    /// Names `x`, and the values that would be possible.
    fn fault(self, x: f64, n_vocab: u32) -> String {
        match self {
            Self::Token => format!("{x}; it can be 0 to {}", n_vocab - 1),
            Self::Rank => format!("{x}; it can be 1 to {n_vocab}"),
            Self::Nats | Self::NatsOrUnknown => {
                format!("{x:?}; it can be 0 to 1.4e39, or infinity")
            }
            Self::OnlyUnknown => format!("{x:?}; it can be only NaN without a next token"),
            Self::Entropy => format!("{x:?}; it can be 0 to ln {n_vocab}"),
            Self::Share | Self::ShareOrUnknown => format!("{x:?}; it can be 0 to 1"),
        }
    }
}

impl TokenRecord {
    /// Finds a value that no pair of rows gives, and states the range that it is not in. The values of
    /// an excluded record mean nothing, and are not checked. Every record that is read passes through
    /// here, so text is made only for a fault.
    pub(super) fn impossible(&self, header: &SidecarHeader) -> Option<String> {
        if self.is_excluded() {
            return None;
        }
        let next = self.next_token();
        let nll = |backend: &Option<BackendIdentity>| match next {
            None => Range::OnlyUnknown,
            Some(_) if may_be_unknown(backend.as_ref()) => Range::NatsOrUnknown,
            Some(_) => Range::Nats,
        };
        let fields = [
            ("ref_top", self.ref_top.into(), Range::Token),
            ("eval_top", self.eval_top.into(), Range::Token),
            ("token", next.unwrap_or(0).into(), Range::Token),
            ("ref_top_rank", self.ref_top_rank.into(), Range::Rank),
            ("eval_top_rank", self.eval_top_rank.into(), Range::Rank),
            ("kld", self.kld, Range::Nats),
            ("reverse_kld", self.reverse_kld, Range::Nats),
            ("ref_nll", self.ref_nll, nll(&header.reference.backend)),
            ("eval_nll", self.eval_nll, nll(&header.backend)),
            ("ref_entropy", self.ref_entropy, Range::Entropy),
            ("ref_top_p", self.ref_top_p, Range::Share),
            ("eval_top_p", self.eval_top_p, Range::Share),
            ("ref_unknown_p", self.ref_unknown_p, Range::Share),
            ("acceptance", self.acceptance, Range::ShareOrUnknown),
        ];
        let n_vocab = header.n_vocab;
        let mut fields = fields.into_iter();
        let (name, x, range) = fields.find(|&(_, x, range)| !range.holds(x, n_vocab.into()))?;
        Some(format!("{name} is {}", range.fault(x, n_vocab)))
    }
}

/// Returns true if rows may leave a probability unknown, as those of llama.cpp's base file do. Such
/// a file, and one that was converted from it, does not record a version of llama.cpp.
fn may_be_unknown(backend: Option<&BackendIdentity>) -> bool {
    backend.is_none_or(|backend| backend.llama_cpp.is_none())
}
