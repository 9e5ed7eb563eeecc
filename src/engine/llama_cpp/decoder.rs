//! Decodes windows with a context, a batch at a time.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kl_formats::{Calls, WindowSpec};

use super::check_positions;
use super::context::{Batch, Context};
use super::tap::Tap;
use crate::engine::{
    Call, Decoder, EngineError, LogitSource, Outputs, decode_in_steps, last_log_errors, top_token,
};

/// A context of a llama.cpp model, ready to decode windows.
pub struct LlamaCppDecoder<'m> {
    context: Context<'m>,
    batch: Batch,
    calls: Calls,
    n_vocab: usize,
    /// Takes the hidden states, in a context that shows them.
    tap: Option<Arc<Mutex<Tap>>>,
    /// Positions of which the model has a vector, if it has learned one for each.
    n_positions: Option<u64>,
    path: &'m Path,
    turn: &'m Mutex<()>,
}

impl<'m> LlamaCppDecoder<'m> {
    /// Wraps a context that decodes these calls; `turn` is locked while it decodes, so
    /// that one context of a model decodes at a time.
    pub(super) fn new(
        context: Context<'m>,
        calls: Calls,
        n_vocab: usize,
        tap: Option<Arc<Mutex<Tap>>>,
        n_positions: Option<u64>,
        path: &'m Path,
        turn: &'m Mutex<()>,
    ) -> Self {
        Self {
            context,
            batch: Batch::default(),
            calls,
            n_vocab,
            tap,
            n_positions,
            path,
            turn,
        }
    }

    /// Runs a call as [`decode_batch`](Self::decode_batch) does.
    fn decode_call(
        &mut self,
        window: &WindowSpec,
        call: &Call,
        wants_rows: bool,
    ) -> Result<Vec<&[f32]>, EngineError> {
        let (tokens, positions) = (&window.tokens, call.positions.clone());
        let scored_start = call.scored_start;
        self.decode_batch(window.window, tokens, positions, scored_start, wants_rows)
    }

    /// Decodes the tokens at `positions` of a window in one call, after those before them, and
    /// returns the rows of the positions from `scored_start` on. In a context that shows hidden
    /// states, they hold anything unless `wants_rows`.
    fn decode_batch(
        &mut self,
        window: u32,
        tokens: &[u32],
        positions: Range<usize>,
        scored_start: usize,
        wants_rows: bool,
    ) -> Result<Vec<&[f32]>, EngineError> {
        if let Some(tap) = &self.tap {
            lock(tap).start(wants_rows);
        }
        // A stream's windows are known only now.
        check_positions(self.n_positions, positions.end as u64, self.path)?;
        let start = positions.start;
        if start == 0 {
            self.context.clear();
        }
        if positions.is_empty() {
            return Ok(Vec::new());
        }
        let failed = |reason: String| EngineError::Decode {
            path: self.path.to_owned(),
            window,
            position: start,
            reason,
        };
        self.batch.clear();
        for position in positions.clone() {
            let is_scored = position >= scored_start;
            self.batch.push(tokens[position], position, is_scored);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.context
            .decode(&mut self.batch)
            .map_err(|error| failed(format!("{error}; {}", last_log_errors())))?;
        // Getting the first row waits until the accelerator is done.
        let scored = start.max(scored_start)..positions.end;
        let rows = scored.map(|position| self.context.row(position - start));
        let rows = rows.collect::<Option<_>>();
        rows.ok_or_else(|| failed(last_log_errors()))
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
        let call = Call::of(window, self.calls, start);
        let rows = self.decode_call(window, &call, true)?;
        Ok((call.next, rows))
    }

    fn decode_states<E: From<EngineError>>(
        &mut self,
        window: &WindowSpec,
        wants_rows: impl Fn(Range<usize>) -> bool,
        mut sink: impl FnMut(&Outputs<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = self.path;
        let no_states = |what: String| EngineError::Head {
            path: path.to_owned(),
            what,
        };
        let tap = self.tap.clone();
        let tap = tap.ok_or_else(|| no_states("this context does not show them".to_owned()))?;
        let mut start = Some(0);
        while let Some(at) = start {
            let call = Call::of(window, self.calls, at);
            let groups = call.groups(window, self.calls);
            let wants_rows = wants_rows(call.positions.clone());
            let rows = self.decode_call(window, &call, wants_rows)?;
            let tap = lock(&tap);
            tap.check(&groups).map_err(no_states)?;
            sink(&Outputs {
                states: &tap.states,
                rows: wants_rows.then_some(&rows),
                groups: &tap.groups,
            })?;
            start = call.next;
        }
        Ok(())
    }

    fn extend<E: From<EngineError>>(
        &mut self,
        window: u32,
        tokens: &mut Vec<u32>,
        n: u32,
        mut on_token: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut decoded = 0;
        for _ in 0..n {
            let last = tokens.len().saturating_sub(1);
            let mut next = None;
            while decoded <= last {
                let end = tokens
                    .len()
                    .min(decoded + self.calls.n_batch.max(1) as usize);
                let rows = self.decode_batch(window, tokens, decoded..end, last, true)?;
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

fn lock(tap: &Mutex<Tap>) -> MutexGuard<'_, Tap> {
    tap.lock().unwrap_or_else(PoisonError::into_inner)
}
