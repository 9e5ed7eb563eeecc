use kl_formats::{Cell, Mixture, SensitivityMap};
use kl_report::json_text;
use kl_report::layout::WIDTH;
use kl_report::testing::schema;
use kl_stats::stats::Estimate;

use super::{Sensitivity, compared, compared_type, doubts, testing as sample};
use crate::mathematics::TensorCosts;

#[test]
fn the_json_is_as_its_schema_states() {
    let of = sample::small();
    let json = json_text(&of).unwrap();
    schema::check::<Sensitivity>(&json);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let tensor = &json["tensors"][3];
    assert_eq!(tensor["name"], "blk.0.attn_v.weight");
    assert_eq!(
        (&tensor["role"], &tensor["type"]),
        (&"attn_v".into(), &"q3_K".into())
    );
    assert!(tensor["layer"] == 0 && tensor["is_measured"] == true);
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
        let (parts, tensors) = (|| of.by_role.iter().map(|role| &role.part), &of.tensors);
        let n_tensors: u64 = parts().map(|part| part.n_tensors).sum();
        assert_eq!(
            (n_tensors, of.whole.n_tensors),
            (tensors.len() as u64, n_tensors)
        );
        let is = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} {b}");
        is(parts().filter_map(|part| part.share).sum(), 1.0);
        is(tensors.iter().filter_map(|tensor| tensor.share).sum(), 1.0);
        is(parts().map(|part| part.kld.value).sum(), of.whole.kld.value);
        let weighed = parts().map(|part| part.relative_cost.unwrap() * part.bytes_saved as f64);
        is(weighed.sum(), of.whole.bytes_saved as f64);
        let without = tensors.iter().filter(|of| of.tensor.layer.is_none());
        let without: f64 = without.filter_map(|tensor| tensor.share).sum();
        let in_layers = of.by_layer.iter().filter_map(|of| of.part.share);
        is(in_layers.sum(), 1.0 - without);
    }
}

/// Where q3_K does not fit a tensor's rows, it is compared at the nearest type; of equals at a measured one.
#[test]
fn a_tensor_without_the_type_is_compared_at_another() {
    let mut tensor = sample::small().tensors.remove(0).tensor;
    let measured = sample::kind("q3_K");
    let at = |tensor: &TensorCosts| Some(compared(tensor, measured)?.kind);
    assert_eq!(at(&tensor), Some(measured));
    tensor.costs.retain(|cost| cost.kind != measured);
    assert_eq!(at(&tensor), Some(sample::kind("q2_K")));
    tensor.costs[3].is_measured = true;
    assert_eq!(at(&tensor), Some(sample::kind("q2_K")));
    let n = tensor.costs.len();
    tensor.costs.drain(..n - 1);
    assert_eq!(at(&tensor), None, "only the original's type is left");
}

/// Roles at different types cannot be compared: one tensor whose rows q3_K does not fit moves all of them.
#[test]
fn all_tensors_are_compared_at_one_type() {
    let mut tensors = Vec::from_iter(sample::small().tensors.into_iter().map(|of| of.tensor));
    let measured = sample::kind("q3_K");
    assert_eq!(compared_type(&tensors, measured), Some(measured));
    tensors[2].costs.retain(|cost| cost.kind != measured);
    let q2 = sample::kind("q2_K");
    assert_eq!(compared_type(&tensors, measured), Some(q2));
    tensors[4].costs.retain(|cost| cost.kind != q2);
    let found = compared_type(&tensors, measured).unwrap();
    assert!(
        found.bits() > 4.0 && tensors.iter().all(|of| of.at(found).is_some()),
        "{found}"
    );
    // A tensor that keeps its own type is not compared at all.
    let n = tensors[0].costs.len();
    tensors[0].costs.drain(..n - 1);
    assert_eq!(compared_type(&tensors, measured), Some(found));
    assert_eq!(compared_type(&tensors[..1], measured), None);
}

#[test]
fn where_sums_stop_holding_is_said() {
    let mut of = sample::small();
    of.additivity.sort_by(|a, b| a.sum.total_cmp(&b.sum));
    let says = |of: &Sensitivity, line: &str| {
        let text = of.text("map.jsonl", WIDTH);
        check_width(&text);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(line), "{text}");
    };
    assert!(!of.text("map.jsonl", WIDTH).contains("Sums"));
    let mut at = |name: &str, times: f64| {
        let mut of_all = of.additivity.iter_mut();
        let all = of_all.find(|all| all.kind == sample::kind(name)).unwrap();
        all.together.value = times * all.sum;
        of.clone()
    };
    let kld = |of: &Sensitivity| {
        let last = of
            .additivity
            .iter()
            .find(|all| all.kind == sample::kind("q3_K"));
        kl_report::number::short_kld(last.unwrap().together.value)
    };
    let too_low = at("q2_K", 1.875);
    let line = format!(
        "Sums hold to a quarter up to q3_K ({} nats); from q2_K on",
        kld(&too_low)
    );
    says(&too_low, &line);
    says(&too_low, "they are off by factors of up to 1.88.");
    // Too high by more, for the smallest of them.
    says(
        &at("q6_K", 0.25),
        "Sums are off from q6_K on, by factors of up to 4.00.",
    );
}

/// No line is wider than the terminal, but for a path.
#[track_caller]
fn check_width(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn text_of_a_small_model() {
    let text = sample::small().text("map.jsonl", WIDTH);
    check_width(&text);
    insta::assert_snapshot!(text);
    assert!(text.contains("kl recipe map.jsonl --bpw 4.5 "));
}

#[test]
fn the_next_command_names_a_size_that_the_map_reaches() {
    let mut of = sample::small();
    of.fewest_bits = 7.009;
    let text = of.text("my map.jsonl", WIDTH);
    let command = "kl recipe 'my map.jsonl' --bpw 7.5 ";
    assert!(text.contains(command), "{text}");
}

#[test]
fn text_of_a_mixture_of_experts() {
    let text = sample::experts().text("map.jsonl", WIDTH);
    check_width(&text);
    insta::assert_snapshot!(text);
}

/// Names of any length, and numbers that are missing.
#[test]
fn the_text_fits_whatever_a_map_holds() {
    let mut of = sample::small();
    for tensor in &mut of.tensors {
        tensor.tensor.name = format!("{}\u{202e}{}", "long".repeat(20), tensor.tensor.name);
        (tensor.share, tensor.relative_cost) = (None, Some(f64::NAN));
        tensor.at.kld = Estimate::point(f64::NAN);
    }
    for role in &mut of.by_role {
        role.role = format!("{}{}", "role".repeat(20), role.role);
    }
    for check in &mut of.checks {
        check.tensor = format!("{}{}", "long".repeat(20), check.tensor);
        check.predicted = 0.0;
    }
    for layer in &mut of.by_layer {
        layer.part.kld = Estimate::point(0.0);
    }
    let text = of.text("map.jsonl", WIDTH);
    let (_, tables) = text.split_once("\nBy role\n").unwrap();
    check_width(tables);
    let has = ["\u{202e}", "NaN"].map(|odd| text.contains(odd));
    assert_eq!(has, [false; 2], "{text}");
    of.tensors.clear();
    of.by_role.clear();
    of.by_layer.clear();
    of.additivity.clear();
    of.checks.clear();
    let text = of.text("map.jsonl", WIDTH);
    let has = ["By layer", "together"].map(|title| text.contains(title));
    assert_eq!(has, [false; 2], "{text}");
}

#[test]
fn sentences_name_what_is_far_from_the_average() {
    let mut of = sample::small();
    assert_eq!(of.sentences().len(), 2);
    for role in &mut of.by_role {
        role.part.relative_cost = role.part.relative_cost.map(|cost| cost.min(1.25));
    }
    let sentences = of.sentences();
    assert_eq!(sentences.len(), 1);
    let start = "A byte saved costs least in attn_q (0.33 times the average), token_embd (0.47)";
    assert!(sentences[0].starts_with(start), "{sentences:?}");
    for role in &mut of.by_role {
        role.part.relative_cost = role.part.relative_cost.map(|_| 1.0);
    }
    assert!(of.sentences().is_empty());
}

#[test]
fn the_csv_has_a_row_for_each_tensor_and_type() {
    let mut of = sample::small();
    of.tensors[1].tensor.name = "=a,b".to_owned();
    let csv = of.csv();
    assert_eq!(csv.lines().count(), 1 + 22 * 7);
    insta::assert_snapshot!(Vec::from_iter(csv.lines().take(10)).join("\n"));
}

fn cell(names: &[&str], n_tokens: &[u32]) -> Cell {
    let typed = names
        .iter()
        .map(|name| (format!("{name}.weight"), sample::kind("q2_K")));
    Cell {
        exchanged: typed.collect::<Mixture>(),
        from: 0,
        klds: vec![0.5; n_tokens.len()],
        n_tokens: n_tokens.to_vec(),
    }
}

#[test]
fn cells_that_lost_tokens_and_few_windows_are_doubted() {
    let mut map = SensitivityMap {
        header: sample::header("a.gguf", 1000),
        errors: Default::default(),
        // The original has no finite row at one token of the second window.
        cells: vec![
            cell(&[], &[127, 126]),
            cell(&["one"], &[127, 126]),
            cell(&["two"], &[127]),
        ],
        is_cut_off: false,
    };
    assert_eq!(doubts(&map), []);
    map.cells.push(cell(&["one", "three", "two"], &[0, 0]));
    map.cells.push(cell(&["four"], &[127, 120]));
    map.cells.push(cell(&["three"], &[120, 113]));
    map.header.windows.truncate(7);
    let messages: Vec<String> = doubts(&map).iter().map(ToString::to_string).collect();
    assert!(messages[0].contains("rest on 7 windows"), "{messages:?}");
    let expected = "three.weight at q2_K: 20 of 253 tokens have no finite KLD and are left out, \
                    as in 2 more cells: it may hurt much more than it seems to; keep kl recipe \
                    from it with --types";
    assert_eq!(messages[1..], [expected]);
    map.cells.truncate(4);
    let messages: Vec<String> = doubts(&map).iter().map(ToString::to_string).collect();
    let expected = "one.weight and 2 more at q2_K: 253 of 253 tokens";
    assert!(messages[1].starts_with(expected), "{messages:?}");
}
