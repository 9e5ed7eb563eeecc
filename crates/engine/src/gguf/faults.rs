//! Faults of a whole file that llama.cpp does not notice while it loads, or that end the process.

use std::collections::BTreeMap;

use super::purpose::has_word;
use super::{Gguf, Tensor};

/// Architectures of which llama.cpp also loads a file with only the layers that predict further tokens.
const PROBED: &str = "
    bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 glm-dsa glm4moe hy_v3 mimo2 nemotron_h
    nemotron_h_moe qwen35 qwen35moe qwen3next step35";

/// A fault of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The tensor; empty where it is none.
    pub tensor: String,
    /// The fault, and the advice.
    pub what: String,
}

impl Gguf {
    /// Finds what llama.cpp would crash on, while it loads the model or when it decodes.
    pub fn fault(&self) -> Option<FileFault> {
        self.lacks()
    }

    /// Finds a file whose first tensor lies where llama.cpp cannot map it into memory: it ends the process then
    /// (`ggml_backend_cpu_buffer_from_ptr`). Without a mapping it reads the file.
    pub fn misaligned(&self) -> Option<FileFault> {
        /// ggml's `TENSOR_ALIGNMENT`.
        const ALIGNMENT: u64 = 32;
        let mut firsts: BTreeMap<usize, &Tensor> = BTreeMap::new();
        for tensor in &self.tensors {
            let first = firsts.entry(tensor.file).or_insert(tensor);
            if tensor.offset < first.offset {
                *first = tensor;
            }
        }
        let is_off = |of: &&Tensor| !of.offset.is_multiple_of(ALIGNMENT);
        let Tensor { name, offset, .. } = firsts.into_values().find(is_off)?;
        Some(FileFault {
            tensor: name.clone(),
            what: format!(
                "its tensors are not aligned as llama.cpp needs them to map the file ({name} begins at byte {offset}, no multiple of {ALIGNMENT}): load it with --no-mmap, or convert it again without --alignment"
            ),
        })
    }

    /// Pairs of tensors that overlap: the second begins within the data of the first.
    pub fn overlaps(&self) -> Vec<[&Tensor; 2]> {
        let mut sorted: Vec<&Tensor> = self.tensors.iter().collect();
        sorted.sort_by_key(|tensor| (tensor.file, tensor.offset));
        let overlaps = sorted.array_windows().copied().filter(|[before, tensor]| {
            let end = before.offset.saturating_add(before.bytes);
            before.file == tensor.file && tensor.offset < end
        });
        overlaps.collect()
    }

    /// Finds what a model lacks whose absence llama.cpp does not notice while it loads.
    fn lacks(&self) -> Option<FileFault> {
        let n_layers = self.n_layers().filter(|_| self.n_further_layers() > 0)?;
        let layers = self.layers(|_| true);
        // As many steps as there are layers with tensors.
        let layer = (0..n_layers).find(|n| !layers.contains(n));
        let (tensor, what) = match (layer, self.missing_probe()) {
            (Some(n), _) => (
                String::new(),
                format!("has no tensors of layer {n}, of {n_layers}"),
            ),
            (None, Some(name)) => (name.to_owned(), format!("has no tensor {name}")),
            (None, None) => return None,
        };
        let what = format!("{what}: download or convert it again");
        Some(FileFault { tensor, what })
    }

    /// The tensor by which llama.cpp tells that a file has the layers before those for further tokens
    /// (`mtp_only` in its `src/models`), if the file lacks it: all of their tensors then count as optional.
    fn missing_probe(&self) -> Option<&'static str> {
        let architecture = self.architecture()?;
        let probe = match architecture {
            "qwen4exp" => "blk.0.hc_attn_norm.weight",
            _ if has_word(PROBED, architecture) => "blk.0.attn_norm.weight",
            _ => return None,
        };
        self.tensor(probe).is_none().then_some(probe)
    }
}
