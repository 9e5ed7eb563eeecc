//! Tensors of a map that cannot be measured: each has one type in all recipes.

use kl_formats::{MapTensor, Unmeasured};

use super::*;

/// A map with these tensors besides its own: the name, the columns, the type, and the recorded reason.
fn with(more: &[(&str, u64, &str, Option<Unmeasured>)]) -> Sensitivities {
    let mut map = map(singles());
    map.header.tensors.extend(
        more.iter()
            .map(|(name, columns, of, unmeasured)| MapTensor {
                name: (*name).to_owned(),
                shape: vec![*columns, 4],
                kind: kind(of),
                is_quantizable: true,
                unmeasured: *unmeasured,
            }),
    );
    Sensitivities::from_map(&map, Confidence::default()).unwrap()
}

#[test]
fn what_decoding_does_not_use_has_one_type_in_all_recipes() {
    use Unmeasured::{OtherOperation, Unused};
    let bare = with(&[]);
    let costs = with(&[
        ("blk.2.nextn.eh_proj.weight", 64, "f16", Some(Unused)),
        // Rows that are not whole blocks of q8_0, and a smaller type.
        ("blk.2.attn_k.weight", 16, "f16", Some(Unused)),
        ("blk.2.attn_v.weight", 32, "q4_0", Some(Unused)),
        ("blk.0.conv.weight", 64, "f16", Some(OtherOperation)),
    ]);
    let found = costs.unmeasured.iter();
    let types: Vec<_> = found.map(|of| (of.kind.name, of.bytes)).collect();
    // Bytes of 8, 2, 4 and 8 blocks of 32, padded to 32.
    assert_eq!(
        types,
        [("q8_0", 288), ("f16", 128), ("q4_0", 96), ("f16", 512)]
    );
    assert!(costs.unknown.is_empty());
    assert_eq!(costs.tensors.len(), bare.tensors.len());
    assert_eq!(costs.fixed_bytes, bare.fixed_bytes + 288 + 128 + 96 + 512);
    let recipe = solve(&costs, Goal::Kld(1.0), &[]).unwrap();
    assert!(!recipe.mixture().contains_key("blk.2.attn_k.weight"));
    let file = recipe.mixture_of_file();
    assert_eq!(file.len(), recipe.tensors.len() + 4);
    assert_eq!(file["blk.2.nextn.eh_proj.weight"].name, "q8_0");
}

/// Maps of earlier versions state no reason.
#[test]
fn an_earlier_map_knows_the_layers_for_further_tokens_by_their_names() {
    let costs = with(&[
        ("blk.2.nextn.eh_proj.weight", 64, "f16", None),
        ("blk.2.attn_k.weight", 64, "f16", None),
    ]);
    assert!(
        costs
            .unmeasured
            .iter()
            .all(|of| of.why == Unmeasured::Unused)
    );
    assert_eq!((costs.unmeasured.len(), costs.unknown.len()), (2, 0));
}
