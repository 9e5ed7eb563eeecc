//! The rules of llama.cpp's quantizer: the tensors that it changes, the types that it refuses without an
//! importance matrix, and the files that it writes. Source: `src/llama-quant.cpp`.

use std::collections::{BTreeMap, HashMap};

use kl_formats::{GgmlType, MapTensor, Mixture};

use super::gguf::{FileKind, Gguf, Tensor, file_kinds};
use super::{EngineError, Imatrix};

/// Tensors with one of these in their names stay as they are in every architecture.
const KEPT: &str = "
    _norm.weight ffn_gate_inp.weight ffn_gate_tid2eid.weight altup laurel per_layer_model_proj
    ssm_conv1d shortconv.conv.weight indexer.k_proj.weight indexer.q_proj.weight
    time_mix_first.weight time_mix_w0.weight time_mix_w1.weight time_mix_w2.weight
    time_mix_v0.weight time_mix_v1.weight time_mix_v2.weight time_mix_a0.weight time_mix_a1.weight
    time_mix_a2.weight time_mix_g1.weight time_mix_g2.weight time_mix_decay_w1.weight
    time_mix_decay_w2.weight time_mix_lerp_fused.weight attn_rel_b.weight .position_embd
    sam.pos_embd sam.neck. sam.net_ .rel_pos .patch_embd .patch_merger a.rvq.codebook
    mm.a.code_embd";

/// More of them, in the architecture glm5-next.
const KEPT_IN_GLM5_NEXT: &str = "
    hc_ indexer.attn_q_b indexer.attn_k indexer.proj indexer_compressor_gate
    indexer_compressor_ape ssm_f_a.weight ssm_f_b.weight ssm_g_a.weight ssm_g_b.weight
    ssm_beta.weight attn_kv_a_mqa.weight attn_k_b.weight attn_v_b.weight";

/// The number of dimensions as ggml counts them: without those of one element at the end.
pub(super) fn n_dims(shape: &[u64]) -> usize {
    let last = shape.iter().rposition(|&n| n != 1);
    last.map_or(1, |last| last + 1)
}

/// True if the quantizer gives this tensor another type. Its loops have three dimensions, and it aborts
/// where there are more.
pub(super) fn changes(architecture: &str, name: &str, shape: &[u64]) -> bool {
    let has_one_of = |parts: &str| parts.split_whitespace().any(|part| name.contains(part));
    (2..=3).contains(&n_dims(shape))
        && name.ends_with("weight")
        && !matches!(name, "position_embd.weight" | "token_types.weight")
        && !has_one_of(KEPT)
        && !(architecture == "glm5-next" && has_one_of(KEPT_IN_GLM5_NEXT))
}

/// True if rows of zeros would compute nothing: those of a norm, and of a matrix that the quantizer
/// changes, but not of embeddings or outputs, where tokens that are not used have such rows.
pub(super) fn needs_its_rows(header: &Gguf, Tensor { name, shape, .. }: &Tensor) -> bool {
    let architecture = header.architecture().unwrap_or_default();
    let parts_of_names = ["embd", "embed", "shared_head"];
    let is_of_tokens =
        name == "output.weight" || parts_of_names.iter().any(|part| name.contains(part));
    name.ends_with("norm.weight") || changes(architecture, name, shape) && !is_of_tokens
}

/// True if the quantizer accepts weights of this type as an original. It accepts q8_0 only with
/// `--allow-requantize`.
pub(super) fn is_original(kind: GgmlType) -> bool {
    matches!(kind.name, "f32" | "f16" | "bf16" | "q8_0")
}

/// True if a tensor cannot have this type without an importance matrix. The quantizer makes an exception of
/// embeddings and the output, but ggml itself ends the process for three of the types.
pub fn needs_imatrix(tensor: &str, kind: GgmlType) -> bool {
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

/// States why a tensor of this shape cannot have a type; `None` if it can. `has_values`: the importance
/// matrix has some for it.
pub(super) fn refusal(
    tensor: &str,
    shape: &[u64],
    kind: GgmlType,
    has_values: bool,
) -> Option<String> {
    let (n_columns, block) = (shape.first().copied().unwrap_or(1), kind.block);
    if !kind.is_for_weights {
        Some(format!("{kind} is no type of weights: use another type"))
    } else if !n_columns.is_multiple_of(block) {
        Some(format!(
            "its rows of {n_columns} elements are not whole blocks of {kind} ({block}): use another type"
        ))
    } else if needs_imatrix(tensor, kind) && !has_values {
        Some(format!(
            "{kind} needs an importance matrix with values for it: give one with --imatrix, or use another type"
        ))
    } else {
        None
    }
}

/// The kind of file whose type most parameters of a mixture have. The quantizer accepts a type for each
/// tensor only if it is asked for a kind of quantized file, so this is `Q8_0` for a mixture without
/// quantized types.
pub fn file_kind(tensors: &[MapTensor], mixture: &Mixture) -> FileKind {
    let mut n_params: BTreeMap<FileKind, u64> = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.is_quantizable) {
        let kind = mixture.get(&tensor.name).unwrap_or(&tensor.kind).name;
        if let Some(of_file) = file_kinds().find(|of_file| of_file.main_type == kind) {
            let n = n_params.entry(of_file).or_default();
            *n = n.saturating_add(tensor.shape.iter().product());
        }
    }
    // The largest number of equals, so that the choice is always the same.
    let most = n_params.into_iter().max_by_key(|&(kind, n)| (n, kind));
    most.map_or(FileKind::Q8_0, |(kind, _)| kind)
}

/// A model's file, as llama.cpp's quantizer rewrites it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blueprint {
    /// All tensors, in the order of the original's file. A tensor that is quantized already, except in
    /// q8_0, counts as not quantizable, like norms and vectors.
    pub tensors: Vec<MapTensor>,
    /// Bytes of a quantized file before its tensors.
    pub metadata_bytes: u64,
    /// Bytes that the start of each tensor in a quantized file is a multiple of.
    pub alignment: u64,
    /// The importance matrix that the file was quantized with, as it states.
    pub made_with: Option<String>,
}

/// The alignment of every file that the quantizer writes (`GGUF_DEFAULT_ALIGNMENT`).
const ALIGNMENT: u64 = 32;

/// Bytes of the magic, the version, and the numbers of tensors and of pairs.
const START_BYTES: u64 = 4 + 4 + 8 + 8;

/// Bytes of a string's or a list's length.
const LENGTH_BYTES: u64 = 8;

/// Bytes of a type's number, or of another u32.
const U32_BYTES: u64 = 4;

/// The pairs that the quantizer leaves out, since its output is one file.
const LEFT_OUT: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// The pairs that it sets in every file, to a u32.
const SET: [&str; 2] = ["general.quantization_version", "general.file_type"];

impl Blueprint {
    /// Describes the file that the quantizer makes of the model with this header. An importance matrix is
    /// named in its metadata.
    pub(super) fn of_quantized(
        header: &Gguf,
        imatrix: Option<&Imatrix>,
    ) -> Result<Self, EngineError> {
        if let Some(alignment) = header.number("general.alignment")
            && alignment != i128::from(ALIGNMENT)
        {
            let what = format!(
                "its tensors are aligned to {alignment} bytes, and llama.cpp's quantizer writes files that state this but are aligned to {ALIGNMENT}, which nothing can read: convert it without --alignment"
            );
            return Err(EngineError::model(header.path(), what));
        }
        let architecture = header.architecture().unwrap_or_default();
        let described = header.tensors.iter().map(
            |Tensor {
                 name, shape, kind, ..
             }| MapTensor {
                name: name.clone(),
                shape: shape.clone(),
                kind: *kind,
                is_quantizable: changes(architecture, name, shape) && is_original(*kind),
                unmeasured: None,
            },
        );
        let tensors: Vec<MapTensor> = described.collect();
        Ok(Self {
            metadata_bytes: metadata_bytes(header, &tensors, imatrix),
            tensors,
            alignment: ALIGNMENT,
            made_with: header.text("quantize.imatrix.file").map(str::to_owned),
        })
    }
}

/// Bytes of a quantized file before its tensors: the original's pairs, those that the quantizer adds, and
/// what describes the tensors (`gguf_write_out` in `ggml/src/gguf.cpp`).
fn metadata_bytes(header: &Gguf, tensors: &[MapTensor], imatrix: Option<&Imatrix>) -> u64 {
    let mut pairs: HashMap<&str, u64> = header.pair_bytes().collect();
    pairs.retain(|key, _| !LEFT_OUT.contains(key));
    let imatrix_pairs = imatrix.map(Imatrix::pairs).unwrap_or_default().into_iter();
    let sizes_of_imatrix = imatrix_pairs.map(|(key, value)| (key, value.bytes()));
    let set = SET
        .map(|key| (key, U32_BYTES))
        .into_iter()
        .chain(sizes_of_imatrix);
    pairs.extend(set.map(|(key, bytes)| {
        let bytes_of_key = LENGTH_BYTES + key.len() as u64;
        (key, bytes_of_key + U32_BYTES + bytes)
    }));
    let infos = tensors.iter().map(|tensor| {
        let shape = 8 * n_dims(&tensor.shape) as u64;
        // The offset has eight bytes.
        LENGTH_BYTES + tensor.name.len() as u64 + U32_BYTES + shape + U32_BYTES + 8
    });
    let pairs: u64 = pairs.values().sum();
    (START_BYTES + pairs + infos.sum::<u64>()).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, n_params: u64) -> MapTensor {
        MapTensor {
            name: name.to_owned(),
            shape: vec![256, n_params / 256],
            kind: "f16".parse().unwrap(),
            is_quantizable: !name.starts_with("kept"),
            unmeasured: None,
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
            file_kind(&tensors, &names.into_iter().zip(types).collect()).name
        };
        assert_eq!(name(["q4_K", "q4_K", "q6_K"]), "Q6_K");
        assert_eq!(name(["q4_K", "q4_K", "q4_K"]), "Q4_K_M");
        assert_eq!(name(["q2_K", "iq2_s", "f16"]), "IQ2_M");
        assert_eq!(name(["nvfp4", "f16", "bf16"]), "Q8_0");
        assert_eq!(file_kind(&tensors, &Mixture::new()).name, "Q8_0");
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
