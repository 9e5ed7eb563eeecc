//! A map in the columns of Thireus's `kld_results.csv`, from which the GGUF Tool Suite makes recipes.
//!
//! The first column is `QTYPE`, a type's name in ggml's spelling. The others are the tensors, with the
//! KLD of each alone at that type. Its reader, `quant_assign.py`, reads the table with pandas; an empty
//! cell is a tensor without a measurement. It uses one row, by default the first of those with the
//! smallest number in their names.

use std::collections::BTreeSet;

use kl_formats::GgmlType;

use super::{Sensitivity, TensorSensitivity};
use crate::report::comparison::csv_text;

impl Sensitivity {
    /// The table, with a row for each type that a recipe may use and some tensor can have. The type
    /// at which tensors are compared comes first, then the others by rising bits.
    pub fn kld_results(&self) -> String {
        let names = self.tensors.iter().map(|of| csv_text(&of.tensor.name));
        let header = ["QTYPE".to_owned()].into_iter().chain(names);
        let mut table = Vec::from_iter(header).join(",") + "\n";
        for kind in self.kinds() {
            let cells = self.tensors.iter().map(|of| cell(of, kind));
            let row = [kind.to_string()].into_iter().chain(cells);
            table.push_str(&(Vec::from_iter(row).join(",") + "\n"));
        }
        table
    }

    /// The types of some tensor besides the original's own.
    fn kinds(&self) -> Vec<GgmlType> {
        let tensors = self.tensors.iter().map(|of| of.tensor.costs.as_slice());
        let costs = tensors
            .filter_map(|costs| Some(costs.split_last()?.1))
            .flatten();
        let kinds: BTreeSet<GgmlType> = costs.map(|cost| cost.kind).collect();
        let mut kinds: Vec<GgmlType> = kinds.into_iter().collect();
        let measured = self.measured_type;
        let is_other = |kind: GgmlType| kind != measured;
        kinds.sort_by(|a, b| {
            let by_bits = a.bits().total_cmp(&b.bits());
            is_other(*a).cmp(&is_other(*b)).then(by_bits)
        });
        kinds
    }
}

/// Decimals of a KLD, as in the tables that its author publishes.
const DECIMALS: usize = 6;

/// The KLD at a type, empty where the tensor cannot have it. One too small for six decimals has four
/// significant digits, since the reader compares tensors by these numbers.
fn cell(of: &TensorSensitivity, kind: GgmlType) -> String {
    let mut costs = of.tensor.costs.iter();
    let kld = costs
        .find(|cost| cost.kind == kind)
        .map(|cost| cost.kld.value);
    let Some(kld) = kld.filter(|kld| kld.is_finite()) else {
        return String::new();
    };
    let kld = kld.max(0.0);
    let is_small = kld > 0.0 && kld < 1e-3;
    let decimals = match is_small {
        true => (3 - kld.log10().floor() as i64).max(DECIMALS as i64) as usize,
        false => DECIMALS,
    };
    format!("{kld:.decimals$}")
}
