//! A map, read as the KLD that each tensor costs at each type.

use std::collections::BTreeMap;

use kl_formats::{Cell, GgmlType, MapTensor, Mixture, SensitivityMap};
use kl_stats::stats::{Confidence, Estimate};

use super::additivity::{Curve, Whole};
use super::combination::{CellMean, Combination, mean_of};
use super::costs::{Known, Reader};
use super::{
    Additivity, CheckedPrediction, Cost, Recipe, RecipeKld, RecipeTensor, TensorCosts,
    UnmeasuredTensor,
};

/// The KLD that each tensor costs at each type, and the bytes.
#[derive(Clone, Debug, Default)]
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
    pub checks: Vec<CheckedPrediction>,
    /// Tensors that could have a type of the map, but that it does not cover: they keep their own.
    pub unknown: Vec<String>,
    /// Tensors that the quantizer may change but that cannot be measured: each has one type in all mixtures.
    pub unmeasured: Vec<UnmeasuredTensor>,
    /// Bytes of the tensors' data besides those tensors, without padding.
    pub(super) fixed_tensor_bytes: u64,
    /// From the sum of tensors' KLDs to the KLD of the whole.
    pub(super) curve: Curve,
    confidence: Confidence,
    /// The index of each tensor, by its name.
    index: BTreeMap<String, usize>,
    klds: Vec<BTreeMap<GgmlType, Combination>>,
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

    /// Its cost at a type; `None` if it cannot have that, or the map does not know it.
    pub fn at(&self, kind: GgmlType) -> Option<&Cost> {
        self.costs.iter().find(|cost| cost.kind == kind)
    }
}

impl Sensitivities {
    /// Reads a map.
    ///
    /// # Errors
    /// The data that the map lacks, and what to do.
    pub fn from_map(map: &SensitivityMap, confidence: Confidence) -> Result<Self, String> {
        let means = CellMean::of_each(&map.cells);
        let reader = Reader::read(map, &means)?;
        let (checks, type_doubt) = reader.checks(confidence);
        let header = &map.header;
        let data = |tensor: &MapTensor| tensor.kind.bytes(tensor.n_params()).unwrap_or(0);
        let pad = |bytes: u64| bytes.next_multiple_of(header.alignment.max(1));
        let fixed = || {
            header
                .tensors
                .iter()
                .filter(|tensor| !tensor.is_quantizable)
        };
        let of_each = header.unmeasured();
        let unmeasured: Vec<_> = of_each
            .map(|(tensor, why)| UnmeasuredTensor::new(tensor, why, pad))
            .collect();
        let unmeasured_bytes =
            |bytes: fn(&UnmeasuredTensor) -> u64| unmeasured.iter().map(bytes).sum::<u64>();
        let names = reader.tensors.iter().map(|known| known.tensor.name.clone());
        let mut this = Self {
            fixed_bytes: header.metadata_bytes
                + fixed().map(data).map(pad).sum::<u64>()
                + unmeasured_bytes(|tensor| tensor.bytes),
            fixed_tensor_bytes: fixed().map(data).sum::<u64>()
                + unmeasured_bytes(UnmeasuredTensor::data_bytes),
            n_params: header.tensors.iter().map(MapTensor::n_params).sum(),
            confidence,
            index: names.zip(0..).collect(),
            klds: reader.klds(type_doubt),
            checks,
            unmeasured: unmeasured.clone(),
            ..Self::default()
        };
        for (known, klds) in reader.tensors.iter().zip(&this.klds) {
            let fits = |kind: &&GgmlType| {
                known.tensor.has_rows_of(**kind) && kind.bits() < known.tensor.kind.bits()
            };
            let types: Vec<GgmlType> = header.types.iter().filter(fits).copied().collect();
            if klds.len() == 1 && !types.is_empty() {
                this.unknown.push(known.tensor.name.clone());
            }
            let estimate = |kld: &Combination| kld.estimate(&means, confidence);
            this.tensors.push(costs(known, &types, pad, |kind| {
                klds.get(&kind).map(estimate)
            }));
        }
        this.means = means.clone();
        this.add_wholes(map, &reader);
        Ok(this)
    }

    /// Costs that no map has, for the tests of outputs; nothing can be predicted from them.
    #[cfg(test)]
    pub fn made_up(
        tensors: Vec<TensorCosts>,
        fixed_bytes: u64,
        additivity: Vec<Additivity>,
        checks: Vec<CheckedPrediction>,
    ) -> Self {
        Self {
            n_params: tensors.iter().map(|tensor| tensor.n_params).sum(),
            index: tensors
                .iter()
                .map(|tensor| tensor.name.clone())
                .zip(0..)
                .collect(),
            klds: vec![BTreeMap::new(); tensors.len()],
            tensors,
            fixed_bytes,
            additivity,
            checks,
            ..Self::default()
        }
    }

    /// Bytes of the file that has this mixture. Tensors that it does not name have their own types.
    pub fn size_bytes(&self, mixture: &Mixture) -> u64 {
        let bytes = self.chosen(mixture).map(|(_, cost)| cost.bytes);
        self.fixed_bytes + bytes.sum::<u64>()
    }

    /// Bits per parameter of all tensors, without padding.
    pub fn bpw(&self, mixture: &Mixture) -> f64 {
        let chosen = self.chosen(mixture);
        let bytes = chosen.map(|(tensor, cost)| tensor.data_bytes(cost.kind));
        self.bits(self.fixed_tensor_bytes + bytes.sum::<u64>())
    }

    /// The bits per parameter of a model with `tensor_bytes` bytes of tensors.
    pub(super) fn bits(&self, tensor_bytes: u64) -> f64 {
        8.0 * tensor_bytes as f64 / self.n_params as f64
    }

    /// The recipe of this mixture, whose KLD another one of its size may undercut by `gap`.
    pub(super) fn recipe(&self, mixture: &Mixture, selection: f64, gap: f64) -> Recipe {
        let tensors = self.in_mixture(mixture).map(|(tensor, cost)| RecipeTensor {
            name: tensor.name.clone(),
            kind: cost.kind,
            bytes: cost.bytes,
            kld: cost.kld.value,
            role: tensor.role.clone(),
            n_params: tensor.n_params,
        });
        Recipe {
            size_bytes: self.size_bytes(mixture),
            bpw: self.bpw(mixture),
            kld: RecipeKld {
                predicted: self.predict(mixture, selection),
                measured: None,
            },
            gap: gap.max(0.0),
            tensors: tensors.collect(),
            unmeasured: self.unmeasured.clone(),
            selection,
        }
    }

    /// The predicted mean KLD of this mixture, in nats: the cell's own where the map has one. The sum of
    /// its tensors' KLDs is too low by `selection` times.
    pub fn predict(&self, mixture: &Mixture, selection: f64) -> Estimate {
        let predicted = self.combination(mixture, selection);
        self.estimate(&predicted.unwrap_or_default())
    }

    /// The predicted KLD of a recipe over that of another mixture.
    pub fn predict_ratio(&self, recipe: &Recipe, other: &Mixture) -> Option<Estimate> {
        let recipe = self.combination(&recipe.mixture(), recipe.selection)?;
        let other = self.combination(other, 1.0)?;
        let ratio = recipe.value / other.value;
        let relative = self.estimate(&recipe.relative_to(&other));
        (recipe.value > 0.0 && other.value > 0.0).then_some(Estimate {
            value: ratio,
            lo: relative.lo.map(|lo| ratio * lo),
            hi: relative.hi.map(|hi| ratio * hi),
        })
    }

    fn estimate(&self, combination: &Combination) -> Estimate {
        combination.estimate(&self.means, self.confidence)
    }

    fn combination(&self, mixture: &Mixture, selection: f64) -> Option<Combination> {
        let own = |name: &String| self.tensors[*self.index.get(name)?].costs.last();
        let mut exchanged = mixture.clone();
        exchanged.retain(|name, kind| own(name).is_none_or(|own| own.kind != *kind));
        match self.measured.get(&exchanged) {
            Some(&cell) => Some(Combination::of_cell(&self.means, cell)),
            None => Some(self.curve.predict(&self.sum(&exchanged)?.times(selection))),
        }
    }

    /// The KLD of a tensor at a type, by the tensor's index.
    pub(super) fn kld(&self, tensor: usize, kind: GgmlType) -> Option<&Combination> {
        self.klds[tensor].get(&kind)
    }

    /// The costs of a mixture's types; those of types that a tensor cannot have are its own.
    fn chosen(&self, mixture: &Mixture) -> impl Iterator<Item = (&TensorCosts, &Cost)> {
        self.tensors.iter().filter_map(|tensor| {
            let kind = mixture.get(&tensor.name);
            let cost = kind.and_then(|kind| tensor.at(*kind));
            Some((tensor, cost.or(tensor.costs.last())?))
        })
    }

    /// The costs of a mixture's types, without the tensors that cannot have theirs.
    pub(super) fn in_mixture(
        &self,
        mixture: &Mixture,
    ) -> impl Iterator<Item = (&TensorCosts, &Cost)> {
        let chosen = self.chosen(mixture);
        chosen.filter(|(tensor, cost)| mixture.get(&tensor.name) == Some(&cost.kind))
    }

    /// The sum of the KLDs of a mixture's tensors; `None` if the map does not know one of them.
    fn sum(&self, mixture: &Mixture) -> Option<Combination> {
        let mut sum = Combination::default();
        for (name, kind) in mixture {
            sum.add(self.kld(*self.index.get(name)?, *kind)?, 1.0);
        }
        Some(sum)
    }

    /// Reads the cells of mixtures, and those in which more than half of the tensors were exchanged.
    fn add_wholes(&mut self, map: &SensitivityMap, reader: &Reader<'_>) {
        for (index, cell) in map.cells.iter().enumerate() {
            let mut names = cell.exchanged.keys();
            if self.means[index].has_tokens && names.all(|name| self.index.contains_key(name)) {
                self.measured.insert(cell.exchanged.clone(), index);
            }
        }
        let mut wholes = Vec::new();
        for (mixture, &index) in &self.measured {
            if 2 * mixture.len() <= self.tensors.len() || mixture.len() < 2 {
                continue;
            }
            let Some(sum) = self.sum(mixture) else {
                continue;
            };
            let together = Combination::of_cell(&self.means, index);
            let kind = reader.type_of_all(mixture);
            self.additivity.extend(kind.map(|kind| Additivity {
                kind,
                together: together.estimate(&self.means, self.confidence),
                sum: sum.value * hardness(map, map.cells[index].klds.len()),
            }));
            wholes.push(Whole {
                together,
                sum,
                is_recipe: kind.is_none(),
                n: 1.0,
            });
        }
        self.additivity.sort_by(|a, b| a.sum.total_cmp(&b.sum));
        self.curve = Curve::through(wholes);
    }
}

/// The costs of a tensor at these types, and at its own.
fn costs(
    known: &Known<'_>,
    types: &[GgmlType],
    pad: impl Fn(u64) -> u64,
    kld: impl Fn(GgmlType) -> Option<Estimate>,
) -> TensorCosts {
    let (n_params, own) = (known.tensor.n_params(), known.tensor.kind);
    let cost = |kind: GgmlType| {
        Some(Cost {
            kind,
            bytes: pad(kind.bytes(n_params)?),
            kld: kld(kind)?,
            is_measured: kind == own || known.singles.contains_key(&kind),
        })
    };
    let mut costs: Vec<Cost> = types.iter().filter_map(|kind| cost(*kind)).collect();
    costs.sort_by_key(|cost| (cost.bytes, cost.kind));
    costs.dedup_by_key(|cost| cost.kind);
    costs.extend(cost(own));
    TensorCosts {
        name: known.tensor.name.clone(),
        role: known.role.clone(),
        layer: known.layer,
        n_params,
        costs,
    }
}

/// The hardness of the first windows: the mean KLD over them, divided by that over all windows, in the cell
/// with the most tensors and then the most windows; 1 where that is not known.
fn hardness(map: &SensitivityMap, n_windows: usize) -> f64 {
    let extent = |cell: &&Cell| (cell.exchanged.len(), cell.klds.len());
    let whole = map.cells.iter().max_by_key(extent);
    let hardness = whole.and_then(|whole| {
        let all = mean_of(whole, whole.klds.len())?;
        Some(mean_of(whole, n_windows)? / all)
    });
    let usable = hardness.filter(|hardness| *hardness > 0.0 && hardness.is_finite());
    usable.unwrap_or(1.0)
}
