//! The tensors that llama.cpp's quantizer changes, as llama.cpp itself has them.

use std::fs;

use super::*;
use crate::gguf;
use crate::gguf::tests::made::{ARRAY, F32, Model, STRING, U32, string, words};
use crate::quantizer::changes;

pub(super) const MODELS: [&str; 10] = [
    "tiny-f16.gguf",
    "architectures/command-r.gguf",
    "architectures/falcon-h1.gguf",
    "architectures/gemma2.gguf",
    "architectures/gpt2.gguf",
    "architectures/lfm2.gguf",
    "architectures/mamba.gguf",
    "architectures/mixtral.gguf",
    "architectures/phi2.gguf",
    "architectures/qwen2.gguf",
];

pub(super) fn kind(name: &str) -> GgmlType {
    name.parse().unwrap()
}

/// A model of the architecture that holds these tensors of f16, all zero, and the keys without which
/// llama.cpp does not read its architecture.
pub(super) fn made(architecture: &str, keys: &[(&str, u32)], tensors: &[(&str, &[u64])]) -> Model {
    let mut model = Model::default();
    model
        .pair("general.architecture", STRING, &string(architecture))
        .pair("tokenizer.ggml.model", STRING, &string("llama"));
    let tokens = [&STRING.to_le_bytes()[..], &words(&[1]), &string("ab")];
    model.pair("tokenizer.ggml.tokens", ARRAY, &tokens.concat());
    for (key, value) in keys {
        let key = format!("{architecture}.{key}");
        let kind = if key.ends_with("epsilon") { F32 } else { U32 };
        model.pair(&key, kind, &value.to_le_bytes());
    }
    for (name, shape) in tensors {
        model.tensor(name, shape, kind("f16").id, model.data_bytes as u64);
        let bytes = 2 * shape.iter().product::<u64>() as usize;
        model.data_bytes += bytes.next_multiple_of(32);
    }
    model
}

/// Numbers of layers and the like that llama.cpp accepts, with all that glm5-next needs.
pub(super) fn keys() -> [(&'static str, u32); 24] {
    [
        ("context_length", 128),
        ("embedding_length", 32),
        ("block_count", 2),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
        ("attention.layer_norm_rms_epsilon", 1e-5_f32.to_bits()),
        ("attention.key_length_mla", 16),
        ("attention.value_length_mla", 16),
        ("attention.q_lora_rank", 16),
        ("attention.kv_lora_rank", 16),
        ("ssm.conv_kernel", 4),
        ("kda.head_dim", 16),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 32),
        ("expert_shared_count", 1),
        ("attention.indexer.head_count", 2),
        ("attention.indexer.key_length", 16),
        ("attention.indexer.top_k", 4),
        ("attention.indexer.kpool", 2),
        ("hyper_connection.count", 4),
        ("hyper_connection.sinkhorn_iterations", 2),
        ("hyper_connection.epsilon", 1e-6_f32.to_bits()),
    ]
}

/// Lets llama.cpp convert a model to bf16, which every row fits, and returns the names of the tensors that
/// are of that type then.
fn changed_by_llama_cpp(path: &Path) -> Vec<String> {
    hush();
    let _ = ENGINE.devices().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("bf16.gguf");
    let c_path = |path: &Path| CString::new(path.to_str().unwrap()).unwrap();
    let (from, to) = (c_path(path), c_path(&output));
    // SAFETY: the paths are zero-terminated and, like the parameters, outlive the call.
    let status = unsafe {
        let mut params = sys::llama_model_quantize_default_params();
        params.ftype = sys::LLAMA_FTYPE_MOSTLY_BF16;
        params.nthread = 1;
        sys::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const params)
    };
    assert_eq!(status, 0, "{}", path.display());
    let bf16 = kind("bf16").id;
    let tensors = gguf::read(&output).unwrap().tensors.into_iter();
    let mut changed: Vec<_> = tensors
        .filter(|tensor| tensor.kind.id == bf16)
        .map(|tensor| tensor.name)
        .collect();
    changed.sort();
    changed
}

fn changed_by_our_rules(path: &Path) -> Vec<String> {
    let header = gguf::read(path).unwrap();
    let architecture = header.architecture().unwrap();
    let tensors = header.tensors.iter();
    let mut changed: Vec<_> = tensors
        .filter(|tensor| changes(architecture, &tensor.name, &tensor.shape))
        .map(|tensor| tensor.name.clone())
        .collect();
    changed.sort();
    changed
}

#[test]
fn the_tensors_that_llama_cpp_changes_are_known() {
    for model in MODELS {
        let path = fixture(model);
        let changed = changed_by_llama_cpp(&path);
        assert!(changed.len() > 4, "{model}");
        assert_eq!(changed_by_our_rules(&path), changed, "{model}");
    }
}

/// The names in llama.cpp's rules, each with a neighbour that they do not mean, and shapes.
#[test]
fn every_name_that_llama_cpp_keeps_is_known() {
    /// Without `.weight`, unless they have another end.
    const NAMES: &str = "
        token_embd per_layer_token_embd output output.weights position_embd token_types
        blk.0.position_embd blk.0.token_types blk.0.attn_q blk.0.attn_q.bias blk.0.attn_norm
        blk.0.attn_norm_2 blk.0.ffn_gate_inp blk.0.ffn_gate_inp_shexp blk.0.ffn_gate_exps
        blk.0.ffn_gate_tid2eid altup_proj blk.0.altup_router blk.0.laurel_l per_layer_model_proj
        blk.0.per_layer_proj blk.0.ssm_conv1d blk.0.ssm_conv1d_q blk.0.ssm_in blk.0.ssm_x
        blk.0.shortconv.conv blk.0.shortconv.in_proj blk.0.indexer.k_proj blk.0.indexer.q_proj
        blk.0.indexer.attn_k blk.0.indexer.attn_q_b blk.0.indexer.proj
        blk.0.indexer_compressor_gate blk.0.indexer_compressor_ape blk.0.hc_attn_fn blk.0.ssm_f_a
        blk.0.ssm_f_b blk.0.ssm_g_a blk.0.ssm_g_b blk.0.ssm_beta blk.0.attn_kv_a_mqa
        blk.0.attn_k_b blk.0.attn_v_b blk.0.time_mix_first blk.0.time_mix_w0 blk.0.time_mix_w1
        blk.0.time_mix_w2 blk.0.time_mix_v0 blk.0.time_mix_v1 blk.0.time_mix_v2 blk.0.time_mix_a0
        blk.0.time_mix_a1 blk.0.time_mix_a2 blk.0.time_mix_g1 blk.0.time_mix_g2
        blk.0.time_mix_decay_w1 blk.0.time_mix_decay_w2 blk.0.time_mix_lerp_fused
        blk.0.time_mix_key blk.0.attn_rel_b v.sam.pos_embd v.sam.neck.0 v.sam.net_2
        v.blk.0.rel_pos_h v.patch_embd v.patch_merger";
    let names = NAMES.split_whitespace().map(|name| match name {
        "output.weights" | "blk.0.attn_q.bias" => name.to_owned(),
        _ => format!("{name}.weight"),
    });
    let names: Vec<String> = names.collect();
    let of_name = |name| (name, &[32, 2][..]);
    let mut tensors: Vec<(&str, &[u64])> = names.iter().map(|name| of_name(&**name)).collect();
    tensors.extend([
        ("blk.1.a.rvq.codebook.weight", &[32, 2][..]),
        ("mm.a.code_embd.weight", &[32, 2]),
        ("blk.1.vector.weight", &[32]),
        ("blk.1.row.weight", &[32, 1]),
        ("blk.1.experts.weight", &[32, 2, 3]),
        ("blk.1.flat.weight", &[32, 1, 3]),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.gguf");
    let mut counts = Vec::new();
    for architecture in ["llama", "glm5-next"] {
        fs::write(&path, made(architecture, &keys(), &tensors).bytes()).unwrap();
        let changed = changed_by_llama_cpp(&path);
        assert_eq!(changed_by_our_rules(&path), changed, "{architecture}");
        counts.push(changed.len());
    }
    assert!(counts[0] > counts[1] && counts[1] > 10, "{counts:?}");
}
