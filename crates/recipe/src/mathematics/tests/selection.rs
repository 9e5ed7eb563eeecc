//! A choice among equal tensors, whose measured KLDs differ by chance.

use kl_formats::MapTensor;

use super::*;

/// Tensors that are alike, each measured on two windows that differ by 30 % from their mean.
fn alike(n: usize, difference: f64) -> SensitivityMap {
    let mut map = map(Vec::new());
    let names: Vec<String> = (0..n).map(|i| format!("blk.{i}.attn_q.weight")).collect();
    let tensor = |name: &String| MapTensor {
        name: name.clone(),
        shape: vec![256, 256],
        kind: kind("f16"),
        is_quantizable: true,
        unmeasured: None,
    };
    map.header.tensors = names.iter().map(tensor).collect();
    map.errors.clear();
    for name in names {
        map.errors
            .insert(name.clone(), [(kind("q3_K"), 0.02)].into());
        map.cells.push(Cell {
            exchanged: [(name, kind("q3_K"))].into(),
            from: 0,
            klds: vec![1.0 - difference, 1.0 + difference],
            n_tokens: vec![100, 100],
        });
    }
    map
}

/// Of log-normal errors with mean 1, those in the lower half have the mean `2 Φ(−σ)`.
#[test]
fn what_is_chosen_by_its_errors_is_corrected() {
    for (difference, expected) in [(0.3, PINNED_FACTOR), (0.0, 1.0)] {
        let of = Sensitivities::from_map(&alike(128, difference), Confidence::default()).unwrap();
        let bytes = |of_one: &super::super::Cost| of_one.bytes;
        let costs = &of.tensors[0].costs;
        let half = of.fixed_bytes + 64 * costs.iter().map(bytes).sum::<u64>();
        let recipe = solve(&of, Goal::Size(half), &[]).unwrap();
        let off = recipe.selection / expected - 1.0;
        assert!(off.abs() < 0.01, "{}, not {expected}", recipe.selection);
        assert_near(recipe.kld.predicted.value, recipe.selection * 64.0 * 0.01);
        let frontier = frontier(&of, &[]);
        let same = frontier.iter().find(|at| at.size_bytes == half).unwrap();
        assert_near(same.kld, recipe.kld.predicted.value);
    }
}

/// `0.5 / norm.cdf(-0.3)`
const PINNED_FACTOR: f64 = 1.308_597_087;
