//! A context of llama.cpp. Somebody may watch the tensors that it computes.
//!
//! llama-cpp-2 cannot set the callback for that, so contexts are created with llama-cpp-sys-2.

use std::ffi::c_void;
use std::num::NonZeroI32;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use llama_cpp_2::DecodeError;
use llama_cpp_sys_2 as sys;

use super::LlamaCppModel;
use super::ggml::Node;
use super::guard::{calls, guarded};
use super::log::{errors_with_advice, last_log_errors, with_advice};
use super::params::context_params;
use crate::model_files::IN_USE;
use crate::{ContextOptions, EngineError};
use kl_system::locked;
use kl_system::threads;

/// Watches the tensors of a graph while it is computed, in order.
pub(super) trait GraphWatch: Send {
    /// Checks whether [`computed`](Self::computed) should see this tensor, which costs a little time.
    fn wants(&mut self, node: Node<'_>) -> bool;

    /// Looks at a tensor that was computed. Returns true to let the same device compute the rest of
    /// its part of the graph.
    fn computed(&mut self, node: Node<'_>) -> bool;
}

/// The tokens of one decode call.
#[derive(Default)]
pub(super) struct Batch {
    tokens: Vec<sys::llama_token>,
    positions: Vec<sys::llama_pos>,
    /// The sequence of each token.
    sequences: Vec<sys::llama_seq_id>,
    /// 1 for each token whose row is wanted, else 0.
    outputs: Vec<i8>,
}

impl Batch {
    /// Adds tokens of a sequence, which begin at position `start`; the rows from position `scored_start`
    /// on are wanted.
    pub(super) fn push(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        start: usize,
        scored_start: usize,
    ) {
        for (position, &token) in (start..).zip(tokens) {
            self.tokens.push(token as sys::llama_token);
            self.sequences.push(sequence as sys::llama_seq_id);
            self.positions.push(position as sys::llama_pos);
            self.outputs.push((position >= scored_start).into());
        }
    }

    /// Tokens in the batch.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }
}

/// The contexts of one model, which are freed together, once none of them decodes any more.
///
/// A server of ggml's RPC backend keeps the last graph of a device, so that it need not be sent
/// again, and forgets it when any of the memory there is freed. The client does not notice: it asks
/// for the graph again, and the server ends the connection (`rpc_server::free_buffer` and
/// `ggml_backend_rpc_graph_compute` in `ggml-rpc.cpp`). So nothing is freed between two graphs.
#[derive(Default)]
pub(super) struct Contexts {
    pub(super) n_alive: usize,
    ended: Vec<NonNull<sys::llama_context>>,
}

// SAFETY: a context is not bound to the thread that created it, and those that ended have no owner.
unsafe impl Send for Contexts {}

/// A context of a loaded model.
pub(super) struct Context<'m> {
    inner: NonNull<sys::llama_context>,
    pub(super) model: &'m LlamaCppModel<'m>,
    /// The value that the callback points to.
    _watch: Option<Box<Arc<Mutex<dyn GraphWatch>>>>,
}

// SAFETY: a context is not bound to the thread that created it, and it is used through one owner.
unsafe impl Send for Context<'_> {}

impl<'m> Context<'m> {
    /// Creates a context of a model.
    pub(super) fn new(
        model: &'m LlamaCppModel<'_>,
        options: &ContextOptions,
        watch: Option<Arc<Mutex<dyn GraphWatch>>>,
    ) -> Result<Self, EngineError> {
        check_threads(options.threads)?;
        let mut params = context_params(options, &model.facts.options);
        let watch = watch.map(Box::new);
        if let Some(watch) = &watch {
            params.cb_eval = Some(show);
            params.cb_eval_user_data = (&raw const **watch).cast_mut().cast();
        }
        // A context looks at the weights' types, so they do not change until it is counted.
        let mut contexts = locked(&model.contexts);
        // SAFETY: `LlamaModel` is a transparent wrapper of this pointer, at the version that
        // Cargo.toml pins. The model outlives the context, and so does what the callback points to.
        // llama.cpp changes the model only for another scale of RoPE than its own, which is not set
        // here; so contexts may be created while others decode.
        let created = guarded(|| unsafe {
            let model = *(&raw const model.inner).cast::<*mut sys::llama_model>();
            calls::llama_init_from_model(model, params)
        });
        let inner = match created.map(NonNull::new) {
            Ok(Some(context)) => Ok(context),
            Ok(None) => Err(errors_with_advice()),
            Err(exception) => Err(with_advice(exception)),
        };
        let inner = inner.map_err(|reason| {
            let n_ctx = options.n_ctx;
            model.fault(format!(
                "llama.cpp could not create a context of {n_ctx} tokens: {reason}"
            ))
        })?;
        contexts.n_alive += 1;
        Ok(Self {
            inner,
            model,
            _watch: watch,
        })
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) -> Result<(), EngineError> {
        // SAFETY: the context is valid, and so is its memory.
        let cleared = guarded(|| unsafe {
            calls::llama_memory_clear(sys::llama_get_memory(self.inner.as_ptr()), true);
        });
        cleared.map_err(|exception| {
            let what = format!("llama.cpp cannot forget a context's tokens: {exception}");
            self.model.fault(what)
        })
    }

    /// Forgets the tokens of one sequence from this position on. A recurrent memory can only forget all
    /// of them.
    pub(super) fn forget(&mut self, sequence: usize, from: usize) -> Result<(), EngineError> {
        // SAFETY: the context is valid, and so is its memory.
        let has_forgotten = guarded(|| unsafe {
            let memory = sys::llama_get_memory(self.inner.as_ptr());
            calls::llama_memory_seq_rm(memory, sequence as _, from as _, -1)
        });
        let reason = match has_forgotten {
            Ok(true) => return Ok(()),
            Ok(false) => String::new(),
            Err(exception) => format!(": {exception}"),
        };
        Err(self.model.fault(format!(
            "llama.cpp cannot forget the tokens of sequence {sequence} from position {from} on{reason}"
        )))
    }

    /// Bytes in which the context keeps the tokens that it has decoded: its KV cache, and the states of
    /// recurrent layers. With `computes`, its buffers for a physical batch count too.
    pub(super) fn bytes(&self, computes: bool) -> u64 {
        // SAFETY: the context is valid. `shim.cpp` repeats the layout of the release that Cargo.toml pins.
        let counted = guarded(|| unsafe { calls::kl_context_bytes(self.inner.as_ptr(), computes) });
        // Only the memory for the count can be missing.
        counted.unwrap_or_default()
    }

    /// Decodes the tokens of a batch, after those decoded before, and returns the rows that are wanted. One
    /// context of a model decodes at a time. `window` and `position`: where the batch starts, for messages.
    pub(super) fn decode(
        &mut self,
        mut batch: Batch,
        window: u32,
        position: usize,
    ) -> Result<Vec<&[f32]>, EngineError> {
        if batch.tokens.is_empty() {
            return Ok(Vec::new());
        }
        let model = self.model;
        let failed = |reason: String| {
            model.fault(format!(
                "llama.cpp failed at window {window}, position {position}: {reason}"
            ))
        };
        // Each token belongs to one sequence.
        let mut n_sequences = vec![1; batch.tokens.len()];
        let pointers = batch.sequences.iter_mut().map(std::ptr::from_mut);
        let mut sequences: Vec<*mut sys::llama_seq_id> = pointers.collect();
        let tokens = sys::llama_batch {
            n_tokens: batch.tokens.len() as i32,
            token: batch.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: batch.positions.as_mut_ptr(),
            n_seq_id: n_sequences.as_mut_ptr(),
            seq_id: sequences.as_mut_ptr(),
            logits: batch.outputs.as_mut_ptr(),
        };
        let _turn = locked(model.turn());
        // SAFETY: the context is valid, and each list has n_tokens elements.
        let decoded = guarded(|| unsafe { calls::llama_decode(self.inner.as_ptr(), tokens) });
        let code = decoded.map_err(|exception| failed(with_advice(exception)))?;
        if let Some(code) = NonZeroI32::new(code) {
            let error = DecodeError::from(code);
            return Err(failed(format!("{error}; {}", last_log_errors())));
        }
        let n_vocab = self.model.facts.n_vocab as usize;
        let wanted = batch.outputs.iter().enumerate().filter(|of| *of.1 != 0);
        // The first waits until an accelerator is done.
        let read = wanted.map(|(i, _)| {
            // SAFETY: the context is valid. The row has n_vocab entries and does not change before
            // the next decode, which borrows the context mutably.
            unsafe {
                let row = guarded(|| calls::llama_get_logits_ith(self.inner.as_ptr(), i as i32))?;
                let found = (!row.is_null()).then(|| std::slice::from_raw_parts(row, n_vocab));
                found.ok_or_else(last_log_errors)
            }
        });
        let rows = read.collect::<Result<_, String>>().map_err(failed);
        // Nobody gets rows of a model that is half one file and half another.
        if model.facts.is_mapped {
            model.files.check_bytes(IN_USE)?;
        }
        rows
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        let mut all = locked(&self.model.contexts);
        all.n_alive -= 1;
        all.ended.push(self.inner);
        if all.n_alive > 0 {
            return;
        }
        for context in all.ended.drain(..) {
            // SAFETY: the context is valid, nothing uses it after this, and its model is still
            // there. Its callback is called for graphs only.
            unsafe { sys::llama_free(context.as_ptr()) }
        }
    }
}

/// Checks that the system allows the threads that decode, without which ggml would end the process.
pub(super) fn check_threads(threads: u32) -> Result<(), EngineError> {
    let others = threads.saturating_sub(1) as usize;
    let n = threads::allowed(others);
    if n < others {
        return Err(EngineError::Setup(threads::too_few(threads, n + 1)));
    }
    Ok(())
}

/// Shows a tensor: llama.cpp asks first whether it is wanted, and calls again when it is computed.
unsafe extern "C" fn show(tensor: *mut sys::ggml_tensor, asks: bool, watch: *mut c_void) -> bool {
    // SAFETY: `Context::new` gave what the context keeps, and the graph does not change during the call.
    let (watch, node) = unsafe {
        let watch = &*watch.cast::<Arc<Mutex<dyn GraphWatch>>>().cast_const();
        (watch, Node::new(tensor))
    };
    match node {
        Some(node) if asks => locked(watch).wants(node),
        Some(node) => locked(watch).computed(node),
        None => !asks,
    }
}
