//! Maps of which some tensors were measured in groups: what counts as a measurement of a tensor.

use super::*;

const PAIR: [&str; 2] = ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"];

/// Singles, but for a pair that was measured as one group; with more cells.
fn with_pair(more: Vec<Cell>) -> Sensitivities {
    let mut cells = singles();
    cells.retain(|cell| !PAIR.iter().any(|name| cell.exchanged.contains_key(*name)));
    cells.push(cell(
        PAIR.map(|name| (name.to_owned(), kind("q3_K"))).into(),
    ));
    cells.extend(more);
    read(cells)
}

/// A check is far off what its group's share says: it counts at its own type alone, and it is listed.
#[test]
fn a_check_of_a_grouped_tensor_is_no_measurement_of_it() {
    let bare = with_pair(Vec::new());
    for at in ["q8_0", "q6_K", "q4_K", "q2_K"] {
        let kld = 100.0 * sensitivity(PAIR[0]) * error(kind(at));
        let checked = with_pair(vec![cell_of(mixture(&[(PAIR[0], at)]), kld)]);
        for tensor in PAIR {
            for (other, _) in ERRORS.iter().filter(|(other, _)| *other != "q5_0") {
                let (cost, bare) = (cost(&checked, tensor, other), cost(&bare, tensor, other));
                if (tensor, *other) == (PAIR[0], at) {
                    assert_near(cost.kld.value, kld);
                    assert!(cost.is_measured);
                } else {
                    assert_near(cost.kld.value, bare.kld.value);
                    assert!(!cost.is_measured, "{tensor} {other}");
                }
            }
        }
        let listed = checked
            .checks
            .iter()
            .map(|check| (&*check.tensor, check.kind));
        assert_eq!(Vec::from_iter(listed), [(PAIR[0], kind(at))]);
        let predicted = checked.checks[0].predicted;
        assert_near(predicted, cost(&bare, PAIR[0], at).kld.value);
        // The shares of a group add up to it.
        let of_pair: f64 = PAIR
            .map(|name| cost(&checked, name, "q3_K").kld.value)
            .iter()
            .sum();
        let expected: f64 = PAIR.map(sensitivity).iter().sum();
        assert_near(of_pair, expected * error(kind("q3_K")));
    }
}

/// Its share of a group's KLD is what such a check shows to be off, not how types compare.
#[test]
fn a_check_of_a_grouped_tensor_says_nothing_of_other_tensors() {
    let check = cell_of(mixture(&[(PAIR[0], "q2_K")]), 1.0);
    let (bare, checked) = (with_pair(Vec::new()), with_pair(vec![check]));
    let of = |costs: &Sensitivities| cost(costs, "token_embd.weight", "q4_K").kld;
    assert_eq!(of(&bare), of(&checked));
}

/// A role that was exchanged as a whole at another type does not count as a group: at q8_0, most of its KLD comes from
/// rounded activations.
#[test]
fn a_role_at_another_type_is_no_group() {
    let role = PAIR.map(|name| (name.to_owned(), kind("q8_0")));
    let rounded = cell_of(role.into(), 1e-3);
    let (bare, with_role) = (with_pair(Vec::new()), with_pair(vec![rounded]));
    for tensor in PAIR {
        let of = |costs: &Sensitivities| cost(costs, tensor, "q3_K").kld.value;
        assert_near(of(&with_role), of(&bare));
    }
}

/// Where a type does not fit most rows, what all tensors were given for it is another one.
#[test]
fn all_tensors_at_a_type_are_found_where_few_have_it() {
    let mut cells = singles();
    let mut fallback = map(Vec::new());
    let narrow = |name: &str| name != "token_embd.weight";
    for tensor in &mut fallback.header.tensors {
        if narrow(&tensor.name) && tensor.is_quantizable {
            tensor.shape = vec![96, tensor.shape[1]];
        }
    }
    for (name, errors) in &mut fallback.errors {
        errors.retain(|kind, _| !narrow(name) || kind.block == 32);
    }
    let at = |of: &str, others: &str| {
        let kinds = TENSORS.map(|tensor| if narrow(tensor.0) { others } else { of });
        let typed = TENSORS.iter().zip(kinds);
        cell(
            typed
                .map(|(tensor, of)| (tensor.0.to_owned(), kind(of)))
                .collect(),
        )
    };
    cells.retain(|cell| cell.exchanged.contains_key("token_embd.weight"));
    cells.extend(
        TENSORS
            .iter()
            .filter(|of| narrow(of.0))
            .map(|of| single(of.0, "q5_0")),
    );
    // q8_0, q6_K, q4_K and q3_K, each with the nearest type where it does not fit.
    let wholes = [
        ("q8_0", "q8_0"),
        ("q6_K", "q5_0"),
        ("q4_K", "q5_0"),
        ("q3_K", "q5_0"),
    ];
    cells.extend(wholes.map(|(of, others)| at(of, others)));
    // A recipe is of no type.
    cells.push(at("q2_K", "q8_0"));
    fallback.cells = cells;
    let costs = Sensitivities::from_map(&fallback, Confidence::default()).unwrap();
    let mut found = Vec::from_iter(costs.additivity.iter().map(|of| of.kind.name));
    found.sort_unstable();
    assert_eq!(found, ["q3_K", "q4_K", "q6_K", "q8_0"]);
}
