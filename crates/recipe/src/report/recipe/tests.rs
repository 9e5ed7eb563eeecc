use kl_formats::{GgmlType, Mixture};
use kl_report::json_text;
use kl_report::testing::schema;
use kl_stats::stats::ClusterKind;

use super::*;
use crate::mathematics::Recipe;
use crate::report::sensitivity::{Sensitivity, testing as sample};

/// A recipe for the tensors of a made-up map: types in turn by role.
pub fn report(of: &Sensitivity) -> RecipeReport {
    let types = ["q3_K", "q4_K", "q6_K"].map(sample::kind);
    let tensors = of.tensors.iter().enumerate().map(|(i, tensor)| {
        let tensor = &tensor.tensor;
        let kind = match tensor.role.as_str() {
            "attn_v" => types[1 + i % 2],
            role => types[role.len() % 3],
        };
        let cost = tensor.at(kind).unwrap();
        RecipeTensor {
            name: tensor.name.clone(),
            kind,
            bytes: cost.bytes,
            kld: cost.kld.value,
            role: tensor.role.clone(),
            n_params: tensor.n_params,
        }
    });
    let tensors: Vec<RecipeTensor> = tensors.collect();
    let size_bytes: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
    let n_params: u64 = tensors.iter().map(|tensor| tensor.n_params).sum();
    let point = |i: u32| {
        let bytes = size_bytes / 2 + u64::from(i) * size_bytes / 64;
        FrontierPoint {
            size_bytes: bytes,
            bpw: 8.0 * bytes as f64 / n_params as f64,
            kld: 0.125 / f64::from(1 + i),
        }
    };
    let words = "llama-quantize --tensor-type-file recipe.txt --output-tensor-type q6_K f16.gguf mine.gguf Q4_K_M";
    let model = ModelIdentity::named(of.model.path.trim_start_matches("models/"));
    RecipeReport {
        versions: Versions::default(),
        map_path: "map.jsonl".to_owned(),
        model: Some(model),
        recipe: Recipe {
            size_bytes,
            bpw: 8.0 * size_bytes as f64 / n_params as f64,
            kld: RecipeKld {
                predicted: Estimate::within(0.004, 0.0035, 0.0045),
                measured: None,
            },
            gap: 0.0,
            tensors,
            unmeasured: Vec::new(),
            selection: 1.0,
        },
        frontier: (0..300).map(point).collect(),
        command: words.split(' ').map(str::to_owned).collect(),
        check: None,
        types_path: None,
        quantized_path: None,
        warnings: Vec::new(),
    }
}

/// The same, measured.
pub fn measured() -> RecipeReport {
    let mut report = report(&sample::small());
    let ratio = Ratio {
        value: 0.875,
        se_ln: Some(0.03125),
        lo: Some(0.8125),
        hi: Some(0.9375),
        upper: Some(0.9296875),
        p: Some(0.001),
    };
    let before = RecipeKld {
        predicted: report.recipe.kld.predicted,
        measured: Some(Estimate::within(0.0056, 0.005, 0.00625)),
    };
    let after = RecipeKld {
        predicted: Estimate::within(0.0042, 0.00375, 0.00475),
        measured: Some(Estimate::within(0.0049, 0.00425, 0.0055)),
    };
    let at = |kind: GgmlType| Mixture::from([("blk.0.attn_q.weight".to_owned(), kind)]);
    report.recipe.kld = after;
    report.recipe.gap = 0.0001;
    report.types_path = Some("recipe.txt".to_owned());
    report.check = Some(RecipeCheck {
        text_path: "other.txt".to_owned(),
        n_tokens: 12_775,
        n_windows: 25,
        clusters: Clustering {
            n: 25,
            kind: ClusterKind::Window,
            windows_per_block: 1,
            ..Clustering::default()
        },
        control: 0.0,
        second_round: Some(SecondRound {
            n_cells: 45,
            n_tokens: 45 * 1022,
            before,
            after,
            kept_back: KeptBackKld {
                before: 0.0075,
                after: 0.00625,
            },
            ratio: Some(ratio),
            is_used: true,
            changed: ChangedType::of_each(&at(sample::kind("q3_K")), &at(sample::kind("q4_K"))),
        }),
        like: Some(LikeCheck {
            path: "q4_K_M.gguf".to_owned(),
            size_bytes: 2_345_678,
            kld: Estimate::within(0.0056, 0.005, 0.00625),
            ratio: Some(ratio),
            made_with: Some("imatrix.gguf".to_owned()),
            at_equal_embedding: Some(EqualEmbedding {
                changed: vec![ChangedType {
                    name: "token_embd.weight".to_owned(),
                    from: sample::kind("q4_K"),
                    to: sample::kind("q8_0"),
                }],
                size_bytes: 2_445_678,
                ratio: Some(ratio),
            }),
            predicted_ratio: Some(Estimate::within(0.75, 0.625, 0.9)),
        }),
    });
    report
}

#[test]
fn a_recipe_fits_80_columns() {
    for (name, of) in [
        ("recipe", report(&sample::small())),
        ("recipe_of_experts", report(&sample::experts())),
        ("recipe_measured", measured()),
    ] {
        let text = recipe_text(&of);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
        insta::assert_snapshot!(name, text);
    }
}

#[test]
fn the_json_is_as_its_schema_states() {
    for of in [report(&sample::small()), measured()] {
        let json = json_text(&of).unwrap();
        schema::check::<RecipeReport>(&json);
    }
    let json: serde_json::Value = serde_json::to_value(measured()).unwrap();
    assert_eq!(json["kld"]["measured"]["value"], 0.0049);
    assert_eq!(json["tensors"][0]["type"], "q4_K");
    assert_eq!(json["check"]["second_round"]["changed"][0]["to"], "q4_K");
}

/// Nothing is advised that was done, and a second round that changed nothing has no ratio.
#[test]
fn what_did_not_happen_has_no_lines() {
    let mut of = measured();
    let text = recipe_text(&of);
    assert!(text.contains("after/before") && !text.contains("the best that is predicted"));
    let round = of.check.as_mut().unwrap().second_round.as_mut().unwrap();
    round.changed.clear();
    round.is_used = false;
    of.quantized_path = Some("mine.gguf".to_owned());
    let text = recipe_text(&of);
    assert!(text.contains("no better one was found") && !text.contains("after/before"));
    assert!(text.contains("the best that is predicted"));
    of.types_path = None;
    let text = recipe_text(&of);
    assert!(text.contains("kl -m OUT.gguf -r REF") && !text.contains("--quantize OUT.gguf"));
    assert!(text.contains("-w recipe.txt does"));
}
