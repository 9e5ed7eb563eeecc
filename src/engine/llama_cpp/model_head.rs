//! A model's own output head: what it is, where it lies, and whether another's is the same.

use std::io::Read as _;
use std::sync::{Arc, Mutex};

use kl_formats::{Calls, States, hex};
use sha2::{Digest, Sha256};

use super::LlamaCppModel;
use super::context::Batch;
use super::device::{BufferType, Device};
use super::node::ModelTensor;
use super::placement::Placement;
use super::probe::{Found, Probe};
use crate::engine::gguf::Tensor;
use crate::engine::{ContextOptions, EngineError, last_log_errors};
use crate::locked;

/// Tokens of the context that shows the output head: llama.cpp's smallest.
const PROBE_N_CTX: u32 = 256;

/// Its batches, of which one token is decoded.
const PROBE_CALLS: Calls = Calls {
    n_batch: 32,
    n_ubatch: 32,
    is_equal: false,
};

impl LlamaCppModel<'_> {
    pub(super) fn no_states(&self, what: &str) -> EngineError {
        let architecture = self.facts.identity.architecture.as_deref();
        EngineError::Head {
            path: self.facts.path.clone(),
            what: format!(
                "{what} (architecture {})",
                architecture.unwrap_or("unknown")
            ),
        }
    }

    /// Returns what the graph of one decoded token shows of the output head.
    pub(super) fn found(&self) -> Result<&Found, EngineError> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let found = self.probe()?;
        Ok(self.found.get_or_init(|| found))
    }

    fn probe(&self) -> Result<Found, EngineError> {
        let options = ContextOptions {
            n_ctx: PROBE_N_CTX,
            calls: PROBE_CALLS,
            threads: 1,
            ..ContextOptions::default()
        };
        let probe = Arc::new(Mutex::new(Probe::new(self.facts.n_vocab)));
        let mut context = self.context(&options, Some(probe.clone()))?;
        let mut batch = Batch::default();
        batch.push(0, &[self.facts.bos_token.unwrap_or_default()], 0..1, 0);
        {
            let _turn = locked(self.turn());
            context
                .decode(&mut batch)
                .map_err(|error| self.no_states(&format!("{error}; {}", last_log_errors())))?;
        }
        let mut probe = locked(&probe);
        let found = std::mem::replace(&mut probe.found, Err(String::new()));
        found.map_err(|what| self.no_states(&what))
    }

    /// Where the head's matrix lies in the model's file.
    pub(super) fn head_place(&self) -> Result<&Tensor, EngineError> {
        let found = self.found()?;
        let shape = [u64::from(found.n_embd), u64::from(self.facts.n_vocab)];
        let place = self.header.tensor(&found.name);
        place
            .filter(|place| place.type_id == found.type_id && place.shape == shape)
            .ok_or_else(|| self.no_states(&format!("{} is not in the file", found.name)))
    }

    /// SHA-256 of the head's matrix as it stands in the file.
    pub(super) fn hash_head(&self) -> Result<&str, EngineError> {
        if let Some(sha256) = self.head_sha256.get() {
            return Ok(sha256);
        }
        let mut file = self.header.open(self.head_place()?)?;
        let (mut hash, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
        loop {
            let n = file.read(&mut piece).map_err(|error| {
                EngineError::model(&self.facts.path, format!("cannot be read: {error}"))
            })?;
            if n == 0 {
                return Ok(self.head_sha256.get_or_init(|| hex(&hash.finalize())));
            }
            hash.update(&piece[..n]);
        }
    }

    /// The model's own matrix, where it is known to be that of `states`.
    pub(super) fn shared_head(&self, states: &States) -> Option<&ModelTensor> {
        let head = &states.head;
        let found = self.found().ok()?;
        let place = self.head_place().ok()?;
        let is_alike = (found.type_id, found.n_embd) == (head.type_id, states.n_embd)
            && place.bytes == head.bytes;
        if !is_alike || self.hash_head().ok()? != head.sha256 {
            return None;
        }
        // What lies on a device that several make up, as -sm tensor has it, only llama.cpp can use.
        let is_within_reach = |weight: &&ModelTensor| {
            let device = weight.memory().and_then(BufferType::device);
            device.is_none_or(|device| !device.is_made_up())
        };
        found.weight.as_ref().filter(is_within_reach)
    }

    /// Where the model's own head lies and is computed; one that was not found lies with the layers.
    pub(super) fn head_placement(&self) -> Placement {
        let home = match self.found().ok().and_then(|found| found.weight) {
            Some(weight) => weight.memory().and_then(gpu_of),
            None => (self.gpus.first().copied()).filter(|_| self.facts.is_offloaded),
        };
        Placement {
            gpus: self.gpus.clone(),
            home: home.filter(|device| device.kind().is_gpu()),
            no_op_offload: self.facts.options.no_op_offload,
        }
    }
}

/// The device of this memory, unless that is the CPU's, of which a GPU has a part that it reads
/// faster.
fn gpu_of(memory: BufferType) -> Option<Device> {
    let device = memory.device()?;
    (device.host_buffer_type() != Some(memory)).then_some(device)
}
