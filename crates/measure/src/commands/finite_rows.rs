//! Follows the rows that are written into a reference, and tells of those that are not finite: at the first, because
//! a run may take hours, and at the end.

use std::sync::Mutex;

use anyhow::{Result, bail};
use kl_formats::{NativeReader, ReadBlocks as _};
use kl_report::Warning;
use kl_report::number::{count, count_of, percent};
use kl_stats::score::has_softmax;
use kl_system::locked;

use super::observer::Watch;
use crate::pipeline::NotFinite;

/// The kind of both warnings.
const KIND: &str = "rows_not_finite";

/// The rows of an original, or of a file of them.
pub struct FiniteRows<'w> {
    watch: &'w Watch<'w>,
    /// The path of the model or the file.
    name: String,
    /// What to do about it.
    advice: &'static str,
    seen: Mutex<NotFinite>,
}

impl<'w> FiniteRows<'w> {
    /// No rows yet of the model at the path `name`.
    pub fn of_model(name: String, watch: &'w Watch<'w>) -> Self {
        let advice = "kl info --verify finds weights that are not finite, and -dev none computes on the CPU; if neither helps, convert the model again, in bf16 or f32 if it was f16";
        Self::new(name, advice, watch)
    }

    /// No rows yet of the file at the path `name`.
    pub fn of_file(name: String, watch: &'w Watch<'w>) -> Self {
        let advice = "its original gave them: write the reference again, with another original";
        Self::new(name, advice, watch)
    }

    fn new(name: String, advice: &'static str, watch: &'w Watch<'w>) -> Self {
        let seen = Mutex::default();
        Self {
            watch,
            name,
            advice,
            seen,
        }
    }

    /// Adds the rows of a window, or of several. Warns of the first that is not finite.
    pub fn add(&self, more: NotFinite) {
        let mut seen = locked(&self.seen);
        let is_first = seen.n == 0;
        *seen += more;
        if let Some((window, position)) = more.first.filter(|_| is_first) {
            let message = format!(
                "{}: its row of window {window}, position {position} is not finite (NaN, +infinity, or no finite logit): evaluations leave such rows out; {}",
                self.name, self.advice
            );
            self.watch.warn(Warning::new(KIND, message));
        }
    }

    /// Refuses rows none of which is finite, and warns if some are not. `checked` are the model's own rows that were
    /// computed beside hidden states, and may not be finite where these are. `has_others` returns true if the file has
    /// finite rows besides these.
    ///
    /// # Errors
    /// If no row is finite.
    pub fn conclude(&self, checked: NotFinite, has_others: impl FnOnce() -> bool) -> Result<()> {
        let seen = *locked(&self.seen);
        // Finite states, and none of the checked rows: their head is not finite.
        let is_broken_head = seen.n == 0 && checked.is_all();
        if is_broken_head || seen.is_all() && !has_others() {
            bail!(
                "{}: none of its {} is finite (NaN, +infinity, or no finite logit), so nothing can be compared with them: nothing was kept; {}",
                self.name,
                count_of(seen.n_rows, "row"),
                self.advice
            );
        }
        let (not_finite, unit) = match seen.n {
            0 => (checked, "checked row"),
            _ => (seen, "row"),
        };
        if let Some((window, position)) = not_finite.first {
            let share = percent(not_finite.n as f64 / not_finite.n_rows as f64);
            let message = format!(
                "{}: not finite: {} of {} ({share}), the first in window {window} at position {position}: evaluations leave them out; {}",
                self.name,
                count(not_finite.n),
                count_of(not_finite.n_rows, unit),
                self.advice
            );
            self.watch.warn(Warning::new(KIND, message));
        }
        Ok(())
    }
}

/// Returns true if a window of a file has a finite row; of hidden states, a finite state.
///
/// # Errors
/// If the window cannot be read.
pub fn has_finite_row(file: &NativeReader, index: usize) -> kl_formats::Result<bool> {
    if let Some(states) = &file.header.states {
        let numbers = file.read_states(index, 0..file.n_rows(index), &mut None)?;
        let mut states = numbers.chunks_exact((states.n_embd as usize).max(1));
        return Ok(states.any(|state| state.iter().all(|number| number.is_finite())));
    }
    let (mut row, mut block) = (vec![0.0; file.header.n_vocab as usize], None);
    for number in 0..file.n_blocks(index) {
        let next = file.block(index, number, block.take())?;
        for stored in block.insert(next).rows() {
            stored.decode_into(&mut row);
            if has_softmax(&row) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
