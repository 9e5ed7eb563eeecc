//! `kl check`: runs a model against itself, on the CPU with plain settings and then with others, and separates
//! the differences that rounding explains from those that it does not.

mod cells;
mod differences;

use std::ops::Range;

use anyhow::{Result, bail};
use kl_engine::{Engine, Model, ModelFacts, ModelOptions, Nodes, TracedNode};
use kl_formats::{TokenRecord, WindowSpec, longest_window};
use kl_report::check::{
    CellVerdict, Check, CheckedCell, FirstDifference, Floor, Moved, Outcome, SkippedCell,
};
use kl_report::{ModelInfo, Versions};
use kl_stats::stats::{linear, sorted};

use super::bench::{Bench, n_that_fit};
use super::context::{check_files, is_of_changed_model};
use super::devices::{connect_devices, load};
use super::input;
use super::observer::{Observer, Phase, Watch, one_line};
use super::settings::CheckSettings;
use crate::input::{DEFAULT_N_CTX, RawInput, Selection};
use cells::{Cells, CheckSetting};
use differences::{NodeDifference, differences, first_node, without_inputs};

/// The rows of a setting are wrong if they have more than this many times the noise's KLD, even if its layers,
/// which are computed apart, are right. Heads in half precision have up to 4 times.
const TIMES_NOISE: f64 = 20.0;

/// The approximate number of a window's positions whose layers are compared, in a quarter of the windows.
const TRACED_POSITIONS: usize = 192;

/// Most bytes for the rows of the plain settings.
const ROW_BYTES: u64 = 1 << 30;

/// Checks a model.
///
/// # Errors
/// What is wrong with the model, the text or the devices, and rows that are not finite with plain settings.
pub fn check(
    settings: &CheckSettings,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<Check> {
    let watch = &Watch::new(observer);
    let path = &settings.model;
    engine.inspect(path)?;
    let source = settings.source(settings.n_ctx.unwrap_or(DEFAULT_N_CTX));
    let raw = match settings.text {
        Some(_) => input::read(&source, watch)?,
        None => RawInput::starter_text(&source),
    };
    connect_devices(engine, &settings.run, watch)?;
    let model = engine.load(path, &ModelOptions::on_cpu())?;
    let windows = windows(settings, raw, &*model, watch)?;
    let n_tokens = windows
        .iter()
        .map(|window| window.tokens.len() as u64)
        .sum();
    let cells = Cells {
        run: &settings.run,
        n_ctx: longest_window(&windows),
        n_windows: windows.len(),
        n_together: n_together(settings, &windows, model.facts()),
        n_layers: model.facts().n_layers,
        devices: devices(settings, engine)?,
    };
    let (plain, all) = (cells.plain(), cells.all());
    let context = plain.context.clone();
    let bench = Bench::of_model(&*model, windows, context, &settings.run, watch)?;
    let mut checking = Checking::begin(engine, &*model, &cells, &all, bench)?;
    let (cells, skipped) = checking.check_all(all)?;
    check_files(&*model, watch)?;
    let is_wrong = cells.iter().any(|cell| cell.verdict == CellVerdict::Wrong);
    Ok(Check {
        versions: Versions::default(),
        verdict: if is_wrong {
            Outcome::Wrong
        } else {
            Outcome::Ok
        },
        floor: cells.last().and_then(|yours| {
            let (kld, same_top) = (yours.moved.kld?, yours.moved.same_top?);
            Some(Floor { kld, same_top })
        }),
        model: ModelInfo::new(path, &model.facts().identity),
        n_tokens,
        base: plain.settings,
        noise: moved(&checking.noise.records),
        cells,
        skipped,
        warnings: watch.warnings(),
    })
}

/// The windows to run the model over: as long as it supports, and as many as have room for their rows.
fn windows(
    settings: &CheckSettings,
    raw: RawInput<'_>,
    model: &dyn Model,
    watch: &Watch<'_>,
) -> Result<Vec<WindowSpec>> {
    let facts = model.facts();
    let positions = facts.n_positions.or(facts.n_ctx_train.map(u64::from));
    let max_n_ctx = DEFAULT_N_CTX.min(settings.max_tokens);
    let default_n_ctx = positions.map_or(max_n_ctx, |n| n.min(max_n_ctx.into()) as u32);
    let source = settings.source(settings.n_ctx.unwrap_or(default_n_ctx));
    let mut raw: RawInput<'_> = raw;
    raw.source = &source;
    let planned = input::plan(raw, model, &Selection::default(), watch)?;
    let mut windows = planned.plan.windows;
    let n = n_that_fit(&windows, facts.n_vocab, ROW_BYTES);
    windows.truncate(n.max(1));
    Ok(windows)
}

/// The number of windows that a setting decodes at once: as many as the user asks for with `-np`, and as the
/// text has, if `kl` decodes any together with this model.
fn n_together(settings: &CheckSettings, windows: &[WindowSpec], facts: &ModelFacts) -> u32 {
    const DEFAULT: u32 = 4;
    if !facts.layers.can_decode_together() {
        return 1;
    }
    let n_ctx = longest_window(windows).max(1);
    let max_windows = facts.contexts_like(n_ctx).end() / n_ctx;
    let n_wanted = settings.run.n_parallel.unwrap_or(DEFAULT);
    n_wanted.min(windows.len() as u32).min(max_windows).max(1)
}

/// The devices to check, by name: those that the user names, or all.
fn devices(settings: &CheckSettings, engine: &dyn Engine) -> Result<Vec<String>> {
    let mut gpus: Vec<String> = engine
        .devices()?
        .into_iter()
        .filter(|device| device.kind.is_gpu())
        .map(|device| device.name)
        .collect();
    let wanted = &settings.run.model.devices;
    let unknown = wanted
        .iter()
        .find(|name| *name != ModelOptions::NO_DEVICE && !gpus.contains(name));
    if let Some(name) = unknown {
        bail!("no device '{name}': kl --list-devices shows those that there are");
    }
    gpus.retain(|name| wanted.is_empty() || wanted.contains(name));
    Ok(gpus)
}

/// The results of a setting, compared with the plain one.
#[derive(Default)]
struct SettingResults {
    records: Vec<TokenRecord>,
    layers: Vec<NodeDifference>,
}

/// A check under way.
struct Checking<'m, 'c> {
    engine: &'c dyn Engine,
    /// The model on the CPU.
    model: &'m dyn Model,
    bench: Bench<'c>,
    phase: Phase<'c>,
    /// The windows whose layers are compared, ...
    traced: Range<usize>,
    /// ... and their positions.
    positions: Vec<usize>,
    /// The layers' own outputs with plain settings.
    base: Vec<TracedNode>,
    /// The results of the plain settings with noise.
    noise: SettingResults,
}

impl<'m, 'c> Checking<'m, 'c> {
    /// Begins to check these settings: runs the plain ones with noise.
    fn begin(
        engine: &'c dyn Engine,
        model: &'m dyn Model,
        cells: &Cells<'_>,
        all: &[CheckSetting],
        bench: Bench<'c>,
    ) -> Result<Self> {
        let (plain, traced, n_ctx) = (cells.plain(), cells.few_windows(), cells.n_ctx as usize);
        let n_rows_of_cell =
            |cell: &CheckSetting| bench.n_rows(traced.clone()) + bench.n_rows(cell.windows.clone());
        let n_rows = Some(all.iter().chain([&plain]).map(n_rows_of_cell).sum());
        let n_cells = Some(all.len() as u64);
        let mut checking = Self {
            engine,
            model,
            phase: (bench.watch).begin("checking", n_cells, n_rows),
            bench,
            traced,
            positions: (0..n_ctx).step_by((n_ctx / TRACED_POSITIONS) | 1).collect(),
            base: Vec::new(),
            noise: SettingResults::default(),
        };
        checking.base = without_inputs(checking.trace(model, &plain, Nodes::LayerOutputs)?);
        checking.noise = checking.run_setting(model, &plain.with_noise())?;
        let records = &checking.noise.records;
        let n_not_finite = records
            .iter()
            .filter(|record| record.flags & TokenRecord::REF_NOT_FINITE != 0)
            .count();
        if n_not_finite > 0 {
            bail!(
                "{}: with plain settings on the CPU, {n_not_finite} of {} rows are not finite: the file is damaged (kl info --verify names the tensor), or the model is broken",
                model.facts().path.display(),
                records.len()
            );
        }
        Ok(checking)
    }

    /// Checks all settings; those of one place follow each other. A setting that cannot be run is
    /// skipped, unless it is the user's.
    fn check_all(
        &mut self,
        all: Vec<CheckSetting>,
    ) -> Result<(Vec<CheckedCell>, Vec<SkippedCell>)> {
        let (on_cpu, watch) = (self.model, self.bench.watch);
        let (mut checked, mut skipped) = (Vec::new(), Vec::new());
        let mut loaded: Option<(ModelOptions, Box<dyn Model + 'c>)> = None;
        for cell in all {
            // A device holds one model at a time.
            loaded = loaded.filter(|(options, _)| *options == cell.model);
            let mut check = || -> Result<CheckedCell> {
                if loaded.is_none() && cell.model != ModelOptions::on_cpu() {
                    let mut run = self.bench.run.clone();
                    run.model.clone_from(&cell.model);
                    let (path, context) = (&on_cpu.facts().path, cell.context.clone());
                    let model = load(self.engine, path, &run, || (context, None), watch)?;
                    loaded = Some((run.model, model));
                }
                let model = loaded.as_ref().map_or(on_cpu, |(_, model)| &**model);
                self.check(model, &cell)
            };
            match check() {
                Ok(checked_cell) => checked.push(checked_cell),
                Err(error)
                    if cell.settings.is_yours
                        || watch.should_stop()
                        || is_of_changed_model(&error) =>
                {
                    return Err(error);
                }
                Err(error) => skipped.push(SkippedCell {
                    settings: cell.settings,
                    why: one_line(&error),
                }),
            }
            self.phase.window(None);
        }
        Ok((checked, skipped))
    }

    /// The nodes of a setting's graph, at the positions of the windows that are traced.
    fn trace(
        &self,
        model: &dyn Model,
        cell: &CheckSetting,
        nodes: Nodes,
    ) -> Result<Vec<TracedNode>> {
        let windows = self
            .bench
            .rows
            .windows
            .get(self.traced.clone())
            .unwrap_or_default();
        let outputs = model.trace(&cell.context, windows, &self.positions, nodes)?;
        self.bench.watch.check()?;
        Ok(outputs)
    }

    /// Runs a setting twice: undisturbed, for its rows, and for its layers.
    fn run_setting(&mut self, model: &dyn Model, cell: &CheckSetting) -> Result<SettingResults> {
        self.bench.options = cell.context.clone();
        let mut records = Vec::new();
        let windows = cell.windows.clone();
        self.bench
            .score(model, windows, &self.phase, &mut |window_records| {
                records.extend_from_slice(window_records)
            })?;
        let outputs = without_inputs(self.trace(model, cell, Nodes::LayerOutputs)?);
        let n_rows = self.bench.n_rows(self.traced.clone());
        self.phase.rows(n_rows as usize);
        let layers = differences(&self.base, &outputs);
        Ok(SettingResults { records, layers })
    }

    /// Runs a setting and judges its differences by those that noise makes.
    fn check(&mut self, model: &dyn Model, cell: &CheckSetting) -> Result<CheckedCell> {
        let (results, noise) = (self.run_setting(model, cell)?, &self.noise);
        let wrong_layer = results
            .layers
            .iter()
            .zip(&noise.layers)
            .find(|(layer, noise)| layer.exceeds(noise));
        let has_same_layers = results.layers.iter().all(NodeDifference::is_none);
        // Rounding can send a token to another expert, and its row is then far off.
        let has_experts = self.model.facts().has_experts;
        let last_quantile = if has_experts { 0.9 } else { 1.0 };
        let verdict = if wrong_layer.is_some()
            || rows_exceed(&results.records, &noise.records, last_quantile)
        {
            CellVerdict::Wrong
        } else if has_same_layers && results.records.iter().all(|record| record.kld == 0.0) {
            CellVerdict::Same
        } else {
            CellVerdict::Rounding
        };
        let first_difference = wrong_layer
            .map(|(layer, noise)| self.first_difference(model, cell, layer.layer, noise));
        Ok(CheckedCell {
            settings: cell.settings.clone(),
            verdict,
            moved: moved(&results.records),
            first_difference: first_difference.transpose()?,
        })
    }

    /// Finds the first node of a layer that is wrong.
    fn first_difference(
        &self,
        model: &dyn Model,
        cell: &CheckSetting,
        layer: Option<u32>,
        noise: &NodeDifference,
    ) -> Result<FirstDifference> {
        let (nodes, plain) = (Nodes::OfLayer(layer), cell.with_plain_batches());
        let base = self.trace(self.model, &plain, nodes)?;
        let noisy = self.trace(self.model, &plain.with_noise(), nodes)?;
        let other = self.trace(model, cell, nodes)?;
        let node = first_node(&base, &other, &noisy, noise);
        Ok(FirstDifference { layer, node })
    }
}

/// True if rows are not finite, or if their KLD is many times the noise's, on average or at a quantile up to
/// the `last_quantile`.
fn rows_exceed(records: &[TokenRecord], noise: &[TokenRecord], last_quantile: f64) -> bool {
    let [rows, noise] = [records, noise].map(|records| {
        let klds = sorted(&records.iter().map(|record| record.kld).collect::<Vec<_>>());
        let quantile = |p| linear(&klds, p).unwrap_or(0.0);
        let mean = moved(records).kld.unwrap_or(0.0);
        [quantile(0.5), quantile(0.9), quantile(last_quantile), mean]
    });
    let is_larger = |(row, noise): (&f64, &f64)| *row > TIMES_NOISE * noise;
    records.iter().any(TokenRecord::is_excluded) || rows.iter().zip(&noise).any(is_larger)
}

/// The mean and the largest KLD of rows, and the share with the same top token.
fn moved(records: &[TokenRecord]) -> Moved {
    let finite: Vec<&TokenRecord> = records
        .iter()
        .filter(|record| !record.is_excluded())
        .collect();
    let klds = finite.iter().map(|record| record.kld);
    let n_same = finite
        .iter()
        .filter(|record| record.ref_top == record.eval_top)
        .count();
    let mean = |sum: f64| (!finite.is_empty()).then(|| sum / finite.len() as f64);
    Moved {
        kld: mean(klds.clone().sum()),
        largest_kld: klds.reduce(f64::max),
        same_top: mean(n_same as f64),
        n_not_finite: (records.len() - finite.len()) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_that_is_far_off_is_wrong_but_where_it_may_have_gone_to_another_expert() {
        let row = |kld| TokenRecord {
            kld,
            ..TokenRecord::default()
        };
        let noise = vec![row(0.01); 1000];
        let mut rows = noise.clone();
        rows[7] = row(0.19);
        assert!(!rows_exceed(&rows, &noise, 1.0));
        rows[7] = row(0.21);
        assert!(rows_exceed(&rows, &noise, 1.0) && !rows_exceed(&rows, &noise, 0.9));
        let many = vec![row(0.21); 1000];
        assert!(rows_exceed(&many, &noise, 0.9));
    }
}
