//! The KLD of each tensor at each type, from the cells that tell most of it.
//!
//! A tensor that was measured alone, at the type at which the map measures it, has its own cell. Its KLD at another type
//! is that KLD times the ratio of the weight errors at both types, because a tensor's KLD is proportional to its relative
//! squared weight error. To that comes what ggml loses by rounding the activations that the tensor is multiplied with,
//! which is the same for all types with blocks of one size: a role that was exchanged whole shows how much. A group's KLD
//! is shared among those of its tensors that were not measured alone, by their weight errors too. A tensor that was not
//! measured at all is as sensitive as the median of its role.
//!
//! Random tensors are measured alone at another type too, to check what is predicted. Such a cell counts at its own
//! type, and at others only beside the tensor's own cell: where a tensor has but a share of its group's KLD, the
//! shares of a group must add up to it, and a check says nothing of the type that the group was measured at.

use std::collections::{BTreeMap, BTreeSet};

use kl_formats::{GgmlType, MapHeader, MapTensor, Mixture, SensitivityMap};
use kl_stats::stats::Confidence;

use super::combination::{CellMean, Combination, Doubt};
use super::{CheckedPrediction, nearest_type, role_and_layer};

/// The standard deviation of the logarithm of a KLD that follows from another type's: on the fixtures
/// and on another model it is 0.2.
const TYPE_DOUBT: f64 = 0.2;

/// A check that is off by more counts as this much: the KLD of a tensor that hardly matters may be far
/// off, where most of it comes from rounding its activations and not its weights.
const FARTHEST_CHECK: f64 = std::f64::consts::LN_2;

/// Few checks may be off by less than types differ.
const LEAST_TYPE_DOUBT: f64 = 0.1;

/// The number of checks that [`TYPE_DOUBT`] counts as.
const CHECKS_OF_DOUBT: f64 = 4.0;

/// At types of fewer bits, weights cost far more than activations.
const MANY_BITS: f64 = 6.0;

/// The standard deviation of the logarithm of a tensor's share of its group's KLD: on the fixtures' model,
/// layers of a role differ by 0.6 to 1.3.
const SHARE_DOUBT: f64 = 0.7;

/// The standard deviation of the logarithm of the KLD of a tensor that was not measured.
const ROLE_DOUBT: f64 = 1.0;

/// A group's other tensors have at least this part of the share that they would have without those
/// that were measured alone.
const LEAST_REST: f64 = 0.1;

/// A tensor whose KLD was lost in rounding errors has this part of what its role would give it: it
/// is not worth bits, but it is not free either.
const LOST: f64 = 0.01;

/// A tensor that the quantizer may change, and what a map says of it.
pub struct Known<'m> {
    pub tensor: &'m MapTensor,
    pub role: String,
    pub layer: Option<u32>,
    /// Its relative squared error at each type: its weights', and what rounding activations adds.
    errors: BTreeMap<GgmlType, f64>,
    /// The type at which the map measures it, alone or in its group; `None` where it has no weight errors.
    measured_type: Option<GgmlType>,
    /// The cells in which it is alone, by its type: at the measured type, and checks at others.
    pub singles: BTreeMap<GgmlType, usize>,
    /// The type and the KLD from which those at other types follow: its own cell's, its share of a
    /// group's, or what its role makes likely. Its error at the type is above 0.
    source: Option<(GgmlType, Combination)>,
}

impl Known<'_> {
    /// The error at a type; `None` if the map lacks it.
    fn error(&self, kind: GgmlType) -> Option<f64> {
        let own = (kind == self.tensor.kind).then_some(0.0);
        own.or_else(|| self.errors.get(&kind).copied())
    }

    fn error_above_0(&self, kind: GgmlType) -> Option<f64> {
        self.error(kind).filter(|error| *error > 0.0)
    }

    /// The source's KLD, and the error at its type.
    fn known(&self) -> Option<(&Combination, f64)> {
        let (kind, kld) = self.source.as_ref()?;
        Some((kld, self.error(*kind)?))
    }

    /// The cell in which it is alone at the type at which the map measures it.
    fn own_cell(&self) -> Option<(GgmlType, usize)> {
        let kind = self.measured_type?;
        Some((kind, *self.singles.get(&kind)?))
    }

    /// The KLD at a type, as it follows from the source.
    fn follows(&self, kind: GgmlType) -> Option<Combination> {
        let (kld, error) = self.known()?;
        Some(kld.times(self.error(kind)? / error))
    }
}

/// The type of a tensor with these weight errors in a mixture where all tensors have `kind`: that, or the nearest in
/// bits of those that it may have.
fn nearest_of(
    header: &MapHeader,
    errors: &BTreeMap<GgmlType, f64>,
    kind: GgmlType,
) -> Option<GgmlType> {
    let of_recipes = header.types.iter();
    let possible = of_recipes.filter(|kind| errors.contains_key(kind));
    nearest_type(kind, possible.chain(errors.keys()))
}

/// A map, read for the tensors that the quantizer may change.
pub struct Reader<'m> {
    map: &'m SensitivityMap,
    means: &'m [CellMean],
    pub tensors: Vec<Known<'m>>,
    index: BTreeMap<&'m str, usize>,
}

impl<'m> Reader<'m> {
    /// Reads a map, whose cells have these means.
    ///
    /// # Errors
    /// A map in which nothing was measured.
    pub fn read(map: &'m SensitivityMap, means: &'m [CellMean]) -> Result<Self, String> {
        let unmeasured: BTreeSet<&str> = map
            .header
            .unmeasured()
            .map(|(tensor, _)| &*tensor.name)
            .collect();
        let is_known =
            |tensor: &&MapTensor| tensor.is_quantizable && !unmeasured.contains(&*tensor.name);
        let quantizable = map.header.tensors.iter().filter(is_known);
        let index: BTreeMap<_, _> = quantizable
            .clone()
            .map(|tensor| &*tensor.name)
            .zip(0..)
            .collect();
        let tensors = quantizable.map(|tensor| {
            let (role, layer) = role_and_layer(&tensor.name);
            let errors = map.errors.get(&tensor.name).cloned().unwrap_or_default();
            Known {
                tensor,
                role,
                layer,
                measured_type: nearest_of(&map.header, &errors, map.header.measured_type),
                errors,
                singles: BTreeMap::new(),
                source: None,
            }
        });
        let mut this = Self {
            map,
            means,
            tensors: tensors.collect(),
            index,
        };
        this.find_singles();
        this.share_groups();
        this.fill_in()?;
        let rounding = this.rounding();
        for known in &mut this.tensors {
            for (kind, error) in &mut known.errors {
                let role_and_block = (known.role.clone(), kind.block);
                *error += rounding
                    .get(&role_and_block)
                    .map_or(0.0, |(_, rounding)| *rounding);
            }
        }
        Ok(this)
    }

    /// Finds the cells of tensors that were measured alone. A tensor's source is the one at the type at which the
    /// map measures it.
    fn find_singles(&mut self) {
        for (cell, measured) in self.map.cells.iter().enumerate() {
            if let (1, Some((name, kind))) = (
                measured.exchanged.len(),
                measured.exchanged.first_key_value(),
            ) && let Some(&tensor) = self.index.get(&**name)
                && self.means[cell].has_tokens
            {
                self.tensors[tensor].singles.insert(*kind, cell);
            }
        }
        for known in &mut self.tensors {
            let own_cell = known.own_cell();
            let usable = own_cell.filter(|(kind, _)| known.error_above_0(*kind).is_some());
            known.source =
                usable.map(|(kind, cell)| (kind, Combination::of_cell(self.means, cell)));
        }
    }

    /// Shares the KLDs of groups, at the types at which the map measures their tensors, among those that have no source
    /// yet, those of the smallest groups first.
    fn share_groups(&mut self) {
        let half = self.tensors.len() / 2;
        let cells = self.map.cells.iter().enumerate();
        let mut groups: Vec<_> = cells
            .filter(|(_, cell)| {
                (2..=half).contains(&cell.exchanged.len())
                    && self.has_measured_types(&cell.exchanged)
            })
            .collect();
        groups.sort_by_key(|(_, cell)| cell.exchanged.len());
        for (cell, group) in groups {
            if !self.means[cell].has_tokens {
                continue;
            }
            let whole = Combination::of_cell(self.means, cell);
            let (mut left, mut of_known) = (whole.clone(), 0.0);
            let mut rest = Vec::new();
            for (name, &kind) in &group.exchanged {
                let Some(&index) = self.index.get(&**name) else {
                    continue;
                };
                let Some(error) = self.tensors[index].error(kind) else {
                    continue;
                };
                match self.tensors[index].follows(kind) {
                    Some(kld) => {
                        of_known += error;
                        left.add(&kld, -1.0);
                    }
                    None => rest.push((index, kind, error)),
                }
            }
            let of_rest: f64 = rest.iter().map(|(.., error)| error).sum();
            let least = LEAST_REST * of_rest / (of_known + of_rest);
            if left.value < least * whole.value {
                left = whole.times(least);
            }
            for (index, kind, error) in rest.into_iter().filter(|(.., error)| *error > 0.0) {
                let share = left.times(error / of_rest);
                let kld = share.doubted(Doubt::Tensor(index), SHARE_DOUBT);
                self.tensors[index].source = Some((kind, kld));
            }
        }
    }

    /// What the map says of a tensor.
    fn known(&self, name: &str) -> Option<&Known<'m>> {
        self.index.get(name).map(|&index| &self.tensors[index])
    }

    /// True if each tensor of a mixture has the type at which the map measures it.
    fn has_measured_types(&self, mixture: &Mixture) -> bool {
        mixture.iter().all(|(name, kind)| {
            let measured_type = self.known(name).and_then(|known| known.measured_type);
            measured_type.is_none_or(|measured_type| measured_type == *kind)
        })
    }

    /// The type for which a mixture was made, if it was made of one: each of its tensors has that, or the nearest that
    /// it may have. Of several, the one that most tensors have.
    pub fn type_of_all(&self, mixture: &Mixture) -> Option<GgmlType> {
        let header = &self.map.header;
        let is_made_of = |asked: &&GgmlType| {
            mixture.iter().all(|(name, kind)| {
                let known = self.known(name);
                known.and_then(|known| nearest_of(header, &known.errors, **asked)) == Some(*kind)
            })
        };
        let n_having = |asked: &&GgmlType| mixture.values().filter(|kind| *kind == *asked).count();
        let asked = header.types.iter().chain([&header.measured_type]).rev();
        asked.filter(is_made_of).max_by_key(n_having).copied()
    }

    /// Gives tensors with weight errors but without a source the source of the median tensor of their role,
    /// or of all tensors where the role has none; and those whose KLD was lost a part of it.
    fn fill_in(&mut self) -> Result<(), String> {
        let with_source = self.tensors.iter().filter_map(|tensor| {
            let (kld, error) = tensor.known().filter(|(kld, _)| kld.value > 0.0)?;
            Some((tensor.role.clone(), kld.clone(), error))
        });
        let mut known: Vec<_> = with_source.collect();
        known.sort_by(|(_, a, a_error), (_, b, b_error)| {
            (a.value / a_error).total_cmp(&(b.value / b_error))
        });
        let Some(of_all) = known.get(known.len() / 2) else {
            return Err(
                "the map has no tensor whose KLD is above 0: finish it with `kl \
                 sensitivity --resume`, or measure it on more text"
                    .to_owned(),
            );
        };
        let usual = self.map.header.measured_type;
        for (index, tensor) in self.tensors.iter_mut().enumerate() {
            let (part, kind) = match &tensor.source {
                Some((_, kld)) if kld.value > 0.0 => continue,
                Some((lost, _)) => (LOST, Some(*lost)),
                None if tensor.error(usual).is_some() => (1.0, Some(usual)),
                None => (1.0, tensor.errors.keys().next().copied()),
            };
            let is_of_role = |role_kld: &&(String, Combination, f64)| role_kld.0 == tensor.role;
            let of_role: Vec<_> = known.iter().filter(is_of_role).collect();
            let (_, like, of_like) = of_role.get(of_role.len() / 2).unwrap_or(&of_all);
            tensor.source = kind.and_then(|kind| {
                let error = tensor.error_above_0(kind)?;
                let kld = like.times(part * error / of_like);
                Some((kind, kld.doubted(Doubt::Tensor(index), ROLE_DOUBT)))
            });
        }
        Ok(())
    }

    /// The error that rounding activations adds to the weight errors of each role that was exchanged whole, by
    /// the elements of a block: of the cells with one size of blocks, that of the most bits shows it best.
    fn rounding(&self) -> BTreeMap<(String, u64), (f64, f64)> {
        let mut best = BTreeMap::<(String, u64), (f64, f64)>::new();
        for cell in 0..self.map.cells.len() {
            if let Some((role, kind, rounding)) = self.rounding_of_role(cell) {
                let found = best.entry((role, kind.block)).or_default();
                if kind.bits() > found.0 {
                    *found = (kind.bits(), rounding);
                }
            }
        }
        best
    }

    /// The error by rounding that a cell shows, if it is of a whole role at one type of many bits.
    fn rounding_of_role(&self, cell: usize) -> Option<(String, GgmlType, f64)> {
        let exchanged = &self.map.cells[cell].exchanged;
        let kind = *exchanged.values().next()?;
        let known = exchanged.keys().map(|name| self.known(name));
        let members: Vec<&Known<'_>> = known.collect::<Option<_>>()?;
        let role = &members[0].role;
        let is_of_one = members.len() > 1
            && members.iter().all(|known| known.role == *role)
            && exchanged.values().all(|other| *other == kind);
        if !is_of_one || kind.bits() < MANY_BITS || !self.means[cell].has_tokens {
            return None;
        }
        // The KLD for a relative squared error of 1, and what the weights' own errors cost.
        let (mut slope, mut of_weights) = (0.0, 0.0);
        for known in &members {
            let (kld, error) = known.known()?;
            slope += kld.value / error;
            of_weights += kld.value / error * known.error(kind)?;
        }
        let rounding = ((self.means[cell].value - of_weights) / slope).max(0.0);
        rounding.is_finite().then(|| (role.clone(), kind, rounding))
    }

    /// The single cells that follow from another one, and the standard deviation of the logarithm of a KLD
    /// that follows from another type's: what those of tensors measured alone are off, less what few windows explain
    /// of it.
    pub fn checks(&self, confidence: Confidence) -> (Vec<CheckedPrediction>, f64) {
        let (mut checks, mut squares) = (Vec::new(), Vec::new());
        for known in &self.tensors {
            for (&kind, &cell) in &known.singles {
                let is_source = known
                    .source
                    .as_ref()
                    .is_some_and(|(source_kind, _)| *source_kind == kind);
                let Some(predicted) = known.follows(kind).filter(|_| !is_source) else {
                    continue;
                };
                let measured = Combination::of_cell(self.means, cell);
                let off = (measured.value / predicted.value).ln().abs();
                // What is off where the prediction follows from a group's KLD is mostly its share.
                if off.is_finite() && known.own_cell().is_some() {
                    let ratio = measured.relative_to(&predicted);
                    let of_windows = ratio.of_windows(self.means).map(|(_, sd)| sd * sd);
                    squares.push(off.min(FARTHEST_CHECK).powi(2) - of_windows.sum::<f64>());
                }
                checks.push(CheckedPrediction {
                    tensor: known.tensor.name.clone(),
                    kind,
                    predicted: predicted.value,
                    measured: measured.estimate(self.means, confidence),
                });
            }
        }
        let usual = CHECKS_OF_DOUBT * TYPE_DOUBT.powi(2);
        let n = CHECKS_OF_DOUBT + squares.len() as f64;
        let doubt = ((usual + squares.iter().sum::<f64>()) / n).sqrt();
        (checks, doubt.max(LEAST_TYPE_DOUBT))
    }

    /// The KLD of each tensor at each type that it was measured at or has a weight error at, from the
    /// cell at it, or else from the one whose weight error is nearest; of a tensor that was not measured alone, from its
    /// share of a group's; and at its own type. Tensors
    /// that the map does not cover have only their own type. `type_doubt` is that of [`Self::checks`].
    pub fn klds(&self, type_doubt: f64) -> Vec<BTreeMap<GgmlType, Combination>> {
        let tensors = self.tensors.iter().enumerate();
        let klds = tensors.map(|(index, known)| {
            let kld_of = |(&kind, &cell)| (kind, Combination::of_cell(self.means, cell));
            let cells: Vec<(GgmlType, Combination)> = known.singles.iter().map(kld_of).collect();
            let is_alone = known.own_cell().is_some();
            let above_0 = cells.iter().filter(|(_, kld)| is_alone && kld.value > 0.0);
            let possible = above_0.chain(&known.source);
            let with_errors =
                possible.filter_map(|source| Some((known.error_above_0(source.0)?, source)));
            let sources: Vec<(f64, &(GgmlType, Combination))> = with_errors.collect();
            let mut klds = BTreeMap::new();
            for (&kind, error) in &known.errors {
                let distance = |source_error: f64| (error / source_error).ln().abs();
                let by_distance = sources
                    .iter()
                    .min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)));
                if let Some((of_nearest, (nearest, kld))) = by_distance {
                    let mut kld = kld.times(error / of_nearest);
                    if kind != *nearest {
                        kld = kld.doubted(Doubt::Type(index, kind), type_doubt);
                    }
                    klds.insert(kind, kld);
                }
            }
            klds.insert(known.tensor.kind, Combination::default());
            for (kind, kld) in cells {
                let known = Some(kld).filter(|kld| kld.value > 0.0);
                klds.insert(kind, known.unwrap_or_default());
            }
            klds
        });
        klds.collect()
    }
}
