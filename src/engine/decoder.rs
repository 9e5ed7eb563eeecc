use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use kl_formats::WindowHead;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;

use super::{EngineError, LogitSource, last_log_errors};

/// A model's context, ready to decode windows.
pub struct Decoder<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    n_batch: usize,
    n_vocab: usize,
    path: &'m Path,
    turn: &'m Mutex<()>,
}

impl<'m> Decoder<'m> {
    /// Of a model's context, whose batch holds `n_batch` tokens; `turn` is held while one decodes.
    pub(super) fn new(
        context: LlamaContext<'m>,
        n_batch: u32,
        n_vocab: usize,
        path: &'m Path,
        turn: &'m Mutex<()>,
    ) -> Self {
        // llama.cpp may have lowered the batch to the context's size.
        let n_batch = context.n_batch().min(n_batch).max(1) as usize;
        Self {
            context,
            batch: LlamaBatch::new(n_batch, 1),
            n_batch,
            n_vocab,
            path,
            turn,
        }
    }

    /// Decodes some of a window's tokens behind those before them, `positions` in one call, and gives
    /// the rows of those from `scored_start` on.
    fn decode_batch(
        &mut self,
        window: u32,
        tokens: &[u32],
        positions: Range<usize>,
        scored_start: usize,
    ) -> Result<Vec<&[f32]>, EngineError> {
        let start = positions.start;
        let failed = |reason: String| EngineError::Decode {
            path: self.path.to_owned(),
            window,
            position: start,
            reason,
        };
        self.batch.clear();
        for position in positions.clone() {
            let token = LlamaToken(tokens[position] as i32);
            self.batch
                .add(token, position as i32, &[0], position >= scored_start)
                .map_err(|error| failed(error.to_string()))?;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.context
            .decode(&mut self.batch)
            .map_err(|error| failed(format!("{error}; {}", last_log_errors())))?;
        // The first row is had when the accelerator is done.
        Ok((start.max(scored_start)..positions.end)
            .map(|position| self.context.get_logits_ith((position - start) as i32))
            .collect())
    }

    /// Puts `n` tokens behind `tokens`, of which there is one at least: each the one that the model
    /// finds likeliest, the first of equals, EOS like any other. `on_token` is told of each.
    ///
    /// # Errors
    /// What the model says where it cannot decode, a row without a likeliest token, or what
    /// `on_token` returned.
    pub fn extend<E: From<EngineError>>(
        &mut self,
        window: u32,
        tokens: &mut Vec<u32>,
        n: u32,
        mut on_token: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.context.clear_kv_cache();
        let mut decoded = 0;
        for _ in 0..n {
            let last = tokens.len().saturating_sub(1);
            let mut next = None;
            while decoded <= last {
                let end = tokens.len().min(decoded + self.n_batch);
                let rows = self.decode_batch(window, tokens, decoded..end, last)?;
                next = rows.last().and_then(|row| likeliest(row));
                decoded = end;
            }
            let next = next.ok_or_else(|| EngineError::NoLikeliest {
                path: self.path.to_owned(),
                window,
                position: last,
            })?;
            tokens.push(next);
            on_token()?;
        }
        Ok(())
    }
}

/// The entry with the largest logit, the first of equals; `None` where a NaN or nothing but
/// infinities is there.
fn likeliest(row: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (entry, &logit) in row.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, most)| logit > most) {
            best = Some((entry, logit));
        }
    }
    let (entry, most) = best?;
    most.is_finite().then_some(entry as u32)
}

impl LogitSource for Decoder<'_> {
    type Error = EngineError;

    fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn decode<E: From<EngineError>>(
        &mut self,
        window: &WindowHead,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.context.clear_kv_cache();
        let scored_start = window.first_scored as usize;
        let scored_end = scored_start + window.n_rows as usize;
        // Nothing after the last scored position can change a row.
        for start in (0..scored_end).step_by(self.n_batch) {
            let end = scored_end.min(start + self.n_batch);
            let rows =
                self.decode_batch(window.window, &window.tokens, start..end, scored_start)?;
            sink(&rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::likeliest;

    #[test]
    fn the_likeliest_is_the_first_of_equals() {
        let infinity = f32::INFINITY;
        for (row, best) in [
            (&[1.0, 3.0, 3.0, 2.0][..], Some(1)),
            (&[-infinity, -5.0], Some(1)),
            (&[-infinity, -infinity], None),
            (&[1.0, infinity], None),
            (&[1.0, f32::NAN], None),
            (&[f32::NAN, 1.0], None),
            (&[], None),
        ] {
            assert_eq!(likeliest(row), best, "{row:?}");
        }
    }
}
