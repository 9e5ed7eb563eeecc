//! A map of sensitivity as `kl sensitivity` shows it: [`Sensitivity`], from which every output is made.
//! Its fields are the keys of the JSON.

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
pub(super) mod text;

use std::collections::BTreeMap;

use kl_formats::{
    BackendIdentity, Cell, GgmlType, ImatrixIdentity, MapHeader, SensitivityMap, TextIdentity,
};
use kl_report::Warning;
use kl_report::number::{count_of, finite};
use kl_report::{ModelInfo, Versions};
use kl_stats::stats::{Confidence, Estimate};
use serde::Serialize;

use crate::mathematics::{
    Additivity, CheckedPrediction, Cost, Sensitivities, TensorCosts, nearness,
};

/// The fewest windows whose spread says enough about other text.
const MIN_WINDOWS: u64 = 8;

/// The cost of quantizing each tensor of a model, from a map.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sensitivity {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The original, whose tensors were exchanged one after another.
    pub model: ModelInfo,
    /// The text that it was measured on.
    pub text: Option<TextIdentity>,
    /// The name of the file whose rows the tensors were measured against; null: the original's own
    /// rows, computed in the same run.
    pub reference: Option<String>,
    /// Tokens in a window.
    pub n_ctx: u32,
    /// The windows that the map may use, drawn from the text.
    pub n_windows: u64,
    /// The seed that they were drawn with; null: they are in the order of the text.
    pub seed: Option<u64>,
    /// The set-up that decoded them.
    pub set_up: Option<BackendIdentity>,
    /// The importance matrix that tensors were quantized with; null: none.
    pub imatrix: Option<ImatrixIdentity>,
    /// The level of every interval.
    pub confidence: Confidence,
    /// The types that a recipe may use.
    pub types: Vec<GgmlType>,
    /// The type at which tensors were measured, where their rows are whole blocks of it.
    pub measured_type: GgmlType,
    /// The type at which tensors are compared: the measured one, or the nearest in bits that all of them can have. If
    /// there is none, the measured one, and those that cannot have it are compared at the nearest that they can have.
    pub compared_type: GgmlType,
    /// The work that the map took.
    pub cost: MapCost,
    /// The mean KLD of the original against itself, with nothing exchanged, which must be 0; null:
    /// not measured.
    pub control: Option<f64>,
    /// All tensors together: the sum of their KLDs, each alone.
    pub whole: TensorGroup,
    /// The tensors that the quantizer may change, in the order of the file.
    pub tensors: Vec<TensorSensitivity>,
    /// The tensors of each role, by falling relative cost.
    pub by_role: Vec<RoleSensitivity>,
    /// The tensors of each layer, from the first layer on. Those without a layer, such as
    /// `token_embd.weight`, are in none.
    pub by_layer: Vec<LayerSensitivity>,
    /// All tensors at one type at once, against the sum of the tensors alone.
    pub additivity: Vec<Additivity>,
    /// Tensors at a type that was predicted first, and then measured.
    pub checks: Vec<CheckedPrediction>,
    /// Warnings to read before you trust the numbers.
    pub warnings: Vec<Warning>,
    /// Bits a parameter of the smallest mixture.
    #[serde(skip)]
    pub fewest_bits: f64,
}

/// The work that a map took.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MapCost {
    /// Mixtures that were measured, the control among them.
    pub n_cells: u64,
    /// Tokens that were decoded for them.
    pub n_tokens: u64,
    /// Seconds of this run; null where it measured nothing. A resumed map took more.
    pub seconds: Option<f64>,
}

/// A tensor at every type, and at the one at which tensors are compared.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TensorSensitivity {
    #[serde(flatten)]
    pub tensor: TensorCosts,
    /// Its cost at the type at which tensors are compared, or at the nearest that it can have.
    #[serde(flatten)]
    pub at: Cost,
    /// Its share of the KLD of the whole.
    pub share: Option<f64>,
    /// Its KLD for each byte that the type saves, over that of the whole: 1 is the average. A recipe
    /// spends bytes where it is large. Null where no byte is saved.
    pub relative_cost: Option<f64>,
}

impl Sensitivity {
    /// Describes a map, from which `of` was read. `seconds`: the time of this run, if it measured.
    pub fn new(
        map: &SensitivityMap,
        sensitivities: Sensitivities,
        confidence: Confidence,
        seconds: Option<f64>,
        warnings: Vec<Warning>,
    ) -> Self {
        let (header, measured) = (map.header.clone(), map.header.measured_type);
        let fewest_bits = fewest_bits(&sensitivities);
        let compared_type = compared_type(&sensitivities.tensors, measured).unwrap_or(measured);
        let comparable = sensitivities.tensors.into_iter().filter_map(|tensor| {
            Some(TensorSensitivity {
                at: compared(&tensor, compared_type)?,
                tensor,
                share: None,
                relative_cost: None,
            })
        });
        let mut tensors: Vec<TensorSensitivity> = comparable.collect();
        let sum = TensorGroup::sum(&tensors);
        let whole = sum.clone().within(&sum);
        for tensor in &mut tensors {
            let alone = TensorGroup::sum([&*tensor]).within(&whole);
            (tensor.share, tensor.relative_cost) = (alone.share, alone.relative_cost);
        }
        let role_parts = parts(&tensors, &whole, |tensor| Some(tensor.role.clone()));
        let roles = role_parts.map(|(role, part)| RoleSensitivity { role, part });
        let mut by_role: Vec<RoleSensitivity> = roles.collect();
        by_falling_cost(&mut by_role, |role| role.part.relative_cost);
        let layer_parts = parts(&tensors, &whole, |tensor| tensor.layer);
        let layers = layer_parts.map(|(layer, part)| LayerSensitivity { layer, part });
        Self {
            versions: Versions::default(),
            model: model(&header),
            n_ctx: header.n_ctx,
            n_windows: header.windows.len() as u64,
            seed: header.seed,
            text: header.provenance.text,
            reference: header.reference.and_then(|reference| reference.file_name),
            set_up: header.provenance.backend,
            imatrix: header.imatrix,
            confidence,
            types: header.types,
            measured_type: measured,
            compared_type,
            cost: MapCost::count(map, seconds),
            control: control(map),
            by_role,
            by_layer: layers.collect(),
            tensors,
            whole,
            additivity: sensitivities.additivity,
            checks: sensitivities.checks,
            warnings,
            fewest_bits,
        }
    }

    /// The tensors that have a relative cost, by falling relative cost.
    pub fn by_relative_cost(&self) -> Vec<&TensorSensitivity> {
        let mut tensors: Vec<&TensorSensitivity> = self.tensors.iter().collect();
        tensors.retain(|tensor| tensor.relative_cost.is_some());
        by_falling_cost(&mut tensors, |tensor| tensor.relative_cost);
        tensors
    }

    /// The tensors that are compared at another type than most, because its blocks do not divide their rows.
    pub fn at_other_types(&self) -> impl Iterator<Item = &TensorSensitivity> {
        let is_other = |tensor: &&TensorSensitivity| tensor.at.kind != self.compared_type;
        self.tensors.iter().filter(is_other)
    }
}

fn by_falling_cost<T>(parts: &mut [T], cost: impl Fn(&T) -> Option<f64>) {
    let cost = |parts: &T| cost(parts).unwrap_or(f64::NEG_INFINITY);
    parts.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
}

impl MapCost {
    fn count(map: &SensitivityMap, seconds: Option<f64>) -> Self {
        let before = u64::from(map.header.first_scored.unwrap_or(0));
        let windows = map.header.windows.iter();
        let tokens: Vec<u64> = windows
            .map(|window| before + u64::from(window.n_rows))
            .collect();
        let of_cell = |cell: &Cell| tokens.iter().skip(cell.from).take(cell.klds.len());
        Self {
            n_cells: map.cells.len() as u64,
            n_tokens: map.cells.iter().flat_map(of_cell).sum(),
            seconds,
        }
    }
}

/// Bits a parameter with the smallest type that each tensor may have.
fn fewest_bits(sensitivities: &Sensitivities) -> f64 {
    let smallest = sensitivities.tensors.iter().filter_map(|tensor| {
        let least = tensor.costs.iter().min_by_key(|cost| cost.bytes)?;
        Some((tensor.name.clone(), least.kind))
    });
    sensitivities.bpw(&smallest.collect())
}

fn model(header: &MapHeader) -> ModelInfo {
    let identity = header.model.clone().unwrap_or_default();
    let given = header.model_path.as_deref();
    let path = given.or(identity.shown_name()).unwrap_or_default();
    ModelInfo::new(std::path::Path::new(path), &identity)
}

/// The mean KLD of the original against itself.
fn control(map: &SensitivityMap) -> Option<f64> {
    let mut cells = map.cells.iter();
    let control = cells.find(|cell| cell.exchanged.is_empty())?;
    let n: u64 = control.n_tokens.iter().map(|&n| u64::from(n)).sum();
    (n > 0).then(|| control.klds.iter().sum::<f64>() / n as f64)
}

/// The measured type, or the nearest in bits that every tensor has a cost at. What a tensor costs at one type says
/// nothing of how it compares with another tensor at another type. Tensors that can only have the original's type do
/// not count.
fn compared_type(tensors: &[TensorCosts], measured: GgmlType) -> Option<GgmlType> {
    let of_smaller_types = tensors.iter().filter_map(|tensor| {
        let (_, costs) = tensor.costs.split_last()?;
        (!costs.is_empty()).then_some(costs)
    });
    let costs: Vec<&[Cost]> = of_smaller_types.collect();
    let n_predicted = |kind: GgmlType| {
        let of_each = costs
            .iter()
            .map(|costs| costs.iter().find(|cost| cost.kind == kind));
        let at_kind = of_each.collect::<Option<Vec<&Cost>>>()?;
        Some(at_kind.iter().filter(|cost| !cost.is_measured).count())
    };
    let kinds = costs.first()?.iter().map(|cost| cost.kind);
    let common = kinds.filter_map(|kind| Some((kind, n_predicted(kind)?)));
    let nearest =
        common.min_by_key(|(kind, n_predicted)| (nearness(*kind, measured), *n_predicted));
    nearest.map(|(kind, _)| kind)
}

/// A tensor's cost at this type, or else at a type as near to it in bits as can be, a measured one if there is any.
/// `None` for a tensor that can only have the original's type.
fn compared(tensor: &TensorCosts, compared_type: GgmlType) -> Option<Cost> {
    let (_, costs) = tensor.costs.split_last()?;
    let rank = |cost: &&Cost| (nearness(cost.kind, compared_type), !cost.is_measured);
    costs.iter().min_by_key(rank).copied()
}

/// Some tensors, each alone at the type at which tensors are compared.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TensorGroup {
    /// Tensors.
    pub n_tensors: u64,
    /// Their parameters.
    pub n_params: u64,
    /// The bytes that the type saves, against the original.
    pub bytes_saved: u64,
    /// The sum of their KLDs, in nats. Its ends are the sums of the tensors' ends: all were measured on
    /// the same windows, so their errors go together.
    pub kld: Estimate,
    /// Their share of the KLD of the whole.
    pub share: Option<f64>,
    /// Their KLD for each byte that the type saves, over that of the whole: 1 is the average. A recipe
    /// spends bytes where it is large. Null where no byte is saved.
    pub relative_cost: Option<f64>,
}

/// The tensors of a role.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoleSensitivity {
    /// The tensors' name without the layer and `.weight`.
    pub role: String,
    #[serde(flatten)]
    pub part: TensorGroup,
}

/// The tensors of a layer.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LayerSensitivity {
    /// The layer's number, from 0.
    pub layer: u32,
    #[serde(flatten)]
    pub part: TensorGroup,
}

impl TensorGroup {
    /// The sum of some tensors.
    fn sum<'t>(tensors: impl IntoIterator<Item = &'t TensorSensitivity>) -> Self {
        let mut part = Self {
            n_tensors: 0,
            n_params: 0,
            bytes_saved: 0,
            kld: Estimate::within(0.0, 0.0, 0.0),
            share: None,
            relative_cost: None,
        };
        for TensorSensitivity { tensor, at, .. } in tensors {
            let original = tensor.costs.last().map_or(at.bytes, |cost| cost.bytes);
            let saved = original.saturating_sub(at.bytes);
            let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
            part.n_tensors += 1;
            part.n_params = part.n_params.saturating_add(tensor.n_params);
            part.bytes_saved = part.bytes_saved.saturating_add(saved);
            part.kld = Estimate {
                value: part.kld.value + at.kld.value,
                lo: sum(part.kld.lo, at.kld.lo),
                hi: sum(part.kld.hi, at.kld.hi),
            };
        }
        part
    }

    /// These tensors, as a part of `whole`.
    fn within(self, whole: &Self) -> Self {
        let per_byte = |part: &Self| part.kld.value / part.bytes_saved as f64;
        Self {
            share: finite(self.kld.value / whole.kld.value),
            relative_cost: finite(per_byte(&self) / per_byte(whole)),
            ..self
        }
    }
}

/// The sums of the tensors with the same key, as parts of the whole; those without one are left out.
fn parts<K: Ord>(
    tensors: &[TensorSensitivity],
    whole: &TensorGroup,
    key: impl Fn(&TensorCosts) -> Option<K>,
) -> impl Iterator<Item = (K, TensorGroup)> {
    let mut by_key: BTreeMap<K, Vec<&TensorSensitivity>> = BTreeMap::new();
    for tensor in tensors {
        if let Some(key) = key(&tensor.tensor) {
            by_key.entry(key).or_default().push(tensor);
        }
    }
    let parts = by_key.into_iter();
    parts.map(|(key, tensors)| (key, TensorGroup::sum(tensors).within(whole)))
}

/// The warnings that a map deserves.
pub fn doubts(map: &SensitivityMap) -> Vec<Warning> {
    let n = map.header.windows.len() as u64;
    let message = format!(
        "the intervals rest on {}: they are too narrow if neighbouring windows resemble each other; use at least {MIN_WINDOWS}",
        count_of(n, "window")
    );
    let few_windows = (n < MIN_WINDOWS).then(|| Warning::new("few_windows", message));
    few_windows.into_iter().chain(lost_tokens(map)).collect()
}

/// The warning about cells with tokens that have no finite KLD, where other cells have one. Of several, it
/// names one with the fewest tensors, as one tensor says more than all of them together.
fn lost_tokens(map: &SensitivityMap) -> Option<Warning> {
    let most_of = |window: usize| {
        let of_each = map
            .cells
            .iter()
            .filter_map(|cell| cell.n_tokens.get(window));
        u64::from(of_each.copied().max().unwrap_or(0))
    };
    let most: Vec<u64> = (0..map.header.windows.len()).map(most_of).collect();
    let lost = map.cells.iter().filter_map(|cell| {
        let n_all: u64 = most.iter().take(cell.n_tokens.len()).sum();
        let kept: u64 = cell.n_tokens.iter().copied().map(u64::from).sum();
        (kept < n_all).then_some((cell, n_all - kept, n_all))
    });
    // The bits of positive numbers are in their order.
    let kept_share = |n: u64, n_all: u64| (1.0 - n as f64 / n_all as f64).to_bits();
    let rank =
        |(cell, n, n_all): &(&Cell, u64, u64)| (cell.exchanged.len(), kept_share(*n, *n_all));
    let (cell, n, n_all) = lost.clone().min_by_key(rank)?;
    let (tensor, kind) = cell.exchanged.first_key_value()?;
    let more = match cell.exchanged.len() - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let others = match lost.count() as u64 - 1 {
        0 => String::new(),
        n => format!(", as in {}", count_of(n, "more cell")),
    };
    let message = format!(
        "{tensor}{more} at {kind}: {n} of {n_all} tokens have no finite KLD and are left out{others}: it may hurt much more than it seems to; keep kl recipe from it with --types"
    );
    Some(Warning::new("lost_tokens", message))
}
