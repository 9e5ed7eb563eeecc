//! The engine's traits, implemented with llama.cpp.
//!
//! `model` places and loads a [`LlamaCppModel`], with `params`. `context` wraps llama.cpp's contexts, and
//! `decoder` decodes windows with them, and chooses tokens by chance.
//!
//! Hidden states: `hidden_states` finds the output head in the graph of one token and takes states out of
//! the graphs of a window, whose tensors `ggml` shows. `head` computes rows from stored states with
//! objects of `ggml`.
//!
//! `trace` shows what the nodes of graphs hold.
//!
//! `quantize` writes quantized files. `exchange` exchanges weights in memory. `stored_rows` checks weights as
//! they lie in a file.
//!
//! `tokenizer` tokenizes texts, however long their runs without a break are.
//!
//! `backends` starts what computes, `device` describes it, and `log` receives what llama.cpp and ggml say.
//! `guard` runs what may throw an exception of C++.

mod backends;
#[cfg(unix)]
mod bus_error;
mod context;
mod context_sizes;
mod decoder;
mod dequantize;
mod device;
mod exchange;
mod ggml;
mod guard;
mod handle;
mod head;
mod headers;
mod hidden_states;
mod load_errors;
mod log;
mod model;
mod params;
mod quantize;
mod runs;
mod seams;
mod stored_rows;
#[cfg(test)]
mod tests;
mod tokenizer;
mod trace;
mod vocab;
mod weights;

pub use decoder::Sampler;
pub use log::{follow_log, mlock_has_failed, on_abort, servers};
pub use stored_rows::{FaultyRow, RowDistance, StoredRows};

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use kl_formats::States;
use llama_cpp_2::llama_backend::LlamaBackend;

use super::gguf::Gguf;
use super::{
    Blueprint, DequantizedCopy, Device, Engine, EngineError, Head, Imatrix, Inspected,
    LLAMA_CPP_VERSION, Layers, Model, ModelOptions, Quantization,
};
use device::GgmlDevice;
use head::HeadProduct;
use headers::inspect;
use model::LlamaCppModel;
use quantize::quantize;

/// llama.cpp as an [`Engine`]. Its backends start when they are first needed.
#[derive(Default)]
pub struct LlamaCpp {
    started: OnceLock<Result<LlamaBackend, String>>,
}

impl LlamaCpp {
    fn backend(&self) -> Result<&LlamaBackend, EngineError> {
        self.started
            .get_or_init(backends::start)
            .as_ref()
            .map_err(|error| {
                EngineError::Setup(format!("llama.cpp's backends cannot be used: {error}"))
            })
    }
}

impl Engine for LlamaCpp {
    fn version(&self) -> String {
        LLAMA_CPP_VERSION.to_owned()
    }

    fn add_servers(&self, endpoints: &[String]) -> Result<(), EngineError> {
        if !endpoints.is_empty() {
            self.backend()?;
        }
        endpoints
            .iter()
            .try_for_each(|endpoint| backends::add_server(endpoint))
    }

    fn backends(&self) -> Result<Vec<String>, EngineError> {
        self.backend()?;
        Ok(device::backends())
    }

    fn devices(&self) -> Result<Vec<Device>, EngineError> {
        self.backend()?;
        let devices = GgmlDevice::all().into_iter();
        Ok(devices.map(GgmlDevice::describe).collect())
    }

    fn inspect(&self, path: &Path) -> Result<Inspected, EngineError> {
        let header = inspect(path)?;
        Ok(Inspected {
            identity: header.identity(),
            layers: layers(&header),
            tokenizer: header.tokenizer.clone(),
            n_padding: header.n_padding,
        })
    }

    fn load(
        &self,
        path: &Path,
        options: &ModelOptions,
    ) -> Result<Box<dyn Model + '_>, EngineError> {
        self.backend()?;
        Ok(Box::new(LlamaCppModel::load(self, path, options)?))
    }

    fn dequantized_copy(&self, path: &Path) -> Result<Option<DequantizedCopy>, EngineError> {
        let header = inspect(path)?;
        Ok(dequantize::describe(&header))
    }

    fn blueprint(&self, path: &Path, imatrix: Option<&Imatrix>) -> Result<Blueprint, EngineError> {
        let header = inspect(path)?;
        Blueprint::of_quantized(&header, imatrix)
    }

    fn quantize(&self, quantization: &Quantization<'_>) -> Result<(), EngineError> {
        self.backend()?;
        quantize(quantization)
    }

    fn load_head(
        &self,
        states: &States,
        section: &mut dyn Read,
        threads: u32,
    ) -> Result<Box<dyn Head + '_>, EngineError> {
        self.backend()?;
        let head = HeadProduct::new(states, section, threads, None)?;
        Ok(Box::new(head))
    }
}

/// Architectures whose layers are all recurrent (`llm_arch_is_recurrent` in `llama-arch.cpp`).
const RECURRENT: &str = "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7";

/// Architectures with some recurrent layers (`llm_arch_is_hybrid`).
const HYBRID: &str = "
    jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next
    kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 qwen35moe qwen4exp deepseek4 minimax-01";

/// The architecture whose layers read blocks of the KV cache.
const SPARSE: &str = "minimax-m3";

fn has_word(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|other| other == word)
}

/// The kind of a model's layers, by its architecture.
fn layers(header: &Gguf) -> Layers {
    let architecture = header.architecture().unwrap_or_default();
    if has_word(RECURRENT, architecture) {
        Layers::Recurrent
    } else if has_word(HYBRID, architecture) {
        Layers::Hybrid
    } else if architecture == SPARSE {
        Layers::SparseAttention
    } else {
        Layers::Attention
    }
}
