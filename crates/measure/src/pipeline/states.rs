//! A source of hidden states, which are written in place of rows. It computes rows from some of them
//! again, as a reader will, to see that they suffice.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use kl_engine::{Decoder, Head, Outputs};
use kl_formats::{Calls, CheckRow, Float, States, WindowSpec};
use kl_stats::score::{RowError, has_softmax};

use super::in_turn::{LogitSource, UseRows};
use super::{Error, NotFinite, Step};

/// Rows of a decode call that are compared where not all are.
const N_SAMPLED: usize = 16;

/// The types in which states can be stored, the smallest first.
const STATE_TYPES: [Float; 3] = [Float::F16, Float::Bf16, Float::F32];

/// A source of a model's hidden states, which are written as rows are. Of each window, some rows of one
/// decode call are computed again from their states and compared with the model's own, and all rows of
/// that call where these do not agree.
pub struct StateSource<'m> {
    decoder: Box<dyn Decoder + 'm>,
    /// Computes rows again from the states.
    head: Box<dyn Head + 'm>,
    /// The states as the file's header describes them.
    pub states: States,
    /// The model's own rows of the positions in [`kl_formats::HeadCheck::rows`].
    pub check_rows: Vec<Vec<f32>>,
    /// The states of windows that were decoded and checked already, by the windows' numbers.
    known: HashMap<u32, Vec<f32>>,
    /// The rows that were checked so far.
    pub checked: RowError,
    /// Those of the model's own rows, wherever they are computed to be checked, that are not finite: its head may give
    /// such rows of finite states.
    pub not_finite: NotFinite,
    /// The time that the check took.
    pub check_time: Duration,
}

impl<'m> StateSource<'m> {
    /// Takes the states of `decoder`, and computes rows again with `head`.
    pub fn new(decoder: Box<dyn Decoder + 'm>, head: Box<dyn Head + 'm>, states: States) -> Self {
        Self {
            decoder,
            head,
            states,
            check_rows: Vec::new(),
            known: HashMap::new(),
            checked: RowError::default(),
            not_finite: NotFinite::default(),
            check_time: Duration::ZERO,
        }
    }

    /// Counts those of these windows, and their rows, that need not be decoded any more.
    pub fn known_among(&self, windows: &[WindowSpec]) -> (u64, u64) {
        windows
            .iter()
            .filter(|window| self.known.contains_key(&window.window))
            .fold((0, 0), |(n_windows, n_rows), window| {
                (n_windows + 1, n_rows + u64::from(window.n_rows))
            })
    }

    /// Finds the smallest type of states that gives the model's own rows to the bit in all of these
    /// windows, and stores the states so. Rounding to it must not change products of `other_sizes` rows
    /// either. Returns false if no type does; `checked` is then the distance of the last one. The
    /// windows are not decoded again.
    ///
    /// # Errors
    /// Those of the model and of `on_step`, which is called for every decode call and each window.
    pub fn try_types(
        &mut self,
        windows: &[WindowSpec],
        other_sizes: &BTreeSet<usize>,
        mut on_step: impl FnMut(Step<&WindowSpec>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut types_left = STATE_TYPES
            .map(|state_type| (state_type, RowError::default()))
            .to_vec();
        let mut all_states = Vec::new();
        for spec in windows {
            let (window, mut position) = (spec.window, spec.first_scored);
            let (mut window_states, mut next_call) = (Vec::new(), Some(0));
            while let Some(start) = next_call {
                let outputs = self.decoder.decode_call(spec, start, true)?;
                for (state_type, error) in &mut types_left {
                    for row_error in compare_all(&mut *self.head, &outputs, *state_type)? {
                        *error += row_error;
                    }
                    self.checked = *error;
                }
                types_left.retain(|(_, error)| error.is_exact());
                if types_left.is_empty() {
                    return Ok(false);
                }
                for row in &outputs.rows {
                    self.not_finite.push(window, position, has_softmax(row));
                    let check_row = CheckRow { window, position };
                    if self.states.check.rows.contains(&check_row) {
                        self.check_rows.push(row.to_vec());
                    }
                    position += 1;
                }
                on_step(Step::Rows(outputs.rows.len()))?;
                window_states.extend(outputs.states);
                next_call = outputs.next;
            }
            all_states.extend_from_slice(&window_states);
            self.known.insert(window, window_states);
            on_step(Step::Window(spec))?;
        }
        let n_embd = self.states.n_embd as usize;
        drop_changed_types(
            &mut *self.head,
            &mut types_left,
            other_sizes,
            n_embd,
            &all_states,
        )?;
        let Some(&(state_type, error)) = types_left.first() else {
            return Ok(false);
        };
        self.checked = error;
        self.states.state_type = state_type;
        self.states.check.n_rows = error.n_rows;
        self.states.check.mean_kld = error.mean_kld as f32;
        self.states.check.max_kld = error.max_kld as f32;
        Ok(true)
    }
}

impl LogitSource for &mut StateSource<'_> {
    fn n_vocab(&self) -> usize {
        self.states.n_embd as usize
    }

    /// Fails with [`Error::RowMoved`] for the first row that is not the model's own to the bit.
    fn decode(&mut self, windows: &[&WindowSpec], sink: &mut UseRows<'_>) -> Result<(), Error> {
        let n_embd = self.n_vocab().max(1);
        for (i, window) in windows.iter().enumerate() {
            let mut hand_out =
                |states: &[f32]| sink(i, &states.chunks_exact(n_embd).collect::<Vec<_>>());
            if let Some(known_states) = self.known.remove(&window.window) {
                hand_out(&known_states)?;
                continue;
            }
            let checked_call = call_to_check(window, self.states.calls);
            let (mut next_call, mut first_position) = (Some(0), window.first_scored as usize);
            while let Some(start) = next_call {
                let is_checked = start == checked_call;
                let outputs = self.decoder.decode_call(window, start, is_checked)?;
                if is_checked {
                    let started = Instant::now();
                    let row_errors =
                        compare_some(&mut *self.head, &outputs, self.states.state_type)?;
                    for (row, position) in outputs.rows.iter().zip(first_position as u32..) {
                        self.not_finite
                            .push(window.window, position, has_softmax(row));
                    }
                    for (index, row_error) in row_errors.iter().enumerate() {
                        self.checked += *row_error;
                        if !row_error.is_exact() {
                            return Err(Error::RowMoved {
                                window: window.window,
                                position: first_position + index,
                                kld: row_error.max_kld,
                            });
                        }
                    }
                    self.check_time += started.elapsed();
                }
                hand_out(&outputs.states)?;
                first_position += outputs.states.len() / n_embd;
                next_call = outputs.next;
            }
        }
        Ok(())
    }
}

/// Compares each row of a decode call, in order, with what its state gives once it is stored in
/// `state_type`.
fn compare_all(
    head: &mut dyn Head,
    outputs: &Outputs<'_>,
    state_type: Float,
) -> Result<Vec<RowError>, Error> {
    let n_embd = outputs.states.len() / outputs.rows.len().max(1);
    let (mut row_errors, mut first) = (Vec::new(), 0);
    for &n in &outputs.groups {
        let states = &outputs.states[first * n_embd..][..n * n_embd];
        let rows = &outputs.rows[first..][..n];
        row_errors.extend(compare_product(head, states, rows, state_type)?);
        first += n;
    }
    Ok(row_errors)
}

/// Compares some rows of the call, evenly spread, in one small product, and all of them only if
/// these do not agree. Kernels may differ for another number of rows, so only rows that
/// agree say something.
fn compare_some(
    head: &mut dyn Head,
    outputs: &Outputs<'_>,
    state_type: Float,
) -> Result<Vec<RowError>, Error> {
    let rows = &outputs.rows;
    if rows.len() > N_SAMPLED {
        let n_embd = outputs.states.len() / rows.len();
        let (mut states, mut own_rows) = (Vec::new(), Vec::new());
        for i in 0..N_SAMPLED {
            let row = i * (rows.len() - 1) / (N_SAMPLED - 1);
            states.extend_from_slice(&outputs.states[row * n_embd..][..n_embd]);
            own_rows.push(rows[row]);
        }
        let row_errors = compare_product(head, &states, &own_rows, state_type)?;
        if row_errors.iter().all(RowError::is_exact) {
            return Ok(row_errors);
        }
    }
    compare_all(head, outputs, state_type)
}

/// Compares the model's own rows with those that one product of the head with their states gives.
fn compare_product(
    head: &mut dyn Head,
    states: &[f32],
    own_rows: &[&[f32]],
    state_type: Float,
) -> Result<Vec<RowError>, Error> {
    let computed_rows = head.rows(&rounded(states, state_type))?;
    Ok(RowError::each(own_rows, computed_rows))
}

/// Drops the types whose rounding changes a product of one of these sizes; sizes beyond the number of
/// `states` are left out. A kernel that rounds the states itself may be used for products of many
/// rows, and one that does not for those of few.
fn drop_changed_types(
    head: &mut dyn Head,
    types_left: &mut Vec<(Float, RowError)>,
    sizes: &BTreeSet<usize>,
    n_embd: usize,
    states: &[f32],
) -> Result<(), Error> {
    for size in sizes {
        let Some(states) = states.get(..size * n_embd) else {
            continue;
        };
        let exact_logits = head.rows(states)?.to_vec();
        for (state_type, error) in std::mem::take(types_left) {
            let logits = head.rows(&rounded(states, state_type))?;
            let is_same = |(exact, logit): (&f32, &f32)| {
                exact.to_bits() == logit.to_bits() || exact.is_nan() && logit.is_nan()
            };
            if exact_logits.iter().zip(logits).all(is_same) {
                types_left.push((state_type, error));
            }
        }
    }
    Ok(())
}

/// States as a reader finds them in a file that holds `state_type`.
fn rounded(states: &[f32], state_type: Float) -> Vec<f32> {
    let mut bytes = vec![0; states.len() * state_type.bytes()];
    let mut rounded = vec![0.0; states.len()];
    state_type.encode(states, &mut bytes);
    state_type.decode(&bytes, &mut rounded);
    rounded
}

/// The first position of the decode call of a window whose rows are checked: one of those with
/// scored positions, in turn from window to window.
fn call_to_check(window: &WindowSpec, calls: Calls) -> usize {
    let n_tokens = window.n_decoded();
    let mut next = u64::from(window.first_scored);
    let starts: Vec<u64> = std::iter::from_fn(|| {
        let call = (next < n_tokens).then(|| calls.call(n_tokens, next))?;
        next = call.end;
        Some(call.start)
    })
    .collect();
    let turn = window.window as usize % starts.len().max(1);
    starts.get(turn).map_or(0, |&start| start as usize)
}

#[cfg(test)]
mod tests;
