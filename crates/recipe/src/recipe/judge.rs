//! Judges a recipe: measures it in memory on another text, with its neighbours in a second round, and the
//! model of `--like` on the same tokens.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kl_engine::{Blueprint, Engine, Model};
use kl_formats::{Mixture, TokenRecord, WindowSpec, n_rows};
use kl_measure::commands::bench::{Bench, bytes_of_rows, load_original, memory_for_rows};
use kl_measure::commands::context::{Decoding, Split, check_files, check_models, context_options};
use kl_measure::commands::devices::load;
use kl_measure::commands::input;
use kl_measure::commands::observer::Event;
use kl_measure::input::{Selection, Source};
use kl_measure::pipeline::{DEFAULT_SEED, keep_until, shuffled};
use kl_report::number::{bytes, count, count_of, ratio, short_kld};
use kl_report::{Warning, few_windows, left_out_tokens};
use kl_stats::stats::{
    Clusters, Estimate, Estimator, ExcludedTokens, Paired, Ratio, Run, WindowSums, is_counted,
    usable_kld, usable_klds,
};

use super::Inputs;
use crate::mathematics::{Goal, Recipe, improved, neighbours, solve_holding};
use crate::report::recipe::{
    ChangedType, EqualEmbedding, KeptBackKld, LikeCheck, RecipeCheck, SecondRound,
};

/// A measured KLD is far from the predicted one if one of the two is more than this many times the other.
const FAR_OFF: f64 = 2.0;

/// The fewest rows that are kept back for a second round: as many as make a good map.
const ROUND_ROWS: u64 = 512;

/// At most one window in this many is kept back for a second round.
const KEPT_BACK: usize = 4;

/// The number of windows that show whether the original's tensors are restored.
const CONTROL_WINDOWS: usize = 4;

/// The original in memory, with its own rows of the text that judges.
pub struct Judge<'j> {
    inputs: &'j Inputs<'j>,
    engine: &'j dyn Engine,
    source: &'j Source,
    model: Box<dyn Model + 'j>,
    /// The windows that judge a recipe come first; the others are kept back for a second round.
    bench: Bench<'j>,
    n_judging: usize,
}

impl<'j> Judge<'j> {
    /// Loads the original, and computes its rows of the text.
    ///
    /// # Errors
    /// What is wrong with the text or the model, or rows that do not fit in memory.
    pub fn new(
        inputs: &'j Inputs<'j>,
        engine: &'j dyn Engine,
        path: &Path,
        source: &'j Source,
    ) -> Result<Self> {
        let (run, watch) = (&inputs.settings.run, inputs.watch);
        let raw = input::read(source, watch)?;
        let model = load_original(engine, path, run, source.n_ctx, watch)?;
        let prepared = input::plan(raw, &*model, &Selection::default(), watch)?;
        let text = prepared.provenance.text.as_ref();
        let sha256 = text.and_then(|text| text.sha256.as_ref());
        let mut of_map = inputs.header.text.iter().chain(&inputs.header.texts);
        if sha256.is_some() && of_map.any(|text| text.sha256.as_ref() == sha256) {
            let message = format!(
                "-t {source}: the map was made on this text, which so judges its own recipe: use another"
            );
            watch.warn(Warning::new("text_of_map", message));
        }
        let (most_rows, n_ctx) = (
            prepared.plan.max_rows_of_window(),
            prepared.provenance.n_ctx,
        );
        let decoding = Decoding::from_model(&*model, most_rows, n_ctx);
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
        let n_vocab = model.facts().n_vocab;
        let needed = bytes_of_rows(&windows, n_vocab);
        if let Some(free) = memory_for_rows().filter(|free| needed > *free) {
            bail!(
                "-t {source}: the original's rows take {} of memory, and {} is free for them: use fewer with -n {}",
                bytes(needed),
                bytes(free),
                free / (4 * u64::from(n_vocab.max(1)))
            );
        }
        Split::announce(&options, decoding, Some(windows.len()), watch);
        watch.event(&Event::Plan("text", &plan));
        model
            .weights()?
            .exchange(&Mixture::new(), None, &|| watch.should_stop())?;
        Ok(Self {
            bench: Bench::of_model(&*model, windows, options, run, watch)?,
            inputs,
            engine,
            source,
            model,
            n_judging,
        })
    }

    /// Measures the recipe. A better one that the second round finds takes its place.
    ///
    /// # Errors
    /// What is wrong with the text or a model, or why one cannot decode.
    pub fn check(self, recipe: &mut Recipe) -> Result<RecipeCheck> {
        let settings = self.inputs.settings;
        let mut records = self.measure(&recipe.mixture(), 0..self.n_judging, "recipe")?;
        // Chosen once, for all measurements on these windows.
        let runs = Run::from_records(&records);
        let windows = WindowSums::from_tokens(&runs, &usable_klds(&records));
        let clusters = Clusters::by_rule(&windows, settings.clusters);
        let (n_windows, clustering) = (windows.count() as u64, clusters.clustering);
        let estimator = &clusters.estimator(&runs, settings.confidence);
        let measured = self.estimate(&records, estimator)?;
        recipe.kld.measured = Some(measured);
        let is_below = |a: Option<f64>, b: Option<f64>| a.zip(b).is_some_and(|(a, b)| a < b);
        let predicted = recipe.kld.predicted;
        let are_apart = is_below(predicted.hi, measured.lo) || is_below(measured.hi, predicted.lo);
        let mut second_round = None;
        if are_apart
            && let Some((round, after, again)) = self.second_round(recipe, &records, estimator)?
        {
            if round.is_used {
                (*recipe, records) = (after, again);
            }
            second_round = Some(round);
        }
        let klds = records.iter().map(usable_kld);
        let n_tokens = klds.filter(|kld| kld.is_finite()).count() as u64;
        let n_counted = records.iter().filter(|record| is_counted(record)).count() as u64;
        let excluded = ExcludedTokens::of_records(&records);
        let watch = self.bench.watch;
        watch.warn_all(left_out_tokens(excluded, n_counted - n_tokens));
        watch.warn_all(few_windows(&clustering, n_windows, "window"));
        self.warn_of_kld(recipe);
        check_files(&*self.model, watch)?;
        Ok(RecipeCheck {
            text_path: self.source.to_string(),
            n_tokens,
            n_windows,
            clusters: clustering,
            control: self.control()?,
            second_round,
            like: match settings.goal.like() {
                Some(path) => Some(self.like(path, recipe, &records, estimator)?),
                None => None,
            },
        })
    }

    /// The records of a mixture in some windows. The progress is shown under a label.
    fn measure(
        &self,
        mixture: &Mixture,
        windows: Range<usize>,
        label: &str,
    ) -> Result<Vec<TokenRecord>> {
        let weights = self.model.weights()?;
        self.bench
            .exchange(weights, mixture, self.inputs.imatrix.as_ref())?;
        self.score(windows, label)
    }

    /// The records of the model, with its present tensors, in some windows. A label names the progress.
    fn score(&self, windows: Range<usize>, label: &str) -> Result<Vec<TokenRecord>> {
        let bench = &self.bench;
        let (n_windows, n_rows) = (windows.len() as u64, bench.n_rows(windows.clone()));
        let phase = &bench.watch.begin(label, Some(n_windows), Some(n_rows));
        let mut records = Vec::new();
        bench.score(&*self.model, windows, phase, &mut |window_records| {
            records.extend_from_slice(window_records);
            phase.window(mean(&records));
        })?;
        Ok(records)
    }

    /// The mean KLD of the original, with all its tensors restored, from its own rows. It must be 0.
    fn control(&self) -> Result<f64> {
        let windows = 0..self.n_judging.min(CONTROL_WINDOWS);
        let records = self.measure(&Mixture::new(), windows, "control")?;
        let control = mean(&records).context("the control has no tokens")?;
        if control != 0.0 {
            bail!(
                "{}: with its tensors back, the original differs from itself by a KLD of {control:e}: the device does not compute the same twice, or the file has changed",
                self.model.facts().path.display()
            );
        }
        Ok(control)
    }

    /// The mean KLD of these tokens.
    fn estimate(&self, records: &[TokenRecord], estimator: &Estimator) -> Result<Estimate> {
        let found = estimator.mean_of_positive(records.iter().map(usable_kld));
        let mean = found.with_context(|| {
            format!(
                "-t {}: no token has a finite KLD: use another text",
                self.source
            )
        })?;
        Ok(mean.estimate())
    }

    /// Measures the recipe's neighbours on the windows that are kept back, solves again, and measures the new
    /// recipe on the windows that judge. Returns the round, that recipe and its records; `None` if no windows
    /// are kept back.
    fn second_round(
        &self,
        before: &Recipe,
        records: &[TokenRecord],
        estimator: &Estimator,
    ) -> Result<Option<(SecondRound, Recipe, Vec<TokenRecord>)>> {
        let (inputs, bench, watch) = (self.inputs, &self.bench, self.bench.watch);
        let kept_back = self.n_judging..bench.rows.windows.len();
        let n_rows = bench.n_rows(kept_back.clone());
        let neighbours = neighbours(&inputs.costs, before, &inputs.settings.types);
        let n_cells = neighbours.len() as u64 + 1;
        if n_rows == 0 {
            return Ok(None);
        }
        let n_tokens = n_cells * n_rows;
        let phase = watch.begin("second round", Some(n_cells), Some(n_tokens));
        let weights = self.model.weights()?;
        let measure = |mixture: &Mixture| -> Result<Option<f64>> {
            bench.exchange(weights, mixture, inputs.imatrix.as_ref())?;
            let mut records = Vec::new();
            let on_window =
                &mut |window_records: &[TokenRecord]| records.extend_from_slice(window_records);
            bench.score(&*self.model, kept_back.clone(), &phase, on_window)?;
            let mean = mean(&records);
            phase.window(mean);
            Ok(mean)
        };
        let mixture = before.mixture();
        let Some(kld) = measure(&mixture)? else {
            return Ok(None);
        };
        let mut moved = Vec::new();
        for (tensor, kind) in neighbours {
            let mut neighbour = mixture.clone();
            neighbour.insert(tensor.clone(), kind);
            moved.extend(measure(&neighbour)?.map(|kld| ((tensor, kind), kld)));
        }
        drop(phase);
        let (mut after, expected) = improved(&inputs.costs, before, inputs.goal, kld, &moved);
        let changed = ChangedType::of_each(&mixture, &after.mixture());
        let again = if changed.is_empty() {
            records.to_vec()
        } else {
            self.measure(&after.mixture(), 0..self.n_judging, "recipe")?
        };
        after.kld.measured = Some(self.estimate(&again, estimator)?);
        let ratio = ratio_of(&again, records, estimator);
        let round = SecondRound {
            n_cells,
            n_tokens,
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

    /// Warns of a KLD that is far from the predicted one, or above the one that was asked for.
    fn warn_of_kld(&self, recipe: &Recipe) {
        let watch = self.bench.watch;
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

    /// Finds and measures the best recipe with the embedding and the output at the types that the model of `--like` has.
    /// `None` if the recipe has those types already, and where no recipe can have them.
    fn at_equal_types(&self, recipe: &Recipe, like: &Blueprint) -> Result<Option<AtEqualTypes>> {
        let (inputs, chosen) = (self.inputs, recipe.mixture());
        let of_vocabulary = like.tensors.iter().filter(|tensor| {
            let kind = chosen.get(&tensor.name);
            OF_VOCABULARY.contains(&&*tensor.name) && kind.is_some_and(|kind| *kind != tensor.kind)
        });
        let held: Mixture = of_vocabulary
            .map(|tensor| (tensor.name.clone(), tensor.kind))
            .collect();
        if held.is_empty() {
            return Ok(None);
        }
        let types = &inputs.settings.types;
        let Ok(equal) = solve_holding(&held, &inputs.costs, inputs.goal, types) else {
            return Ok(None);
        };
        let mixture = equal.mixture();
        if held
            .iter()
            .any(|(name, kind)| mixture.get(name) != Some(kind))
        {
            return Ok(None);
        }
        let windows = 0..self.n_judging;
        Ok(Some(AtEqualTypes {
            changed: ChangedType::of_each(&chosen, &held),
            size_bytes: equal.size_bytes,
            records: self.measure(&mixture, windows, "at equal types")?,
        }))
    }

    /// Frees the original, and measures the model of `--like` on the windows that judged.
    fn like(
        mut self,
        path: &Path,
        recipe: &Recipe,
        records: &[TokenRecord],
        estimator: &Estimator,
    ) -> Result<LikeCheck> {
        let (run, watch, shown) = (self.bench.run, self.bench.watch, path.display());
        let original = self.model.facts().clone();
        let like = self.engine.blueprint(path, None)?;
        let at_equal_types = self.at_equal_types(recipe, &like)?;
        drop(self.model);
        let options = self.bench.options.clone();
        self.model = load(self.engine, path, run, || (options, None), watch)?;
        let facts = self.model.facts();
        if facts.n_vocab != original.n_vocab || facts.tokenizer != original.tokenizer {
            bail!(
                "--like {shown}: its tokenizer is not that of {}: give a quant of the same model",
                original.path.display()
            );
        }
        check_models(Some(&original.identity), &facts.identity, watch);
        let of_like = self.score(0..self.n_judging, "--like")?;
        let kld = self.estimate(&of_like, estimator)?;
        let ratio = ratio_of(records, &of_like, estimator);
        self.model.drop_last();
        // The tensors that have another type than in the map's model.
        let mut changed = like.tensors;
        let tensors = &self.inputs.header.tensors;
        changed.retain(|tensor| {
            !tensors
                .iter()
                .any(|known| (&known.name, known.kind) == (&tensor.name, tensor.kind))
        });
        let types = changed
            .into_iter()
            .map(|tensor| (tensor.name, tensor.kind))
            .collect();
        Ok(LikeCheck {
            path: shown.to_string(),
            size_bytes: file_bytes(self.engine, path)?,
            kld,
            ratio,
            made_with: like.made_with,
            at_equal_embedding: at_equal_types.map(|equal| EqualEmbedding {
                ratio: ratio_of(&equal.records, &of_like, estimator),
                changed: equal.changed,
                size_bytes: equal.size_bytes,
            }),
            predicted_ratio: self.inputs.costs.predict_ratio(recipe, &types),
        })
    }
}

/// The best recipe with the embedding and the output of another model's types.
struct AtEqualTypes {
    /// Their types in the recipe, and in the other model.
    changed: Vec<ChangedType>,
    /// Bytes of the file.
    size_bytes: u64,
    /// Its records in the windows that judge.
    records: Vec<TokenRecord>,
}

/// The tensors that hold the vocabulary. Where blocks of 256 do not divide their rows, stock types give them many bits,
/// and so few to the others: most of what a recipe gains may be that it does not.
const OF_VOCABULARY: [&str; 2] = ["token_embd.weight", "output.weight"];

/// The ratio of the mean KLDs of two models on the same tokens.
fn ratio_of(a: &[TokenRecord], b: &[TokenRecord], estimator: &Estimator) -> Option<Ratio> {
    Paired::compare(estimator, &usable_klds(a), &usable_klds(b))?.ratio
}

/// The mean of the finite KLDs; `None` without any.
fn mean(records: &[TokenRecord]) -> Option<f64> {
    let finite = records.iter().map(usable_kld).filter(|kld| kld.is_finite());
    let (n, sum) = finite.fold((0_u64, 0.0), |(n, sum), kld| (n + 1, sum + kld));
    (n > 0).then(|| sum / n as f64)
}

/// The bytes of a model's files.
pub fn file_bytes(engine: &dyn Engine, path: &Path) -> Result<u64> {
    let bytes = engine.inspect(path)?.identity.file_bytes;
    bytes.with_context(|| format!("--like {}: its size is not known", path.display()))
}

/// Chooses the windows that judge, in text order, and those that are kept back for a second round: the windows
/// that judge it must be others than those that it was made on.
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
