//! The order of what a map of sensitivity holds, however it was measured.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use kl_formats::{Cell, GgmlType, MapHeader, MapWriter, Mixture, SensitivityMap};

/// Writes the map of all that these hold, in an order that does not depend on how it was measured: the
/// weight errors in the order of the tensors, then the cells, by the number of tensors that they exchange,
/// and those by their order.
pub fn write_in_order(
    header: MapHeader,
    maps: &[&SensitivityMap],
    out: &mut impl Write,
    path: &Path,
) -> Result<SensitivityMap> {
    let mut writer = MapWriter::create(out, path, header.clone())?;
    for tensor in &header.tensors {
        let errors = errors_of(&tensor.name, maps);
        if !errors.is_empty() {
            writer.write_errors(&tensor.name, &errors)?;
        }
    }
    for cell in cells(&header, maps) {
        writer.write_cell(cell)?;
    }
    Ok(writer.finish()?.1)
}

/// The weight errors of a tensor. Of one that several parts state, the first's is used.
fn errors_of(tensor: &str, maps: &[&SensitivityMap]) -> BTreeMap<GgmlType, f64> {
    let all = maps.iter().rev().filter_map(|map| map.errors.get(tensor));
    all.flatten().map(|(&kind, &error)| (kind, error)).collect()
}

/// The cells of all parts in their order. Of one that several parts hold, such as the control, the one
/// of the most windows is used, and the first among equals.
fn cells<'m>(header: &MapHeader, maps: &[&'m SensitivityMap]) -> Vec<&'m Cell> {
    let mut of_each: BTreeMap<&Mixture, &Cell> = BTreeMap::new();
    for cell in maps.iter().flat_map(|map| &map.cells) {
        let held = of_each.entry(&cell.exchanged).or_insert(cell);
        if cell.klds.len() > held.klds.len() {
            *held = cell;
        }
    }
    let names = header.tensors.iter().map(|tensor| tensor.name.as_str());
    let indices: BTreeMap<&str, usize> = names.zip(0..).collect();
    let index = |name: &String| indices.get(name.as_str()).copied();
    let mut cells: Vec<&Cell> = of_each.into_values().collect();
    cells.sort_by_cached_key(|cell| {
        let exchanged = cell.exchanged.iter();
        let mut exchanged: Vec<_> = exchanged.map(|(name, &kind)| (index(name), kind)).collect();
        exchanged.sort();
        (exchanged.len(), exchanged)
    });
    cells
}
