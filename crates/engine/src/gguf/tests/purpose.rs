//! Files that are not models by themselves, and models that lack what llama.cpp would crash without.

use super::super::purpose::NotAModel;
use super::made::*;
use super::read_bytes;

/// A model of an architecture with these numbers and tensors, with a vocabulary.
fn model(architecture: &str, numbers: &[(&str, u32)], tensors: &[&str]) -> Model {
    let mut model = Model {
        data_bytes: 64,
        ..Model::default()
    };
    let tokens = [&STRING.to_le_bytes()[..], &words(&[1]), &string("a")].concat();
    model
        .pair("general.architecture", STRING, &string(architecture))
        .pair("tokenizer.ggml.model", STRING, &string("gpt2"))
        .pair("tokenizer.ggml.tokens", ARRAY, &tokens);
    for (name, number) in numbers {
        let key = format!("{architecture}.{name}");
        model.pair(&key, U32, &number.to_le_bytes());
    }
    for name in tensors {
        model.tensor(name, &[16], 0, 0);
    }
    model
}

fn found(model: &Model) -> Option<NotAModel> {
    read_bytes(&model.bytes()).unwrap().not_a_model()
}

fn fault(model: &Model) -> Option<String> {
    let fault = read_bytes(&model.bytes()).unwrap().fault()?;
    Some(fault.what)
}

const WHOLE: [&str; 4] = [
    "token_embd.weight",
    "blk.0.attn_norm.weight",
    "blk.1.attn_norm.weight",
    "blk.2.nextn.eh_proj.weight",
];

#[test]
fn files_that_are_no_model_by_themselves_are_named() {
    let further = [("block_count", 3), ("nextn_predict_layers", 1)];
    let only = [WHOLE[0], "blk.2.attn_norm.weight", WHOLE[3]];
    let part = "not a model: give the model that it belongs to";
    let layer = "only the layer that predicts further tokens (MTP)";
    for (model, what, advice) in [
        (
            model("eagle3", &[], &["fc.weight"]),
            "a draft for speculative decoding (eagle3)",
            part,
        ),
        (
            model("dflash", &[], &WHOLE[..2]),
            "speculative decoding (dflash)",
            part,
        ),
        (
            model("gemma4-assistant", &[], &WHOLE[..2]),
            "speculative decoding (gemma4-assistant)",
            part,
        ),
        // As forks name them.
        (
            model("llama", &[], &["blk.0.attn_q.weight", "d2t"]),
            "speculative decoding (llama)",
            part,
        ),
        (
            model("gemma5_assistant", &[], &WHOLE[..2]),
            "speculative decoding (gemma5_assistant)",
            part,
        ),
        // Of an architecture that does not exist yet.
        (
            model("new", &[("target_hidden_size", 64)], &WHOLE[..2]),
            "speculative decoding (new)",
            part,
        ),
        (model("qwen35", &further, &only), layer, part),
        (model("glm4moe", &further, &only), layer, part),
        // Without the embeddings, and without the key.
        (model("qwen35", &further, &only[1..]), layer, part),
        (
            model("qwen35", &[("block_count", 3)], &WHOLE[3..]),
            layer,
            part,
        ),
        // Renumbered.
        (
            model(
                "new",
                &[("block_count", 2), ("nextn_predict_layers", 2)],
                &WHOLE[..3],
            ),
            "only the layers that predict further tokens (MTP)",
            part,
        ),
        (
            model("llama", &[], &["blk.0.attn_q.weight.lora_a"]),
            "a LoRA adapter",
            part,
        ),
        (
            model("controlvector", &[], &["direction.1"]),
            "a control vector",
            part,
        ),
        (
            model("pockettts", &[], &WHOLE[..2]),
            "the text part of a speech model",
            part,
        ),
        (
            model("qwen3", &[("pooling_type", 4)], &WHOLE[..2]),
            "a reranker",
            "no next token",
        ),
        (
            model("qwen3", &[], &["cls.output.weight"]),
            "a reranker",
            "no next token",
        ),
        (
            model("qwen3", &[("pooling_type", 3)], &WHOLE[..2]),
            "an embedding model",
            "no next token",
        ),
        (
            model("modern-bert", &[], &WHOLE[..2]),
            "without causal attention",
            "no next token",
        ),
        (
            model("clef", &[], &WHOLE[..2]),
            "chooses among options",
            "no next token",
        ),
        (
            model("llama", &[], &[]),
            "a vocabulary without tensors",
            "no next token",
        ),
    ] {
        let found = found(&model).unwrap();
        let line = found.to_string();
        assert!(found.what.contains(what) && line.contains(advice), "{line}");
    }
    for model in [
        model("llama", &[("block_count", 2)], &WHOLE[..3]),
        model("qwen35", &further, &WHOLE),
        // Converted without the layer that the metadata count.
        model("glm4moe", &further, &WHOLE[..3]),
        model("qwen3", &[("pooling_type", 0)], &WHOLE[..2]),
        // A part of a model without a number of layers.
        model("llama", &[], &WHOLE[..1]),
    ] {
        assert_eq!(found(&model), None);
        assert_eq!(fault(&model), None);
    }
}

/// llama.cpp loads each of them, and crashes when it decodes.
#[test]
fn a_model_with_some_of_its_layers_lacks_the_others() {
    let further = |n| [("block_count", n), ("nextn_predict_layers", 1)];
    let without = |missing: &str| Vec::from_iter(WHOLE.into_iter().filter(|name| *name != missing));
    let first = model("qwen35", &further(3), &without(WHOLE[1]));
    assert!(
        fault(&first)
            .unwrap()
            .contains("has no tensors of layer 0, of 2: download")
    );
    let second = model("qwen35", &further(3), &without(WHOLE[2]));
    assert!(
        fault(&second)
            .unwrap()
            .contains("has no tensors of layer 1, of 2")
    );
    let mut without_norm = without(WHOLE[1]);
    without_norm.push("blk.0.ffn_norm.weight");
    let no_norm = model("qwen35", &further(3), &without_norm);
    assert!(
        fault(&no_norm)
            .unwrap()
            .contains("has no tensor blk.0.attn_norm.weight")
    );
    // An architecture whose layers have other norms.
    assert_eq!(fault(&model("exaone4", &further(3), &without_norm)), None);
    let absurd = model("qwen35", &further(u32::MAX), &WHOLE);
    assert!(fault(&absurd).unwrap().contains("layer 3, of"));
}
