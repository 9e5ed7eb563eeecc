//! A model's own output head: what it is, where it lies, and whether another's is the same.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use kl_formats::{Calls, States, hex};
use sha2::{Digest, Sha256};

use super::LlamaCppModel;
use super::context::{Batch, Context, Watch};
use super::device::{BufferType, Device};
use super::node::ModelTensor;
use super::placement::Placement;
use super::probe::{Found, Probe};
use crate::engine::gguf::Tensor;
use crate::engine::{ContextOptions, EngineError, last_log_errors};

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
        let architecture = self
            .facts
            .identity
            .architecture
            .as_deref()
            .unwrap_or("unknown");
        EngineError::Head {
            path: self.facts.path.clone(),
            what: format!("{what} (architecture {architecture})"),
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
            let _turn = self.turn().lock().unwrap_or_else(PoisonError::into_inner);
            context
                .decode(&mut batch)
                .map_err(|error| self.no_states(&format!("{error}; {}", last_log_errors())))?;
        }
        let mut probe = probe.lock().unwrap_or_else(PoisonError::into_inner);
        match probe.found.take() {
            Some(Ok(found)) => Ok(found),
            Some(Err(what)) => Err(self.no_states(&what)),
            None => Err(self.no_states("its graph does not name its rows")),
        }
    }

    pub(super) fn context<W: Watch>(
        &self,
        options: &ContextOptions,
        watch: Option<Arc<Mutex<W>>>,
    ) -> Result<Context<'_>, EngineError> {
        Context::new(self, options, watch).ok_or_else(|| {
            let (n_ctx, reason) = (options.n_ctx, last_log_errors());
            let advice = context_advice(&reason);
            let what = format!(
                "llama.cpp could not create a context of {n_ctx} tokens: {reason} ({advice})"
            );
            EngineError::model(&self.facts.path, what)
        })
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
    pub(super) fn head_sha256(&self, place: &Tensor) -> Result<&str, EngineError> {
        if let Some(sha256) = self.head_sha256.get() {
            return Ok(sha256);
        }
        let mut hash = Hasher(Sha256::new());
        io::copy(&mut self.header.open(place)?, &mut hash).map_err(|error| {
            EngineError::model(&self.facts.path, format!("cannot be read: {error}"))
        })?;
        Ok(self.head_sha256.get_or_init(|| hex(&hash.0.finalize())))
    }

    /// The model's own matrix, where it is known to be that of `states`.
    pub(super) fn shared_head(&self, states: &States) -> Option<&ModelTensor> {
        let head = &states.head;
        let found = self.found().ok()?;
        if (found.type_id, found.n_embd) != (head.type_id, states.n_embd) {
            return None;
        }
        let place = self.head_place().ok()?;
        let is_same = place.bytes == head.bytes && self.head_sha256(place).ok()? == head.sha256;
        // What lies on a device that several make up, as -sm tensor has it, only llama.cpp can use.
        let is_within_reach = |weight: &&ModelTensor| {
            let device = weight.memory().and_then(BufferType::device);
            device.is_none_or(|device| !device.is_made_up())
        };
        let weight = found.weight.as_ref().filter(|_| is_same);
        weight.filter(is_within_reach)
    }

    /// Where the model's own head lies and is computed; one that was not found lies with the layers.
    pub(super) fn head_placement(&self) -> Placement {
        let weight = self.found().ok().and_then(|found| found.weight);
        let home = match weight {
            Some(weight) => weight.memory().and_then(gpu_of),
            None => self
                .gpus
                .first()
                .copied()
                .filter(|_| self.facts.is_offloaded),
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

/// The advice to give if a context cannot be created: types of the KV cache that llama.cpp refuses, or
/// else too little memory.
fn context_advice(reason: &str) -> &'static str {
    let mentions = |word: &str| reason.contains(word);
    if mentions("V cache") && (mentions("flash_attn") || mentions("Flash Attention")) {
        "llama.cpp quantizes cached values with flash attention only: use --flash-attn on or auto, or \
         --cache-type-v f16"
    } else if mentions("block size") {
        "use another --cache-type-k or --cache-type-v: f16 always works"
    } else {
        "out of memory? lower --n-ctx, --parallel, --n-batch, --n-ubatch or --n-gpu-layers"
    }
}

/// Hashes what is written to it.
struct Hasher(Sha256);

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
