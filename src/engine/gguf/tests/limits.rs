//! Models that fail llama.cpp's assertions. Each was seen to abort the process.

use super::*;

/// The message that refuses the sample after a change.
fn refusal(change: impl FnOnce(&mut Model)) -> String {
    let mut model = sample();
    change(&mut model);
    let error = read_bytes(&model.bytes()).unwrap_err();
    assert!(matches!(error, GgufError::Corrupt { .. }), "{error}");
    error.to_string()
}

fn is_read(change: impl FnOnce(&mut Model)) -> bool {
    let mut model = sample();
    change(&mut model);
    read_bytes(&model.bytes()).is_ok()
}

/// Sets numbers of the sample's architecture.
fn with<'a>(numbers: &'a [(&'a str, u32)]) -> impl FnOnce(&mut Model) + 'a {
    move |model| {
        for (key, n) in numbers {
            model.pair(&format!("llama.{key}"), U32, &n.to_le_bytes());
        }
    }
}

fn array(kind: u32, values: &[&[u8]]) -> Vec<u8> {
    let head = [&kind.to_le_bytes()[..], &words(&[values.len() as u64])].concat();
    [head, values.concat()].concat()
}

#[test]
fn impossible_shapes_are_refused() {
    for (numbers, what) in [
        (
            &[("block_count", 0)][..],
            "llama.block_count is 0, not 1 to 512",
        ),
        (&[("block_count", 513)], "block_count is 513"),
        (
            &[("block_count", 2), ("nextn_predict_layers", 3)],
            "nextn_predict_layers is 3, more",
        ),
        (
            &[("attention.head_count", 8), ("attention.head_count_kv", 3)],
            "head_count_kv is 3, which does not divide head_count, 8",
        ),
        (
            &[("rope.dimension_count", 31)],
            "odd number of RoPE dimensions, 31",
        ),
        (
            &[("attention.key_length", 31)],
            "odd number of RoPE dimensions, 31",
        ),
        (
            &[("embedding_length", 33), ("attention.head_count", 1)],
            "odd number of RoPE dimensions, 33",
        ),
    ] {
        let message = refusal(with(numbers));
        assert!(message.contains(what), "{message} / {what}");
    }
    for numbers in [
        &[("block_count", 512), ("nextn_predict_layers", 1)][..],
        &[("attention.head_count", 71), ("attention.head_count_kv", 1)],
        &[("attention.head_count", 0), ("attention.head_count_kv", 0)],
        &[("embedding_length", 64), ("attention.head_count", 0)],
        &[("rope.dimension_count", 32), ("attention.key_length", 31)],
    ] {
        assert!(is_read(with(numbers)), "{numbers:?}");
    }
}

#[test]
fn a_context_past_31_bits_is_refused() {
    let mut model = Model::default();
    model
        .pair("general.architecture", STRING, &string("llama"))
        .pair("llama.context_length", U32, &(1u32 << 31).to_le_bytes());
    let message = read_bytes(&model.bytes()).unwrap_err().to_string();
    assert!(
        message.contains("llama.context_length is 2147483648"),
        "{message}"
    );
}

#[test]
fn impossible_experts_are_refused() {
    // Experts, used, groups, groups used.
    for (counts, is_possible) in [
        ([0, 0, 0, 0], true),
        ([0, 0, 0, 7], true),
        ([8, 2, 0, 0], true),
        ([8, 8, 1, 0], true),
        ([8, 2, 4, 2], true),
        ([1024, 1, 0, 0], true),
        ([1025, 1, 0, 0], false),
        ([8, 0, 0, 0], false),
        ([8, 9, 0, 0], false),
        ([0, 1, 0, 0], false),
        ([0, 0, 1, 0], false),
        ([8, 2, 8, 2], false),
        ([8, 2, 3, 2], false),
        ([8, 2, 4, 0], false),
        ([8, 2, 4, 4], false),
        ([1, 1, 1, 0], false),
    ] {
        let [n, used, groups, groups_used] = counts;
        let numbers = [
            ("expert_count", n),
            ("expert_used_count", used),
            ("expert_group_count", groups),
            ("expert_group_used_count", groups_used),
        ];
        let change = with(&numbers);
        match is_possible {
            true => assert!(is_read(change), "{counts:?}"),
            false => assert!(refusal(change).contains("experts, in"), "{counts:?}"),
        }
    }
    // With a count for each layer, llama.cpp looks at the largest.
    let with_layers = |used: [u32; 3]| {
        let used = used.map(u32::to_le_bytes);
        let used = array(U32, &used.each_ref().map(|used| &used[..]));
        is_read(|model| {
            with(&[("expert_count", 4)])(model);
            model.pair("llama.expert_used_count", ARRAY, &used);
        })
    };
    assert!(with_layers([1, 4, 0]));
    assert!(!with_layers([1, 5, 0]));
    // To the first a single expert is none; the second must have experts.
    for (architecture, n, is_possible) in [
        ("hunyuan-dense", 1, true),
        ("hunyuan-dense", 2, false),
        ("smallthinker", 0, false),
    ] {
        let mut model = Model::default();
        let key = format!("{architecture}.expert_count");
        model
            .pair("general.architecture", STRING, &string(architecture))
            .pair(&key, U32, &u32::to_le_bytes(n));
        assert_eq!(read_bytes(&model.bytes()).is_ok(), is_possible, "{key} {n}");
    }
}

#[test]
fn impossible_rope_scalings_and_epsilons_are_refused() {
    let scaling = |kind: &str| {
        let value = string(kind);
        move |model: &mut Model| _ = model.pair("llama.rope.scaling.type", STRING, &value)
    };
    for kind in ["none", "linear", "yarn", "longrope"] {
        assert!(is_read(scaling(kind)), "{kind}");
    }
    assert!(refusal(scaling("bogus")).contains("rope.scaling.type \"bogus\" is unknown"));
    let epsilon = |x: f32| {
        let key = "llama.attention.layer_norm_rms_epsilon";
        move |model: &mut Model| _ = model.pair(key, F32, &x.to_le_bytes())
    };
    assert!(is_read(epsilon(0.0)));
    assert!(refusal(epsilon(-1e-5)).contains("epsilon"));
    assert!(refusal(epsilon(f32::NAN)).contains("epsilon"));
}

/// Reads a model that has only these tokens.
fn with_tokens(tokenizer: &str, tokens: &[&str], types: &[u32]) -> Result<GgufSummary> {
    let texts: Vec<_> = tokens.iter().map(|text| string(text)).collect();
    let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
    let types: Vec<_> = types.iter().map(|kind| kind.to_le_bytes()).collect();
    let types: Vec<_> = types.iter().map(|kind| &kind[..]).collect();
    let mut model = Model::default();
    model
        .pair("tokenizer.ggml.model", STRING, &string(tokenizer))
        .pair("tokenizer.ggml.tokens", ARRAY, &array(STRING, &texts))
        .pair("tokenizer.ggml.token_type", ARRAY, &array(I32, &types));
    read_bytes(&model.bytes())
}

#[test]
fn tokens_with_the_same_text_are_refused() {
    let long = "x".repeat(10_000);
    let longer = format!("{long}y");
    // llama.cpp names an empty token after its id, and ends a text at its first NUL.
    for (tokens, same) in [
        (&["a", "b", "aa"][..], None),
        (&["", "", "[EMPTY_2]x"], None),
        (&[&long, &longer, "x"], None),
        (&["b", "a", "b"], Some("the tokens 0 and 2")),
        (&["a", "", "[EMPTY_1]"], Some("the tokens 1 and 2")),
        (&["a\0b", "b", "a"], Some("the tokens 0 and 2")),
        (&["[EMPTY_1]", "\0x"], Some("the tokens 0 and 1")),
        (&[&long, &longer, &long], Some("the tokens 0 and 2")),
    ] {
        let found = with_tokens("llama", tokens, &[]);
        match same {
            None => assert!(found.is_ok(), "{found:?}"),
            Some(same) => {
                let message = found.unwrap_err().to_string();
                assert!(message.contains(same), "{message}");
            }
        }
    }
}

#[test]
fn tokenizers_that_cannot_be_used_are_refused() {
    for tokenizer in ["none", "no_vocab"] {
        let error = with_tokens(tokenizer, &["a"], &[1]).unwrap_err();
        assert!(matches!(error, GgufError::Unsupported { .. }), "{error}");
    }
    assert!(with_tokens("bert", &["a", "b"], &[1, 6]).is_err());
    assert!(with_tokens("bert", &["a", "b"], &[1, 1]).is_ok());
    assert!(with_tokens("llama", &["a", "b"], &[1, 6]).is_ok());
}

#[test]
fn tensors_of_unusable_types_are_refused() {
    const F16: u32 = 1;
    const Q8_1: u32 = 9;
    const I32_TENSOR: u32 = 26;
    for (name, shape, kind, what) in [
        ("a.weight", &[0][..], 0, "has no elements"),
        ("a.weight", &[4, 0], 0, "has no elements"),
        ("a", &[32], Q8_1, "never stored in files"),
        ("a.weight", &[1], I32_TENSOR, "cannot multiply"),
        ("output_norm.weight", &[1], F16, "is not f32"),
        ("blk.0.attn_q.bias", &[1], F16, "is not f32"),
    ] {
        let message = refusal(|model| _ = model.tensor(name, shape, kind, 0));
        assert!(message.contains(what), "{message}");
    }
    for (name, shape) in [
        ("blk.0.ffn_gate_tid2eid.weight", &[1, 2][..]),
        ("a.scale", &[1]),
    ] {
        assert!(is_read(|model| _ = model.tensor(name, shape, I32_TENSOR, 0)));
    }
    assert!(is_read(|model| _ = model.tensor("a.bias", &[1, 2], F16, 0)));
    assert!(is_read(|model| _ = model.tensor("a.weight", &[1], F16, 0)));
}

#[test]
fn tensor_data_must_be_aligned_for_mapping() {
    let aligned = |n: u32| {
        let mut model = Model::default();
        model
            .pair("general.alignment", U32, &n.to_le_bytes())
            .tensor("a", &[1], 0, 0);
        model.data_bytes = 64;
        read_bytes(&model.bytes())
    };
    let message = aligned(1).unwrap_err().to_string();
    assert!(message.contains("not a multiple of 32"), "{message}");
    assert!(aligned(32).is_ok());
}
