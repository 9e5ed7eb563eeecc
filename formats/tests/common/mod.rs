//! The model, text and backend that the tests of every kind of file use.

use kl_formats::{
    About, BackendIdentity, Calls, CheckRow, Float, GgmlType, HeadCheck, HeadTensor, Kind,
    ModelIdentity, States, TextIdentity, TokenRecord, hex,
};
use sha2::{Digest, Sha256};

/// A reference about which everything is known.
pub fn about(kind: Kind, n_ctx: u32, n_vocab: u32) -> About {
    let mut about = About::new(kind, "", n_ctx, n_vocab);
    about.writer = Some("kl test".to_owned());
    about.add_bos = Some(true);
    about.model = Some(model());
    about.text = Some(text());
    about.backend = Some(backend());
    about
}

/// A model whose names need escapes in JSON and in Python.
pub fn model() -> ModelIdentity {
    let mut model = ModelIdentity::named("caf\u{e9} \"q4\".gguf");
    model.name = Some("M \"1\"\n\u{e9}".to_owned());
    model.architecture = Some("llama".to_owned());
    model.size_bytes = Some(1 << 40);
    model.n_params = Some(7_000_000_000);
    model.file_bytes = Some(5);
    model.metadata_sha256 = Some("00ff".to_owned());
    model
}

/// A text from standard input.
pub fn text() -> TextIdentity {
    let mut text = TextIdentity::named("-");
    text.bytes = Some(9);
    text.sha256 = Some("ab".to_owned());
    text.n_tokens = Some(3);
    text
}

/// llama.cpp on a CPU.
#[allow(
    clippy::field_reassign_with_default,
    reason = "other crates cannot write the struct as a literal"
)]
pub fn backend() -> BackendIdentity {
    let mut backend = BackendIdentity::default();
    backend.llama_cpp = Some("b1".to_owned());
    backend.devices = Some(vec!["CPU".to_owned()]);
    backend.n_gpu_layers = Some(0);
    backend.n_batch = Some(512);
    backend.n_ubatch = Some(8);
    backend.threads = Some(1);
    backend.flash_attn = Some("off".to_owned());
    backend.type_k = Some("f16".to_owned());
    backend.type_v = Some("f16".to_owned());
    backend
}

/// A record that any vocabulary can have, at the first position of window 0.
pub fn record() -> TokenRecord {
    TokenRecord {
        token: 1,
        ref_top: 1,
        eval_top: 1,
        ref_top_rank: 1,
        eval_top_rank: 1,
        kld: 0.5,
        reverse_kld: 0.25,
        ref_nll: 1.0,
        eval_nll: 1.0,
        ref_entropy: 0.75,
        ref_top_p: 0.5,
        eval_top_p: 0.25,
        acceptance: 0.9,
        ..TokenRecord::default()
    }
}

/// States of `n_embd` numbers and a head of these bytes; the row of position 2 of window 1 is checked.
pub fn states(n_embd: u32, state_type: Float, head_type: u32, tensor: &[u8]) -> States {
    States {
        n_embd,
        state_type,
        head: HeadTensor {
            name: "output.weight".into(),
            type_name: GgmlType::of(head_type).unwrap().name.into(),
            type_id: head_type,
            bytes: tensor.len() as u64,
            sha256: hex(&Sha256::digest(tensor)),
        },
        then: vec![],
        calls: Calls {
            n_batch: 2,
            n_ubatch: 1,
            is_equal: false,
        },
        check: HeadCheck {
            rows: vec![CheckRow {
                window: 1,
                position: 2,
            }],
            ..HeadCheck::default()
        },
    }
}
