use super::{Sensitivity, compared, sample};
use crate::report::json_text;
use crate::report::tests::schema;

#[test]
fn the_json_is_as_its_schema_states() {
    let of = sample::small();
    let json = json_text(&of).unwrap();
    schema::check::<Sensitivity>(&json);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let tensor = &json["tensors"][3];
    assert_eq!(tensor["name"], "blk.0.attn_v.weight");
    assert_eq!(
        (&tensor["role"], &tensor["layer"]),
        (&"attn_v".into(), &0.into())
    );
    assert_eq!(
        (&tensor["type"], &tensor["is_measured"]),
        (&"q3_K".into(), &true.into())
    );
    assert_eq!(tensor["costs"].as_array().unwrap().len(), 7);
    assert_eq!(json["cost"]["n_cells"], 23);
    assert_eq!(json["cost"]["n_tokens"], 23 * 2 * 128);
    assert_eq!(json["control"], 0.0);
}

/// Roles hold every tensor, layers those that have one; shares add up to 1, and the relative costs,
/// weighed by the bytes saved, to the average.
#[test]
fn parts_add_up_to_the_whole() {
    for (of, n_roles, n_layers) in [(sample::small(), 8, 3), (sample::experts(), 21, 61)] {
        assert_eq!((of.by_role.len(), of.by_layer.len()), (n_roles, n_layers));
        let parts = || of.by_role.iter().map(|role| &role.part);
        assert_eq!(
            parts().map(|part| part.n_tensors).sum::<u64>(),
            of.whole.n_tensors
        );
        assert_eq!(of.whole.n_tensors, of.tensors.len() as u64);
        let is = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} {b}");
        is(parts().filter_map(|part| part.share).sum(), 1.0);
        is(
            of.tensors.iter().filter_map(|tensor| tensor.share).sum(),
            1.0,
        );
        is(parts().map(|part| part.kld.value).sum(), of.whole.kld.value);
        let weighed = parts().map(|part| part.relative_cost.unwrap() * part.bytes_saved as f64);
        is(weighed.sum(), of.whole.bytes_saved as f64);
        let without = of
            .tensors
            .iter()
            .filter(|tensor| tensor.tensor.layer.is_none());
        let without: f64 = without.filter_map(|tensor| tensor.share).sum();
        is(
            of.by_layer.iter().filter_map(|of| of.part.share).sum(),
            1.0 - without,
        );
    }
}

/// Where q3_K does not fit a tensor's rows, it is compared at the nearest type that was measured.
#[test]
fn a_tensor_without_the_type_is_compared_at_another() {
    let mut tensor = sample::small().tensors.remove(0).tensor;
    let measured = sample::kind("q3_K");
    assert_eq!(compared(&tensor, measured).unwrap().kind, measured);
    tensor.costs.retain(|cost| cost.kind != measured);
    assert_eq!(
        compared(&tensor, measured).unwrap().kind,
        sample::kind("q2_K")
    );
    tensor.costs[3].is_measured = true;
    assert_eq!(
        compared(&tensor, measured).unwrap().kind,
        sample::kind("q6_K")
    );
    tensor.costs.drain(..5);
    assert!(
        compared(&tensor, measured).is_none(),
        "only the original's type is left"
    );
}
