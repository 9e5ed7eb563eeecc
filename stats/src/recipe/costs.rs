//! The KLD of each tensor at each type, from the cells that tell most of it.
//!
//! A tensor that was measured alone has its own cell. Its KLD at another type is times the ratio of
//! its weight errors, because a tensor's KLD is proportional to its relative squared weight error. To
//! that comes what ggml loses by rounding the activations that the tensor is multiplied with, which is
//! the same for all types with blocks of one size: a role that was exchanged whole shows how much. A
//! group's KLD is shared among those of its tensors that were not measured alone, by their weight
//! errors too. A tensor that was not measured at all is as sensitive as the median of its role.

use std::collections::{BTreeMap, BTreeSet};

use kl_formats::{Cell, GgmlType, SensitivityMap};

use super::combination::{CellMean, Combination, Doubt};
use super::role_and_layer;

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

/// The same of a tensor's share of its group: on the fixtures' model, layers of a role differ by 0.6 to
/// 1.3.
const SHARE_DOUBT: f64 = 0.7;

/// The same of a tensor that was not measured.
const ROLE_DOUBT: f64 = 1.0;

/// A group's other tensors have at least this part of the share that they would have without those
/// that were measured alone.
const LEAST_REST: f64 = 0.1;

/// A tensor whose KLD was lost in rounding errors has this part of what its role would give it: it
/// is not worth bits, but it is not free either.
const LOST: f64 = 0.01;

/// The KLD of a tensor at a type.
#[derive(Clone, Debug)]
pub struct Term {
    pub kld: Combination,
    pub is_measured: bool,
}

/// A cell that was predicted from another one, by their indexes.
#[derive(Clone, Debug)]
pub struct Predicted {
    pub tensor: usize,
    pub kind: GgmlType,
    pub kld: Combination,
    pub cell: usize,
}

/// What a map says of the tensors that the quantizer may change.
#[derive(Debug)]
pub struct Terms {
    /// Those of each tensor, at each type that it was measured at or has a weight error at, and at
    /// its own. Tensors of which the map says nothing have their own type alone.
    pub of: Vec<BTreeMap<GgmlType, Term>>,
    pub checks: Vec<Predicted>,
}

/// A cell's KLD, or its share of one, for a tensor at the type that it was exchanged for.
#[derive(Clone, Debug)]
struct Source {
    kind: GgmlType,
    error: f64,
    kld: Combination,
}

/// The pieces of a map that are needed to make terms.
struct Reader<'m> {
    map: &'m SensitivityMap,
    means: &'m [CellMean],
    names: Vec<&'m str>,
    own: Vec<GgmlType>,
    /// The role of each tensor.
    roles: Vec<String>,
    index: BTreeMap<&'m str, usize>,
    /// What rounding activations adds to the weight errors of a role, by the elements of a block.
    rounding: BTreeMap<(String, u64), f64>,
}

impl Terms {
    /// Reads a map, whose cells have these means.
    ///
    /// # Errors
    /// A map in which nothing was measured.
    pub fn of(map: &SensitivityMap, means: &[CellMean]) -> Result<Self, String> {
        let mut reader = Reader::of(map, means);
        let singles = reader.singles();
        let mut sources = reader.own_sources(&singles);
        reader.share_groups(&mut sources);
        reader.fill_in(&mut sources)?;
        reader.rounding = reader.rounding(&sources);
        for (tensor, source) in sources.iter_mut().enumerate() {
            if let Some(source) = source {
                source.error += reader.rounding_of(tensor, source.kind);
            }
        }
        let checks = reader.checks(&singles, &sources);
        let doubt = type_doubt(&checks, means);
        let of = (0..reader.names.len()).map(|tensor| {
            let empty = BTreeMap::new();
            let singles = singles.get(&tensor).unwrap_or(&empty);
            reader.terms(tensor, singles, sources[tensor].as_ref(), doubt)
        });
        Ok(Self {
            of: of.collect(),
            checks,
        })
    }
}

impl<'m> Reader<'m> {
    fn of(map: &'m SensitivityMap, means: &'m [CellMean]) -> Self {
        let tensors = map.header.tensors.iter();
        let tensors = tensors.filter(|tensor| tensor.is_quantizable);
        let names: Vec<&str> = tensors.clone().map(|tensor| tensor.name.as_str()).collect();
        Self {
            map,
            means,
            index: names.iter().copied().zip(0..).collect(),
            roles: names.iter().map(|name| role_and_layer(name).0).collect(),
            rounding: BTreeMap::new(),
            names,
            own: tensors.map(|tensor| tensor.kind).collect(),
        }
    }

    /// The error of a tensor at a type: its weights', and what rounding activations adds, once that is
    /// known; `None` if the map lacks it.
    fn error(&self, tensor: usize, kind: GgmlType) -> Option<f64> {
        if kind == self.own[tensor] {
            return Some(0.0);
        }
        let error = *self.map.errors.get(self.names[tensor])?.get(&kind)?;
        let is_valid = error.is_finite() && error >= 0.0;
        is_valid.then(|| error + self.rounding_of(tensor, kind))
    }

    /// What rounding activations adds to a tensor's weight error at a type.
    fn rounding_of(&self, tensor: usize, kind: GgmlType) -> f64 {
        let of = (self.roles[tensor].clone(), kind.block);
        self.rounding.get(&of).copied().unwrap_or(0.0)
    }

    /// What rounding activations adds to the weight errors of each role that was exchanged whole: of
    /// the cells with one size of blocks, that of the most bits shows it best.
    fn rounding(&self, sources: &[Option<Source>]) -> BTreeMap<(String, u64), f64> {
        let mut best = BTreeMap::<(String, u64), (f64, f64)>::new();
        for (cell, of) in self.map.cells.iter().enumerate() {
            let mut kinds = of.exchanged.values().copied();
            let (Some(kind), Some(whole)) = (kinds.next(), self.measured(cell)) else {
                continue;
            };
            let members: Option<Vec<usize>> = of
                .exchanged
                .keys()
                .map(|name| self.index.get(name.as_str()).copied())
                .collect();
            let Some(members) = members.filter(|of| of.len() > 1) else {
                continue;
            };
            let role = &self.roles[members[0]];
            let is_of_one = members.iter().all(|&tensor| self.roles[tensor] == *role)
                && kinds.all(|other| other == kind);
            if !is_of_one || kind.bits() < MANY_BITS {
                continue;
            }
            // The KLD for a relative squared error of 1, and what the weights' own errors cost.
            let parts = members.iter().map(|&tensor| {
                let source = sources[tensor].as_ref()?;
                let slope = source.kld.value / source.error;
                Some((slope, slope * self.error(tensor, kind)?))
            });
            let Some(parts) = parts.collect::<Option<Vec<(f64, f64)>>>() else {
                continue;
            };
            let slope: f64 = parts.iter().map(|(slope, _)| slope).sum();
            let of_weights: f64 = parts.iter().map(|(_, own)| own).sum();
            let rounding = ((whole.value - of_weights) / slope).max(0.0);
            let found = best.entry((role.clone(), kind.block)).or_default();
            if rounding.is_finite() && kind.bits() > found.0 {
                *found = (kind.bits(), rounding);
            }
        }
        let best = best.into_iter();
        best.map(|(of, (_, rounding))| (of, rounding)).collect()
    }

    /// The mean of a cell, as a number to reckon with.
    fn measured(&self, cell: usize) -> Option<Combination> {
        let mean = &self.means[cell];
        mean.has_tokens.then(|| Combination::of_cell(cell, mean))
    }

    /// The cells with a single tensor, by tensor and type.
    fn singles(&self) -> BTreeMap<usize, BTreeMap<GgmlType, usize>> {
        let mut singles = BTreeMap::<usize, BTreeMap<GgmlType, usize>>::new();
        for (cell, of) in self.map.cells.iter().enumerate() {
            if let (1, Some((name, kind))) = (of.exchanged.len(), of.exchanged.first_key_value())
                && let Some(&tensor) = self.index.get(name.as_str())
                && self.means[cell].has_tokens
            {
                singles.entry(tensor).or_default().insert(*kind, cell);
            }
        }
        singles
    }

    /// The source of each tensor that was measured alone: at the map's type, or else the cell with the
    /// most windows.
    fn own_sources(
        &self,
        singles: &BTreeMap<usize, BTreeMap<GgmlType, usize>>,
    ) -> Vec<Option<Source>> {
        let best = |(&tensor, cells): (&usize, &BTreeMap<GgmlType, usize>)| {
            let known = cells.iter().filter_map(|(&kind, &cell)| {
                let error = self.error(tensor, kind).filter(|error| *error > 0.0)?;
                let is_usual = kind == self.map.header.measured_type;
                let rank = (is_usual, self.map.cells[cell].klds.len());
                Some((rank, kind, error, cell))
            });
            let (_, kind, error, cell) = known.max_by_key(|(rank, ..)| *rank)?;
            let kld = self.measured(cell)?;
            Some((tensor, Source { kind, error, kld }))
        };
        let mut sources = vec![None; self.names.len()];
        for (tensor, source) in singles.iter().filter_map(best) {
            sources[tensor] = Some(source);
        }
        sources
    }

    /// Shares the KLDs of groups among the tensors that have no source yet, those of the smallest
    /// groups first.
    fn share_groups(&self, sources: &mut [Option<Source>]) {
        let half = self.names.len() / 2;
        let cells = self.map.cells.iter().enumerate();
        let mut groups: Vec<(usize, &Cell)> = cells
            .filter(|(_, cell)| (2..=half).contains(&cell.exchanged.len()))
            .collect();
        groups.sort_by_key(|(_, cell)| cell.exchanged.len());
        for (cell, group) in groups {
            let Some(whole) = self.measured(cell) else {
                continue;
            };
            let members = group.exchanged.iter().filter_map(|(name, &kind)| {
                let tensor = *self.index.get(name.as_str())?;
                Some((tensor, kind, self.error(tensor, kind)?))
            });
            let (known, rest): (Vec<_>, Vec<_>) =
                members.partition(|(tensor, ..)| sources[*tensor].is_some());
            let sum = |of: &[(usize, GgmlType, f64)]| of.iter().map(|(.., error)| error).sum();
            let (of_known, of_rest): (f64, f64) = (sum(&known), sum(&rest));
            if of_rest == 0.0 {
                continue;
            }
            let mut left = whole.clone();
            for (tensor, _, error) in known {
                if let Some(source) = &sources[tensor] {
                    left.add(&source.kld, -error / source.error);
                }
            }
            let least = LEAST_REST * of_rest / (of_known + of_rest);
            if left.value < least * whole.value {
                left = whole.times(least);
            }
            for (tensor, kind, error) in rest {
                let kld = left.times(error / of_rest);
                sources[tensor] = (error > 0.0).then(|| Source {
                    kind,
                    error,
                    kld: kld.doubted(Doubt::Tensor(tensor), SHARE_DOUBT),
                });
            }
        }
    }

    /// Gives the tensors with weight errors that have no source yet that of the median tensor of their
    /// role, or of all where the role has none; and those whose KLD was lost a part of it.
    fn fill_in(&self, sources: &mut [Option<Source>]) -> Result<(), String> {
        let roles = &self.roles;
        let mut known: Vec<(f64, usize)> = Vec::new();
        for (tensor, source) in sources.iter().enumerate() {
            if let Some(source) = source
                && source.kld.value > 0.0
            {
                known.push((source.kld.value / source.error, tensor));
            }
        }
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        if known.is_empty() {
            let message =
                "the map has no tensor whose KLD is above 0: finish it with `kl sensitivity";
            return Err(format!("{message} --resume`, or measure it on more text"));
        }
        let median = |role: Option<&str>| {
            let of_role = known
                .iter()
                .filter(|(_, tensor)| role.is_none_or(|role| roles[*tensor] == role));
            let of_role: Vec<_> = of_role.collect();
            of_role.get(of_role.len() / 2).map(|(_, tensor)| *tensor)
        };
        let before = sources.to_vec();
        for (tensor, source) in sources.iter_mut().enumerate() {
            let part = match &before[tensor] {
                Some(source) if source.kld.value > 0.0 => continue,
                Some(_) => LOST,
                None => 1.0,
            };
            let like = median(Some(&roles[tensor])).or_else(|| median(None));
            let like = like.and_then(|tensor| before[tensor].as_ref());
            let kinds = self.map.errors.get(self.names[tensor]);
            let mut kinds = kinds.into_iter().flat_map(|kinds| kinds.keys());
            let usual = self.map.header.measured_type;
            let kind = match before[tensor].as_ref() {
                Some(source) => Some(source.kind),
                None if self.error(tensor, usual).is_some() => Some(usual),
                None => kinds.next().copied(),
            };
            *source = like.zip(kind).and_then(|(like, kind)| {
                let error = self.error(tensor, kind).filter(|error| *error > 0.0)?;
                let kld = like.kld.times(part * error / like.error);
                let kld = kld.doubted(Doubt::Tensor(tensor), ROLE_DOUBT);
                Some(Source { kind, error, kld })
            });
        }
        Ok(())
    }

    /// The single cells that follow from another one.
    fn checks(
        &self,
        singles: &BTreeMap<usize, BTreeMap<GgmlType, usize>>,
        sources: &[Option<Source>],
    ) -> Vec<Predicted> {
        let mut checks = Vec::new();
        for (&tensor, cells) in singles {
            let Some(source) = &sources[tensor] else {
                continue;
            };
            for (&kind, &cell) in cells.iter().filter(|(kind, _)| **kind != source.kind) {
                if let Some(error) = self.error(tensor, kind) {
                    let kld = source.kld.times(error / source.error);
                    checks.push(Predicted {
                        tensor,
                        kind,
                        kld,
                        cell,
                    });
                }
            }
        }
        checks
    }

    /// The KLD of a tensor at each type, from the cell at it, or else from the one whose weight error
    /// is nearest.
    fn terms(
        &self,
        tensor: usize,
        singles: &BTreeMap<GgmlType, usize>,
        source: Option<&Source>,
        doubt: f64,
    ) -> BTreeMap<GgmlType, Term> {
        let own = Term {
            kld: Combination::default(),
            is_measured: true,
        };
        let mut terms = BTreeMap::from([(self.own[tensor], own)]);
        let cells = singles.iter().filter_map(|(&kind, &cell)| {
            let kld = self.measured(cell)?;
            let error = self.error(tensor, kind).unwrap_or(0.0);
            Some(Source { kind, error, kld })
        });
        let cells: Vec<Source> = cells.collect();
        let errors = self.map.errors.get(self.names[tensor]);
        let kinds: BTreeSet<GgmlType> = errors
            .into_iter()
            .flat_map(|of| of.keys().copied())
            .collect();
        let usable = cells
            .iter()
            .filter(|cell| cell.error > 0.0 && cell.kld.value > 0.0);
        let usable: Vec<&Source> = usable.chain(source).collect();
        for kind in kinds {
            if let Some(error) = self.error(tensor, kind)
                && kind != self.own[tensor]
            {
                let distance = |source: &Source| (error / source.error).ln().abs();
                let nearest = usable
                    .iter()
                    .min_by(|a, b| distance(a).total_cmp(&distance(b)));
                if let Some(nearest) = nearest {
                    let kld = nearest.kld.times(error / nearest.error);
                    let kld = match kind == nearest.kind {
                        true => kld,
                        false => kld.doubted(Doubt::Type(tensor, kind), doubt),
                    };
                    let is_measured = false;
                    terms.insert(kind, Term { kld, is_measured });
                }
            }
        }
        for cell in cells {
            let kld = match cell.kld.value > 0.0 {
                true => cell.kld,
                false => Combination::default(),
            };
            let is_measured = true;
            terms.insert(cell.kind, Term { kld, is_measured });
        }
        terms
    }
}

/// The standard deviation of the logarithm of a KLD that follows from another type's: what checks are
/// off, less what few windows explain of it.
fn type_doubt(checks: &[Predicted], means: &[CellMean]) -> f64 {
    let squares = checks.iter().filter_map(|check| {
        let measured = Combination::of_cell(check.cell, &means[check.cell]);
        let off = (measured.value / check.kld.value).ln().abs();
        let ratio = measured.relative_to(&check.kld);
        let of_windows: f64 = ratio.of_windows(means).map(|(_, sd)| sd * sd).sum();
        off.is_finite()
            .then(|| off.min(FARTHEST_CHECK).powi(2) - of_windows)
    });
    let squares: Vec<f64> = squares.collect();
    let usual = CHECKS_OF_DOUBT * TYPE_DOUBT.powi(2);
    let n = CHECKS_OF_DOUBT + squares.len() as f64;
    ((usual + squares.iter().sum::<f64>()) / n)
        .sqrt()
        .max(LEAST_TYPE_DOUBT)
}
