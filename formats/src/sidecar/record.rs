//! One scored token, and the values that it can have. Any other is damage, even if the checksum matches.

use bincode::Options;
use bytemuck::AnyBitPattern;
use serde::{Deserialize, Serialize};

use super::{SidecarHeader, crc_of};
use crate::gzip::checksum_matches;
use crate::provenance::BackendIdentity;

/// Bytes of a record: its fields, and 4 of checksum.
pub const RECORD_BYTES: usize = FIELD_BYTES + 4;

const FIELD_BYTES: usize = 112;

/// Bytes of the fields of a record in version 1, which are the first of today's.
const FIELD_BYTES_V1: usize = 100;

const _: () = assert!(size_of::<TokenRecord>() == FIELD_BYTES);

/// Bytes of a record in a file of this version.
pub(super) fn record_bytes(version: u32) -> usize {
    match version {
        1 => FIELD_BYTES_V1 + 4,
        _ => RECORD_BYTES,
    }
}

/// The measures at one position. Logarithms are natural: KL, NLL and entropy are in nats.
///
/// In memory the fields are as in a record of the file.
#[derive(AnyBitPattern, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct TokenRecord {
    /// The window's index in the order of the text, from 0.
    pub window: u32,
    /// The position in the window, from 0; the row there predicts `position + 1`.
    pub position: u32,
    /// The actual next token; `u32::MAX` at a window's last position, which has none.
    pub token: u32,
    /// [`TokenRecord::REF_NOT_FINITE`], [`TokenRecord::EVAL_NOT_FINITE`],
    /// [`TokenRecord::NEXT_IS_SPECIAL`], [`TokenRecord::NEXT_IS_GREEDY`],
    /// [`TokenRecord::NEXT_ENDS_ANSWER`].
    pub flags: u32,
    /// The token with the reference's largest logit, the first of equals.
    pub ref_top: u32,
    /// The token with the evaluated model's largest logit, the first of equals.
    pub eval_top: u32,
    /// Rank of `ref_top` in the evaluated row, from 1.
    pub ref_top_rank: u32,
    /// Rank of `eval_top` in the reference row, from 1.
    pub eval_top_rank: u32,
    /// KL(reference || evaluated).
    pub kld: f64,
    /// KL(evaluated || reference).
    pub reverse_kld: f64,
    /// -ln p(token) under the reference; NaN where there is no token.
    pub ref_nll: f64,
    /// -ln q(token) under the evaluated model; NaN where there is no token.
    pub eval_nll: f64,
    /// Entropy of the reference's distribution.
    pub ref_entropy: f64,
    /// p(`ref_top`).
    pub ref_top_p: f64,
    /// q(`eval_top`).
    pub eval_top_p: f64,
    /// The most that the entries whose probability the reference does not record can weigh
    /// together, if all others weigh 1; 0 where it records all.
    pub ref_unknown_p: f64,
    /// The group of the window: an index into [`super::SidecarHeader::groups`]; 0 without groups.
    pub group: u32,
    /// The span of the next token: an index into [`super::SidecarHeader::spans`]; 0 without spans.
    pub span: u32,
    /// The sum of min(p, q) over the vocabulary; NaN if it is not known.
    pub acceptance: f64,
}

impl TokenRecord {
    /// The reference row holds a NaN or a positive infinity, or no finite logit.
    pub const REF_NOT_FINITE: u32 = 1;
    /// The evaluated row holds a NaN or a positive infinity, or no finite logit.
    pub const EVAL_NOT_FINITE: u32 = 2;
    /// The next token is a control or a user-defined token of the evaluated model's vocabulary.
    pub const NEXT_IS_SPECIAL: u32 = 4;
    /// The next token is part of an answer that the reference's model gave greedily.
    pub const NEXT_IS_GREEDY: u32 = 8;
    /// The reference's model ended a greedy answer with the next token: the answer was not cut.
    pub const NEXT_ENDS_ANSWER: u32 = 16;

    /// The records of each window, of records of which those of a window stand together, as in a sidecar.
    pub fn windows(records: &[Self]) -> impl DoubleEndedIterator<Item = &[Self]> {
        records.chunk_by(|one, next| one.window == next.window)
    }

    /// True if one of the two rows is not finite, so that the position is left out of every statistic.
    pub fn is_excluded(&self) -> bool {
        self.flags & (Self::REF_NOT_FINITE | Self::EVAL_NOT_FINITE) != 0
    }

    /// True if the next token is known to be a control or a user-defined one.
    pub fn is_special(&self) -> bool {
        self.flags & Self::NEXT_IS_SPECIAL != 0
    }

    /// True if the reference's model chose the next token greedily.
    pub fn is_greedy(&self) -> bool {
        self.flags & Self::NEXT_IS_GREEDY != 0
    }

    /// True if the reference's model ended a greedy answer with the next token.
    pub fn ends_answer(&self) -> bool {
        self.flags & Self::NEXT_ENDS_ANSWER != 0
    }

    /// The actual next token, if there is one.
    pub fn next_token(&self) -> Option<u32> {
        (self.token != u32::MAX).then_some(self.token)
    }

    /// The bytes of the file's `i`-th record; `None` if bincode fails, which it cannot in memory.
    pub(super) fn to_bytes(self, i: u64, header_crc: u32) -> Option<[u8; RECORD_BYTES]> {
        let mut bytes = [0; RECORD_BYTES];
        let (fields, crc) = bytes.split_at_mut(FIELD_BYTES);
        let options = bincode::DefaultOptions::new().with_fixint_encoding();
        options.serialize_into(&mut *fields, &self).ok()?;
        crc.copy_from_slice(&crc_of(header_crc, &[&i.to_le_bytes(), fields]).to_le_bytes());
        Some(bytes)
    }

    /// The `i`-th record of a file, of as many bytes as one of its version has ([`record_bytes`]);
    /// `None` if its checksum does not match. What version 1 does not hold is not known.
    pub(super) fn from_bytes(bytes: &[u8], i: u64, header_crc: u32) -> Option<Self> {
        let (fields, crc) = bytes.split_last_chunk::<4>()?;
        let computed = crc_of(header_crc, &[&i.to_le_bytes(), fields]);
        if !checksum_matches(computed, u32::from_le_bytes(*crc)) {
            return None;
        }
        // Reports read millions: this takes a small part of bincode's time.
        if fields.len() == FIELD_BYTES {
            return Some(bytemuck::pod_read_unaligned(fields));
        }
        let mut all = [0; FIELD_BYTES];
        all.get_mut(..fields.len())?.copy_from_slice(fields);
        Some(Self {
            acceptance: f64::NAN,
            ..bytemuck::pod_read_unaligned(&all)
        })
    }
}

/// The distance by which rounding may leave a number outside its range. Scores are off by at most
/// 5e-12.
pub(crate) const ROUNDING: f64 = 1e-9;

/// The distance for the entropy's upper end, which is far from 0.
const ENTROPY_ROUNDING: f64 = 1e-6;

/// More than any finite divergence or NLL: logits are f32, so that two are at most twice the
/// largest f32 apart. Sums of such numbers and of their powers stay finite.
pub(crate) const MOST_NATS: f64 = 4.0 * f32::MAX as f64;

impl SidecarHeader {
    /// Finds a group or a span of a record that has no name.
    pub(super) fn nameless(&self, record: &TokenRecord) -> Option<String> {
        // Without names there is one.
        let is_named = |index: u32, names: &[String]| (index as usize) < names.len().max(1);
        let (of, index) = if !is_named(record.group, &self.groups) {
            ("group", record.group)
        } else if !is_named(record.span, &self.spans) {
            ("span", record.span)
        } else {
            return None;
        };
        Some(format!("{of} {index} has no name"))
    }

    /// Finds a value of a record that no pair of rows gives. The values of an excluded record mean
    /// nothing, and are not checked. Every record that is read passes through here, so text is made
    /// only for a fault.
    pub(super) fn impossible(&self, record: &TokenRecord) -> Option<String> {
        if record.is_excluded() {
            return None;
        }
        let (r, next, n_vocab) = (record, record.next_token(), self.n_vocab);
        let is_share = |x: f64| (-ROUNDING..=1.0 + ROUNDING).contains(&x);
        let is_nats = |x: f64| (-ROUNDING..=MOST_NATS).contains(&x) || x == f64::INFINITY;
        let most_entropy = f64::from(n_vocab).ln() + ENTROPY_ROUNDING;
        let is_entropy = (-ROUNDING..=most_entropy).contains(&r.ref_entropy);
        let is_acceptance = r.acceptance.is_nan() || is_share(r.acceptance);
        // A name, a value, and whether it is possible.
        let token = |name, n: u32| (name, f64::from(n), n < n_vocab);
        let rank = |name, n: u32| (name, f64::from(n), (1..=n_vocab).contains(&n));
        let nats = |name, x| (name, x, is_nats(x));
        let share = |name, x| (name, x, is_share(x));
        let nll = |name, x: f64, backend: &Option<_>| match next {
            None => (name, x, x.is_nan()),
            Some(_) if x.is_nan() => (name, x, may_be_unknown(backend.as_ref())),
            Some(_) => nats(name, x),
        };
        let values = [
            token("ref_top", r.ref_top),
            token("eval_top", r.eval_top),
            token("token", next.unwrap_or(0)),
            rank("ref_top_rank", r.ref_top_rank),
            rank("eval_top_rank", r.eval_top_rank),
            nats("kld", r.kld),
            nats("reverse_kld", r.reverse_kld),
            nll("ref_nll", r.ref_nll, &self.reference.backend),
            nll("eval_nll", r.eval_nll, &self.backend),
            ("ref_entropy", r.ref_entropy, is_entropy),
            share("ref_top_p", r.ref_top_p),
            share("eval_top_p", r.eval_top_p),
            share("ref_unknown_p", r.ref_unknown_p),
            ("acceptance", r.acceptance, is_acceptance),
        ];
        let (name, x, _) = values.into_iter().find(|(.., is_possible)| !is_possible)?;
        Some(format!("{name} is {x:?}, which no pair of rows gives"))
    }
}

/// True if rows may leave a probability unknown, as those of llama.cpp's base file do. Such
/// a file, and one that was converted from it, does not record a version of llama.cpp.
fn may_be_unknown(backend: Option<&BackendIdentity>) -> bool {
    backend.is_none_or(|backend| backend.llama_cpp.is_none())
}
