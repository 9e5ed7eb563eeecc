//! Decodes windows with a context, one decode call at a time.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use kl_formats::{Calls, WindowSpec};

use super::LlamaCppModel;
use super::context::{Batch, Context};
use super::hidden_states::Tap;
use super::log::last_log_errors;
use crate::engine::{Appended, Call, Decoder, EngineError, Outputs};
use crate::lock::locked;

/// A context of a llama.cpp model, ready to decode windows.
pub struct LlamaCppDecoder<'m> {
    pub(super) context: Context<'m>,
    pub(super) model: &'m LlamaCppModel<'m>,
    pub(super) calls: Calls,
    /// Most windows of a call.
    pub(super) n_seq: usize,
    /// Takes the hidden states, in a context that shows them.
    pub(super) tap: Option<Arc<Mutex<Tap>>>,
    /// The token that was decoded in company of a lone one, by its sequence and its position, and is to
    /// be forgotten. ggml multiplies one column with other kernels than several, whose sums differ in
    /// their last bits; with company, a text grows by itself as it does beside others.
    pub(super) company: Option<(usize, usize)>,
}

impl LlamaCppDecoder<'_> {
    /// Forgets the tokens of a sequence from a position on.
    fn forget_from(&mut self, sequence: usize, position: usize) -> Result<(), EngineError> {
        if self.context.forget(sequence, position) {
            return Ok(());
        }
        let what = format!(
            "llama.cpp cannot forget the tokens of sequence {sequence} from position {position} on"
        );
        Err(EngineError::model(&self.model.facts.path, what))
    }

    /// Computes a batch, which starts at `position` of `window`, and returns the rows that are wanted.
    /// One context of a model computes at a time.
    fn compute(
        &mut self,
        mut batch: Batch,
        window: u32,
        position: usize,
    ) -> Result<Vec<&[f32]>, EngineError> {
        let model = self.model;
        let failed = |reason: String| {
            let what =
                format!("llama.cpp failed at window {window}, position {position}: {reason}");
            EngineError::model(&model.facts.path, what)
        };
        let _turn = locked(model.turn());
        self.context
            .decode(&mut batch)
            .map_err(|error| failed(format!("{error}; {}", last_log_errors())))?;
        let rows = self.context.rows(&batch);
        rows.ok_or_else(|| failed(last_log_errors()))
    }
}

impl Decoder for LlamaCppDecoder<'_> {
    fn n_vocab(&self) -> usize {
        self.model.facts.n_vocab as usize
    }

    fn cache_bytes(&self) -> u64 {
        self.context.cache_bytes()
    }

    fn n_together(&self, windows: &[&WindowSpec]) -> usize {
        let mut n_left = u64::from(self.calls.n_batch);
        let fitting = windows.iter().take_while(|window| {
            let left = n_left.checked_sub(window.n_decoded());
            n_left = left.unwrap_or(0);
            left.is_some()
        });
        fitting.take(self.n_seq).count()
    }

    fn decode_together(&mut self, windows: &[&WindowSpec]) -> Result<Vec<&[f32]>, EngineError> {
        self.context.clear();
        let mut batch = Batch::default();
        for (sequence, window) in windows.iter().enumerate() {
            self.model.facts.check_window(window.n_decoded())?;
            let (positions, scored) = (0..window.n_decoded() as usize, window.first_scored);
            batch.push(sequence, &window.tokens, positions, scored as usize);
        }
        let first = windows.first().map_or(0, |window| window.window);
        self.compute(batch, first, 0)
    }

    fn decode_call(
        &mut self,
        window: &WindowSpec,
        start: usize,
        wants_rows: bool,
    ) -> Result<Outputs<'_>, EngineError> {
        let call = Call::of(window, self.calls, start);
        let groups = call.groups(window, self.calls);
        let (tap, path) = (self.tap.clone(), &self.model.facts.path);
        if let Some(tap) = &tap {
            locked(tap).start(wants_rows);
        }
        let Range { start, end } = call.positions;
        // The windows of a stream can be checked only here.
        self.model.facts.check_window(end as u64)?;
        if start == 0 {
            self.context.clear();
        }
        let mut batch = Batch::default();
        batch.push(0, &window.tokens, start..end, call.scored_start);
        let mut rows = self.compute(batch, window.window, start)?;
        let mut states = Vec::new();
        if let Some(tap) = tap {
            let taken = locked(&tap).take(&groups);
            states = taken.map_err(|what| EngineError::NoStates {
                path: path.clone(),
                what,
            })?;
            // They hold no logits.
            if !wants_rows {
                rows.clear();
            }
        }
        Ok(Outputs {
            next: call.next,
            rows,
            states,
            groups,
        })
    }

    fn append(&mut self, appended: &[Appended<'_>]) -> Result<Vec<&[f32]>, EngineError> {
        if let Some(tap) = &self.tap {
            locked(tap).start(true);
        }
        if let Some((sequence, position)) = self.company.take() {
            self.forget_from(sequence, position)?;
        }
        let mut batch = Batch::default();
        for of in appended {
            let end = of.tokens.len();
            self.model.facts.check_window(end as u64)?;
            let last = end.saturating_sub(1);
            batch.push(of.sequence, of.tokens, of.start..end, last);
        }
        let first = appended.first();
        let (window, start) = first.map_or((0, 0), |first| (first.window, first.start));
        let can_have_company =
            self.model.facts.layers.can_decode_together() && self.calls.n_batch > 1;
        if let Some(of) = first.filter(|_| batch.len() == 1 && can_have_company) {
            batch.repeat_last();
            self.company = Some((of.sequence, of.tokens.len()));
        }
        let mut rows = self.compute(batch, window, start)?;
        rows.truncate(appended.len());
        Ok(rows)
    }

    fn forget(&mut self, sequence: usize) -> Result<(), EngineError> {
        self.company.take_if(|(of, _)| *of == sequence);
        if self.n_seq == 1 {
            self.context.clear();
            return Ok(());
        }
        self.forget_from(sequence, 0)
    }
}
