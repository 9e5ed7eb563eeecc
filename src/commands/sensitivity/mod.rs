//! Measures what each tensor of a model costs when it is quantized: a map of sensitivity.

mod measure;
mod original;
mod plan;
mod store;
mod windows;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use kl_formats::{Cell, GgmlType, MAP_VERSION, MapHeader, Mixture, SensitivityMap};

use super::context::{Precedent, check_parallel, largest_context};
use super::devices::{connect_devices, load};
use super::observer::{Observer, Phase, Watch};
use super::settings::{SensitivitySettings, SensitivitySource};
use crate::engine::{Engine, Exchange as _, Imatrix, Model, Room};
use crate::recipe::Sensitivities;
use crate::report::Warning;
use crate::report::sensitivity::{Sensitivity, doubts};
use measure::Meter;
use original::{Original, Tensor};
use plan::Unit;
use store::{Output, Store};
use windows::{Opened, Windows};

/// The rows of a tensor of which weight errors are taken. On the fixtures' model and on one of random
/// weights, the ratios of their errors at two types are 1 % off those of four times as many rows.
const ROWS_FOR_ERRORS: usize = 64;

/// The mean KLD, in nats, from which a reference's rows are another model's: those that another
/// backend has computed are nearer.
const OTHER_MODEL: f64 = 1e-3;

/// A map that was measured.
#[derive(Debug)]
pub struct Mapped {
    /// The file, as given.
    pub path: String,
    /// True if it was there already, and is what would be measured.
    pub was_whole: bool,
    pub file_bytes: u64,
    pub n_cells: u64,
    pub wall_s: f64,
    /// What the map says; `None` of a part.
    pub sensitivity: Option<Sensitivity>,
}

/// Measures a map.
///
/// # Errors
/// What is wrong with the model, the text, the reference or the output, or a model whose results move
/// from call to call. A map that was cut off keeps its cells, for `--resume`.
pub fn sensitivity<E: Engine>(
    settings: &SensitivitySettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<Mapped> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let imatrix = settings.imatrix.as_deref().map(Imatrix::read).transpose()?;
    let imatrix = imatrix.as_ref();
    let mut original = Original::inspect(settings, engine, imatrix)?;
    if original.is_quantized() {
        let path = settings.model.display().to_string();
        watch.warn(Warning::QuantizedOriginal(path));
    }
    check_parallel(&settings.run, engine, &settings.model)?;
    let opened = Opened::new(settings, watch)?;
    let mut output = Output::create(settings)?;
    connect_devices(engine, &settings.run, watch)?;
    let n_ctx = opened.n_ctx(settings);
    let room = || Room {
        context: largest_context(&settings.run, n_ctx, Precedent::default()),
        n_contexts: settings.run.n_contexts(true),
        second_model: None,
    };
    let model = load(engine, &settings.model, &settings.run, room, watch)?;
    original.keep(&model.exchangeable()?)?;
    let mut windows = opened.draw(settings, engine, &model, output.begun(), watch)?;
    let header = header(&original, &windows, imatrix);
    let (was_whole, file_bytes, map) = match output.finished(&header)? {
        Some(map) => (true, file_bytes(settings), map),
        None => {
            let rows = windows.keep(settings, &model, watch)?;
            let meter = Meter {
                settings,
                model: &model,
                options: &windows.options,
                rows: &rows,
                imatrix,
                watch,
            };
            let mut run = Run {
                meter,
                original: &original,
                store: output.begin(header)?,
            };
            let (file_bytes, map) = match run.measure_all() {
                Ok(()) => run.store.finish()?,
                Err(error) => bail!("{error:#}{}", run.store.keep()),
            };
            (false, file_bytes, map)
        }
    };
    model.drop_last();
    let wall_s = started.elapsed().as_secs_f64();
    let n_cells = map.cells.len() as u64;
    let sensitivity = match map.header.shard {
        Some(_) => None,
        None => Some(described(settings, &map, wall_s, was_whole, watch)?),
    };
    Ok(Mapped {
        path: settings.output.display().to_string(),
        was_whole,
        file_bytes,
        n_cells,
        wall_s,
        sensitivity,
    })
}

/// What a map says, with the warnings of this run.
fn described(
    settings: &SensitivitySettings,
    map: &SensitivityMap,
    wall_s: f64,
    was_whole: bool,
    watch: &Watch<'_>,
) -> Result<Sensitivity> {
    let path = settings.output.display();
    let of =
        Sensitivities::of(map, settings.confidence).map_err(|error| anyhow!("{path}: {error}"))?;
    let seconds = (!was_whole).then_some(wall_s);
    for doubt in doubts(map) {
        watch.warn(doubt);
    }
    let warnings = watch.warnings();
    Ok(Sensitivity::new(
        map,
        of,
        settings.confidence,
        seconds,
        warnings,
    ))
}

fn file_bytes(settings: &SensitivitySettings) -> u64 {
    let metadata = std::fs::metadata(&settings.output);
    metadata.map_or(0, |metadata| metadata.len())
}

fn header(original: &Original, windows: &Windows, imatrix: Option<&Imatrix>) -> MapHeader {
    MapHeader {
        kl_map: MAP_VERSION,
        provenance: windows.about.provenance.clone(),
        reference: windows.summary.clone(),
        windows: windows.listed(),
        measured_type: original.measured_type,
        types: original.types.clone(),
        imatrix: imatrix.map(|imatrix| imatrix.identity.clone()),
        metadata_bytes: original.blueprint.metadata_bytes,
        alignment: original.blueprint.alignment,
        tensors: original.listed(),
    }
}

/// A run that measures what the map still lacks.
struct Run<'r, M> {
    meter: Meter<'r, M>,
    original: &'r Original,
    store: Store,
}

/// A piece of the work. Pieces are dealt out to the parts of a run.
enum Piece<'t> {
    /// A tensor or a group at its measured types.
    Unit(Unit<'t>),
    /// All tensors at this type.
    Together(GgmlType),
    /// A role at a type of many bits.
    Role(Mixture),
    /// A tensor at another type than it is measured at.
    Check(&'t Tensor, GgmlType),
}

impl<M: Model + Sync> Run<'_, M> {
    /// Measures all cells of this run's part.
    ///
    /// # Errors
    /// Why a cell cannot be measured, or that the observer asks to stop.
    fn measure_all(&mut self) -> Result<()> {
        let original = self.original;
        let (tensors, types) = (&original.tensors, &original.types);
        let settings = self.meter.settings;
        let units = plan::units(tensors);
        let n_units = units.len();
        let together = plan::types_together(types, original.measured_type);
        let roles = plan::roles(tensors, types, original.measured_type);
        let checks = plan::checks(tensors, types, settings.seed);
        let mut pieces: Vec<Piece<'_>> = units.into_iter().map(Piece::Unit).collect();
        pieces.extend(together.into_iter().map(Piece::Together));
        pieces.extend(roles.into_iter().map(Piece::Role));
        pieces.extend(checks.into_iter().map(|(of, kind)| Piece::Check(of, kind)));
        let pieces = match settings.part {
            Some(part) => part.keep(pieces),
            None => pieces,
        };

        let watch = self.meter.watch;
        let phase = &watch.begin_steps("measuring", "step", pieces.len() as u64 + 3);
        let n_windows = self.n_windows();
        self.control(phase)?;
        phase.window(None);
        let whole = self.up_to(&plan::at_measured_types(tensors), n_windows, phase)?;
        phase.window(None);
        for piece in &pieces {
            match piece {
                Piece::Unit(unit) => self.unit(unit, &whole, n_units, phase)?,
                Piece::Together(kind) => {
                    let typed = tensors
                        .iter()
                        .map(|of| (of.name.clone(), of.nearest(*kind)));
                    self.up_to(&typed.collect(), self.windows_together(), phase)?;
                }
                Piece::Role(mixture) => {
                    let n = plan::windows_of_roles(n_windows, self.n_together());
                    self.up_to(mixture, n, phase)?;
                }
                Piece::Check(tensor, kind) => {
                    self.errors(tensor)?;
                    let mixture = Mixture::from([(tensor.name.clone(), *kind)]);
                    self.until_enough(&mixture, &whole, n_units, phase)?;
                }
            }
            phase.window(None);
        }
        self.control(phase)?;
        phase.window(None);
        Ok(())
    }

    fn n_windows(&self) -> usize {
        self.meter.rows.windows().len()
    }

    /// Windows for which all tensors are exchanged, or none.
    fn windows_together(&self) -> usize {
        plan::windows_together(self.n_windows(), self.n_together())
    }

    /// Windows of a decode call.
    fn n_together(&self) -> usize {
        self.meter.options.n_seq.max(1) as usize
    }

    /// Measures a tensor, or a group and where it matters each of its tensors.
    fn unit(
        &mut self,
        unit: &Unit<'_>,
        whole: &Cell,
        n_units: usize,
        phase: &Phase<'_>,
    ) -> Result<()> {
        for tensor in &unit.tensors {
            self.errors(tensor)?;
        }
        let cell = self.until_enough(&unit.mixture(), whole, n_units, phase)?;
        if unit.tensors.len() > 1 && plan::is_split(&cell, whole, n_units) {
            for tensor in &unit.tensors {
                let single = Unit::single(tensor).mixture();
                self.until_enough(&single, whole, n_units, phase)?;
            }
        }
        Ok(())
    }

    /// Takes a tensor's weight errors at all types that a recipe may give it, and at the measured one.
    fn errors(&mut self, tensor: &Tensor) -> Result<()> {
        self.meter.watch.check()?;
        let mut kinds = tensor.types.clone();
        kinds.extend(Some(tensor.measured_type).filter(|kind| !tensor.types.contains(kind)));
        let known = self.store.map().errors.get(&tensor.name);
        if known.is_some() {
            return Ok(());
        }
        let (model, imatrix) = (self.meter.model, self.meter.imatrix);
        let errors = model.weight_errors(&tensor.name, &kinds, imatrix, ROWS_FOR_ERRORS)?;
        let errors: BTreeMap<GgmlType, f64> = kinds.into_iter().zip(errors).collect();
        self.store.push_errors(&tensor.name, &errors)
    }

    /// Measures a cell until its share of the whole is known well enough.
    fn until_enough(
        &mut self,
        mixture: &Mixture,
        whole: &Cell,
        n_units: usize,
        phase: &Phase<'_>,
    ) -> Result<Cell> {
        let is_enough = |cell: &Cell| plan::is_enough(cell, whole, n_units);
        self.rounds(mixture, self.n_windows(), is_enough, phase)
    }

    /// Measures a cell over the first `n` windows.
    fn up_to(&mut self, mixture: &Mixture, n: usize, phase: &Phase<'_>) -> Result<Cell> {
        self.rounds(mixture, n, |_| false, phase)
    }

    /// Measures a cell, round by round, over at most the first `n` windows. What is in the map already
    /// is not measured again.
    fn rounds(
        &mut self,
        mixture: &Mixture,
        n: usize,
        is_enough: impl Fn(&Cell) -> bool,
        phase: &Phase<'_>,
    ) -> Result<Cell> {
        let mut cell = Cell {
            exchanged: mixture.clone(),
            ..Cell::default()
        };
        for round in plan::rounds(n, self.n_together()) {
            let known = self.store.cell(mixture);
            let known = known.filter(|known| known.klds.len() >= round.end);
            let (klds, n_tokens) = match known {
                Some(known) => {
                    let klds = known.klds.get(round.clone()).unwrap_or_default();
                    let n_tokens = known.n_tokens.get(round.clone()).unwrap_or_default();
                    (klds.to_vec(), n_tokens.to_vec())
                }
                None => {
                    let measured = self.meter.measure(mixture, round, phase)?;
                    self.store.push_cell(&measured)?;
                    (measured.klds, measured.n_tokens)
                }
            };
            cell.klds.extend(klds);
            cell.n_tokens.extend(n_tokens);
            if is_enough(&cell) {
                break;
            }
        }
        Ok(cell)
    }

    /// Checks that the original has its own rows, with nothing exchanged: at first over more windows, and
    /// later that all of it is restored.
    fn control(&mut self, phase: &Phase<'_>) -> Result<()> {
        let nothing = Mixture::new();
        let control = match self.store.cell(&nothing) {
            None => {
                let control = self
                    .meter
                    .measure(&nothing, 0..self.windows_together(), phase)?;
                self.check_control(&control)?;
                self.store.push_cell(&control)?;
                return Ok(());
            }
            Some(_) => {
                let first = plan::rounds(self.n_windows(), self.n_together()).next();
                self.meter
                    .measure(&nothing, first.unwrap_or_default(), phase)?
            }
        };
        self.check_control(&control)
    }

    fn check_control(&self, control: &Cell) -> Result<()> {
        let settings = self.meter.settings;
        let n: u32 = control.n_tokens.iter().sum();
        let mean = control.klds.iter().sum::<f64>() / f64::from(n.max(1));
        let is_zero = control.klds.iter().all(|kld| *kld == 0.0);
        match &settings.source {
            _ if is_zero => Ok(()),
            SensitivitySource::Text(_) => bail!(
                "{}: its results move from call to call: against its own rows it has a mean KLD of {mean:.2e}, not 0: use other devices (-dev none), or one context (--contexts 1)",
                settings.model.display()
            ),
            SensitivitySource::Reference(path) if mean >= OTHER_MODEL => bail!(
                "{}: does not hold the rows of {}, which has a mean KLD of {mean:.2e} against it: give the reference that this model wrote, or -t TEXT",
                path.display(),
                settings.model.display()
            ),
            SensitivitySource::Reference(path) => {
                self.meter.watch.warn(Warning::NotOwnRows {
                    path: path.display().to_string(),
                    mean_kld: mean,
                });
                Ok(())
            }
        }
    }
}
