//! A map of sensitivity as `kl sensitivity` shows it: [`Sensitivity`], from which every output is made.
//! Its fields are the keys of the JSON.

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;

use kl_formats::{
    BackendIdentity, Cell, GgmlType, ImatrixIdentity, MapHeader, SensitivityMap, TextIdentity,
};
use serde::Serialize;

use super::number::{count_of, finite};
use super::result::{ModelInfo, Versions};
use super::warning::Warning;
use crate::recipe::{Additivity, Check, Cost, Sensitivities, TensorCosts};
use crate::stats::{Confidence, Estimate};

/// Below so many windows, their spread says little of other text.
const MIN_WINDOWS: u64 = 8;

/// What each tensor of a model costs when it is quantized, from a map.
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
    /// The type at which tensors are compared, where their rows are whole blocks of it.
    pub measured_type: GgmlType,
    /// The work that the map took.
    pub cost: MapCost,
    /// The mean KLD of the original against itself, with nothing exchanged, which must be 0; null:
    /// not measured.
    pub control: Option<f64>,
    /// All tensors together: the sum of their KLDs, each alone.
    pub whole: Part,
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
    pub checks: Vec<Check>,
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
    /// Its cost at the measured type, or at the nearest that its rows are whole blocks of.
    #[serde(flatten)]
    pub at: Cost,
    /// Its share of the KLD of the whole.
    pub share: Option<f64>,
    /// Its KLD for each byte that the type saves, over that of the whole: 1 is the average. A recipe
    /// spends bytes where it is large. Null where no byte is saved.
    pub relative_cost: Option<f64>,
}

impl Sensitivity {
    /// Describes a map, of which `of` was read. `seconds`: what this run took, if it measured.
    pub fn new(
        map: &SensitivityMap,
        of: Sensitivities,
        confidence: Confidence,
        seconds: Option<f64>,
        warnings: Vec<Warning>,
    ) -> Self {
        let (header, measured) = (&map.header, map.header.measured_type);
        let reference = header.reference.as_ref();
        let fewest_bits = fewest_bits(&of);
        let mut whole = Part::default();
        let tensors = of.tensors.into_iter();
        let tensors = tensors.filter_map(|tensor| Some((compared(&tensor, measured)?, tensor)));
        let tensors: Vec<(Cost, TensorCosts)> = tensors.collect();
        tensors
            .iter()
            .for_each(|(at, tensor)| whole.add(tensor, at));
        let whole = whole.of(&whole);
        let tensors = tensors.into_iter().map(|(at, tensor)| {
            let alone = Part::of_tensor(&tensor, &at).of(&whole);
            TensorSensitivity {
                share: alone.share,
                relative_cost: alone.relative_cost,
                tensor,
                at,
            }
        });
        let tensors: Vec<TensorSensitivity> = tensors.collect();
        Self {
            versions: Versions::default(),
            model: model(header),
            text: header.text.clone(),
            reference: reference.and_then(|of| of.file_name.clone()),
            n_ctx: header.n_ctx,
            n_windows: header.windows.len() as u64,
            seed: header.seed,
            set_up: header.backend.clone(),
            imatrix: header.imatrix.clone(),
            confidence,
            types: header.types.clone(),
            measured_type: measured,
            cost: MapCost::of(map, seconds),
            control: control(map),
            by_role: by_role(&tensors, &whole),
            by_layer: by_layer(&tensors, &whole),
            tensors,
            whole,
            additivity: of.additivity,
            checks: of.checks,
            warnings,
            fewest_bits,
        }
    }

    /// The tensors that have a relative cost, by falling relative cost.
    pub fn by_relative_cost(&self) -> Vec<&TensorSensitivity> {
        let mut tensors: Vec<&TensorSensitivity> = self.tensors.iter().collect();
        tensors.retain(|tensor| tensor.relative_cost.is_some());
        let cost = |tensor: &TensorSensitivity| tensor.relative_cost.unwrap_or_default();
        tensors.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
        tensors
    }

    /// The tensors that are compared at another type than the measured one, because its blocks do not
    /// divide their rows.
    pub fn at_other_types(&self) -> impl Iterator<Item = &TensorSensitivity> {
        let of = self.measured_type;
        self.tensors
            .iter()
            .filter(move |tensor| tensor.at.kind != of)
    }
}

impl TensorSensitivity {
    /// Its KLD at the type at which tensors are compared, in nats.
    pub fn kld(&self) -> Estimate {
        self.at.kld
    }
}

impl MapCost {
    fn of(map: &SensitivityMap, seconds: Option<f64>) -> Self {
        let before = u64::from(map.header.first_scored.unwrap_or(0));
        let windows = map.header.windows.iter();
        let tokens: Vec<u64> = windows.map(|of| before + u64::from(of.n_rows)).collect();
        let of_cell = |cell: &Cell| {
            tokens
                .iter()
                .skip(cell.from)
                .take(cell.klds.len())
                .sum::<u64>()
        };
        Self {
            n_cells: map.cells.len() as u64,
            n_tokens: map.cells.iter().map(of_cell).sum(),
            seconds,
        }
    }
}

/// Bits a parameter with the smallest type that each tensor may have.
fn fewest_bits(of: &Sensitivities) -> f64 {
    let smallest = of.tensors.iter().filter_map(|tensor| {
        let least = tensor.costs.iter().min_by_key(|cost| cost.bytes)?;
        Some((tensor.name.clone(), least.kind))
    });
    of.bpw(&smallest.collect())
}

fn model(header: &MapHeader) -> ModelInfo {
    let identity = header.model.clone().unwrap_or_default();
    let path = header.model_path.as_deref();
    let path = path.or(identity.shown_name()).unwrap_or_default();
    ModelInfo::new(std::path::Path::new(path), &identity)
}

/// The mean KLD of the original against itself.
fn control(map: &SensitivityMap) -> Option<f64> {
    let mut cells = map.cells.iter();
    let control = cells.find(|cell| cell.exchanged.is_empty())?;
    let n: u64 = control.n_tokens.iter().map(|&n| u64::from(n)).sum();
    (n > 0).then(|| control.klds.iter().sum::<f64>() / n as f64)
}

/// A tensor's cost at `measured`, or else at a type as near to it in bits as can be, a measured one
/// if there is any. `None` for a tensor that can only have the original's type.
fn compared(tensor: &TensorCosts, measured: GgmlType) -> Option<Cost> {
    let (_, costs) = tensor.costs.split_last()?;
    // The bits of positive numbers are in their order.
    let far = |cost: &Cost| (cost.kind.bits() - measured.bits()).abs().to_bits();
    let nearness = |cost: &&Cost| (cost.kind != measured, !cost.is_measured, far(cost));
    costs.iter().min_by_key(nearness).copied()
}

/// Some tensors, each alone at the type at which tensors are compared.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Part {
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
    pub part: Part,
}

/// The tensors of a layer.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LayerSensitivity {
    /// The layer's number, from 0.
    pub layer: u32,
    #[serde(flatten)]
    pub part: Part,
}

impl Default for Part {
    /// No tensor.
    fn default() -> Self {
        Self {
            n_tensors: 0,
            n_params: 0,
            bytes_saved: 0,
            kld: Estimate::within(0.0, 0.0, 0.0),
            share: None,
            relative_cost: None,
        }
    }
}

impl Part {
    /// A tensor by itself.
    pub fn of_tensor(tensor: &TensorCosts, at: &Cost) -> Self {
        let mut part = Self::default();
        part.add(tensor, at);
        part
    }

    /// Adds a tensor.
    pub fn add(&mut self, tensor: &TensorCosts, at: &Cost) {
        let original = tensor.costs.last().map_or(at.bytes, |cost| cost.bytes);
        let sum = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
        self.n_tensors += 1;
        self.n_params = self.n_params.saturating_add(tensor.n_params);
        let saved = original.saturating_sub(at.bytes);
        self.bytes_saved = self.bytes_saved.saturating_add(saved);
        self.kld = Estimate {
            value: self.kld.value + at.kld.value,
            lo: sum(self.kld.lo, at.kld.lo),
            hi: sum(self.kld.hi, at.kld.hi),
        };
    }

    /// The same tensors, as a part of `whole`.
    pub fn of(&self, whole: &Self) -> Self {
        let per_byte = |part: &Self| part.kld.value / part.bytes_saved as f64;
        Self {
            share: finite(self.kld.value / whole.kld.value),
            relative_cost: finite(per_byte(self) / per_byte(whole)),
            ..self.clone()
        }
    }
}

/// The tensors of each role, by falling relative cost.
fn by_role(tensors: &[TensorSensitivity], whole: &Part) -> Vec<RoleSensitivity> {
    let roles = sums(tensors, whole, |tensor| Some(tensor.role.clone())).into_iter();
    let mut roles = Vec::from_iter(roles.map(|(role, part)| RoleSensitivity { role, part }));
    let cost = |of: &RoleSensitivity| of.part.relative_cost.unwrap_or(f64::NEG_INFINITY);
    roles.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
    roles
}

/// The tensors of each layer, from the first layer on.
fn by_layer(tensors: &[TensorSensitivity], whole: &Part) -> Vec<LayerSensitivity> {
    let layers = sums(tensors, whole, |tensor| tensor.layer).into_iter();
    layers
        .map(|(layer, part)| LayerSensitivity { layer, part })
        .collect()
}

/// The sums of the tensors with the same key, as parts of the whole; those without one are left out.
fn sums<K: Ord>(
    tensors: &[TensorSensitivity],
    whole: &Part,
    key: impl Fn(&TensorCosts) -> Option<K>,
) -> BTreeMap<K, Part> {
    let mut sums: BTreeMap<K, Part> = BTreeMap::new();
    for of in tensors {
        if let Some(key) = key(&of.tensor) {
            sums.entry(key).or_default().add(&of.tensor, &of.at);
        }
    }
    sums.values_mut().for_each(|part| *part = part.of(whole));
    sums
}

/// The warnings that a map deserves.
pub fn doubts(map: &SensitivityMap) -> Vec<Warning> {
    few_windows(map)
        .into_iter()
        .chain(lost_tokens(map))
        .collect()
}

fn few_windows(map: &SensitivityMap) -> Option<Warning> {
    let n = map.header.windows.len() as u64;
    let windows = count_of(n, "window");
    let message = format!(
        "the intervals rest on {windows}: they are too narrow if neighbouring windows resemble each other; use at least {MIN_WINDOWS}"
    );
    (n < MIN_WINDOWS).then(|| Warning::new("few_windows", message))
}

/// The warning about cells with tokens that have no finite KLD, where other cells have one.
fn lost_tokens(map: &SensitivityMap) -> Option<Warning> {
    let mut all = vec![0; map.header.windows.len()];
    for cell in &map.cells {
        for (most, n) in all.iter_mut().zip(&cell.n_tokens) {
            *most = u64::from(*n).max(*most);
        }
    }
    let lost = |cell: &Cell| {
        let of: u64 = all.iter().take(cell.n_tokens.len()).sum();
        let kept: u64 = cell.n_tokens.iter().map(|n| u64::from(*n)).sum();
        (of - kept, of)
    };
    let cells = map.cells.iter().map(|cell| (cell, lost(cell)));
    let cells: Vec<_> = cells.filter(|(_, (n, _))| *n > 0).collect();
    let share = |(n, of): (u64, u64)| n as f64 / of as f64;
    // One tensor says more than all of them together.
    let worst = cells.iter().min_by(|(a, a_lost), (b, b_lost)| {
        let fewer = a.exchanged.len().cmp(&b.exchanged.len());
        fewer.then(share(*b_lost).total_cmp(&share(*a_lost)))
    });
    let (cell, (n, of)) = worst?;
    let (tensor, kind) = cell.exchanged.first_key_value()?;
    let more = match cell.exchanged.len() - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let others = match cells.len() as u64 - 1 {
        0 => String::new(),
        n => format!(", as in {}", count_of(n, "more cell")),
    };
    let message = format!(
        "{tensor}{more} at {kind}: {n} of {of} tokens have no finite KLD and are left out{others}: it may hurt much more than it seems to; keep kl recipe from it with --types"
    );
    Some(Warning::new("lost_tokens", message))
}
