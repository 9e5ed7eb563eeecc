//! A context of llama.cpp: decodes windows a batch at a time.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use kl_formats::WindowSpec;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;

use super::llama_cpp::check_positions;
use super::{
    Decoder, EngineError, LogitSource, Outputs, decode_in_steps, last_log_errors, top_token,
};

/// A context of a llama.cpp model, ready to decode windows.
pub struct LlamaCppDecoder<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    n_batch: usize,
    n_vocab: usize,
    /// Positions of which the model has a vector, if it has learned one for each.
    n_positions: Option<u64>,
    path: &'m Path,
    turn: &'m Mutex<()>,
}

// SAFETY: a context of llama.cpp is not bound to the thread that created it: it holds no
// thread-local state, and an accelerator's backend selects its device in each call. Only one thread
// at a time can use it, because every method needs `&mut self`.
unsafe impl Send for LlamaCppDecoder<'_> {}

impl<'m> LlamaCppDecoder<'m> {
    /// Wraps a context whose batch holds `n_batch` tokens; `turn` is locked while it decodes, so
    /// that one context of a model decodes at a time.
    pub(super) fn new(
        context: LlamaContext<'m>,
        n_batch: u32,
        n_vocab: usize,
        n_positions: Option<u64>,
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
            n_positions,
            path,
            turn,
        }
    }

    /// Decodes the tokens at `positions` of a window in one call, after those before them, and
    /// returns the rows of the positions from `scored_start` on.
    fn decode_batch(
        &mut self,
        window: u32,
        tokens: &[u32],
        positions: Range<usize>,
        scored_start: usize,
    ) -> Result<Vec<&[f32]>, EngineError> {
        // A stream's windows are known only now.
        check_positions(self.n_positions, positions.end as u64, self.path)?;
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
        // Getting the first row waits until the accelerator is done.
        Ok((start.max(scored_start)..positions.end)
            .map(|position| self.context.get_logits_ith((position - start) as i32))
            .collect())
    }
}

impl LogitSource for LlamaCppDecoder<'_> {
    type Error = EngineError;

    fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn decode<E: From<EngineError>>(
        &mut self,
        window: &WindowSpec,
        sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        decode_in_steps(self, window, sink)
    }
}

impl Decoder for LlamaCppDecoder<'_> {
    fn step(
        &mut self,
        window: &WindowSpec,
        start: usize,
    ) -> Result<(Option<usize>, Vec<&[f32]>), EngineError> {
        if start == 0 {
            self.context.clear_kv_cache();
        }
        let scored_start = window.first_scored as usize;
        // Nothing after the last scored position can change a row.
        let scored_end = scored_start + window.n_rows as usize;
        let end = scored_end.min(start + self.n_batch);
        let rows = self.decode_batch(window.window, &window.tokens, start..end, scored_start)?;
        Ok(((end < scored_end).then_some(end), rows))
    }

    fn decode_states<E: From<EngineError>>(
        &mut self,
        _window: &WindowSpec,
        _wants_rows: impl Fn(Range<usize>) -> bool,
        _sink: impl FnMut(&Outputs<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        todo!()
    }

    fn extend<E: From<EngineError>>(
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
                next = rows.last().and_then(|row| top_token(row));
                decoded = end;
            }
            let next = next.ok_or_else(|| EngineError::NoTopToken {
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
