//! The values that a record can have. Any other is damage, even if the checksum matches.

use super::{SidecarHeader, TokenRecord};
use crate::identity::BackendIdentity;

/// How far rounding may leave a number outside its range. Scores are off by at most 5e-12.
const ROUNDING: f64 = 1e-9;

/// The same for the entropy's upper end, which is far from 0.
const ENTROPY_ROUNDING: f64 = 1e-6;

/// More than any finite divergence or NLL: logits are f32, so that two are at most twice the
/// largest f32 apart. Sums of such numbers and of their powers stay finite.
const MOST_NATS: f64 = 4.0 * f32::MAX as f64;

/// Says what a value could be.
type Range<'a> = &'a dyn Fn() -> String;

impl TokenRecord {
    /// The first value that no pair of rows gives, and what it could be. Values of a record that is
    /// excluded mean nothing, and are not checked. Every record read passes here: texts are made only
    /// of a fault.
    pub(super) fn impossible(&self, header: &SidecarHeader) -> Option<String> {
        if self.is_excluded() {
            return None;
        }
        let n_vocab = header.n_vocab;
        let is_token = |id: u32| id < n_vocab;
        let is_rank = |rank: u32| (1..=n_vocab).contains(&rank);
        let token: Range = &|| format!("0 to {}", n_vocab - 1);
        let rank: Range = &|| format!("1 to {n_vocab}");
        let ids = [
            ("ref_top", self.ref_top, is_token(self.ref_top), token),
            ("eval_top", self.eval_top, is_token(self.eval_top), token),
            (
                "token",
                self.token,
                self.next_token().is_none_or(is_token),
                token,
            ),
            (
                "ref_top_rank",
                self.ref_top_rank,
                is_rank(self.ref_top_rank),
                rank,
            ),
            (
                "eval_top_rank",
                self.eval_top_rank,
                is_rank(self.eval_top_rank),
                rank,
            ),
        ];
        if let Some((name, id, _, range)) =
            ids.into_iter().find(|(_, _, is_possible, _)| !is_possible)
        {
            return Some(format!("{name} is {id}; it can be {}", range()));
        }
        let most_entropy = f64::from(n_vocab).ln() + ENTROPY_ROUNDING;
        let is_nats = |x: f64| (-ROUNDING..=MOST_NATS).contains(&x) || x == f64::INFINITY;
        let is_entropy = |x: f64| (-ROUNDING..=most_entropy).contains(&x);
        let is_share = |x: f64| (-ROUNDING..=1.0 + ROUNDING).contains(&x);
        let is_nll = |x: f64, backend: &Option<BackendIdentity>| match self.next_token() {
            None => x.is_nan(),
            Some(_) => is_nats(x) || (x.is_nan() && may_be_unknown(backend.as_ref())),
        };
        let (ref_backend, eval_backend) = (&header.reference.backend, &header.backend);
        let nats: Range = &|| "0 to 1.4e39, or infinity".to_owned();
        let nll: Range = match self.next_token() {
            None => &|| "only NaN without a next token".to_owned(),
            Some(_) => nats,
        };
        let entropy: Range = &|| format!("0 to ln {n_vocab}");
        let share: Range = &|| "0 to 1".to_owned();
        let numbers = [
            ("kld", self.kld, is_nats(self.kld), nats),
            (
                "reverse_kld",
                self.reverse_kld,
                is_nats(self.reverse_kld),
                nats,
            ),
            (
                "ref_nll",
                self.ref_nll,
                is_nll(self.ref_nll, ref_backend),
                nll,
            ),
            (
                "eval_nll",
                self.eval_nll,
                is_nll(self.eval_nll, eval_backend),
                nll,
            ),
            (
                "ref_entropy",
                self.ref_entropy,
                is_entropy(self.ref_entropy),
                entropy,
            ),
            ("ref_top_p", self.ref_top_p, is_share(self.ref_top_p), share),
            (
                "eval_top_p",
                self.eval_top_p,
                is_share(self.eval_top_p),
                share,
            ),
            (
                "ref_unknown_p",
                self.ref_unknown_p,
                is_share(self.ref_unknown_p),
                share,
            ),
        ];
        let (name, number, _, range) = numbers
            .into_iter()
            .find(|(_, _, is_possible, _)| !is_possible)?;
        Some(format!("{name} is {number:?}; it can be {}", range()))
    }
}

/// Whether rows may leave a probability unknown, as those of llama.cpp's base file do. Such a file
/// does not record a version of llama.cpp, and what was converted from one does not either.
fn may_be_unknown(backend: Option<&BackendIdentity>) -> bool {
    backend.is_none_or(|backend| backend.llama_cpp.is_none())
}
