//! Judges a recipe: measures it in memory on another text, in a second round its neighbours too, and the
//! model of `--like` on the same tokens.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kl_formats::{Mixture, WindowSpec, n_rows};

use super::Inputs;
use super::klds::Klds;
use crate::commands::bench::{Bench, keep_rows, memory_for_rows};
use crate::commands::context::{
    Decoding, Split, check_models, check_parallel, context_options, context_sources,
    largest_context,
};
use crate::commands::devices::{connect_devices, load};
use crate::commands::input;
use crate::commands::observer::Event;
use crate::engine::{Engine, Model};
use crate::input::{Selection, Source};
use crate::pipeline::{DEFAULT_SEED, KeptRows, keep_until, shuffled};
use crate::recipe::{Goal, Recipe, improved, neighbours};
use crate::report::number::{bytes, count, count_of, ratio, short_kld};
use crate::report::recipe::{ChangedType, KeptBackKld, LikeCheck, RecipeCheck, SecondRound};
use crate::report::{Warning, few_windows, left_out_tokens};
use crate::stats::{Clusters, Estimate};

/// A measured KLD that is so many times the predicted one, or the inverse, is far from it.
const FAR_OFF: f64 = 2.0;

/// The fewest rows that are kept back for a second round: as many as make a good map.
const ROUND_ROWS: u64 = 512;

/// At most one window in so many is kept back for a second round.
const KEPT_BACK: usize = 4;

/// The windows that show that the original came back.
const CONTROL_WINDOWS: usize = 4;

/// The original in memory, with its own rows of the text that judges.
pub struct Judge<'j, M> {
    inputs: &'j Inputs<'j>,
    source: &'j Source,
    model: M,
    /// The windows that judge a recipe come first; the others are kept back for a second round.
    bench: Bench<'j>,
    n_judging: usize,
}

impl<'j, M: Model + Sync> Judge<'j, M> {
    /// Loads the original, and computes its rows of the text.
    ///
    /// # Errors
    /// What is wrong with the text or the model, or rows that do not fit in memory.
    pub fn new<'e, E: Engine<Model<'e> = M>>(
        inputs: &'j Inputs<'j>,
        engine: &'e E,
        path: &Path,
        source: &'j Source,
    ) -> Result<Self> {
        let (run, watch) = (&inputs.settings.run, inputs.watch);
        let raw = input::read(source, watch)?;
        check_parallel(run, engine, path)?;
        connect_devices(engine, run, watch)?;
        let context = || largest_context(run, source.n_ctx, [None; 2]);
        let model: M = load(engine, path, run, || (context(), None), watch)?;
        let prepared = input::plan(raw, &model, &Selection::default(), watch)?;
        let text = prepared.provenance.text.as_ref();
        let sha256 = text.and_then(|text| text.sha256.as_ref());
        let mut of_map = inputs.header.text.iter().chain(&inputs.header.texts);
        if sha256.is_some() && of_map.any(|of| of.sha256.as_ref() == sha256) {
            let message = format!(
                "-t {source}: the map was made on this text, which so judges its own recipe: use another"
            );
            watch.warn(Warning::new("text_of_map", message));
        }
        let decoding = Decoding::from_model(&model, prepared.plan.most_rows());
        let options = context_options(run, prepared.longest_window, decoding, [None; 2]);
        let (judging, kept_back) = split(prepared.plan.windows, inputs.settings.max_rows);
        let n_judging = judging.len();
        let plan = format!(
            "{source}: {} and {} judge the recipe, {} kept back for a second round",
            count_of(n_rows(&judging), "token"),
            count_of(n_judging as u64, "window"),
            count(kept_back.len() as u64),
        );
        let windows = [judging, kept_back].concat();
        check_memory(&windows, model.facts().n_vocab, source)?;
        Split::announce(&options, decoding, Some(windows.len()), watch);
        watch.event(&Event::Plan("text", &plan));
        model.exchange(&Mixture::new(), None)?;
        let rows = keep_rows(context_sources(&model, &options, run), windows, watch)?;
        Ok(Self {
            inputs,
            source,
            model,
            bench: Bench {
                rows,
                options,
                run,
                watch,
            },
            n_judging,
        })
    }

    /// Measures the recipe, and after a second round that finds a better one, that one.
    ///
    /// # Errors
    /// What is wrong with the text or a model, or why one cannot decode.
    pub fn check<'e, E: Engine<Model<'e> = M>>(
        self,
        engine: &'e E,
        recipe: &mut Recipe,
    ) -> Result<RecipeCheck> {
        let settings = self.inputs.settings;
        let mut klds = self.judge(recipe)?;
        // Chosen once, for all that is measured on these windows.
        let clusters = klds.clusters(settings.clusters);
        let measured = self.estimate(&klds, &clusters)?;
        recipe.kld.measured = Some(measured);
        let mut second_round = None;
        if are_apart(&recipe.kld.predicted, &measured)
            && let Some((round, after, again)) = self.second_round(recipe, &klds, &clusters)?
        {
            if round.is_used {
                (*recipe, klds) = (after, again);
            }
            second_round = Some(round);
        }
        self.warn(&klds, &clusters, recipe);
        let control = self.control()?;
        let (source, n_tokens, n_windows) = (self.source, klds.n_tokens(), klds.n_windows());
        let like = settings.like.as_deref();
        let like = like.map(|path| self.like(engine, path, recipe, &klds, &clusters));
        Ok(RecipeCheck {
            text_path: source.to_string(),
            n_tokens,
            n_windows,
            clusters: clusters.clustering,
            control,
            second_round,
            like: like.transpose()?,
        })
    }

    /// Measures a recipe on the windows that judge.
    fn judge(&self, recipe: &Recipe) -> Result<Klds> {
        self.measure(&recipe.mixture(), 0..self.n_judging, Some("recipe"))
    }

    fn measure(
        &self,
        mixture: &Mixture,
        windows: Range<usize>,
        label: Option<&str>,
    ) -> Result<Klds> {
        self.model.exchange(mixture, self.inputs.imatrix)?;
        self.score(windows, label)
    }

    /// Scores the model as it is, and shows the progress under a label if there is one.
    fn score(&self, windows: Range<usize>, label: Option<&str>) -> Result<Klds> {
        let n_rows = self.bench.n_rows(windows.clone());
        let n_windows = Some(windows.len() as u64);
        let begin = |label| self.bench.watch.begin(label, n_windows, Some(n_rows));
        let phase = &label.map(begin);
        let mut klds = Klds::default();
        self.bench
            .score(&self.model, windows, phase.as_ref(), |records| {
                klds.add(records);
                phase.iter().for_each(|phase| phase.window(klds.mean()));
            })?;
        Ok(klds)
    }

    /// The mean KLD of the original, with all tensors back, from its first rows, which must be 0.
    fn control(&self) -> Result<f64> {
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

    fn estimate(&self, klds: &Klds, clusters: &Clusters) -> Result<Estimate> {
        let estimate = klds.estimate(clusters, self.inputs.settings.confidence);
        estimate.with_context(|| {
            format!(
                "-t {}: no token has a finite KLD: use another text",
                self.source
            )
        })
    }

    /// Measures the recipe's neighbours on the windows that are kept back, solves again, and measures what
    /// is found on the windows that judge: returns it, and what they have measured. `None` where no
    /// windows are kept back.
    fn second_round(
        &self,
        before: &Recipe,
        klds: &Klds,
        clusters: &Clusters,
    ) -> Result<Option<(SecondRound, Recipe, Klds)>> {
        let Inputs {
            costs, settings, ..
        } = self.inputs;
        let kept_back = self.n_judging..self.bench.rows.windows.len();
        let n_rows = self.bench.n_rows(kept_back.clone());
        let neighbours = neighbours(costs, before, &settings.types);
        let n_cells = neighbours.len() as u64 + 1;
        if n_rows == 0 {
            return Ok(None);
        }
        let watch = self.bench.watch;
        let phase = watch.begin("second round", Some(n_cells), Some(n_cells * n_rows));
        let measure = |mixture: &Mixture| -> Result<Option<f64>> {
            let mean = self.measure(mixture, kept_back.clone(), None)?.mean();
            phase.rows(n_rows as usize);
            phase.window(mean);
            Ok(mean)
        };
        let mixture = before.mixture();
        let Some(kld) = measure(&mixture)? else {
            return Ok(None);
        };
        let mut moved = Vec::new();
        for (tensor, kind) in neighbours {
            let mut mixture = mixture.clone();
            mixture.insert(tensor.clone(), kind);
            moved.extend(measure(&mixture)?.map(|kld| ((tensor, kind), kld)));
        }
        drop(phase);
        let (mut after, expected) = improved(costs, before, self.inputs.goal, kld, &moved);
        let changed = ChangedType::of_each(&mixture, &after.mixture());
        let again = if changed.is_empty() {
            klds.clone()
        } else {
            self.judge(&after)?
        };
        after.kld.measured = Some(self.estimate(&again, clusters)?);
        let paired = again.over(klds, clusters, settings.confidence);
        let ratio = paired.and_then(|paired| paired.ratio);
        let round = SecondRound {
            n_cells,
            n_tokens: n_cells * n_rows,
            before: before.kld,
            after: after.kld,
            kept_back: KeptBackKld {
                before: kld,
                after: expected,
            },
            ratio,
            is_used: ratio.is_some_and(|ratio| ratio.value < 1.0),
            changed,
        };
        Ok(Some((round, after, again)))
    }

    /// Warns of tokens that do not count, of few windows, and of a KLD that is not as predicted or asked.
    fn warn(&self, klds: &Klds, clusters: &Clusters, recipe: &Recipe) {
        let watch = self.bench.watch;
        watch.warn_all(left_out_tokens(klds.n_excluded, klds.n_infinite));
        watch.warn_all(few_windows(
            &clusters.clustering,
            klds.n_windows(),
            "window",
        ));
        let Some(measured) = recipe.kld.measured else {
            return;
        };
        let times = measured.value / recipe.kld.predicted.value;
        if times > 0.0 && times.is_finite() && !(1.0 / FAR_OFF..=FAR_OFF).contains(&times) {
            let message = format!(
                "the measured KLD is {} times the predicted one: this text is of another kind than the map's, or one of the two has too few tokens",
                ratio(times)
            );
            watch.warn(Warning::new("prediction_off", message));
        }
        if let Goal::Kld(most) = self.inputs.goal
            && measured.lo.is_some_and(|lo| lo > most)
        {
            let message = format!(
                "--kld {most}: the measured KLD is {} nats: ask for a lower one, or make a map on more text of this kind",
                short_kld(measured.value)
            );
            watch.warn(Warning::new("missed_kld", message));
        }
    }

    /// Frees the original, and measures the model of `--like` on the windows that judged.
    fn like<'e, E: Engine<Model<'e> = M>>(
        mut self,
        engine: &'e E,
        path: &Path,
        recipe: &Recipe,
        klds: &Klds,
        clusters: &Clusters,
    ) -> Result<LikeCheck> {
        let (run, watch) = (self.bench.run, self.bench.watch);
        let original = self.model.facts().clone();
        drop(self.model);
        let options = self.bench.options.clone();
        self.model = load(engine, path, run, || (options, None), watch)?;
        let facts = self.model.facts();
        if facts.n_vocab != original.n_vocab || facts.tokenizer != original.tokenizer {
            bail!(
                "--like {}: its tokenizer is not that of {}: give a quant of the same model",
                path.display(),
                original.path.display()
            );
        }
        check_models(Some(&original.identity), &facts.identity, watch);
        let of_like = self.score(0..self.n_judging, Some("--like"))?;
        let kld = self.estimate(&of_like, clusters)?;
        self.model.drop_last();
        let paired = klds.over(&of_like, clusters, self.inputs.settings.confidence);
        // The tensors that have another type than in the map's model.
        let mut types = Mixture::new();
        for tensor in engine.blueprint(path, None)?.tensors {
            let mut known = self.inputs.header.tensors.iter();
            if !known.any(|of| (&of.name, of.kind) == (&tensor.name, tensor.kind)) {
                types.insert(tensor.name, tensor.kind);
            }
        }
        Ok(LikeCheck {
            path: path.display().to_string(),
            size_bytes: file_bytes(engine, path)?,
            kld,
            ratio: paired.and_then(|paired| paired.ratio),
            predicted_ratio: self.inputs.costs.predict_ratio(recipe, &types),
        })
    }
}

/// The bytes of a model's files.
pub fn file_bytes(engine: &impl Engine, path: &Path) -> Result<u64> {
    let bytes = engine.inspect(path)?.identity.file_bytes;
    bytes.with_context(|| format!("--like {}: its size is not known", path.display()))
}

/// Whether two intervals have nothing in common.
fn are_apart(a: &Estimate, b: &Estimate) -> bool {
    let is_below =
        |a: &Estimate, b: &Estimate| matches!((a.hi, b.lo), (Some(hi), Some(lo)) if hi < lo);
    is_below(a, b) || is_below(b, a)
}

/// Chooses the windows that judge, in text order, and those that are kept back for a second round, which
/// must not be made on what judges it.
fn split(windows: Vec<WindowSpec>, max_rows: Option<u64>) -> (Vec<WindowSpec>, Vec<WindowSpec>) {
    let mut order = shuffled(windows.len(), DEFAULT_SEED);
    let rows_of = |i: usize| windows.get(i).map_or(0, |window| u64::from(window.n_rows));
    let (mut kept_back, mut n_kept_back) = (Vec::new(), 0);
    while n_kept_back < ROUND_ROWS && (kept_back.len() + 1) * KEPT_BACK <= windows.len() {
        kept_back.extend(order.pop().inspect(|i| n_kept_back += rows_of(*i)));
    }
    keep_until(&mut order, rows_of, max_rows.unwrap_or(u64::MAX));
    order.sort_unstable();
    let chosen = |indices: Vec<usize>| {
        let windows = indices.iter().filter_map(|&i| windows.get(i));
        windows.cloned().collect()
    };
    (chosen(order), chosen(kept_back))
}

/// Refuses rows that do not fit in their share of the memory that is free.
fn check_memory(windows: &[WindowSpec], n_vocab: u32, source: &Source) -> Result<()> {
    let sizes = windows.iter().map(|of| KeptRows::bytes_of(of, n_vocab));
    let needed: u64 = sizes.sum();
    match memory_for_rows().filter(|free| needed > *free) {
        None => Ok(()),
        Some(free) => bail!(
            "-t {source}: the original's rows take {} of memory, and {} is free for them: use fewer with -n {}",
            bytes(needed),
            bytes(free),
            free / (4 * u64::from(n_vocab.max(1)))
        ),
    }
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
