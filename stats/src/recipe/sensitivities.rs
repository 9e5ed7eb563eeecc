//! A map, read as the KLD that each tensor costs at each type.

use std::collections::BTreeMap;

use kl_formats::{Cell, GgmlType, MapHeader, MapTensor, Mixture, SensitivityMap};

use super::additivity::{Curve, Whole};
use super::combination::{CellMean, Combination, mean_of};
use super::costs::{Predicted, Term, Terms};
use super::{Additivity, Check, Cost, Recipe, TensorCosts, role_and_layer};
use crate::stats::{Confidence, Estimate};

/// The KLD that each tensor costs at each type, and the bytes.
#[derive(Clone, Debug)]
pub struct Sensitivities {
    /// The tensors that the quantizer may change, in the order of the file.
    pub tensors: Vec<TensorCosts>,
    /// Bytes of a quantized file besides those tensors.
    pub fixed_bytes: u64,
    /// Parameters of all tensors.
    pub n_params: u64,
    /// The whole model at one type, against the sum of its tensors.
    pub additivity: Vec<Additivity>,
    /// Cells that were predicted from another type, and then measured.
    pub checks: Vec<Check>,
    /// Tensors that the quantizer may change and of which the map says nothing: they keep their type.
    pub unknown: Vec<String>,
    /// Bytes of the tensors' data besides those tensors, without padding.
    pub(super) fixed_tensor_bytes: u64,
    /// From the sum of tensors' KLDs to the KLD of the whole.
    pub(super) curve: Curve,
    confidence: Confidence,
    /// The index of each tensor, by its name.
    index: BTreeMap<String, usize>,
    terms: Vec<BTreeMap<GgmlType, Term>>,
    /// The mean of each cell.
    pub(super) means: Vec<CellMean>,
    /// The cells of these mixtures.
    measured: BTreeMap<Mixture, usize>,
}

impl TensorCosts {
    /// Bytes of its data at a type, without padding; at most those of its costs.
    pub(super) fn data_bytes(&self, kind: GgmlType) -> u64 {
        kind.bytes(self.n_params).unwrap_or(0)
    }
}

impl Sensitivities {
    /// Reads a map.
    ///
    /// # Errors
    /// What the map lacks, and what to do.
    pub fn of(map: &SensitivityMap, confidence: Confidence) -> Result<Self, String> {
        check(&map.header)?;
        let means = CellMean::of_each(&map.cells);
        let Terms { of: terms, checks } = Terms::of(map, &means)?;
        let header = &map.header;
        let pad = |bytes: u64| bytes.next_multiple_of(header.alignment.max(1));
        let (free, fixed): (Vec<_>, Vec<_>) = header
            .tensors
            .iter()
            .partition(|tensor| tensor.is_quantizable);
        let data = |tensor: &&MapTensor| tensor.kind.bytes(n_params(tensor)).unwrap_or(0);
        let mut this = Self {
            tensors: Vec::new(),
            fixed_bytes: header.metadata_bytes + fixed.iter().map(data).map(pad).sum::<u64>(),
            n_params: header.tensors.iter().map(n_params).sum(),
            additivity: Vec::new(),
            checks: Vec::new(),
            unknown: Vec::new(),
            fixed_tensor_bytes: fixed.iter().map(data).sum(),
            curve: Curve::of(Vec::new()),
            confidence,
            index: free.iter().map(|of| of.name.clone()).zip(0..).collect(),
            terms,
            means,
            measured: BTreeMap::new(),
        };
        for (index, cell) in map.cells.iter().enumerate() {
            if this.means[index].has_tokens
                && cell
                    .exchanged
                    .keys()
                    .all(|name| this.index.contains_key(name))
            {
                this.measured.insert(cell.exchanged.clone(), index);
            }
        }
        let types = &header.types;
        this.tensors = free
            .iter()
            .zip(0..)
            .map(|(of, index)| this.costs(of, index, types, pad))
            .collect();
        let unknown = free
            .iter()
            .zip(&this.terms)
            .filter(|(_, terms)| terms.len() == 1);
        this.unknown = unknown.map(|(tensor, _)| tensor.name.clone()).collect();
        this.checks = checks.iter().map(|check| this.check(check)).collect();
        this.add_wholes(map);
        Ok(this)
    }

    /// Costs that no map has, for the tests of outputs; nothing can be predicted from them.
    #[cfg(feature = "testing")]
    pub fn made_up(
        tensors: Vec<TensorCosts>,
        fixed_bytes: u64,
        additivity: Vec<Additivity>,
        checks: Vec<Check>,
    ) -> Self {
        Self {
            n_params: tensors.iter().map(|tensor| tensor.n_params).sum(),
            index: tensors.iter().map(|of| of.name.clone()).zip(0..).collect(),
            terms: vec![BTreeMap::new(); tensors.len()],
            tensors,
            fixed_bytes,
            additivity,
            checks,
            unknown: Vec::new(),
            fixed_tensor_bytes: 0,
            curve: Curve::of(Vec::new()),
            confidence: Confidence::default(),
            means: Vec::new(),
            measured: BTreeMap::new(),
        }
    }

    /// Bytes of the file that has this mixture. Tensors that it does not name have their own types.
    pub fn size_bytes(&self, mixture: &Mixture) -> u64 {
        let bytes = self.chosen(mixture).map(|(_, cost)| cost.bytes);
        self.fixed_bytes + bytes.sum::<u64>()
    }

    /// Bits per parameter of all tensors, without padding.
    pub fn bpw(&self, mixture: &Mixture) -> f64 {
        let bytes = self
            .chosen(mixture)
            .map(|(tensor, cost)| tensor.data_bytes(cost.kind));
        self.bits(self.fixed_tensor_bytes + bytes.sum::<u64>())
    }

    /// Bits per parameter of so many bytes.
    pub(super) fn bits(&self, tensor_bytes: u64) -> f64 {
        8.0 * tensor_bytes as f64 / self.n_params as f64
    }

    /// The predicted mean KLD of this mixture, in nats: the cell's own where the map has one. The sum of
    /// its tensors' KLDs is too low by `selection` times.
    pub fn predict(&self, mixture: &Mixture, selection: f64) -> Estimate {
        let predicted = self.combination(mixture, selection).unwrap_or_default();
        predicted.estimate(&self.means, self.confidence)
    }

    /// The predicted KLD of a recipe over that of another mixture.
    pub fn predict_ratio(&self, recipe: &Recipe, other: &Mixture) -> Option<Estimate> {
        let recipe = self.combination(&recipe.mixture, recipe.selection)?;
        let other = self.combination(other, 1.0)?;
        recipe.over(&other, &self.means, self.confidence)
    }

    fn combination(&self, mixture: &Mixture, selection: f64) -> Option<Combination> {
        let mut exchanged = mixture.clone();
        exchanged.retain(|name, kind| self.own_type(name) != Some(*kind));
        match self.measured.get(&exchanged) {
            Some(&cell) => Some(Combination::of_cell(cell, &self.means[cell])),
            None => Some(self.curve.predict(&self.sum(&exchanged)?.times(selection))),
        }
    }

    /// The KLD of a tensor at a type, by the tensor's index.
    pub(super) fn kld(&self, tensor: usize, kind: GgmlType) -> Option<&Combination> {
        self.terms[tensor].get(&kind).map(|term| &term.kld)
    }

    /// The original's type of a tensor.
    fn own_type(&self, name: &str) -> Option<GgmlType> {
        let tensor = &self.tensors[*self.index.get(name)?];
        tensor.costs.last().map(|cost| cost.kind)
    }

    /// The costs of a mixture's types; those of types that a tensor cannot have are its own.
    fn chosen(&self, mixture: &Mixture) -> impl Iterator<Item = (&TensorCosts, Cost)> {
        self.tensors.iter().filter_map(|tensor| {
            let kind = mixture.get(&tensor.name);
            let of = |kind: &GgmlType| tensor.costs.iter().find(|cost| cost.kind == *kind);
            Some((tensor, *kind.and_then(of).or(tensor.costs.last())?))
        })
    }

    /// The sum of the KLDs of a mixture's tensors; `None` if the map does not know one of them.
    fn sum(&self, mixture: &Mixture) -> Option<Combination> {
        let mut sum = Combination::default();
        for (name, kind) in mixture {
            let terms = &self.terms[*self.index.get(name)?];
            sum.add(&terms.get(kind)?.kld, 1.0);
        }
        Some(sum)
    }

    fn costs(
        &self,
        tensor: &MapTensor,
        index: usize,
        types: &[GgmlType],
        pad: impl Fn(u64) -> u64,
    ) -> TensorCosts {
        let (role, layer) = role_and_layer(&tensor.name);
        let n_params = n_params(tensor);
        let row = tensor.shape.first().copied().unwrap_or(0);
        let cost = |kind: GgmlType| {
            let term = self.terms[index].get(&kind)?;
            Some(Cost {
                kind,
                bytes: pad(kind.bytes(n_params)?),
                kld: term.kld.estimate(&self.means, self.confidence),
                is_measured: term.is_measured,
            })
        };
        let fits =
            |kind: &&GgmlType| row.is_multiple_of(kind.block) && kind.bits() < tensor.kind.bits();
        let mut costs: Vec<Cost> = types
            .iter()
            .filter(fits)
            .copied()
            .filter_map(cost)
            .collect();
        costs.sort_by_key(|cost| (cost.bytes, cost.kind));
        costs.dedup_by_key(|cost| cost.kind);
        costs.extend(cost(tensor.kind));
        TensorCosts {
            name: tensor.name.clone(),
            role,
            layer,
            n_params,
            costs,
        }
    }

    fn check(&self, check: &Predicted) -> Check {
        let measured = Combination::of_cell(check.cell, &self.means[check.cell]);
        Check {
            tensor: self.tensors[check.tensor].name.clone(),
            kind: check.kind,
            predicted: check.kld.value,
            measured: measured.estimate(&self.means, self.confidence),
        }
    }

    /// Reads the cells in which more than half of the tensors were exchanged.
    fn add_wholes(&mut self, map: &SensitivityMap) {
        let mut wholes = Vec::new();
        for (mixture, &index) in &self.measured {
            if 2 * mixture.len() <= self.tensors.len() || mixture.len() < 2 {
                continue;
            }
            let Some(sum) = self.sum(mixture) else {
                continue;
            };
            let together = Combination::of_cell(index, &self.means[index]);
            let kind = one_type(&map.cells[index], &self.tensors);
            if let Some(kind) = kind {
                self.additivity.push(Additivity {
                    kind,
                    together: together.estimate(&self.means, self.confidence),
                    sum: sum.value * hardness(map, map.cells[index].klds.len()),
                });
            }
            wholes.push(Whole {
                together,
                sum,
                is_recipe: kind.is_none(),
            });
        }
        self.additivity.sort_by(|a, b| a.sum.total_cmp(&b.sum));
        self.curve = Curve::of(wholes);
    }
}

/// How hard the first windows are: the mean KLD over them, over that of all windows, where most tensors
/// were exchanged over most windows; 1 where that is not known.
fn hardness(map: &SensitivityMap, n_windows: usize) -> f64 {
    let extent = |cell: &&Cell| (cell.exchanged.len(), cell.klds.len());
    let whole = map.cells.iter().max_by_key(extent);
    let hardness = whole.and_then(|whole| {
        let (here, all) = (
            mean_of(whole, n_windows)?,
            mean_of(whole, whole.klds.len())?,
        );
        Some(here / all).filter(|hardness| *hardness > 0.0 && hardness.is_finite())
    });
    hardness.unwrap_or(1.0)
}

/// The number of a tensor's elements; those of all tensors are no more than [`check`] allows.
fn n_params(tensor: &MapTensor) -> u64 {
    tensor.shape.iter().fold(1, |n, &of| n.saturating_mul(of))
}

/// No file and no tensor has as many bytes.
const TOO_MANY_BYTES: u64 = 1 << 56;

/// Refuses a header whose sizes no file has, so that sums of bytes cannot overflow.
fn check(header: &MapHeader) -> Result<(), String> {
    let sizes = header.tensors.iter().map(|of| of.kind.bytes(n_params(of)));
    let known = [Some(header.metadata_bytes), Some(header.alignment)];
    let sum = known
        .into_iter()
        .chain(sizes)
        .try_fold(0, |sum: u64, size| Some(sum.saturating_add(size?)));
    match sum {
        Some(sum) if sum < TOO_MANY_BYTES => Ok(()),
        _ => Err(
            "the map's header has tensors of sizes that no model has: measure it again".to_owned(),
        ),
    }
}

/// The type of all of a cell's tensors whose rows are whole blocks of it, if it is one.
fn one_type(cell: &Cell, tensors: &[TensorCosts]) -> Option<GgmlType> {
    let mut counts = BTreeMap::<GgmlType, usize>::new();
    for kind in cell.exchanged.values() {
        *counts.entry(*kind).or_default() += 1;
    }
    let (&most, _) = counts.iter().max_by_key(|(_, n)| **n)?;
    let could_have_it = |tensor: &&TensorCosts| {
        let other = cell
            .exchanged
            .get(&tensor.name)
            .is_some_and(|kind| *kind != most);
        other && tensor.costs.iter().any(|cost| cost.kind == most)
    };
    tensors.iter().find(could_have_it).is_none().then_some(most)
}
