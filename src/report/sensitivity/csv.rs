//! A map as CSV: a row for each tensor and type.

use super::{Sensitivity, TensorSensitivity};
use crate::recipe::Cost;
use crate::report::table::csv_text;

/// The columns. Their names and their order are stable; new ones are added at the end.
const COLUMNS: [&str; 10] = [
    "tensor",
    "role",
    "layer",
    "n_params",
    "type",
    "bytes",
    "kld",
    "kld_lo",
    "kld_hi",
    "is_measured",
];

impl Sensitivity {
    /// The tensors at each type as CSV (RFC 4180, but with line feeds alone), after a line with the
    /// names of the columns. What is not known is empty.
    pub fn csv(&self) -> String {
        let mut csv = COLUMNS.join(",") + "\n";
        for tensor in &self.tensors {
            for cost in &tensor.tensor.costs {
                csv.push_str(&row(tensor, cost).join(","));
                csv.push('\n');
            }
        }
        csv
    }
}

fn row(
    TensorSensitivity { tensor, .. }: &TensorSensitivity,
    cost: &Cost,
) -> [String; COLUMNS.len()] {
    let number = |value: Option<f64>| {
        let finite = value.filter(|value| value.is_finite());
        finite.map(|value| value.to_string()).unwrap_or_default()
    };
    [
        csv_text(&tensor.name),
        csv_text(&tensor.role),
        tensor
            .layer
            .map(|layer| layer.to_string())
            .unwrap_or_default(),
        tensor.n_params.to_string(),
        cost.kind.to_string(),
        cost.bytes.to_string(),
        number(Some(cost.kld.value)),
        number(cost.kld.lo),
        number(cost.kld.hi),
        cost.is_measured.to_string(),
    ]
}
