//! What can be wrong with the description of hidden states.

use super::{HeadStep, HeadTensor, MAX_N_EMBD, States};
use crate::GgmlType;

/// Most steps after the product. The longest known sequence is three: scale, tanh, scale.
const MAX_STEPS: usize = 16;

/// Most rows that are stored for the check.
const MAX_CHECK_ROWS: usize = 64;

/// Longest name of a tensor; ggml's own limit is 64.
const MAX_NAME_BYTES: usize = 1 << 10;

impl States {
    /// What is wrong with the sizes, if anything, in a file of rows of `n_vocab` entries and windows
    /// of at most `n_ctx` tokens. Ask before allocating memory.
    pub(crate) fn fault(&self, n_vocab: u32, n_ctx: u32) -> Option<String> {
        if !(1..=MAX_N_EMBD).contains(&self.n_embd) {
            return Some(format!("n_embd {}, not 1 to {MAX_N_EMBD}", self.n_embd));
        }
        if !(1..=self.n_batch).contains(&self.n_ubatch) {
            let (n_batch, n_ubatch) = (self.n_batch, self.n_ubatch);
            return Some(format!("n_ubatch {n_ubatch}, not 1 to n_batch {n_batch}"));
        }
        let of_steps = || self.then.iter().find_map(|step| step.fault(n_vocab));
        let head = self.head.fault(self.n_embd, n_vocab);
        head.or_else(|| too_many("steps after the head", self.then.len(), MAX_STEPS))
            .or_else(of_steps)
            .or_else(|| self.check_fault(n_ctx))
    }

    fn check_fault(&self, n_ctx: u32) -> Option<String> {
        let check = &self.check;
        let is_kld = |x: f32| x.is_finite() && x >= 0.0;
        if !is_kld(check.mean_kld) || !is_kld(check.max_kld) {
            return Some("a check without a finite KLD".into());
        }
        let outside = check.rows.iter().find(|row| row.position >= n_ctx);
        let outside =
            outside.map(|row| format!("a check row at position {} of n_ctx {n_ctx}", row.position));
        outside.or_else(|| too_many("check rows", check.rows.len(), MAX_CHECK_ROWS))
    }
}

impl HeadTensor {
    fn fault(&self, n_embd: u32, n_vocab: u32) -> Option<String> {
        let (id, name) = (self.type_id, &self.type_name);
        let Some(kind) = GgmlType::of(id).filter(|kind| kind.is_for_weights) else {
            return Some(format!("a head of ggml's type {id}, which is not known"));
        };
        if kind.name != name {
            return Some(format!(
                "a head of type {name:?}, but {id} is {}",
                kind.name
            ));
        }
        let row = kind.bytes(n_embd.into());
        match row.and_then(|row| row.checked_mul(n_vocab.into())) {
            Some(bytes) if bytes != self.bytes => Some(format!(
                "a head of {} bytes, but {n_vocab} x {n_embd} elements of type {name} have {bytes}",
                self.bytes
            )),
            None => Some(format!("a head of type {name} with rows of {n_embd}")),
            Some(_) if self.name.len() > MAX_NAME_BYTES => {
                Some("a head with a name of more than 1 KiB".into())
            }
            Some(_) => None,
        }
    }
}

impl HeadStep {
    fn fault(self, n_vocab: u32) -> Option<String> {
        match self {
            HeadStep::Scale { factor, bias } if !(factor.is_finite() && bias.is_finite()) => {
                Some("a scale after the head that is not finite".into())
            }
            HeadStep::Add { n_values } | HeadStep::Mul { n_values }
                if n_values != 1 && n_values != n_vocab =>
            {
                Some(format!(
                    "a step after the head with {n_values} values, not 1 or {n_vocab}"
                ))
            }
            _ => None,
        }
    }
}

fn too_many(what: &str, n: usize, most: usize) -> Option<String> {
    (n > most).then(|| format!("{n} {what}, more than {most}"))
}
