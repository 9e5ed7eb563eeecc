//! The KLD of each tensor at each type, from the cells that tell most of it.
//!
//! A tensor that was measured alone has its own cell. Its KLD at another type is times the ratio of
//! its weight errors, because a tensor's KLD is proportional to its relative squared weight error. To
//! that comes what ggml loses by rounding the activations that the tensor is multiplied with, which is
//! the same for all types with blocks of one size: a role that was exchanged whole shows how much. A
//! group's KLD is shared among those of its tensors that were not measured alone, by their weight
//! errors too. A tensor that was not measured at all is as sensitive as the median of its role.

use std::collections::BTreeMap;

use kl_formats::{Cell, GgmlType, MapTensor, SensitivityMap};

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
    /// The tensors that the quantizer may change.
    tensors: Vec<&'m MapTensor>,
    /// The role of each.
    roles: Vec<String>,
    index: BTreeMap<&'m str, usize>,
    /// The cells in which each tensor is alone, by its type.
    singles: Vec<BTreeMap<GgmlType, usize>>,
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
        let mut sources = reader.own_sources();
        reader.share_groups(&mut sources);
        reader.fill_in(&mut sources)?;
        reader.rounding = reader.rounding(&sources);
        for (tensor, source) in sources.iter_mut().enumerate() {
            if let Some(source) = source {
                source.error += reader.rounding_of(tensor, source.kind);
            }
        }
        let checks = reader.checks(&sources);
        let doubt = type_doubt(&checks, means);
        let tensors = sources.iter().enumerate();
        let terms = tensors.map(|(tensor, source)| reader.terms(tensor, source.as_ref(), doubt));
        Ok(Self {
            of: terms.collect(),
            checks,
        })
    }
}

impl<'m> Reader<'m> {
    fn of(map: &'m SensitivityMap, means: &'m [CellMean]) -> Self {
        let tensors = map.header.tensors.iter();
        let tensors: Vec<_> = tensors.filter(|of| of.is_quantizable).collect();
        let names = tensors.iter().map(|of| of.name.as_str());
        let index: BTreeMap<&str, usize> = names.clone().zip(0..).collect();
        let mut singles = vec![BTreeMap::new(); tensors.len()];
        for (cell, of) in map.cells.iter().enumerate() {
            if let (1, Some((name, kind))) = (of.exchanged.len(), of.exchanged.first_key_value())
                && let Some(&tensor) = index.get(name.as_str())
                && means[cell].has_tokens
            {
                singles[tensor].insert(*kind, cell);
            }
        }
        Self {
            map,
            means,
            roles: names.map(|name| role_and_layer(name).0).collect(),
            index,
            singles,
            rounding: BTreeMap::new(),
            tensors,
        }
    }

    /// The weight errors of a tensor, by type.
    fn weight_errors(&self, tensor: usize) -> impl Iterator<Item = (GgmlType, f64)> + 'm {
        let errors = self.map.errors.get(&self.tensors[tensor].name);
        errors
            .into_iter()
            .flatten()
            .map(|(kind, error)| (*kind, *error))
    }

    /// The error of a tensor at a type: its weights', and what rounding activations adds, once that is
    /// known; `None` if the map lacks it.
    fn error(&self, tensor: usize, kind: GgmlType) -> Option<f64> {
        if kind == self.tensors[tensor].kind {
            return Some(0.0);
        }
        let errors = self.map.errors.get(&self.tensors[tensor].name)?;
        let error = *errors.get(&kind)?;
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
        for cell in 0..self.map.cells.len() {
            if let Some((role, kind, rounding)) = self.rounding_of_role(cell, sources) {
                let found = best.entry((role, kind.block)).or_default();
                if kind.bits() > found.0 {
                    *found = (kind.bits(), rounding);
                }
            }
        }
        let best = best.into_iter();
        best.map(|(of, (_, rounding))| (of, rounding)).collect()
    }

    /// What a cell shows of that, if it is of a whole role at one type of many bits.
    fn rounding_of_role(
        &self,
        cell: usize,
        sources: &[Option<Source>],
    ) -> Option<(String, GgmlType, f64)> {
        let whole = self.measured(cell)?.value;
        let exchanged = &self.map.cells[cell].exchanged;
        let kind = *exchanged.values().next()?;
        let members = exchanged.keys().map(|name| self.index.get(name.as_str()));
        let members: Vec<usize> = members
            .map(Option::<&usize>::copied)
            .collect::<Option<_>>()?;
        let role = &self.roles[members[0]];
        let is_of_one = members.len() > 1
            && members.iter().all(|&tensor| self.roles[tensor] == *role)
            && exchanged.values().all(|other| *other == kind);
        if !is_of_one || kind.bits() < MANY_BITS {
            return None;
        }
        // The KLD for a relative squared error of 1, and what the weights' own errors cost.
        let (mut slope, mut of_weights) = (0.0, 0.0);
        for tensor in members {
            let source = sources[tensor].as_ref()?;
            let of_tensor = source.kld.value / source.error;
            slope += of_tensor;
            of_weights += of_tensor * self.error(tensor, kind)?;
        }
        let rounding = ((whole - of_weights) / slope).max(0.0);
        rounding.is_finite().then(|| (role.clone(), kind, rounding))
    }

    /// The mean of a cell, to add and to scale.
    fn measured(&self, cell: usize) -> Option<Combination> {
        let mean = &self.means[cell];
        mean.has_tokens.then(|| Combination::of_cell(cell, mean))
    }

    /// The source of each tensor that was measured alone: at the map's type, or else the cell with the
    /// most windows.
    fn own_sources(&self) -> Vec<Option<Source>> {
        let best = |(tensor, cells): (usize, &BTreeMap<GgmlType, usize>)| {
            let known = cells.iter().filter_map(|(&kind, &cell)| {
                let error = self.error(tensor, kind).filter(|error| *error > 0.0)?;
                let kld = self.measured(cell)?;
                let is_usual = kind == self.map.header.measured_type;
                let rank = (is_usual, self.map.cells[cell].klds.len());
                Some((rank, Source { kind, error, kld }))
            });
            let best = known.max_by_key(|(rank, _)| *rank);
            best.map(|(_, source)| source)
        };
        self.singles.iter().enumerate().map(best).collect()
    }

    /// Shares the KLDs of groups among the tensors that have no source yet, those of the smallest
    /// groups first.
    fn share_groups(&self, sources: &mut [Option<Source>]) {
        let half = self.tensors.len() / 2;
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
            let (mut left, mut of_known) = (whole.clone(), 0.0);
            let mut rest = Vec::new();
            for (tensor, kind, error) in members {
                match &sources[tensor] {
                    Some(source) => {
                        of_known += error;
                        left.add(&source.kld, -error / source.error);
                    }
                    None => rest.push((tensor, kind, error)),
                }
            }
            let of_rest: f64 = rest.iter().map(|(.., error)| error).sum();
            let least = LEAST_REST * of_rest / (of_known + of_rest);
            if left.value < least * whole.value {
                left = whole.times(least);
            }
            for (tensor, kind, error) in rest.into_iter().filter(|(.., error)| *error > 0.0) {
                let kld = left.times(error / of_rest);
                let kld = kld.doubted(Doubt::Tensor(tensor), SHARE_DOUBT);
                sources[tensor] = Some(Source { kind, error, kld });
            }
        }
    }

    /// Gives the tensors with weight errors that have no source yet that of the median tensor of their
    /// role, or of all where the role has none; and those whose KLD was lost a part of it.
    fn fill_in(&self, sources: &mut [Option<Source>]) -> Result<(), String> {
        let is_known = |source: &Source| source.kld.value > 0.0;
        let mut known: Vec<(&String, Source)> = Vec::new();
        for (role, source) in self.roles.iter().zip(&*sources) {
            let source = source.clone().filter(is_known);
            known.extend(source.map(|source| (role, source)));
        }
        let slope = |source: &Source| source.kld.value / source.error;
        known.sort_by(|(_, a), (_, b)| slope(a).total_cmp(&slope(b)));
        if known.is_empty() {
            return Err(
                "the map has no tensor whose KLD is above 0: finish it with `kl \
                 sensitivity --resume`, or measure it on more text"
                    .to_owned(),
            );
        }
        let median = |of: &[&Source]| of.get(of.len() / 2).map(|source| Source::clone(source));
        let of_all = median(&Vec::from_iter(known.iter().map(|(_, source)| source)));
        let usual = self.map.header.measured_type;
        for (tensor, source) in sources.iter_mut().enumerate() {
            if source.as_ref().is_some_and(is_known) {
                continue;
            }
            let has_usual = self.error(tensor, usual).is_some();
            let (part, kind) = match source.take() {
                Some(lost) => (LOST, Some(lost.kind)),
                None if has_usual => (1.0, Some(usual)),
                None => (1.0, self.weight_errors(tensor).next().map(|(kind, _)| kind)),
            };
            let of_role = known
                .iter()
                .filter(|(role, _)| **role == self.roles[tensor]);
            let of_role = median(&Vec::from_iter(of_role.map(|(_, source)| source)));
            *source = of_role
                .or_else(|| of_all.clone())
                .zip(kind)
                .and_then(|(like, kind)| {
                    let error = self.error(tensor, kind).filter(|error| *error > 0.0)?;
                    let kld = like.kld.times(part * error / like.error);
                    let kld = kld.doubted(Doubt::Tensor(tensor), ROLE_DOUBT);
                    Some(Source { kind, error, kld })
                });
        }
        Ok(())
    }

    /// The single cells that follow from another one.
    fn checks(&self, sources: &[Option<Source>]) -> Vec<Predicted> {
        let mut checks = Vec::new();
        for (tensor, (cells, source)) in self.singles.iter().zip(sources).enumerate() {
            for (&kind, &cell) in cells {
                if let Some(source) = source.as_ref().filter(|source| source.kind != kind)
                    && let Some(error) = self.error(tensor, kind)
                {
                    checks.push(Predicted {
                        tensor,
                        kind,
                        kld: source.kld.times(error / source.error),
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
        source: Option<&Source>,
        doubt: f64,
    ) -> BTreeMap<GgmlType, Term> {
        let own = self.tensors[tensor].kind;
        let measured = |kld| Term {
            kld,
            is_measured: true,
        };
        let mut terms = BTreeMap::from([(own, measured(Combination::default()))]);
        let cells = self.singles[tensor].iter().filter_map(|(&kind, &cell)| {
            let kld = self.measured(cell)?;
            let error = self.error(tensor, kind).unwrap_or(0.0);
            Some(Source { kind, error, kld })
        });
        let cells: Vec<Source> = cells.collect();
        let usable = cells
            .iter()
            .filter(|cell| cell.error > 0.0 && cell.kld.value > 0.0);
        let usable: Vec<&Source> = usable.chain(source).collect();
        for (kind, _) in self.weight_errors(tensor).filter(|(kind, _)| *kind != own) {
            let Some(error) = self.error(tensor, kind) else {
                continue;
            };
            let distance = |source: &Source| (error / source.error).ln().abs();
            let by_distance = |a: &&&Source, b: &&&Source| distance(a).total_cmp(&distance(b));
            if let Some(nearest) = usable.iter().min_by(by_distance) {
                let mut kld = nearest.kld.times(error / nearest.error);
                if kind != nearest.kind {
                    kld = kld.doubted(Doubt::Type(tensor, kind), doubt);
                }
                let is_measured = false;
                terms.insert(kind, Term { kld, is_measured });
            }
        }
        for Source { kind, kld, .. } in cells {
            let is_known = kld.value > 0.0;
            terms.insert(
                kind,
                measured(if is_known {
                    kld
                } else {
                    Combination::default()
                }),
            );
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
