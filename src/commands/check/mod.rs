//! `kl check`: runs a model against itself, on the CPU with plain settings and then with others, and tells
//! what rounding explains from what it does not.

mod cells;
mod differences;

use anyhow::{Result, bail};
use kl_formats::{TokenRecord, WindowSpec};

use super::bench::{Bench, keep_rows};
use super::context::{check_windows, context_sources};
use super::devices::{connect_devices, load};
use super::input;
use super::observer::{Observer, Phase, Watch};
use super::settings::{CheckSettings, RunSettings};
use crate::engine::{Engine, Model, Nodes, TracedNode};
use crate::input::{DEFAULT_N_CTX, RawInput, Selection};
use crate::pipeline;
use crate::report::check::{
    CellVerdict, Check, CheckedCell, FirstDifference, Floor, Moved, Outcome, SkippedCell,
};
use crate::report::{ModelInfo, Versions};
use crate::stats::{linear, sorted};
use cells::{Cell, Cells, on_cpu};
use differences::{Difference, first_node, of_layers};

/// The rows of a setting are wrong from this many times the noise's KLD on, whatever its layers say, which
/// are computed apart. Heads in half precision have up to 20.
const TIMES_NOISE: f64 = 100.0;

/// Positions of a window whose layers are compared.
const TRACED_POSITIONS: usize = 48;

/// Checks a model.
///
/// # Errors
/// What is wrong with the model, the text or the devices, and rows that are not finite with plain settings.
pub fn check<E: Engine>(
    settings: &CheckSettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<Check> {
    let watch = &Watch::new(observer);
    let path = &settings.model;
    engine.inspect(path)?;
    let source = settings.source(settings.n_ctx.unwrap_or(DEFAULT_N_CTX));
    let mut raw = match settings.text_path {
        Some(_) => input::read(&source, watch)?,
        None => RawInput::starter_text(&source),
    };
    connect_devices(engine, &settings.run, watch)?;
    let model = engine.load(path, &on_cpu())?;
    let facts = model.facts();
    let most = facts.n_positions.or(facts.n_ctx_train.map(u64::from));
    let default = most.map_or(DEFAULT_N_CTX, |most| most.min(DEFAULT_N_CTX.into()) as u32);
    let source = settings.source(settings.n_ctx.unwrap_or(default));
    raw.source = &source;
    let all = Selection::default();
    let prepared = input::prepare(raw, &model, &settings.run, &all, None, |_| Ok(()), watch)?;
    let windows = prepared.plan.windows;
    let n_ctx = prepared.longest_window;
    check_windows(n_ctx, &model, "lower --n-ctx", watch)?;
    let cells = Cells {
        run: &settings.run,
        n_ctx,
        n_windows: windows.len(),
        n_layers: facts.n_layers,
        devices: devices(settings, engine)?,
    };
    let plain = cells.plain();
    let sources = context_sources(&model, &plain.context, &settings.run);
    let rows = keep_rows(sources, windows.clone(), watch)?;
    let bench = Bench {
        rows,
        options: plain.context.clone(),
        run: &settings.run,
        watch,
    };
    let all = cells.all();
    let n_rows = |cell: &Cell| 2 * bench.n_rows(cell.windows.clone());
    let n_cells = all.len() as u64 + 1;
    let n_all_rows = all.iter().map(n_rows).sum::<u64>() + n_rows(&plain);
    let phase = watch.begin_units("checking", "setting", Some(n_cells), Some(n_all_rows));
    let step = (n_ctx as usize / TRACED_POSITIONS) | 1;
    let mut checking = Checking {
        base: Vec::new(),
        positions: (0..n_ctx as usize).step_by(step).collect(),
        model: &model,
        windows,
        phase: &phase,
        bench,
    };
    checking.base = checking.trace(&model, &plain, Nodes::LayerOutputs)?;
    let noise = checking.see(&model, &plain.with_noise())?;
    let n_not_finite = noise
        .records
        .iter()
        .filter(|of| of.flags & TokenRecord::REF_NOT_FINITE != 0);
    if let n @ 1.. = n_not_finite.count() {
        bail!(
            "{}: with plain settings on the CPU, {} of {} rows are not finite: the file is damaged (kl info --verify names the tensor), or the model is broken",
            path.display(),
            n,
            noise.records.len()
        );
    }
    let (mut checked, mut skipped) = (Vec::new(), Vec::new());
    let mut loaded: Option<(Cell, E::Model<'_>)> = None;
    for cell in all {
        let run = RunSettings {
            model: cell.model.clone(),
            ..settings.run.clone()
        };
        let is_here = loaded
            .as_ref()
            .is_some_and(|(other, _)| cell.has_model_of(other));
        if !is_here && !cell.has_model_of(&plain) {
            // Two do not lie on a device together.
            loaded = None;
            match load(engine, path, &run, || (cell.context.clone(), None), watch) {
                Ok(model) => loaded = Some((cell.clone(), model)),
                Err(error) if cell.settings.is_yours => return Err(error.into()),
                Err(error) => {
                    skipped.push(SkippedCell {
                        settings: cell.settings,
                        why: error.to_string(),
                    });
                    continue;
                }
            }
        }
        let model = loaded.as_ref().map_or(&model, |(_, model)| model);
        match checking.check(model, &cell, &noise) {
            Ok(found) => checked.push(found),
            Err(error @ pipeline::Error::Interrupted) => return Err(error.into()),
            Err(error) if cell.settings.is_yours => return Err(error.into()),
            Err(error) => skipped.push(SkippedCell {
                settings: cell.settings,
                why: error.to_string(),
            }),
        }
        phase.window(None);
    }
    drop(loaded);
    let is_wrong = checked
        .iter()
        .any(|cell| cell.verdict == CellVerdict::Wrong);
    let yours = checked.last().filter(|cell| cell.settings.is_yours);
    let floor = yours.and_then(|cell| {
        Some(Floor {
            kld: cell.moved.kld?,
            same_top: cell.moved.same_top?,
        })
    });
    let report = Check {
        versions: Versions::default(),
        verdict: if is_wrong {
            Outcome::Wrong
        } else {
            Outcome::Ok
        },
        floor,
        model: ModelInfo::new(path, &facts.identity),
        n_tokens: checking
            .windows
            .iter()
            .map(|window| window.tokens.len() as u64)
            .sum(),
        base: plain.settings,
        noise: moved(&noise.records),
        cells: checked,
        skipped,
        warnings: watch.warnings(),
    };
    Ok(report)
}

/// The devices to check, by name: those that the user names, or all.
fn devices(settings: &CheckSettings, engine: &impl Engine) -> Result<Vec<String>> {
    let named = &settings.run.model.devices;
    let all = engine.devices()?.into_iter();
    let all = all.filter(|device| device.kind.is_gpu());
    let mut all: Vec<String> = all.map(|device| device.name).collect();
    if let Some(name) = named
        .iter()
        .find(|&name| name != "none" && !all.contains(name))
    {
        bail!("no device '{name}': kl --list-devices shows those that there are");
    }
    all.retain(|name| named.is_empty() || named.contains(name));
    Ok(all)
}

/// What a setting gave beside the plain ones.
struct Seen {
    records: Vec<TokenRecord>,
    layers: Vec<Difference>,
}

/// A check under way.
struct Checking<'c, M> {
    /// The model on the CPU.
    model: &'c M,
    windows: Vec<WindowSpec>,
    /// The positions of each window whose layers are compared.
    positions: Vec<usize>,
    /// The outputs of the layers with plain settings.
    base: Vec<TracedNode>,
    bench: Bench<'c>,
    phase: &'c Phase<'c>,
}

impl<M: Model + Sync> Checking<'_, M> {
    fn trace(
        &self,
        model: &M,
        cell: &Cell,
        nodes: Nodes,
    ) -> Result<Vec<TracedNode>, pipeline::Error> {
        let windows = self.windows.get(cell.windows.clone()).unwrap_or_default();
        let traced = model.trace(&cell.context, windows, &self.positions, nodes)?;
        self.bench.watch.check()?;
        Ok(traced)
    }

    /// Runs a setting twice: undisturbed, for its rows, and for its layers.
    fn see(&mut self, model: &M, cell: &Cell) -> Result<Seen, pipeline::Error> {
        self.bench.options = cell.context.clone();
        let mut records = Vec::new();
        let windows = cell.windows.clone();
        self.bench.score(model, windows, Some(self.phase), |of| {
            records.extend_from_slice(of)
        })?;
        let layers = of_layers(&self.base, &self.trace(model, cell, Nodes::LayerOutputs)?);
        self.phase.rows(records.len());
        Ok(Seen { records, layers })
    }

    /// Runs a setting and judges it by what noise does.
    fn check(
        &mut self,
        model: &M,
        cell: &Cell,
        noise: &Seen,
    ) -> Result<CheckedCell, pipeline::Error> {
        let seen = self.see(model, cell)?;
        let mut layers = seen.layers.iter().zip(&noise.layers);
        let first = layers.find(|(layer, noise)| layer.exceeds(noise));
        let is_same = seen.layers.iter().all(Difference::is_none);
        let verdict = if first.is_some() || rows_exceed(&seen.records, &noise.records) {
            CellVerdict::Wrong
        } else if is_same && seen.records.iter().all(|of| of.kld == 0.0) {
            CellVerdict::Same
        } else {
            CellVerdict::Rounding
        };
        let first = first.map(|(layer, noise)| self.look_into(model, cell, layer, noise));
        Ok(CheckedCell {
            settings: cell.settings.clone(),
            verdict,
            moved: moved(&seen.records),
            first_difference: first.transpose()?,
        })
    }

    /// Finds the first node of a layer that is wrong.
    fn look_into(
        &self,
        model: &M,
        cell: &Cell,
        layer: &Difference,
        noise: &Difference,
    ) -> Result<FirstDifference, pipeline::Error> {
        let nodes = Nodes::OfLayer(layer.layer);
        let plain = cell.on_plain_batches();
        let base = self.trace(self.model, &plain, nodes)?;
        let noisy = self.trace(self.model, &plain.with_noise(), nodes)?;
        let other = self.trace(model, cell, nodes)?;
        Ok(FirstDifference {
            layer: layer.layer,
            node: first_node(&base, &other, &noisy, noise),
        })
    }
}

/// Whether rows are further off than noise moves them by far, or not finite.
fn rows_exceed(records: &[TokenRecord], noise: &[TokenRecord]) -> bool {
    let [rows, noise] = [records, noise].map(|records| {
        let klds = sorted(&records.iter().map(|of| of.kld).collect::<Vec<_>>());
        let mean = klds.iter().sum::<f64>() / klds.len().max(1) as f64;
        let quantile = |p| linear(&klds, p).unwrap_or(0.0);
        [quantile(0.5), quantile(0.9), mean]
    });
    let is_larger = |(row, noise): (&f64, &f64)| *row > TIMES_NOISE * noise;
    records.iter().any(TokenRecord::is_excluded) || rows.iter().zip(&noise).any(is_larger)
}

/// The mean and the largest KLD of rows, and the share with the same top token.
fn moved(records: &[TokenRecord]) -> Moved {
    let finite = records.iter().filter(|of| !of.is_excluded());
    let n = finite.clone().count();
    let mean = |sum: f64| (n > 0).then(|| sum / n as f64);
    let n_same = finite
        .clone()
        .filter(|of| of.ref_top == of.eval_top)
        .count();
    Moved {
        kld: mean(finite.clone().map(|of| of.kld).sum()),
        largest_kld: finite.map(|of| of.kld).reduce(f64::max),
        same_top: mean(n_same as f64),
        n_not_finite: (records.len() - n) as u64,
    }
}
