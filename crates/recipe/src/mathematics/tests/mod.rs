//! Maps of a made-up model: what each of its tensors and types costs is known.

mod grouped;
mod round;
mod selection;
mod unmeasured;

use std::collections::BTreeMap;

use kl_formats::{Cell, GgmlType, Mixture, SensitivityMap};
use kl_stats::stats::{Confidence, Estimate};
use serde_json::json;

use super::{Goal, Sensitivities, frontier, role_and_layer, solve, solve_holding, thinned};

fn kind(name: &str) -> GgmlType {
    name.parse().unwrap()
}

/// Relative squared weight errors at the types of the maps.
const ERRORS: [(&str, f64); 6] = [
    ("q8_0", 3e-5),
    ("q6_K", 3e-4),
    ("q5_0", 1.6e-3),
    ("q4_K", 4e-3),
    ("q3_K", 0.02),
    ("q2_K", 0.07),
];

/// Tensors that the quantizer may change, by name, columns, rows, and KLD over weight error.
const TENSORS: [(&str, u64, u64, f64); 6] = [
    ("token_embd.weight", 256, 512, 0.01),
    ("blk.0.attn_q.weight", 256, 256, 0.004),
    ("blk.0.ffn_down.weight", 768, 256, 0.05),
    ("blk.1.attn_q.weight", 256, 256, 0.006),
    ("blk.1.ffn_down.weight", 768, 256, 0.03),
    // Whole blocks of q8_0 and q5_0 alone.
    ("blk.1.odd.weight", 96, 5, 0.02),
];

/// The windows' difficulties.
const WINDOWS: [f64; 6] = [0.8, 1.1, 1.3, 0.7, 1.2, 0.9];

/// The whole model's KLD over the sum of its tensors'.
fn together(sum: f64) -> f64 {
    1.2 * sum.powf(1.05)
}

fn sensitivity(name: &str) -> f64 {
    TENSORS.iter().find(|of| of.0 == name).unwrap().3
}

fn error(kind: GgmlType) -> f64 {
    ERRORS
        .iter()
        .find(|(name, _)| *name == kind.name)
        .unwrap()
        .1
}

fn mixture(of: &[(&str, &str)]) -> Mixture {
    let of = of.iter();
    of.map(|(name, of)| (name.to_string(), kind(of))).collect()
}

/// All tensors at a type, the odd one at q5_0.
fn all_at(of: &str) -> Mixture {
    let at = |name: &str| match name {
        "blk.1.odd.weight" => kind("q5_0"),
        _ => kind(of),
    };
    TENSORS
        .iter()
        .map(|of| (of.0.to_owned(), at(of.0)))
        .collect()
}

fn cell_of(exchanged: Mixture, kld: f64) -> Cell {
    Cell {
        exchanged,
        from: 0,
        klds: WINDOWS.map(|difficulty| 127.0 * kld * difficulty).to_vec(),
        n_tokens: vec![127; WINDOWS.len()],
    }
}

/// A cell with the KLD that such a mixture has.
fn cell(exchanged: Mixture) -> Cell {
    let klds = exchanged
        .iter()
        .map(|(name, kind)| sensitivity(name) * error(*kind));
    let sum: f64 = klds.sum();
    match exchanged.len() > 3 {
        true => cell_of(exchanged, together(sum)),
        false => cell_of(exchanged, sum),
    }
}

fn single(name: &str, of: &str) -> Cell {
    cell(mixture(&[(name, of)]))
}

fn map(cells: Vec<Cell>) -> SensitivityMap {
    let tensors = TENSORS.iter().map(|(name, columns, rows, _)| {
        json!({"name": name, "shape": [columns, rows], "type": "f16", "is_quantizable": true})
    });
    let norm = json!({
        "name": "output_norm.weight", "shape": [250], "type": "f32", "is_quantizable": false,
    });
    let header = json!({
        "kl_map": 1, "n_ctx": 128, "n_vocab": 512, "first_scored": 1,
        "model": {}, "text": {"name": "text", "bytes": 1, "sha256": "00"},
        "backend": {
            "llama_cpp": "b1", "devices": ["CPU"], "n_gpu_layers": 0, "n_batch": 512, "n_ubatch": 512,
            "threads": 2, "flash_attn": "auto", "type_k": "f16", "type_v": "f16",
        },
        "windows": [], "measured_type": "q3_K",
        "types": ["f16", "q8_0", "q6_K", "q5_0", "q4_K", "q3_K", "q2_K"],
        "metadata_bytes": 4096, "alignment": 32,
        "tensors": tensors.chain([norm]).collect::<Vec<_>>(),
    });
    let errors = TENSORS.iter().map(|(name, columns, ..)| {
        let of = ERRORS.iter().map(|(name, error)| (kind(name), *error));
        let of = of.filter(|(kind, _)| columns.is_multiple_of(kind.block));
        (name.to_string(), of.collect())
    });
    SensitivityMap {
        header: serde_json::from_value(header).unwrap(),
        errors: errors.collect(),
        cells,
        is_cut_off: false,
    }
}

/// Each tensor alone at q3_K, the odd one at q5_0.
fn singles() -> Vec<Cell> {
    let all = all_at("q3_K").into_iter();
    all.map(|(name, kind)| cell([(name, kind)].into()))
        .collect()
}

fn read(cells: Vec<Cell>) -> Sensitivities {
    Sensitivities::from_map(&map(cells), Confidence::default()).unwrap()
}

fn cost(of: &Sensitivities, tensor: &str, at: &str) -> super::Cost {
    let tensor = of.tensors.iter().find(|of| of.name == tensor).unwrap();
    let cost = tensor.costs.iter().find(|cost| cost.kind == kind(at));
    *cost.unwrap()
}

#[track_caller]
fn assert_near(got: f64, expected: f64) {
    assert!(
        (got / expected - 1.0).abs() < 1e-12,
        "{got}, not {expected}"
    );
}

#[track_caller]
fn assert_kld(of: &Sensitivities, tensor: &str, at: &str) {
    let expected = sensitivity(tensor) * error(kind(at));
    assert_near(cost(of, tensor, at).kld.value, expected);
}

#[test]
fn a_tensor_has_its_bytes_and_its_klds() {
    let of = read(singles());
    for (name, columns, rows, _) in TENSORS {
        let kinds = ERRORS
            .iter()
            .filter(|(name, _)| columns.is_multiple_of(kind(name).block));
        for (at, _) in kinds {
            assert_kld(&of, name, at);
            let expected = columns * rows * kind(at).block_bytes / kind(at).block;
            let bytes = cost(&of, name, at).bytes;
            assert_eq!(bytes, expected.div_ceil(32) * 32, "{name} at {at}");
        }
    }
    let embedding = &of.tensors[0];
    let kinds: Vec<&str> = embedding.costs.iter().map(|cost| cost.kind.name).collect();
    assert_eq!(
        kinds,
        ["q2_K", "q3_K", "q4_K", "q5_0", "q6_K", "q8_0", "f16"]
    );
    assert_eq!(embedding.costs[6].kld, Estimate::within(0.0, 0.0, 0.0));
    let measured: Vec<bool> = embedding
        .costs
        .iter()
        .map(|cost| cost.is_measured)
        .collect();
    assert_eq!(measured, [false, true, false, false, false, false, true]);
    let odd = of.tensors.iter().find(|of| of.role == "odd").unwrap();
    let kinds: Vec<&str> = odd.costs.iter().map(|cost| cost.kind.name).collect();
    assert_eq!((kinds, odd.layer), (vec!["q5_0", "q8_0", "f16"], Some(1)));
    // 250 f32 of 1000 bytes, which are padded in the file and not in the bits.
    assert_eq!(of.fixed_bytes, 4096 + 1024);
    let all = all_at("q4_K");
    let data = |name: &str, kind: &GgmlType| {
        let (_, columns, rows, _) = TENSORS.iter().find(|of| of.0 == name).unwrap();
        kind.bytes(columns * rows).unwrap()
    };
    let data: u64 = all.iter().map(|(name, kind)| data(name, kind)).sum();
    // The odd tensor's 330 bytes are padded to 352.
    assert_eq!(of.size_bytes(&all), of.fixed_bytes + data + 22);
    assert_near(
        of.bpw(&all),
        8.0 * (data + 1000) as f64 / of.n_params as f64,
    );
}

#[test]
fn a_prediction_is_less_sure_than_a_measurement() {
    let of = read(singles());
    let width = |estimate: Estimate| (estimate.hi.unwrap() - estimate.lo.unwrap()) / estimate.value;
    let measured = cost(&of, "token_embd.weight", "q3_K").kld;
    let predicted = cost(&of, "token_embd.weight", "q4_K").kld;
    assert!(width(predicted) > 1.5 * width(measured));
    // The same cell's own interval, whatever is known of additivity.
    for cells in [singles(), [singles(), vec![cell(all_at("q3_K"))]].concat()] {
        let of = read(cells);
        let alone = mixture(&[
            ("token_embd.weight", "q3_K"),
            ("blk.0.attn_q.weight", "f16"),
        ]);
        assert_eq!(of.predict(&alone, 1.0), measured);
    }
    // A mixture that is nearly a measured one is surer than the types of its tensors.
    let of = read([singles(), vec![cell(all_at("q4_K"))]].concat());
    let mut nearly = all_at("q4_K");
    nearly.insert("blk.0.attn_q.weight".to_owned(), kind("q5_0"));
    assert!(width(of.predict(&nearly, 1.0)) < 0.9 * width(predicted));
}

#[test]
fn checks_say_how_sure_predictions_are() {
    let mut cells = singles();
    cells.push(single("token_embd.weight", "q2_K"));
    let good = read(cells.clone());
    let [check] = &good.checks[..] else {
        panic!("{:?}", good.checks)
    };
    assert_near(check.predicted, 0.01 * 0.07);
    assert_near(check.measured.value, check.predicted);
    let far = cell_of(
        mixture(&[("blk.0.attn_q.weight", "q4_K")]),
        8.0 * 0.004 * 4e-3,
    );
    cells.push(far);
    let bad = read(cells);
    assert_eq!(bad.checks.len(), 2);
    let hi = |of: &Sensitivities| cost(of, "blk.1.attn_q.weight", "q4_K").kld.hi.unwrap();
    assert!(hi(&bad) > 1.2 * hi(&good));
    // A measured cell is its own, and its neighbours follow from the nearest.
    assert!(cost(&bad, "blk.0.attn_q.weight", "q4_K").is_measured);
    assert_near(
        cost(&bad, "blk.0.attn_q.weight", "q5_0").kld.value,
        8.0 * 0.004 * 1.6e-3,
    );
    assert_kld(&bad, "blk.0.attn_q.weight", "q2_K");
}

#[test]
fn a_group_is_shared_among_those_not_measured_alone() {
    let group = [
        "blk.0.attn_q.weight",
        "blk.0.ffn_down.weight",
        "blk.1.attn_q.weight",
    ];
    let group = cell(group.map(|name| (name.to_owned(), kind("q3_K"))).into());
    let alone = |with: &[&str]| {
        let cells = singles().into_iter();
        let cells =
            cells.filter(|cell| with.contains(&cell.exchanged.keys().next().unwrap().as_str()));
        cells.collect::<Vec<_>>()
    };
    let rest = [
        "token_embd.weight",
        "blk.1.ffn_down.weight",
        "blk.1.odd.weight",
    ];
    let of = read([alone(&rest), vec![group.clone()]].concat());
    for name in ["blk.0.attn_q.weight", "blk.0.ffn_down.weight"] {
        let share = cost(&of, name, "q3_K");
        assert_near(share.kld.value, 0.02 * (0.004 + 0.05 + 0.006) / 3.0);
        assert!(!share.is_measured);
    }
    let with_one = [&rest[..], &["blk.0.ffn_down.weight"]].concat();
    let of = read([alone(&with_one), vec![group.clone()]].concat());
    assert_kld(&of, "blk.0.ffn_down.weight", "q4_K");
    assert_near(
        cost(&of, "blk.1.attn_q.weight", "q4_K").kld.value,
        4e-3 * 0.005,
    );
    // One that is alone as far as its group leaves a tenth of their shares to the others.
    let mut cells = alone(&rest);
    cells.push(cell_of(
        mixture(&[("blk.0.ffn_down.weight", "q3_K")]),
        0.02 * 0.06,
    ));
    cells.push(group);
    let of = read(cells);
    assert_near(
        cost(&of, "blk.1.attn_q.weight", "q3_K").kld.value,
        0.02 * 0.06 / 30.0,
    );
}

#[test]
fn an_unmeasured_tensor_is_like_its_role() {
    let of = |without: &str| {
        let cells = singles().into_iter();
        read(
            cells
                .filter(|cell| !cell.exchanged.contains_key(without))
                .collect(),
        )
    };
    let like = cost(
        &of("blk.1.ffn_down.weight"),
        "blk.1.ffn_down.weight",
        "q4_K",
    );
    assert_near(like.kld.value, 0.05 * 4e-3);
    assert!(!like.is_measured && like.kld.hi.unwrap() > 5.0 * like.kld.value);
    // The upper median of all where the role has no other.
    let like = cost(&of("token_embd.weight"), "token_embd.weight", "q4_K");
    assert_near(like.kld.value, 0.02 * 4e-3);
    // Without weight errors it keeps its type.
    let mut bare = map(singles());
    bare.errors.remove("blk.1.attn_q.weight");
    bare.cells
        .retain(|cell| !cell.exchanged.contains_key("blk.1.attn_q.weight"));
    let bare = Sensitivities::from_map(&bare, Confidence::default()).unwrap();
    assert_eq!(bare.unknown, ["blk.1.attn_q.weight"]);
    assert_eq!(bare.tensors[3].costs.len(), 1);
    let error = Sensitivities::from_map(&map(vec![cell(Mixture::new())]), Confidence::default());
    assert!(error.unwrap_err().contains("--resume"));
}

/// Rounding errors may leave a KLD below 0.
#[test]
fn a_kld_that_is_lost_is_small_and_not_negative() {
    let mut cells = singles();
    let name = "blk.0.attn_q.weight";
    cells.retain(|cell| !cell.exchanged.contains_key(name));
    cells.push(cell_of(mixture(&[(name, "q3_K")]), -1e-9));
    let of = read(cells);
    assert_eq!(cost(&of, name, "q3_K").kld.value, 0.0);
    assert_near(cost(&of, name, "q2_K").kld.value, 0.01 * 0.006 * 0.07);
}

#[test]
fn a_mixture_is_corrected_by_what_whole_models_show() {
    let types = ["q2_K", "q3_K", "q4_K", "q6_K"];
    let mut cells = singles();
    cells.extend(types.map(|of| cell(all_at(of))));
    let of = read(cells);
    let kinds: Vec<&str> = of.additivity.iter().map(|of| of.kind.name).collect();
    assert_eq!(kinds, ["q6_K", "q4_K", "q3_K", "q2_K"]);
    for whole in &of.additivity {
        assert_near(whole.together.value, together(whole.sum));
    }
    // Halfway between two of them, and beyond all.
    let mut half = all_at("q3_K");
    for name in ["token_embd.weight", "blk.0.ffn_down.weight"] {
        half.insert(name.to_owned(), kind("q2_K"));
    }
    let sum = |mixture: &Mixture| -> f64 {
        let of = mixture.iter();
        of.map(|(name, kind)| sensitivity(name) * error(*kind))
            .sum()
    };
    let [low, high] = ["q3_K", "q2_K"].map(|of| sum(&all_at(of)));
    let slope = (together(high) - together(low)) / (high - low);
    let expected = together(low) + slope * (sum(&half) - low);
    assert_near(of.predict(&half, 1.0).value, expected);
    let few = mixture(&[("token_embd.weight", "q8_0")]);
    let lowest = sum(&all_at("q6_K"));
    assert_near(
        of.predict(&few, 1.0).value,
        together(lowest) / lowest * sum(&few),
    );
    // Without them the sum is all there is.
    assert_near(read(singles()).predict(&half, 1.0).value, sum(&half));
}

/// All mixtures, by brute force.
fn best_of_all(
    of: &Sensitivities,
    is_allowed: impl Fn(&Mixture) -> bool,
) -> Option<(Mixture, f64)> {
    let mut mixtures = vec![Mixture::new()];
    for tensor in &of.tensors {
        let with = |mixture: &Mixture| {
            let kinds = tensor.costs.iter().map(|cost| cost.kind);
            let with = |kind| {
                let mut mixture = mixture.clone();
                mixture.insert(tensor.name.clone(), kind);
                mixture
            };
            kinds.map(with).collect::<Vec<_>>()
        };
        mixtures = mixtures.iter().flat_map(with).collect();
    }
    let allowed = mixtures.into_iter().filter(is_allowed);
    let with_kld = allowed.map(|mixture| {
        let kinds = mixture.iter();
        let kld = kinds
            .map(|(name, kind)| cost(of, name, kind.name).kld.value)
            .sum();
        (mixture, kld)
    });
    with_kld.min_by(|a, b| f64::total_cmp(&a.1, &b.1))
}

#[test]
fn goals_are_met_as_well_as_can_be() {
    let mut cells = singles();
    cells.extend(["q2_K", "q4_K"].map(|of| cell(all_at(of))));
    let of = read(cells);
    let size = of.size_bytes(&all_at("q4_K")) + 700;
    let recipe = solve(&of, Goal::Size(size), &[]).unwrap();
    let (best, kld) = best_of_all(&of, |mixture| of.size_bytes(mixture) <= size).unwrap();
    assert_eq!(recipe.mixture(), best);
    assert_eq!((recipe.size_bytes, recipe.gap), (of.size_bytes(&best), 0.0));
    assert_eq!(
        (recipe.bpw, recipe.kld.predicted),
        (of.bpw(&best), of.predict(&best, recipe.selection))
    );

    // The smallest file that is as good is no larger, and the next better one is not good enough.
    let same = solve(&of, Goal::Kld(recipe.kld.predicted.value), &[]).unwrap();
    let (least, _) = best_of_all(&of, |mixture| of.size_bytes(mixture) < same.size_bytes).unwrap();
    assert!(
        same.size_bytes <= recipe.size_bytes
            && same.kld.predicted.value <= recipe.kld.predicted.value * 1.000_001
    );
    let sum: f64 = least
        .iter()
        .map(|(name, kind)| cost(&of, name, kind.name).kld.value)
        .sum();
    assert!(sum > kld);

    let recipe = solve(&of, Goal::Bpw(3.6), &[]).unwrap();
    let (best, _) = best_of_all(&of, |mixture| of.bpw(mixture) <= 3.6).unwrap();
    assert_eq!(recipe.mixture(), best);
}

#[test]
fn types_are_exactly_those_asked_for() {
    let of = read(singles());
    let types = ["q4_K", "q6_K"].map(kind);
    let recipe = solve(&of, Goal::Bpw(5.0), &types).unwrap();
    for (name, kind) in &recipe.mixture() {
        match name.as_str() {
            // Whole blocks of neither: the nearest with as many bits.
            "blk.1.odd.weight" => assert!(["q5_0", "q8_0"].contains(&kind.name)),
            _ => assert!(types.contains(kind), "{name} {kind}"),
        }
    }
    let error = solve(&of, Goal::Bpw(4.0), &types).unwrap_err();
    let smallest = of.size_bytes(&all_at("q4_K"));
    assert_eq!(
        error,
        format!(
            "no mixture of these types has 4 bits a parameter or less: the smallest file has \
             {smallest} bytes, {:.3} bits a parameter",
            of.bpw(&all_at("q4_K"))
        )
    );
    let error = solve(&of, Goal::Kld(1e-9), &types).unwrap_err();
    let lowest = of.predict(&all_at("q6_K"), 1.0).value;
    assert!(error.contains("the lowest is"), "{error} {lowest}");
    assert_eq!(
        solve(&of, Goal::Kld(0.0), &[]).unwrap().kld.predicted.value,
        0.0
    );
}

#[test]
fn a_held_type_is_kept_and_the_rest_is_the_best() {
    let of = read(singles());
    let goal = Goal::Size(of.size_bytes(&all_at("q4_K")));
    let free = solve(&of, goal, &[]).unwrap();
    for at in ["q8_0", "q2_K"] {
        let held = mixture(&[("token_embd.weight", at)]);
        let recipe = solve_holding(&held, &of, goal, &[]).unwrap();
        assert_eq!(recipe.mixture()["token_embd.weight"], kind(at));
        assert!(recipe.size_bytes <= of.size_bytes(&all_at("q4_K")));
        assert!(recipe.kld.predicted.value > free.kld.predicted.value);
        // No other mixture with that type is nearer: none with one more tensor at the free recipe's type.
        for tensor in &free.tensors {
            let mut other = recipe.mixture();
            other.insert(tensor.name.clone(), tensor.kind);
            let is_other = other["token_embd.weight"] == kind(at) && other != recipe.mixture();
            if is_other && of.size_bytes(&other) <= of.size_bytes(&all_at("q4_K")) {
                let kld = of.predict(&other, recipe.selection).value;
                assert!(kld >= recipe.kld.predicted.value, "{}", tensor.name);
            }
        }
    }
    let cannot = mixture(&[("token_embd.weight", "f16")]);
    let tight = Goal::Size(of.size_bytes(&all_at("q2_K")));
    assert!(solve_holding(&cannot, &of, tight, &[]).is_err());
}

#[test]
fn the_frontier_is_where_recipes_lie() {
    let of = read(singles());
    let points = frontier(&of, &[]);
    assert!(points.is_sorted_by(|a, b| a.size_bytes < b.size_bytes && a.kld > b.kld));
    let (first, last) = (points[0], points[points.len() - 1]);
    assert_eq!(first.size_bytes, of.size_bytes(&all_at("q2_K")));
    assert_eq!(
        (last.kld, last.size_bytes),
        (0.0, of.size_bytes(&Mixture::new()))
    );
    for point in &points {
        let recipe = solve(&of, Goal::Size(point.size_bytes), &[]).unwrap();
        assert_eq!(
            (recipe.size_bytes, recipe.bpw),
            (point.size_bytes, point.bpw)
        );
        assert!((recipe.kld.predicted.value - point.kld).abs() <= 1e-12 * point.kld);
    }
    let thin = thinned(&points, 8);
    assert!((6..=8).contains(&thin.len()), "{}", thin.len());
    assert_eq!((thin[0], thin[thin.len() - 1]), (first, last));
    // A curve that first falls by 14 times within 13 % of the size, and then by 10 while the size doubles.
    let steep = (0..=100)
        .map(|i| f64::from(i) / 100.0)
        .map(|i| (1.0 + 0.13 * i, 14f64.powf(-i)));
    let flat = (1..=100).map(|i| f64::from(i) / 100.0);
    let flat = flat.map(|i| (1.13 + 1.13 * i, 10f64.powf(-i) / 14.0));
    let curve = steep.chain(flat).map(|(size, kld)| super::FrontierPoint {
        size_bytes: (1e6 * size) as u64,
        bpw: size,
        kld,
    });
    let thin = thinned(&Vec::from_iter(curve), 9);
    let n_steep = thin.iter().filter(|point| point.bpw <= 1.13).count();
    assert_eq!((thin.len(), n_steep), (9, 4));
    let falls = thin.windows(2).map(|two| two[0].kld / two[1].kld);
    assert!(
        falls.clone().all(|fall| fall < 3.0),
        "{:?}",
        Vec::from_iter(falls)
    );
    assert_eq!(thinned(&[], 8), []);
    assert_eq!(thinned(&[first], 8), [first]);
}

#[test]
fn what_is_of_no_tensor_is_left_out() {
    let mut strange = singles();
    strange.push(cell_of(mixture(&[("other.weight", "q2_K")]), 1.0));
    strange.push(Cell::default());
    let mut map = map(strange);
    map.errors.insert(
        "other.weight".to_owned(),
        BTreeMap::from([(kind("q2_K"), f64::NAN)]),
    );
    let of = Sensitivities::from_map(&map, Confidence::default()).unwrap();
    assert_kld(&of, "token_embd.weight", "q4_K");
}

/// What rounding activations costs is added to weight errors: a role that was exchanged whole at a type
/// of many bits shows it, for types with blocks of that size alone.
#[test]
fn roles_show_what_rounding_activations_costs() {
    let roles = ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"];
    let role = mixture(&roles.map(|name| (name, "q6_K")));
    let slope: f64 = roles.map(sensitivity).iter().sum();
    let rounding = 1e-3;
    let with_role = cell_of(role, slope * (error(kind("q6_K")) + rounding));
    let (before, after) = (read(singles()), read([singles(), vec![with_role]].concat()));
    for name in roles {
        let of = sensitivity(name);
        // The tensor was measured at q3_K, to which rounding adds as much.
        let own = error(kind("q3_K"));
        let expected = of * own * (error(kind("q6_K")) + rounding) / (own + rounding);
        assert_near(cost(&after, name, "q6_K").kld.value, expected);
        assert_near(cost(&after, name, "q3_K").kld.value, of * own);
        let of_q8_0 = of * own * error(kind("q8_0")) / (own + rounding);
        assert_near(cost(&after, name, "q8_0").kld.value, of_q8_0);
    }
    let other = "blk.0.attn_q.weight";
    let of_other = |of: &Sensitivities| cost(of, other, "q6_K").kld.value;
    assert_near(of_other(&after), of_other(&before));
}

#[test]
fn a_role_has_no_layer_in_it() {
    for (name, role, layer) in [
        ("blk.3.attn_v.weight", "attn_v", Some(3)),
        ("blk.12.ffn_down_exps.weight", "ffn_down_exps", Some(12)),
        ("blk.0.ffn_up.7.weight", "ffn_up.7", Some(0)),
        ("dec.blk.1.attn_q.weight", "dec.attn_q", Some(1)),
        ("output.weight", "output", None),
        ("blk.x.attn_q.weight", "blk.x.attn_q", None),
    ] {
        assert_eq!(role_and_layer(name), (role.to_owned(), layer));
    }
}
