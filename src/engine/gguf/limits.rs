//! What llama.cpp asserts of a model: a file that breaks one of these rules would abort the
//! process.
//!
//! Source: `llama_model_base::load_hparams` in llama.cpp's `llama-model.cpp`, and the assertions of
//! ggml's own operations, as of mid 2026.

use super::metadata::Metadata;

/// Most layers (`LLAMA_MAX_LAYERS`).
const MAX_LAYERS: i128 = 512;

/// Most experts (`LLAMA_MAX_EXPERTS`).
const MAX_EXPERTS: i128 = 1024;

/// The kinds of `rope.scaling.type`.
const ROPE_SCALINGS: [&str; 4] = ["none", "linear", "yarn", "longrope"];

/// Architectures that treat a single expert as none.
const ONE_EXPERT_IS_NONE: [&str; 2] = ["hunyuan-dense", "hunyuan_vl"];

/// Architectures that always have experts.
const ALWAYS_EXPERTS: [&str; 6] = [
    "bailingmoe2",
    "glm4moe",
    "grovemoe",
    "lfm2moe",
    "llada-moe",
    "smallthinker",
];

/// What is wrong with the architecture's numbers, if anything.
pub(super) fn fault(found: &Metadata) -> Option<String> {
    let architecture = found.architecture.as_deref()?;
    let number = |what: &str| {
        let key = format!("{architecture}.{what}");
        found.numbers.get(&key).copied()
    };
    let is =
        |what: &str, n: i128, limit: &str| Some(format!("{architecture}.{what} is {n}, {limit}"));
    if let Some(n) = number("context_length").filter(|&n| n > i32::MAX.into()) {
        return is("context_length", n, "more than 2^31 - 1");
    }
    let n_layers = number("block_count");
    if let Some(n) = n_layers.filter(|n| !(1..=MAX_LAYERS).contains(n)) {
        return is("block_count", n, "not 1 to 512");
    }
    let n_next = number("nextn_predict_layers").unwrap_or(0);
    if n_layers.is_some_and(|n| n_next > n) {
        return is("nextn_predict_layers", n_next, "more than block_count");
    }
    let n_heads = number("attention.head_count");
    let n_kv_heads = number("attention.head_count_kv");
    if let (Some(n), Some(kv @ 1..)) = (n_heads, n_kv_heads)
        && n.checked_rem(kv) != Some(0)
    {
        let limit = format!("which does not divide head_count, {n}");
        return is("attention.head_count_kv", kv, &limit);
    }
    let n_rope = number("rope.dimension_count")
        .or_else(|| number("attention.key_length"))
        .or_else(|| number("embedding_length")?.checked_div(n_heads?));
    if let Some(n) = n_rope.filter(|n| n % 2 != 0) {
        return Some(format!(
            "{architecture} has an odd number of RoPE dimensions, {n}"
        ));
    }
    if let Some(scaling) = found
        .texts
        .get(&format!("{architecture}.rope.scaling.type"))
        && !ROPE_SCALINGS.contains(&scaling.as_str())
    {
        return Some(format!(
            "{architecture}.rope.scaling.type {scaling:?} is unknown"
        ));
    }
    let mut epsilons = found.epsilons.iter();
    if let Some((key, epsilon)) = epsilons.find(|(_, epsilon)| epsilon.is_nan() || **epsilon < 0.0)
    {
        return Some(format!("{key} is {epsilon}: negative or not a number"));
    }
    expert_fault(architecture, number)
}

/// What is wrong with a mixture of experts, if anything.
fn expert_fault(architecture: &str, number: impl Fn(&str) -> Option<i128>) -> Option<String> {
    let count = |what: &str| number(what).unwrap_or(0);
    let (mut n, mut used) = (count("expert_count"), count("expert_used_count"));
    if n <= 1 && ONE_EXPERT_IS_NONE.contains(&architecture) {
        (n, used) = (0, 0);
    }
    let (groups, groups_used) = (
        count("expert_group_count"),
        count("expert_group_used_count"),
    );
    let is_possible = match (n, groups) {
        (0, _) => used == 0 && groups == 0 && !ALWAYS_EXPERTS.contains(&architecture),
        (1..=MAX_EXPERTS, 0 | 1) => (1..=n).contains(&used) && groups < n,
        (1..=MAX_EXPERTS, 2..) => {
            (1..=n).contains(&used)
                && groups < n
                && n.checked_rem(groups) == Some(0)
                && (1..groups).contains(&groups_used)
        }
        _ => false,
    };
    (!is_possible).then(|| {
        format!(
            "{architecture} cannot use {used} of {n} experts, in {groups_used} of {groups} groups"
        )
    })
}

/// What is wrong with a tensor, if anything: `kind` is its ggml_type.
pub(super) fn tensor_fault(
    name: &str,
    n_dims: u32,
    elements: u64,
    kind: u32,
) -> Option<&'static str> {
    const F32: u32 = 0;
    /// Q8_1 and Q8_K: rows of activations on their way into a product, never stored.
    const INTERMEDIATE: [u32; 2] = [9, 15];
    /// I8, I16, I32, I64, F64.
    const NOT_MULTIPLIED: [u32; 5] = [24, 25, 26, 27, 28];
    // deepseek4's table from tokens to experts is the one weight of integers.
    let is_weight = name.ends_with(".weight") && !name.contains("tid2eid");
    let is_bias = n_dims <= 1 && name.ends_with(".bias");
    if elements == 0 {
        Some("has no elements")
    } else if INTERMEDIATE.contains(&kind) {
        Some("has a type that is never stored in files")
    } else if is_weight && NOT_MULTIPLIED.contains(&kind) {
        Some("is a weight of a type that llama.cpp cannot multiply")
    } else if (name.ends_with("norm.weight") || is_bias) && kind != F32 {
        Some("is not f32, which norms and biases must be")
    } else {
        None
    }
}
