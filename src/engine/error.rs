use std::path::PathBuf;

/// Why a model could not be used. Each message is one line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The header of the file could not be read, or says that it is no whole GGUF.
    #[error(transparent)]
    Header(#[from] kl_formats::Error),
    /// A model without a next-token distribution.
    #[error("{path}: {what}, which predicts no next token: give a causal language model", path = .path.display())]
    NotCausal {
        /// The model's file.
        path: PathBuf,
        /// What it is instead.
        what: String,
    },
    /// A later part of a split model.
    #[error("{path}: part {part} of {parts} of a split model: give the first part, the others are found beside it", path = .path.display())]
    NotFirstPart {
        /// The model's file.
        path: PathBuf,
        /// Which part, from 1.
        part: u16,
        /// Of how many.
        parts: u16,
    },
    /// The path is no Unicode, or holds a NUL byte.
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
        /// What llama.cpp's log said last.
        reason: String,
    },
    /// The file was replaced or written to meanwhile.
    #[error("{path}: has changed while it was loaded: wait until it is whole, and try again", path = .path.display())]
    Changed {
        /// The model's file.
        path: PathBuf,
    },
    /// llama.cpp refused the context: memory, mostly.
    #[error(
        "{path}: llama.cpp could not make a context of {n_ctx} tokens: {reason} (out of memory? lower --n-ctx, --n-batch or --n-gpu-layers)",
        path = .path.display()
    )]
    Context {
        /// The model's file.
        path: PathBuf,
        /// Tokens that the context was to hold.
        n_ctx: u32,
        /// What llama.cpp's log said last.
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
        /// llama.cpp's code, and what its log said last.
        reason: String,
    },
    /// A row of logits that are not finite, where a token was to be generated.
    #[error("{path}: no token is likeliest behind prompt {window}, position {position}: its logits are not finite", path = .path.display())]
    NoLikeliest {
        /// The model's file.
        path: PathBuf,
        /// The prompt, in the order of its file, from 0.
        window: u32,
        /// The position of the row.
        position: usize,
    },
    /// The text is longer than llama.cpp's tokenizer takes.
    #[error("the text has {bytes} bytes and llama.cpp tokenizes at most {max} at once: split the file", max = i32::MAX)]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
    },
    /// A device was asked for that there is not.
    #[error("no device '{name}': {there}", there = known_devices(.known))]
    NoSuchDevice {
        /// The name given.
        name: String,
        /// The devices of the backends compiled in.
        known: Vec<String>,
    },
    /// The backend could not be started.
    #[error("llama.cpp's backend could not be started: {0}")]
    Backend(String),
}

/// What to do where a reason speaks of memory.
fn load_advice(reason: &str) -> &'static str {
    match reason.contains("alloc") || reason.contains("memory") {
        true => " (out of memory? lower --n-gpu-layers, or let other programs end)",
        false => "",
    }
}

fn known_devices(known: &[String]) -> String {
    match known {
        [] => "this kl was built without an accelerator backend, or finds no device".to_owned(),
        known => format!("there are {} and none", known.join(", ")),
    }
}
