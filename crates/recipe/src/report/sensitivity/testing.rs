//! Maps built by hand, which are the same on every machine: for the tests of every output.

use kl_formats::{Cell, GgmlType, MapHeader, Mixture, SensitivityMap};
use kl_report::testing::made_up;
use kl_stats::stats::{Confidence, Estimate};
use serde_json::{Value, json};

use super::Sensitivity;
use crate::mathematics::{Additivity, CheckedPrediction, Cost, Sensitivities, TensorCosts};

/// Types by their bits, and about how many times as far each moves a tensor as q3_K does.
const TYPES: [(&str, f64); 6] = [
    ("q2_K", 3.0),
    ("q3_K", 1.0),
    ("q4_K", 0.25),
    ("q5_K", 0.0625),
    ("q6_K", 0.015625),
    ("q8_0", 0.0009765625),
];

/// A role: its name, the rows and columns of its tensors, and its KLD at q3_K in 1e-6 nats.
type Role = (&'static str, u64, u64, f64);

pub fn kind(name: &str) -> GgmlType {
    name.parse().unwrap()
}

/// The 22 matrices of a small model of three layers.
pub fn small() -> Sensitivity {
    let roles: [Role; 7] = [
        ("attn_q", 256, 256, 40.0),
        ("attn_k", 256, 128, 34.0),
        ("attn_v", 256, 128, 310.0),
        ("attn_output", 256, 256, 95.0),
        ("ffn_gate", 256, 768, 160.0),
        ("ffn_up", 256, 768, 180.0),
        ("ffn_down", 768, 256, 420.0),
    ];
    let mut tensors = vec![tensor("token_embd.weight", 256, 512, 150.0)];
    for layer in 0..3 {
        tensors.extend(layer_of(&roles, layer, 3));
    }
    of("tiny-f16.gguf", tensors)
}

/// A mixture of experts of 61 layers and nearly 1,000 tensors.
pub fn experts() -> Sensitivity {
    let attention: [Role; 10] = [
        ("attn_kv_a_mqa", 7168, 576, 90.0),
        ("attn_k_b", 128, 65_536, 14.0),
        ("attn_kv_b", 512, 32_768, 16.0),
        ("attn_output", 16_384, 7168, 120.0),
        ("attn_q_a", 7168, 1536, 25.0),
        ("attn_q_b", 1536, 24_576, 22.0),
        ("attn_v_b", 512, 16_384, 130.0),
        ("indexer.attn_k", 7168, 128, 1.0),
        ("indexer.attn_q_b", 1536, 8192, 0.6),
        ("indexer.proj", 7168, 64, 0.3),
    ];
    let dense: [Role; 3] = [
        ("ffn_gate", 7168, 18_432, 60.0),
        ("ffn_up", 7168, 18_432, 75.0),
        ("ffn_down", 18_432, 7168, 240.0),
    ];
    let sparse: [Role; 6] = [
        ("ffn_gate_exps", 7168, 2048 * 256, 210.0),
        ("ffn_up_exps", 7168, 2048 * 256, 230.0),
        ("ffn_down_exps", 2048, 7168 * 256, 520.0),
        ("ffn_gate_shexp", 7168, 2048, 30.0),
        ("ffn_up_shexp", 7168, 2048, 34.0),
        ("ffn_down_shexp", 2048, 7168, 140.0),
    ];
    let mut tensors = vec![
        tensor("token_embd.weight", 7168, 129_280, 180.0),
        tensor("output.weight", 7168, 129_280, 900.0),
    ];
    for layer in 0..61 {
        tensors.extend(layer_of(&attention, layer, 61));
        let ffn = if layer < 3 { &dense[..] } else { &sparse };
        tensors.extend(layer_of(ffn, layer, 61));
    }
    of("DeepSeek-V3-BF16-00001-of-00030.gguf", tensors)
}

/// The tensors of a layer: the first and the last layers hurt most.
fn layer_of(roles: &[Role], layer: u32, n: u32) -> Vec<TensorCosts> {
    let depth = f64::from(layer) / f64::from(n - 1);
    let roles = roles.iter().enumerate();
    let tensors = roles.map(|(i, &(role, rows, columns, kld))| {
        let ends = 0.5 + 2.0 * (depth - 0.45).powi(2) + 1.5 * (-f64::from(layer)).exp();
        let noise = f64::from((layer * 37 + i as u32 * 61) % 101) / 101.0;
        let name = format!("blk.{layer}.{role}.weight");
        tensor(&name, rows, columns, kld * ends * (0.6 + 0.8 * noise))
    });
    tensors.collect()
}

/// A tensor whose KLD at q3_K is `kld` 1e-6 nats.
fn tensor(name: &str, rows: u64, columns: u64, kld: f64) -> TensorCosts {
    let n_params = rows * columns;
    let bare = name.strip_suffix(".weight").unwrap();
    let in_layer = bare.strip_prefix("blk.").and_then(|of| of.split_once('.'));
    let costs = TYPES.iter().map(|&(name, times)| {
        let kld = kld * 1e-6 * times;
        Cost {
            kind: kind(name),
            bytes: kind(name).bytes(n_params).unwrap(),
            kld: Estimate::within(kld, 0.75 * kld, 1.375 * kld),
            is_measured: name == "q3_K",
        }
    });
    let original = Cost {
        kind: kind("f16"),
        bytes: 2 * n_params,
        kld: Estimate::point(0.0),
        is_measured: true,
    };
    TensorCosts {
        name: name.to_owned(),
        role: in_layer.map_or(bare, |(_, role)| role).to_owned(),
        layer: in_layer.map(|(layer, _)| layer.parse().unwrap()),
        n_params,
        costs: costs.chain([original]).collect(),
    }
}

/// The header of a map of eight windows, without tensors.
pub fn header(file: &str, n_params: u64) -> MapHeader {
    let size = 2 * n_params;
    let header = json!({
        "kl_map": 1, "n_ctx": 128, "n_vocab": 512, "first_scored": 1, "seed": 1,
        "model": {
            "file_name": file, "name": "made up", "architecture": "llama", "size_bytes": size,
            "n_params": n_params, "file_bytes": size + 4096, "metadata_sha256": "00ff",
        },
        "model_path": format!("models/{file}"),
        "text": {"name": "stories.txt", "bytes": 40960, "sha256": "00ff", "n_tokens": 10000},
        "backend": made_up::reference().backend,
        "windows": (0..8).map(|i| json!({"window": 7 * i, "n_rows": 127})).collect::<Vec<Value>>(),
        "measured_type": "q3_K",
        "types": ["q8_0", "q6_K", "q5_K", "q4_K", "q3_K", "q2_K"],
        "metadata_bytes": 4096, "alignment": 32, "tensors": [],
    });
    serde_json::from_value(header).unwrap()
}

/// A cell of two windows, with its mean KLD.
fn cell(exchanged: Mixture, kld: f64) -> Cell {
    Cell {
        exchanged,
        from: 0,
        klds: vec![kld * 127.0; 2],
        n_tokens: vec![127; 2],
    }
}

fn of(file: &str, mut tensors: Vec<TensorCosts>) -> Sensitivity {
    // Too small to matter: it follows from its group.
    let in_groups = tensors.iter_mut();
    for of in in_groups.filter(|of| ["attn_k", "indexer.proj"].contains(&&*of.role)) {
        let mut costs = of.costs.iter_mut();
        costs
            .find(|cost| cost.kind == kind("q3_K"))
            .unwrap()
            .is_measured = false;
    }
    let n_params: u64 = tensors.iter().map(|tensor| tensor.n_params).sum();
    let mut cells = vec![cell(Mixture::new(), 0.0)];
    let alone = |of: &TensorCosts| Mixture::from([(of.name.clone(), kind("q3_K"))]);
    cells.extend(tensors.iter().map(|of| cell(alone(of), 1e-4)));
    let kld_at = |of: &TensorCosts, name: &str| of.at(kind(name)).unwrap().kld.value;
    let additivity = [
        ("q2_K", 1.1875),
        ("q3_K", 1.125),
        ("q4_K", 0.96875),
        ("q6_K", 1.03125),
    ];
    let additivity = additivity.map(|(name, times)| {
        let sum = tensors.iter().map(|of| kld_at(of, name)).sum();
        let together = times * sum;
        Additivity {
            kind: kind(name),
            together: Estimate::within(together, 0.9 * together, 1.125 * together),
            sum,
        }
    });
    let checks = [(3, "q2_K", 1.25), (9, "q5_K", 0.875), (14, "q2_K", 1.0625)];
    let checks = checks.map(|(i, name, times)| {
        let predicted = kld_at(&tensors[i], name);
        let measured = times * predicted;
        CheckedPrediction {
            tensor: tensors[i].name.clone(),
            kind: kind(name),
            predicted,
            measured: Estimate::within(measured, measured * 0.875, measured * 1.1875),
        }
    });
    let map = SensitivityMap {
        header: header(file, n_params),
        errors: Default::default(),
        cells,
        is_cut_off: false,
    };
    let of = Sensitivities::made_up(tensors, 4096, additivity.to_vec(), checks.to_vec());
    let confidence = Confidence::default();
    let mut of = Sensitivity::new(&map, of, confidence, Some(83.0), Vec::new());
    of.versions = made_up::VERSIONS;
    of
}
