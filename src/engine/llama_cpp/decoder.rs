//! Decodes windows with a context, a batch at a time.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kl_formats::{Calls, WindowSpec};

use super::context::{Batch, Context};
use super::tap::Tap;
use crate::engine::{
    Call, ContextOptions, Decoder, EngineError, LogitSource, ModelFacts, Outputs, decode_in_steps,
    last_log_errors, top_token,
};

/// A context of a llama.cpp model, ready to decode windows.
pub struct LlamaCppDecoder<'m> {
    context: Context<'m>,
    batch: Batch,
    calls: Calls,
    /// Most windows of a call.
    n_seq: usize,
    facts: &'m ModelFacts,
    /// Takes the hidden states, in a context that shows them.
    tap: Option<Arc<Mutex<Tap>>>,
    turn: &'m Mutex<()>,
}

impl<'m> LlamaCppDecoder<'m> {
    /// Wraps a context that was created with `options`; `turn` is locked while it decodes, so
    /// that one context of a model decodes at a time.
    pub(super) fn new(
        context: Context<'m>,
        options: &ContextOptions,
        facts: &'m ModelFacts,
        tap: Option<Arc<Mutex<Tap>>>,
        turn: &'m Mutex<()>,
    ) -> Self {
        Self {
            context,
            batch: Batch::default(),
            calls: options.calls(),
            n_seq: options.n_seq.max(1) as usize,
            facts,
            tap,
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

    /// How many of these windows, from the first on, one call decodes: as many whole ones as it holds.
    fn n_together(&self, windows: &[&WindowSpec]) -> usize {
        let mut n_left = u64::from(self.calls.n_batch);
        let fitting = windows.iter().take_while(|window| {
            let left = n_left.checked_sub(window.n_decoded());
            n_left = left.unwrap_or(0);
            left.is_some()
        });
        fitting.take(self.n_seq).count()
    }

    /// Decodes whole windows in one call, each as a sequence of its own, and returns their rows, one
    /// window's after the other's.
    fn decode_together(&mut self, windows: &[&WindowSpec]) -> Result<Vec<&[f32]>, EngineError> {
        self.context.clear();
        self.batch.clear();
        let mut scored = Vec::new();
        for (sequence, window) in windows.iter().enumerate() {
            let tokens = window.tokens.iter().take(window.n_decoded() as usize);
            self.facts.check_window(window.n_decoded())?;
            for (position, &token) in tokens.enumerate() {
                let is_scored = position >= window.first_scored as usize;
                if is_scored {
                    scored.push(self.batch.len());
                }
                self.batch.push(sequence, token, position, is_scored);
            }
        }
        if self.batch.len() == 0 {
            return Ok(Vec::new());
        }
        let first = windows.first().map_or(0, |window| window.window);
        self.compute(first, 0, scored.into_iter())
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
        self.facts.check_window(positions.end as u64)?;
        let start = positions.start;
        if start == 0 {
            self.context.clear();
        }
        if positions.is_empty() {
            return Ok(Vec::new());
        }
        self.batch.clear();
        for position in positions.clone() {
            let is_scored = position >= scored_start;
            self.batch.push(0, tokens[position], position, is_scored);
        }
        let scored = start.max(scored_start)..positions.end;
        self.compute(window, start, scored.map(|position| position - start))
    }

    /// Computes the batch, which starts at `position` of `window`, and returns the rows of the tokens
    /// with these indices in it.
    fn compute(
        &mut self,
        window: u32,
        position: usize,
        scored: impl Iterator<Item = usize>,
    ) -> Result<Vec<&[f32]>, EngineError> {
        let path = &self.facts.path;
        let failed = |reason: String| EngineError::Decode {
            path: path.clone(),
            window,
            position,
            reason,
        };
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.context
            .decode(&mut self.batch)
            .map_err(|error| failed(format!("{error}; {}", last_log_errors())))?;
        // Getting the first row waits until the accelerator is done.
        let rows = scored.map(|i| self.context.row(i)).collect::<Option<_>>();
        rows.ok_or_else(|| failed(last_log_errors()))
    }
}

impl LogitSource for LlamaCppDecoder<'_> {
    type Error = EngineError;

    fn n_vocab(&self) -> usize {
        self.facts.n_vocab as usize
    }

    fn decode<E: From<EngineError>>(
        &mut self,
        window: &WindowSpec,
        sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        decode_in_steps(self, window, sink)
    }

    fn decode_all<E: From<EngineError>>(
        &mut self,
        windows: &[&WindowSpec],
        mut sink: impl FnMut(usize, &[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = 0;
        while let Some(&window) = windows.get(next) {
            let together = &windows[next..next + self.n_together(&windows[next..])];
            match together {
                [] | [_] => {
                    self.decode(window, |rows| sink(next, rows))?;
                    next += 1;
                }
                _ => {
                    let rows = self.decode_together(together)?;
                    let mut rows = rows.as_slice();
                    for window in together {
                        let (own, others) = rows.split_at(window.n_rows as usize);
                        sink(next, own)?;
                        rows = others;
                        next += 1;
                    }
                }
            }
        }
        Ok(())
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
        let path = &self.facts.path;
        let no_states = |what: String| EngineError::Head {
            path: path.clone(),
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
                path: self.facts.path.clone(),
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
