//! Why a model could not be used: each message is one line that states what, where and what to do.

use std::io;
use std::path::PathBuf;

use super::gguf::GgufError;

/// Why a model could not be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The file's header could not be read, or shows that the file is not a whole GGUF.
    #[error(transparent)]
    Header(#[from] GgufError),
    /// The file holds something else than a causal language model.
    #[error("{path}: {what}", path = .path.display())]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// What it holds, and what to do.
        what: String,
    },
    /// The model has learned a vector for each position, and a window is longer.
    #[error("{path}: has {n_positions} learned positions, and so cannot decode a window of {n_tokens} tokens: the reference needs windows of {n_positions} tokens or less (--n-ctx {n_positions})", path = .path.display())]
    TooFewPositions {
        /// The model's file.
        path: PathBuf,
        /// Positions of which it has a vector.
        n_positions: u64,
        /// Tokens of the window.
        n_tokens: u64,
    },
    /// The path is not valid Unicode, or holds a NUL byte.
    #[error("{path}: llama.cpp cannot open a path that is not valid Unicode: rename the file", path = .path.display())]
    Path {
        /// The model's file.
        path: PathBuf,
    },
    /// llama.cpp refused the model.
    #[error("{path}: llama.cpp could not load the model: {reason}{}", load_advice(.reason), path = .path.display())]
    Load {
        /// The model's file.
        path: PathBuf,
        /// The last errors in llama.cpp's log.
        reason: String,
    },
    /// The file was replaced or written to while it was loaded.
    #[error("{path}: changed while it was loaded: wait until it is complete, and try again", path = .path.display())]
    Changed {
        /// The model's file.
        path: PathBuf,
    },
    /// llama.cpp could not create the context, usually for lack of memory.
    #[error(
        "{path}: llama.cpp could not create a context of {n_ctx} tokens: {reason} ({})", context_advice(.reason),
        path = .path.display()
    )]
    Context {
        /// The model's file.
        path: PathBuf,
        /// Tokens that the context was to hold.
        n_ctx: u32,
        /// The last errors in llama.cpp's log.
        reason: String,
    },
    /// A batch could not be decoded.
    #[error("{path}: llama.cpp failed at window {window}, position {position}: {reason}", path = .path.display())]
    Decode {
        /// The model's file.
        path: PathBuf,
        /// The window, in text order.
        window: u32,
        /// First position of the batch.
        position: usize,
        /// llama.cpp's code, and the last errors in its log.
        reason: String,
    },
    /// Rows of the model cannot be computed from its hidden states.
    #[error("{path}: hidden states cannot stand for its logits: {what}: use --encoding u16", path = .path.display())]
    Head {
        /// The model's file.
        path: PathBuf,
        /// What `kl` cannot repeat, and of which architecture.
        what: String,
    },
    /// The head of stored hidden states cannot be used.
    #[error("the output head cannot be used: {0}")]
    StoredHead(String),
    /// The head of stored hidden states cannot be read.
    #[error("the head of its hidden states cannot be read: {0}")]
    ReadHead(io::Error),
    /// No token could be generated: the row's logits are not finite.
    #[error("{path}: cannot generate a token after prompt {window}, position {position}: the logits are not finite: leave out the prompt, or use another model", path = .path.display())]
    NoTopToken {
        /// The model's file.
        path: PathBuf,
        /// The prompt, in the order of its file, from 0.
        window: u32,
        /// The position of the row.
        position: usize,
    },
    /// The text is longer than llama.cpp's tokenizer accepts.
    #[error("the text has {bytes} bytes, but llama.cpp tokenizes at most {max} at once: split the file", max = i32::MAX)]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
    },
    /// There is no device of this name.
    #[error("no device '{name}': {available}", available = available_devices(.known))]
    NoSuchDevice {
        /// The name given.
        name: String,
        /// The devices of the backends compiled in, without the CPU.
        known: Vec<String>,
    },
    /// A server that is to compute cannot be used.
    #[error("--rpc {endpoint}: {what}")]
    Server {
        /// Its address, as given.
        endpoint: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// Tensors should lie in the memory of a device that does not exist.
    #[error("--override-tensor: no device '{name}': available are {known}", known = .known.join(", "))]
    NoSuchMemory {
        /// The name given.
        name: String,
        /// All devices.
        known: Vec<String>,
    },
    /// No device has this index.
    #[error("--main-gpu {index}: counted from 0, the devices are {devices}", devices = .devices.join(", "))]
    MainGpu {
        /// The index given.
        index: i32,
        /// The devices that the model may use.
        devices: Vec<String>,
    },
    /// A model is to be split in more parts than there are devices.
    #[error("--tensor-split: {n} proportions, but the devices are {devices}: give one for each", devices = .devices.join(", "))]
    TensorSplit {
        /// Proportions given.
        n: usize,
        /// The devices that the model may use.
        devices: Vec<String>,
    },
    /// The number of layers to offload could not be found.
    #[error("{path}: cannot be fitted to the free memory: {why}: give a number of layers instead of auto", path = .path.display())]
    Fit {
        /// The model's file.
        path: PathBuf,
        /// Why, and what else to do.
        why: String,
    },
    /// llama.cpp's backends could not be started, or refused a list of devices.
    #[error("llama.cpp's backends cannot be used: {0}")]
    Backend(String),
}

/// The advice to give if a reason mentions memory, what C++ finds wrong with a pattern, or a way of
/// splitting that the devices do not have.
fn load_advice(reason: &str) -> &'static str {
    let mentions = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if mentions(&["alloc", "memory"]) {
        " (out of memory? lower --n-gpu-layers, or close other programs)"
    } else if mentions(&["regular expression", "bracket expression", "regex string"]) {
        " (a pattern of --override-tensor)"
    } else if mentions(&["split buffers"]) {
        " (use --split-mode layer)"
    } else {
        ""
    }
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

/// The names to use instead of one that no device has.
fn available_devices(known: &[String]) -> String {
    match known {
        [] => "only 'none', the CPU alone, is available: this kl was built without an accelerator \
               backend, or finds no device (kl --list-devices shows what it finds)"
            .to_owned(),
        known => format!(
            "available are {} and 'none', the CPU alone (kl --list-devices describes them)",
            known.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_answered_with_those_available() {
        let message = |known: &[&str]| {
            let error = EngineError::NoSuchDevice {
                name: "CUDA7".to_owned(),
                known: known.iter().map(ToString::to_string).collect(),
            };
            error.to_string()
        };
        let start = "no device 'CUDA7': ";
        let none = "only 'none', the CPU alone, is available: this kl was built without an \
                    accelerator backend, or finds no device (kl --list-devices shows what it finds)";
        let one =
            "available are CUDA0 and 'none', the CPU alone (kl --list-devices describes them)";
        let two = "available are CUDA0, CUDA1 and 'none', the CPU alone (kl --list-devices describes \
                   them)";
        for (known, rest) in [
            (&[][..], none),
            (&["CUDA0"], one),
            (&["CUDA0", "CUDA1"], two),
        ] {
            assert_eq!(message(known), format!("{start}{rest}"));
        }
    }
}
