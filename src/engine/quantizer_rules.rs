//! The rules of llama.cpp's quantizer: the tensors that it changes, the types that it refuses without an
//! importance matrix, and the kinds of files that it writes. Source: `src/llama-quant.cpp`.

use std::collections::HashMap;

use kl_formats::{GgmlType, Mixture};

use super::TensorFacts;
use super::gguf::file_type_name;

/// Tensors with one of these in their names stay as they are in every architecture.
const KEPT: [&str; 35] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// More of them, in the architecture glm5-next.
const KEPT_IN_GLM5_NEXT: [&str; 14] = [
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// The number of dimensions as ggml counts them: without those of one element at the end.
pub(super) fn n_dims(shape: &[u64]) -> usize {
    let last = shape.iter().rposition(|&n| n != 1);
    last.map_or(1, |last| last + 1)
}

/// Returns true if the quantizer gives this tensor another type.
pub(super) fn changes(architecture: &str, name: &str, shape: &[u64]) -> bool {
    let has = |part: &&str| name.contains(part);
    n_dims(shape) >= 2
        && name.ends_with("weight")
        && !matches!(name, "position_embd.weight" | "token_types.weight")
        && !KEPT.iter().any(has)
        && !(architecture == "glm5-next" && KEPT_IN_GLM5_NEXT.iter().any(has))
}

/// Returns true if the quantizer takes weights of this type as an original. Of q8_0 it does so only with
/// `--allow-requantize`.
pub(super) fn is_original(kind: GgmlType) -> bool {
    matches!(kind.name, "f32" | "f16" | "bf16" | "q8_0")
}

/// Returns true if a tensor cannot have this type without an importance matrix. The quantizer makes an
/// exception of embeddings and the output, but ggml itself ends the process for three of the types.
pub(super) fn needs_imatrix(tensor: &str, kind: GgmlType) -> bool {
    let is_exception = matches!(
        tensor,
        "token_embd.weight" | "per_layer_token_embd.weight" | "output.weight"
    );
    match kind.name {
        "iq2_xxs" | "iq2_xs" | "iq1_s" => true,
        "iq3_xxs" | "iq2_s" | "iq1_m" => !is_exception,
        _ => false,
    }
}

/// A kind of quantized file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileType {
    /// Its number, `llama_ftype`, which a file states as `general.file_type`.
    pub id: u32,
    /// `llama-quantize`'s name for it, such as `Q4_K_M`.
    pub name: &'static str,
}

/// Names a file of this mixture by the type that most of its parameters have. The quantizer takes a type
/// for each tensor only if it is asked for a kind of quantized file, so this is `Q8_0` for a mixture without
/// quantized types.
pub fn file_type(tensors: &[TensorFacts], mixture: &Mixture) -> FileType {
    let mut n_params: HashMap<u32, u64> = HashMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.is_quantizable) {
        let kind = mixture.get(&tensor.name).unwrap_or(&tensor.kind);
        if let Some(id) = file_type_id(*kind) {
            let n = n_params.entry(id).or_default();
            *n = n.saturating_add(tensor.shape.iter().product());
        }
    }
    // The largest number of equals, so that the choice is always the same.
    let most = n_params.into_iter().max_by_key(|&(id, n)| (n, id));
    let id = most.map_or(Q8_0, |(id, _)| id);
    FileType {
        id,
        name: file_type_name(id.into()).unwrap_or_default(),
    }
}

const Q8_0: u32 = 7;

/// The kind of file whose tensors are of this type, mostly; `None` for a type that is not quantized, or that
/// llama-quantize has no kind of file for. With Q2_K_S it would ask for an importance matrix.
fn file_type_id(kind: GgmlType) -> Option<u32> {
    Some(match kind.name {
        "q4_0" => 2,
        "q4_1" => 3,
        "q8_0" => Q8_0,
        "q5_0" => 8,
        "q5_1" => 9,
        "q2_K" => 10,
        "q3_K" => 12,
        "q4_K" => 15,
        "q5_K" => 17,
        "q6_K" => 18,
        "iq2_xxs" => 19,
        "iq2_xs" => 20,
        "iq3_xxs" => 23,
        "iq1_s" => 24,
        "iq4_nl" => 25,
        "iq3_s" => 26,
        "iq2_s" => 29,
        "iq4_xs" => 30,
        "iq1_m" => 31,
        "tq1_0" => 36,
        "tq2_0" => 37,
        "mxfp4" => 38,
        "q1_0" => 40,
        "q2_0" => 41,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, n_params: u64) -> TensorFacts {
        TensorFacts {
            name: name.to_owned(),
            shape: vec![256, n_params / 256],
            kind: "f16".parse().unwrap(),
            is_quantizable: !name.starts_with("kept"),
        }
    }

    #[test]
    fn a_file_is_named_by_the_type_of_most_parameters() {
        let tensors = [
            tensor("small", 256),
            tensor("smaller", 256),
            tensor("large", 1024),
            tensor("kept", 1 << 20),
        ];
        let name = |types: [&str; 3]| {
            let names = ["small", "smaller", "large"].map(str::to_owned);
            let types = types.map(|kind| kind.parse().unwrap());
            file_type(&tensors, &names.into_iter().zip(types).collect()).name
        };
        assert_eq!(name(["q4_K", "q4_K", "q6_K"]), "Q6_K");
        assert_eq!(name(["q4_K", "q4_K", "q4_K"]), "Q4_K_M");
        assert_eq!(name(["q2_K", "iq2_s", "f16"]), "IQ2_M");
        assert_eq!(name(["nvfp4", "f16", "bf16"]), "Q8_0");
        assert_eq!(file_type(&tensors, &Mixture::new()).name, "Q8_0");
    }

    #[test]
    fn dimensions_are_counted_as_ggml_does() {
        let counts = [
            (&[1, 1][..], 1),
            (&[7], 1),
            (&[1, 2], 2),
            (&[7, 1, 3, 1], 3),
        ];
        for (shape, n) in counts {
            assert_eq!(n_dims(shape), n, "{shape:?}");
        }
    }
}
