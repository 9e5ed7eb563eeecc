//! Whether rows can be computed again from hidden states: as a reader of a reference will do it,
//! and compared with the model's own.

use kl_formats::StateType;

use super::Error;
use crate::engine::{Head, Outputs};
use crate::score::{Kernel, Recomputed};

/// Rows of a decode call that are compared where not all are.
const N_SAMPLED: usize = 16;

/// Computes rows again from hidden states, and compares them with the model's own.
pub struct Recompute<H> {
    head: H,
    kernel: Kernel,
    /// The states of a group as a file holds them.
    bytes: Vec<u8>,
    /// What a reader makes of those.
    states: Vec<f32>,
}

impl<H: Head> Recompute<H> {
    /// Computes rows with `head`.
    pub fn new(head: H) -> Self {
        Self {
            head,
            kernel: Kernel::detect(),
            bytes: Vec::new(),
            states: Vec::new(),
        }
    }

    /// Compares each row of a decode call, in order, with what its state gives once it is stored in
    /// `state_type`; nothing where the call gave no rows.
    ///
    /// # Errors
    /// Those of the head.
    pub fn compare(
        &mut self,
        outputs: &Outputs<'_>,
        state_type: StateType,
    ) -> Result<Vec<Recomputed>, Error> {
        let mut compared = Vec::new();
        let (mut states, mut rows) = (outputs.states, outputs.rows.unwrap_or_default());
        let n_embd = states.len() / rows.len().max(1);
        for &n in outputs.groups {
            let inconsistent = || Error::Inconsistent {
                found: "fewer hidden states than rows".to_owned(),
            };
            let (group, more) = states
                .split_at_checked(n * n_embd)
                .ok_or_else(inconsistent)?;
            let (own, more_rows) = rows.split_at_checked(n).ok_or_else(inconsistent)?;
            self.round(group, state_type);
            let again = self.head.rows(&self.states)?;
            compared.extend(Recomputed::each(self.kernel, own, again));
            (states, rows) = (more, more_rows);
        }
        Ok(compared)
    }

    /// As [`compare`](Self::compare), for some rows of the call, evenly spread, in one small product.
    /// Kernels may differ for another number of rows, so only rows that agree say something.
    ///
    /// # Errors
    /// Those of the head.
    pub fn compare_some(
        &mut self,
        outputs: &Outputs<'_>,
        state_type: StateType,
    ) -> Result<Vec<Recomputed>, Error> {
        let rows = outputs.rows.unwrap_or_default();
        if rows.len() <= N_SAMPLED {
            return self.compare(outputs, state_type);
        }
        let n_embd = outputs.states.len() / rows.len();
        let (mut states, mut own) = (Vec::new(), Vec::new());
        for i in 0..N_SAMPLED {
            let row = i * (rows.len() - 1) / (N_SAMPLED - 1);
            states.extend_from_slice(&outputs.states[row * n_embd..][..n_embd]);
            own.push(rows[row]);
        }
        self.round(&states, state_type);
        let again = self.head.rows(&self.states)?;
        Ok(Recomputed::each(self.kernel, &own, again))
    }

    /// Whether rounding these states to `state_type` leaves the rows that the head makes of them as
    /// they are, to the bit.
    ///
    /// # Errors
    /// Those of the head.
    pub fn is_rounding_exact(
        &mut self,
        states: &[f32],
        state_type: StateType,
    ) -> Result<bool, Error> {
        let exact = self.head.rows(states)?.to_vec();
        self.round(states, state_type);
        let rounded = self.head.rows(&self.states)?;
        let mut logits = exact.iter().zip(rounded);
        Ok(logits.all(|(exact, rounded)| exact.to_bits() == rounded.to_bits()))
    }

    fn round(&mut self, states: &[f32], state_type: StateType) {
        self.bytes.resize(states.len() * state_type.bytes(), 0);
        self.states.resize(states.len(), 0.0);
        state_type.encode(states, &mut self.bytes);
        state_type.decode_into(&self.bytes, &mut self.states);
    }
}
