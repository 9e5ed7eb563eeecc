//! The rules, sizes and files of llama.cpp's quantizer, as llama.cpp itself has them.

use std::fs;

use kl_formats::Mixture;

use super::*;
use crate::engine::gguf;
use crate::engine::quantizer_rules::changes;

const MODELS: [&str; 10] = [
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

fn kind(name: &str) -> GgmlType {
    name.parse().unwrap()
}

/// Writes a model of the architecture that holds these tensors of f16, all zero, and the keys without which
/// llama.cpp does not read its architecture.
fn write_model(path: &Path, architecture: &str, keys: &[(&str, u32)], tensors: &[(&str, &[u64])]) {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let pair = |key: &str, kind: u32, value: &[u8]| {
        [&string(key)[..], &kind.to_le_bytes(), value].concat()
    };
    let mut pairs = vec![pair("general.architecture", 8, &string(architecture))];
    for (key, value) in keys {
        let key = format!("{architecture}.{key}");
        // f32 where the key is an epsilon.
        let is_f32 = key.ends_with("epsilon");
        pairs.push(pair(&key, if is_f32 { 6 } else { 4 }, &value.to_le_bytes()));
    }
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((pairs.len() as u64).to_le_bytes());
    bytes.extend(pairs.concat());
    let mut offset = 0_u64;
    for (name, shape) in tensors {
        bytes.extend(string(name));
        bytes.extend((shape.len() as u32).to_le_bytes());
        bytes.extend(shape.iter().flat_map(|n| n.to_le_bytes()));
        bytes.extend([&1u32.to_le_bytes()[..], &offset.to_le_bytes()].concat());
        offset += (2 * shape.iter().product::<u64>()).next_multiple_of(32);
    }
    bytes.resize(bytes.len().next_multiple_of(32) + offset as usize, 0);
    fs::write(path, bytes).unwrap();
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
        .filter(|tensor| tensor.type_id == bf16)
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
    const NAMES: [&str; 66] = [
        "token_embd.weight",
        "per_layer_token_embd.weight",
        "output.weight",
        "output.weights",
        "position_embd.weight",
        "token_types.weight",
        "blk.0.position_embd.weight",
        "blk.0.token_types.weight",
        "blk.0.attn_q.weight",
        "blk.0.attn_q.bias",
        "blk.0.attn_norm.weight",
        "blk.0.attn_norm_2.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_gate_inp_shexp.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.ffn_gate_tid2eid.weight",
        "altup_proj.weight",
        "blk.0.altup_router.weight",
        "blk.0.laurel_l.weight",
        "per_layer_model_proj.weight",
        "blk.0.per_layer_proj.weight",
        "blk.0.ssm_conv1d.weight",
        "blk.0.ssm_conv1d_q.weight",
        "blk.0.ssm_in.weight",
        "blk.0.ssm_x.weight",
        "blk.0.shortconv.conv.weight",
        "blk.0.shortconv.in_proj.weight",
        "blk.0.indexer.k_proj.weight",
        "blk.0.indexer.q_proj.weight",
        "blk.0.indexer.attn_k.weight",
        "blk.0.indexer.attn_q_b.weight",
        "blk.0.indexer.proj.weight",
        "blk.0.indexer_compressor_gate.weight",
        "blk.0.indexer_compressor_ape.weight",
        "blk.0.hc_attn_fn.weight",
        "blk.0.ssm_f_a.weight",
        "blk.0.ssm_f_b.weight",
        "blk.0.ssm_g_a.weight",
        "blk.0.ssm_g_b.weight",
        "blk.0.ssm_beta.weight",
        "blk.0.attn_kv_a_mqa.weight",
        "blk.0.attn_k_b.weight",
        "blk.0.attn_v_b.weight",
        "blk.0.time_mix_first.weight",
        "blk.0.time_mix_w0.weight",
        "blk.0.time_mix_w1.weight",
        "blk.0.time_mix_w2.weight",
        "blk.0.time_mix_v0.weight",
        "blk.0.time_mix_v1.weight",
        "blk.0.time_mix_v2.weight",
        "blk.0.time_mix_a0.weight",
        "blk.0.time_mix_a1.weight",
        "blk.0.time_mix_a2.weight",
        "blk.0.time_mix_g1.weight",
        "blk.0.time_mix_g2.weight",
        "blk.0.time_mix_decay_w1.weight",
        "blk.0.time_mix_decay_w2.weight",
        "blk.0.time_mix_lerp_fused.weight",
        "blk.0.time_mix_key.weight",
        "blk.0.attn_rel_b.weight",
        "v.sam.pos_embd.weight",
        "v.sam.neck.0.weight",
        "v.sam.net_2.weight",
        "v.blk.0.rel_pos_h.weight",
        "v.patch_embd.weight",
        "v.patch_merger.weight",
    ];
    let mut tensors: Vec<(&str, &[u64])> = NAMES.map(|name| (name, &[32, 2][..])).to_vec();
    tensors.extend([
        ("blk.1.a.rvq.codebook.weight", &[32, 2][..]),
        ("mm.a.code_embd.weight", &[32, 2]),
        ("blk.1.vector.weight", &[32]),
        ("blk.1.row.weight", &[32, 1]),
        ("blk.1.experts.weight", &[32, 2, 3]),
        ("blk.1.flat.weight", &[32, 1, 3]),
    ]);
    let keys = [
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
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.gguf");
    let mut counts = Vec::new();
    for architecture in ["llama", "glm5-next"] {
        write_model(&path, architecture, &keys, &tensors);
        let changed = changed_by_llama_cpp(&path);
        assert_eq!(changed_by_our_rules(&path), changed, "{architecture}");
        counts.push(changed.len());
    }
    assert!(counts[0] > counts[1] && counts[1] > 10, "{counts:?}");
}

/// All tensors that the quantizer changes, at one of these types after the other, where their rows allow it.
fn mixture(blueprint: &Blueprint, kinds: &[&str]) -> Mixture {
    let tensors = blueprint.tensors.iter().filter(|t| t.is_quantizable);
    let kinds = kinds.iter().cycle().map(|name| kind(name));
    tensors
        .zip(kinds)
        .filter(|(tensor, kind)| tensor.shape[0].is_multiple_of(kind.block))
        .map(|(tensor, kind)| (tensor.name.clone(), kind))
        .collect()
}

/// Quantizes, and checks that each tensor has its type and that the file has the size that the blueprint
/// states.
#[track_caller]
fn check_file(input: &Path, kinds: &[&str], imatrix: Option<&Imatrix>) -> gguf::Gguf {
    hush();
    let blueprint = ENGINE.blueprint(input, imatrix).unwrap();
    let mixture = mixture(&blueprint, kinds);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("mixture.gguf");
    ENGINE
        .quantize(&Quantization {
            input,
            output: &output,
            mixture: &mixture,
            imatrix,
            threads: 1,
        })
        .unwrap();
    let written = gguf::read(&output).unwrap();
    let mut bytes = blueprint.metadata_bytes;
    for tensor in &blueprint.tensors {
        let kind = *mixture.get(&tensor.name).unwrap_or(&tensor.kind);
        let found = written.tensor(&tensor.name).unwrap();
        assert_eq!(GgmlType::of(found.type_id), Some(kind), "{}", tensor.name);
        let data = kind.bytes(tensor.shape.iter().product()).unwrap();
        bytes += data.next_multiple_of(blueprint.alignment);
    }
    assert_eq!(written.tensors.len(), blueprint.tensors.len());
    assert_eq!(written.file_bytes, bytes, "{}: {kinds:?}", input.display());
    load(&output);
    written
}

#[test]
fn written_files_have_the_types_and_the_size_that_were_stated() {
    for model in MODELS {
        check_file(&fixture(model), &["q4_K"], None);
        check_file(&fixture(model), &["q8_0", "iq4_nl", "f16", "q5_1"], None);
    }
}
