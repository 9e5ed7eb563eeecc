//! A loaded model's own output head: finds it, and checks whether stored states have the same one.

use std::sync::{Arc, Mutex};

use kl_formats::{Calls, States};

use super::LlamaCppModel;
use super::context::{Batch, Watch};
use super::device::{BufferType, GgmlDevice};
use super::head_placement::HeadPlacement;
use super::log::last_log_errors;
use super::node::ModelTensor;
use super::probe::{FoundHead, Probe};
use crate::engine::gguf::Tensor;
use crate::engine::{ContextOptions, EngineError, Model as _};
use crate::lock::locked;

/// Tokens of the context that shows the output head: llama.cpp's smallest.
const PROBE_N_CTX: u32 = 256;

/// Its batches, of which one token is decoded.
const PROBE_CALLS: Calls = Calls {
    n_batch: 32,
    n_ubatch: 32,
    is_equal: false,
};

impl LlamaCppModel<'_> {
    /// The error for a model whose rows cannot be computed from hidden states.
    pub(super) fn no_states(&self, what: &str) -> EngineError {
        let architecture = self.facts.identity.architecture.as_deref();
        EngineError::NoStates {
            path: self.facts.path.clone(),
            what: format!(
                "{what} (architecture {})",
                architecture.unwrap_or("unknown")
            ),
        }
    }

    /// The output head, which the first call finds by decoding one token.
    pub(super) fn found_head(&self) -> Result<&FoundHead, EngineError> {
        if let Some(head) = self.found_head.get() {
            return Ok(head);
        }
        let head = self.probe()?;
        Ok(self.found_head.get_or_init(|| head))
    }

    fn probe(&self) -> Result<FoundHead, EngineError> {
        let probe = Arc::new(Mutex::new(Probe::new(self.facts.n_vocab)));
        self.show_one_token(probe.clone(), |what| self.no_states(&what))?;
        let mut probe = locked(&probe);
        let head = std::mem::replace(&mut probe.found, Err(String::new()));
        head.map_err(|what| self.no_states(&what))
    }

    /// Decodes one token, and shows the graph to `watch`.
    pub(super) fn show_one_token<W: Watch>(
        &self,
        watch: Arc<Mutex<W>>,
        failed: impl Fn(String) -> EngineError,
    ) -> Result<(), EngineError> {
        let options = ContextOptions {
            n_ctx: PROBE_N_CTX,
            calls: PROBE_CALLS,
            threads: 1,
            ..ContextOptions::default()
        };
        let mut context = self.context(&options, Some(watch))?;
        let mut batch = Batch::default();
        batch.push(0, &[self.facts.bos_token.unwrap_or_default()], 0..1, 0);
        let _turn = locked(self.turn());
        context
            .decode(&mut batch)
            .map_err(|error| failed(format!("{error}; {}", last_log_errors())))
    }

    /// The head's matrix in the model's file.
    pub(super) fn head_tensor(&self) -> Result<&Tensor, EngineError> {
        let head = self.found_head()?;
        let shape = [u64::from(head.n_embd), u64::from(self.facts.n_vocab)];
        let tensor = self.header.tensor(&head.name);
        tensor
            .filter(|tensor| tensor.type_id == head.type_id && tensor.shape == shape)
            .ok_or_else(|| self.no_states(&format!("{} is not in the file", head.name)))
    }

    /// The model's own matrix, if it is the same as that of `states` and can be used in place: not where
    /// it may be exchanged.
    pub(super) fn shared_head(&self, states: &States) -> Option<&ModelTensor> {
        if self.facts.options.is_exchangeable {
            return None;
        }
        let stored = &states.head;
        let own = self.found_head().ok()?;
        let tensor = self.head_tensor().ok()?;
        let is_alike = (own.type_id, own.n_embd) == (stored.type_id, states.n_embd)
            && tensor.bytes == stored.bytes;
        if !is_alike || self.head_sha256().ok()? != stored.sha256 {
            return None;
        }
        // Weights on a device that is made up of several, as with -sm tensor, only llama.cpp can use.
        let is_within_reach = |weight: &&ModelTensor| {
            let device = weight.memory().and_then(BufferType::device);
            device.is_none_or(|device| !device.is_made_up())
        };
        own.weight.as_ref().filter(is_within_reach)
    }

    /// The devices of the model's own head; one that was not found lies with the layers.
    pub(super) fn head_placement(&self) -> HeadPlacement {
        let home = match self.found_head().ok().and_then(|head| head.weight) {
            Some(weight) => weight.memory().and_then(gpu_of),
            None => (self.gpus.first().copied()).filter(|_| self.facts.is_offloaded),
        };
        HeadPlacement {
            gpus: self.gpus.clone(),
            home: home.filter(|device| device.kind().is_gpu()),
            no_op_offload: self.facts.options.no_op_offload,
        }
    }
}

/// The device of this memory, unless it is a part of the CPU's that the device reads faster.
fn gpu_of(memory: BufferType) -> Option<GgmlDevice> {
    let device = memory.device()?;
    (device.host_buffer_type() != Some(memory)).then_some(device)
}
