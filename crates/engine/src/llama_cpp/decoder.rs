//! Decodes windows with a context, one decode call at a time; and chooses tokens by chance, with llama.cpp's
//! own samplers.

use std::sync::{Arc, Mutex};

use kl_formats::{Calls, Random, Sampling, WindowSpec};
use llama_cpp_sys_2 as sys;

use super::context::{Batch, Context};
use super::ggml::Owned;
use super::guard::{calls, guarded};
use super::hidden_states::Tap;
use crate::{Appended, Call, Decoder, EngineError, Outputs, top_token};
use kl_system::locked;

/// A context of a llama.cpp model, ready to decode windows.
pub(super) struct LlamaCppDecoder<'m> {
    pub(super) context: Context<'m>,
    pub(super) calls: Calls,
    /// Most windows of a call.
    pub(super) n_seq: usize,
    /// True if each sequence has a KV cache of its own.
    pub(super) has_own_caches: bool,
    /// True if a lone token is decoded alone.
    pub(super) is_as_deployed: bool,
    /// Takes the hidden states, in a context that shows them.
    pub(super) tap: Option<Arc<Mutex<Tap>>>,
    /// The token that was decoded in company of a lone one, by its sequence and its position, and is to
    /// be forgotten. ggml multiplies one column with other kernels than several, whose sums differ in
    /// their last bits; with company, a text grows by itself as it does beside others.
    pub(super) company: Option<(usize, usize)>,
}

impl Decoder for LlamaCppDecoder<'_> {
    fn n_vocab(&self) -> usize {
        self.context.model.facts.n_vocab as usize
    }

    fn cache_bytes(&self) -> u64 {
        self.context.bytes(false)
    }

    fn context_bytes(&self) -> u64 {
        self.context.bytes(true)
    }

    fn n_together(&self, windows: &[&WindowSpec]) -> usize {
        let mut n_left = Some(u64::from(self.calls.n_batch));
        let fitting = windows.iter().take_while(|window| {
            n_left = n_left.and_then(|n| n.checked_sub(window.n_decoded()));
            n_left.is_some()
        });
        fitting.take(self.n_seq).count()
    }

    fn decode_together(&mut self, windows: &[&WindowSpec]) -> Result<Vec<&[f32]>, EngineError> {
        self.context.clear()?;
        let mut batch = Batch::default();
        let lengths = windows.iter().map(|window| window.n_decoded());
        let longest = lengths.max().unwrap_or(0) as usize;
        for (sequence, window) in windows.iter().enumerate() {
            self.context.model.facts.check_window(window.n_decoded())?;
            let decoded = window.tokens.get(..window.n_decoded() as usize);
            let tokens = decoded.unwrap_or_default();
            batch.push(sequence, tokens, 0, window.first_scored as usize);
            // A physical batch has as many tokens of each sequence: with unequal ones there would be several.
            if self.has_own_caches {
                let padding = vec![0; longest - tokens.len()];
                batch.push(sequence, &padding, tokens.len(), usize::MAX);
            }
        }
        let first = windows.first().map_or(0, |window| window.window);
        self.context.decode(batch, first, 0)
    }

    fn decode_call(
        &mut self,
        window: &WindowSpec,
        start: usize,
        wants_rows: bool,
    ) -> Result<Outputs<'_>, EngineError> {
        let call = Call::new(window, self.calls, start);
        let groups = call.groups(window, self.calls);
        let (tap, model) = (self.tap.clone(), self.context.model);
        if let Some(tap) = &tap {
            locked(tap).start(wants_rows);
        }
        if start == 0 {
            self.context.clear()?;
        }
        // The windows of a stream can be checked only here.
        model.facts.check_window(call.positions.end as u64)?;
        let mut batch = Batch::default();
        let tokens = window.tokens.get(call.positions).unwrap_or_default();
        batch.push(0, tokens, start, call.scored_start);
        let mut rows = self.context.decode(batch, window.window, start)?;
        let mut states = Vec::new();
        if let Some(tap) = tap {
            let taken = locked(&tap).take(&groups);
            states = taken.map_err(|what| model.no_states(&what))?;
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
            self.context.forget(sequence, position)?;
        }
        let (model, mut batch) = (self.context.model, Batch::default());
        let facts = &model.facts;
        for added in appended {
            facts.check_window(added.tokens.len() as u64)?;
            let tokens = added.tokens.get(added.start..).unwrap_or_default();
            let last = added.tokens.len().saturating_sub(1);
            batch.push(added.sequence, tokens, added.start, last);
        }
        let first = appended.first();
        let (window, start) = first.map_or((0, 0), |first| (first.window, first.start));
        let can_have_company =
            facts.layers.can_decode_together() && self.calls.n_batch > 1 && !self.is_as_deployed;
        if let Some(first) = first.filter(|_| batch.len() == 1 && can_have_company) {
            let (n, last) = (first.tokens.len(), first.tokens.last().copied());
            batch.push(first.sequence, last.as_slice(), n, n);
            self.company = Some((first.sequence, n));
        }
        let mut rows = self.context.decode(batch, window, start)?;
        rows.truncate(appended.len());
        Ok(rows)
    }

    fn forget(&mut self, sequence: usize) -> Result<(), EngineError> {
        self.company.take_if(|(of, _)| *of == sequence);
        if self.n_seq == 1 {
            return self.context.clear();
        }
        self.context.forget(sequence, 0)
    }
}

/// Chooses the tokens of one answer, with llama.cpp's samplers in its order: `top_k`, `top_p`,
/// `min_p`, temperature, and then a token by chance. It needs no model.
pub struct Sampler {
    chain: Owned<sys::llama_sampler>,
    candidates: Vec<sys::llama_token_data>,
}

// SAFETY: a chain is not bound to the thread that created it, and it is used through one owner.
unsafe impl Send for Sampler {}

impl Sampler {
    /// The sampler of the answer in window `window`, whose random numbers depend on the seed and
    /// the window alone: the order in which answers are generated does not move them.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(sampling: &Sampling, window: u32) -> Result<Self, EngineError> {
        // Samplers keep at least one token; more would weaken the cuts.
        const MIN_KEEP: usize = 1;
        let top_k = i32::try_from(sampling.top_k).unwrap_or(i32::MAX);
        // SAFETY: plain values; the chain owns the samplers that are added to it.
        let created = guarded(|| unsafe {
            let chain =
                calls::llama_sampler_chain_init(sys::llama_sampler_chain_params { no_perf: true });
            for sampler in [
                calls::llama_sampler_init_top_k(top_k),
                calls::llama_sampler_init_top_p(sampling.top_p, MIN_KEEP),
                calls::llama_sampler_init_min_p(sampling.min_p, MIN_KEEP),
                calls::llama_sampler_init_temp(sampling.temp),
                calls::llama_sampler_init_dist(seed_of(sampling.seed, window)),
            ] {
                calls::llama_sampler_chain_add(chain, sampler);
            }
            Owned::new(chain, sys::llama_sampler_free)
        });
        let no_memory = || EngineError::Setup("llama.cpp's samplers have no memory".to_owned());
        Ok(Self {
            chain: created.ok().flatten().ok_or_else(no_memory)?,
            candidates: Vec::new(),
        })
    }

    /// Chooses a token by a row of logits; `None` where the row holds a NaN or has no finite maximum.
    ///
    /// # Errors
    /// If llama.cpp's samplers cannot choose one.
    pub fn choose(&mut self, row: &[f32]) -> Result<Option<u32>, EngineError> {
        if top_token(row).is_none() {
            return Ok(None);
        }
        let candidate = |(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 };
        self.candidates.clear();
        self.candidates.extend((0..).zip(row).map(candidate));
        let mut array = sys::llama_token_data_array {
            data: self.candidates.as_mut_ptr(),
            size: self.candidates.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: the chain is valid, and the array describes the candidates, which samplers only move, change and
        // leave out.
        guarded(|| unsafe { calls::llama_sampler_apply(self.chain.as_ptr(), &raw mut array) })
            .map_err(|exception| {
                EngineError::Setup(format!("llama.cpp's samplers fail: {exception}"))
            })?;
        let selected = usize::try_from(array.selected).ok();
        let selected = selected.filter(|&index| index < array.size && !array.data.is_null());
        // SAFETY: the array has `size` candidates.
        Ok(selected.map(|index| unsafe { (*array.data.add(index)).id as u32 }))
    }
}

/// The seed of the answer in a window: the first 32 bits for the state that holds the run's seed in its
/// upper half and the window in its lower one.
fn seed_of(seed: u32, window: u32) -> u32 {
    let state = u64::from(seed) << 32 | u64::from(window);
    // llama.cpp takes the largest number for "any seed" (`LLAMA_DEFAULT_SEED`).
    (Random(state).bits() as u32).min(u32::MAX - 1)
}
