//! Trials of mixtures in memory: the original's rows are kept, its tensors are exchanged, and the same
//! windows are decoded again.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kl_formats::{MapHeader, Mixture, WindowSpec, n_rows};

use super::inputs::is_of_map;
use super::klds::Klds;
use crate::commands::context::{
    Decoding, Precedent, Split, check_models, check_parallel, context_options, context_sources,
    largest_context,
};
use crate::commands::devices::{connect_devices, load};
use crate::commands::input;
use crate::commands::observer::{Event, Watch};
use crate::commands::settings::{RecipeSettings, RunSettings};
use crate::engine::{ContextOptions, Engine, Imatrix, Model, memory};
use crate::input::{Selection, Source};
use crate::pipeline::{self, DEFAULT_SEED, KeptRows, ReferenceRows, Step, shuffled};
use crate::report::Warning;
use crate::report::number::{bytes, count, count_of};

/// The fewest rows that are kept back for a second round: as many as make a good map.
const ROUND_ROWS: u64 = 512;

/// At most one window in so many is kept back for a second round.
const KEPT_BACK: usize = 4;

/// The rows may take this share of the memory that is free: contexts and a tensor lie beside them.
const MEMORY_SHARE: u64 = 2;

/// The windows that show that the original came back.
const CONTROL_WINDOWS: usize = 4;

/// The original in memory, and its own rows of the text.
pub struct Trials<'b, M> {
    model: M,
    rows: KeptRows,
    /// The windows that judge a recipe come first; the others are kept back for a second round.
    n_judging: usize,
    options: ContextOptions,
    settings: &'b RecipeSettings,
    imatrix: Option<&'b Imatrix>,
    watch: &'b Watch<'b>,
}

impl<'b, M: Model + Sync> Trials<'b, M> {
    /// Loads the original, and computes its rows of the text.
    ///
    /// # Errors
    /// What is wrong with the text or the model, or rows that do not fit in memory.
    pub fn new<'e, E: Engine<Model<'e> = M>>(
        engine: &'e E,
        settings: &'b RecipeSettings,
        path: &Path,
        source: &Source,
        header: &MapHeader,
        imatrix: Option<&'b Imatrix>,
        watch: &'b Watch<'b>,
    ) -> Result<Self> {
        let run = &settings.run;
        let raw = input::read(source, watch)?;
        check_parallel(run, engine, path)?;
        connect_devices(engine, run, watch)?;
        let context = || largest_context(run, source.n_ctx, Precedent::default());
        let model: M = load(engine, path, run, || (context(), None), watch)?;
        let all = Selection::default();
        let prepared = input::prepare(raw, &model, run, &all, None, |_| Ok(()), watch)?;
        let text = prepared.provenance.text.as_ref();
        if text.is_some_and(|text| is_of_map(header, text)) {
            let message = format!(
                "-t {source}: the map was made on this text, which so judges its own recipe: use another"
            );
            watch.warn(Warning::new("text_of_map", message));
        }
        let decoding = Decoding::of(&model, prepared.plan.most_rows());
        let options = context_options(run, prepared.longest_window, decoding, Precedent::default());
        let (judging, kept_back) = split(prepared.plan.windows, settings.max_rows);
        let n_judging = judging.len();
        let text = format!(
            "{source}: {} and {} judge the recipe, {} kept back for a second round",
            count_of(n_rows(&judging), "token"),
            count_of(n_judging as u64, "window"),
            count(kept_back.len() as u64),
        );
        let windows = [judging, kept_back].concat();
        check_memory(&windows, model.facts().n_vocab, source)?;
        Split::announce(&options, decoding, Some(windows.len()), watch);
        watch.event(&Event::Plan("text", &text));
        model.exchange(&Mixture::new(), None)?;
        let phase = watch.begin("original", None, Some(n_rows(&windows)));
        let kept = KeptRows::keep(context_sources(&model, &options, run), windows, |n| {
            phase.rows(n);
            watch.check()
        });
        let (rows, _) = kept?;
        drop(phase);
        Ok(Self {
            model,
            rows,
            n_judging,
            options,
            settings,
            imatrix,
            watch,
        })
    }

    /// The windows that are kept back.
    fn kept_back(&self) -> Range<usize> {
        self.n_judging..self.rows.windows().len()
    }

    /// The rows of the windows that are kept back.
    pub fn n_kept_back_rows(&self) -> u64 {
        n_rows(
            self.rows
                .windows()
                .get(self.kept_back())
                .unwrap_or_default(),
        )
    }

    /// Measures a mixture on the windows that judge.
    ///
    /// # Errors
    /// A tensor that cannot be exchanged, or why the model cannot decode.
    pub fn judge(&self, mixture: &Mixture) -> Result<Klds> {
        self.measure(mixture, 0..self.n_judging, Some("recipe"))
    }

    /// Measures a mixture on the windows that are kept back.
    ///
    /// # Errors
    /// Those of [`judge`](Self::judge).
    pub fn try_out(&self, mixture: &Mixture) -> Result<Klds> {
        self.measure(mixture, self.kept_back(), None)
    }

    /// The mean KLD of the original, with all tensors back, from its first rows.
    ///
    /// # Errors
    /// Anything but 0, and those of [`judge`](Self::judge).
    pub fn control(&self) -> Result<f64> {
        let windows = 0..self.n_judging.min(CONTROL_WINDOWS);
        let klds = self.measure(&Mixture::new(), windows, Some("control"))?;
        let control = klds.mean().context("the control has no tokens")?;
        if control != 0.0 {
            bail!(
                "{}: with its tensors back, the original differs from itself by a KLD of {control:e}: the device does not compute the same twice, or the file has changed",
                self.model.facts().path.display()
            );
        }
        Ok(control)
    }

    fn measure(
        &self,
        mixture: &Mixture,
        windows: Range<usize>,
        label: Option<&str>,
    ) -> Result<Klds> {
        self.model.exchange(mixture, self.imatrix)?;
        let rows = ReferenceRows::kept(&self.rows, windows);
        let run = &self.settings.run;
        klds(&self.model, run, &self.options, &rows, label, self.watch)
    }

    /// Frees the original, and measures another model on the windows that judged.
    ///
    /// # Errors
    /// A model that cannot be loaded or has another vocabulary, or why it cannot decode.
    pub fn judge_other<'e, E: Engine<Model<'e> = M>>(
        self,
        engine: &'e E,
        path: &Path,
    ) -> Result<Klds> {
        let (run, watch, options) = (&self.settings.run, self.watch, self.options);
        let original = self.model.facts().clone();
        drop(self.model);
        let other: M = load(engine, path, run, || (options.clone(), None), watch)?;
        let facts = other.facts();
        if facts.n_vocab != original.n_vocab || facts.tokenizer != original.tokenizer {
            bail!(
                "--like {}: its tokenizer is not that of {}: give a quant of the same model",
                path.display(),
                original.path.display()
            );
        }
        check_models(Some(&original.identity), &facts.identity, watch);
        let rows = ReferenceRows::kept(&self.rows, 0..self.n_judging);
        let klds = klds(&other, run, &options, &rows, Some("--like"), watch)?;
        other.drop_last();
        Ok(klds)
    }
}

/// Evaluates a model against kept rows, and shows the progress under a label if there is one.
fn klds<M: Model + Sync>(
    model: &M,
    run: &RunSettings,
    options: &ContextOptions,
    rows: &ReferenceRows<'_>,
    label: Option<&str>,
    watch: &Watch<'_>,
) -> Result<Klds> {
    let phase = label.map(|label| watch.begin(label, rows.n_windows, rows.n_rows));
    let mut klds = Klds::default();
    pipeline::evaluate(
        context_sources(model, options, run),
        rows,
        |_| (),
        |step| {
            match (step, &phase) {
                (Step::Rows(n), Some(phase)) => phase.rows(n),
                (Step::Rows(_), None) => {}
                (Step::Window(scored), phase) => {
                    klds.add(&scored.records);
                    phase.iter().for_each(|phase| phase.window(klds.mean()));
                }
            }
            watch.check()
        },
    )?;
    Ok(klds)
}

/// Chooses the windows that judge, in text order, and those that are kept back for a second round, which
/// must not be made on what judges it.
fn split(windows: Vec<WindowSpec>, max_rows: Option<u64>) -> (Vec<WindowSpec>, Vec<WindowSpec>) {
    let mut order = shuffled(windows.len(), DEFAULT_SEED);
    let chosen = |indices: Vec<usize>| -> Vec<WindowSpec> {
        let windows = indices.iter().filter_map(|&i| windows.get(i));
        windows.cloned().collect()
    };
    let mut kept_back = Vec::new();
    while n_rows(&chosen(kept_back.clone())) < ROUND_ROWS
        && (kept_back.len() + 1) * KEPT_BACK <= windows.len()
    {
        kept_back.extend(order.pop());
    }
    let mut left = max_rows.unwrap_or(u64::MAX);
    order.retain(|&i| {
        let is_wanted = left > 0;
        let n_rows = windows.get(i).map_or(0, |window| window.n_rows);
        left = left.saturating_sub(n_rows.into());
        is_wanted
    });
    order.sort_unstable();
    (chosen(order), chosen(kept_back))
}

/// Refuses rows that do not fit in their share of the memory that is free.
fn check_memory(windows: &[WindowSpec], n_vocab: u32, source: &Source) -> Result<()> {
    let needed: u64 = windows
        .iter()
        .map(|of| KeptRows::bytes_of(of, n_vocab))
        .sum();
    if let Some(free) = memory::available().filter(|free| needed > free / MEMORY_SHARE) {
        bail!(
            "-t {source}: the original's rows take {} of memory, and {} is free for them: use fewer with -n {}",
            bytes(needed),
            bytes(free / MEMORY_SHARE),
            free / MEMORY_SHARE / (4 * u64::from(n_vocab.max(1)))
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(n: u32, n_rows: u32) -> Vec<WindowSpec> {
        let window = |window| WindowSpec {
            window,
            tokens: vec![0; n_rows as usize + 1],
            first_scored: 0,
            n_rows,
        };
        (0..n).map(window).collect()
    }

    #[test]
    fn no_window_judges_what_was_made_on_it() {
        for (n, n_rows, max_rows, expected) in [
            (100, 511, None, (98, 2)),
            (100, 511, Some(1000), (2, 2)),
            (8, 100, None, (6, 2)),
            (3, 511, None, (3, 0)),
        ] {
            let (judging, kept_back) = split(windows(n, n_rows), max_rows);
            assert_eq!((judging.len(), kept_back.len()), expected);
            assert!(judging.iter().all(|window| !kept_back.contains(window)));
            assert!(judging.is_sorted_by_key(|window| window.window));
        }
    }
}
