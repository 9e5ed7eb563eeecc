//! Judges a recipe: measures it in memory on another text, in a second round its neighbours too, and the
//! model of `--like` on the same tokens.

use std::path::Path;

use anyhow::{Context as _, Result};
use kl_formats::{MapHeader, Mixture};

use super::klds::Klds;
use super::trials::Trials;
use crate::commands::observer::Watch;
use crate::commands::settings::RecipeSettings;
use crate::engine::{Engine, Imatrix, Model};
use crate::input::Source;
use crate::recipe::{Goal, Neighbour, Recipe, Sensitivities, improved};
use crate::report::number::{ratio, short_kld};
use crate::report::recipe::{
    ChangedType, KeptBackKld, LikeCheck, RecipeCheck, RecipeKld, SecondRound,
};
use crate::report::{Warning, few_windows, left_out_tokens};
use crate::stats::{Clusters, Estimate};

/// A measured KLD that is so many times the predicted one, or the inverse, is far from it.
const FAR_OFF: f64 = 2.0;

/// What judges a recipe, and what the recipe was made of.
pub struct Judge<'j> {
    pub settings: &'j RecipeSettings,
    pub original: &'j Path,
    pub source: &'j Source,
    pub header: &'j MapHeader,
    pub imatrix: Option<&'j Imatrix>,
    pub costs: &'j Sensitivities,
    pub goal: Goal,
    pub watch: &'j Watch<'j>,
}

impl Judge<'_> {
    /// Measures the recipe, and after a second round that finds a better one, that one.
    ///
    /// # Errors
    /// What is wrong with the text or a model, or why one cannot decode.
    pub fn check<E: Engine>(
        &self,
        engine: &E,
        recipe: &mut Recipe,
    ) -> Result<(Estimate, RecipeCheck)> {
        let Self {
            settings,
            source,
            header,
            watch,
            ..
        } = *self;
        let trials = Trials::new(
            engine,
            settings,
            self.original,
            source,
            header,
            self.imatrix,
            watch,
        )?;
        let mut klds = trials.judge(&recipe.mixture)?;
        // Chosen once, for all that is measured on these windows.
        let clusters = klds.clusters(settings.clusters);
        let mut measured = self.estimate(&klds, &clusters)?;
        let mut second_round = None;
        if are_apart(&recipe.kld, &measured)
            && let Some(round) = self.second_round(&trials, recipe)?
        {
            let (report, again) = self.judge_round(&trials, recipe, &round, &klds, &clusters)?;
            if report.is_used {
                (*recipe, klds) = (round.recipe, again);
                measured = self.estimate(&klds, &clusters)?;
            }
            second_round = Some(report);
        }
        self.warn(&klds, &clusters, recipe.kld.value, &measured);
        let control = trials.control()?;
        let like = settings.like.as_deref();
        let like = like.map(|path| self.like(engine, trials, path, recipe, &klds, &clusters));
        let check = RecipeCheck {
            text_path: source.to_string(),
            n_tokens: klds.n_tokens(),
            n_windows: klds.n_windows(),
            clusters: clusters.clustering,
            control,
            second_round,
            like: like.transpose()?,
        };
        Ok((measured, check))
    }

    fn estimate(&self, klds: &Klds, clusters: &Clusters) -> Result<Estimate> {
        let estimate = klds.estimate(clusters, self.settings.confidence);
        estimate.with_context(|| {
            format!(
                "-t {}: no token has a finite KLD: use another text",
                self.source
            )
        })
    }

    /// Measures the recipe of a second round on the windows that judge, and says whether it is better.
    fn judge_round<M: Model + Sync>(
        &self,
        trials: &Trials<'_, M>,
        before: &Recipe,
        round: &Round,
        klds: &Klds,
        clusters: &Clusters,
    ) -> Result<(SecondRound, Klds)> {
        let after = &round.recipe;
        let again = if after.mixture == before.mixture {
            klds.clone()
        } else {
            trials.judge(&after.mixture)?
        };
        let paired = again.over(klds, clusters, self.settings.confidence);
        let ratio = paired.and_then(|paired| paired.ratio);
        let kld = |recipe: &Recipe, klds: &Klds| -> Result<RecipeKld> {
            Ok(RecipeKld {
                predicted: recipe.kld,
                measured: Some(self.estimate(klds, clusters)?),
            })
        };
        let report = SecondRound {
            n_cells: round.n_cells,
            n_tokens: round.n_tokens,
            before: kld(before, klds)?,
            after: kld(after, &again)?,
            ratio,
            kept_back: round.kept_back,
            is_used: ratio.is_some_and(|ratio| ratio.value < 1.0),
            changed: ChangedType::of_each(&before.mixture, &after.mixture),
        };
        Ok((report, again))
    }

    /// Warns of tokens that do not count, of few windows, and of a KLD that is not as predicted or asked.
    fn warn(&self, klds: &Klds, clusters: &Clusters, predicted: f64, measured: &Estimate) {
        let (watch, value) = (self.watch, measured.value);
        watch.warn_all(left_out_tokens(klds.n_excluded, klds.n_infinite));
        watch.warn_all(few_windows(
            &clusters.clustering,
            klds.n_windows(),
            "window",
        ));
        let times = value / predicted;
        if predicted > 0.0 && value > 0.0 && !(1.0 / FAR_OFF..=FAR_OFF).contains(&times) {
            let message = format!(
                "the measured KLD is {} times the predicted one: this text is of another kind than the map's, or one of the two has too few tokens",
                ratio(times)
            );
            watch.warn(Warning::new("prediction_off", message));
        }
        if let Goal::Kld(most) = self.goal
            && measured.lo.is_some_and(|lo| lo > most)
        {
            let message = format!(
                "--kld {most}: the measured KLD is {} nats: ask for a lower one, or make a map on more text of this kind",
                short_kld(value)
            );
            watch.warn(Warning::new("missed_kld", message));
        }
    }

    /// Measures the model of `--like` in place of the original.
    fn like<'e, E: Engine>(
        &self,
        engine: &'e E,
        trials: Trials<'_, E::Model<'e>>,
        path: &Path,
        recipe: &Recipe,
        klds: &Klds,
        clusters: &Clusters,
    ) -> Result<LikeCheck> {
        let of_like = trials.judge_other(engine, path)?;
        let paired = klds.over(&of_like, clusters, self.settings.confidence);
        let of_map = changed_types(engine, path, self.header)?;
        Ok(LikeCheck {
            path: path.display().to_string(),
            size_bytes: file_bytes(engine, path)?,
            kld: self.estimate(&of_like, clusters)?,
            ratio: paired.and_then(|paired| paired.ratio),
            predicted_ratio: self.costs.predict_ratio(recipe, &of_map),
        })
    }

    /// Measures the recipe's neighbours on the windows that are kept back, and solves again. `None` where
    /// there are none.
    fn second_round<M: Model + Sync>(
        &self,
        trials: &Trials<'_, M>,
        recipe: &Recipe,
    ) -> Result<Option<Round>> {
        let costs = self.costs;
        let n_rows = trials.n_kept_back_rows();
        if n_rows == 0 {
            return Ok(None);
        }
        let neighbours = Neighbour::of_each(costs, &recipe.mixture, &self.settings.types);
        let n_cells = neighbours.len() as u64 + 1;
        let phase = self
            .watch
            .begin("second round", Some(n_cells), Some(n_cells * n_rows));
        let measure = |mixture: &Mixture| -> Result<Option<f64>> {
            let klds = trials.try_out(mixture)?;
            phase.rows(n_rows as usize);
            phase.window(klds.mean());
            Ok(klds.mean())
        };
        let Some(kld) = measure(&recipe.mixture)? else {
            return Ok(None);
        };
        let mut measured = Vec::new();
        for neighbour in neighbours {
            let moved = measure(&neighbour.mixture(recipe.mixture.clone()))?;
            measured.extend(moved.map(|moved| (neighbour, moved)));
        }
        let found = improved(costs, recipe, self.goal, kld, &measured);
        let kept_back = KeptBackKld {
            before: kld,
            after: found.kld.value,
        };
        let predicted = costs.predict(&found.mixture, found.selection);
        Ok(Some(Round {
            recipe: Recipe {
                kld: predicted,
                // By the map, no mixture is better than the first recipe by more than its own gap.
                gap: (predicted.value - recipe.kld.value + recipe.gap).max(0.0),
                ..found
            },
            kept_back,
            n_cells,
            n_tokens: n_cells * n_rows,
        }))
    }
}

/// What a second round found.
struct Round {
    /// As the map predicts it.
    recipe: Recipe,
    kept_back: KeptBackKld,
    /// Mixtures that were measured.
    n_cells: u64,
    /// Tokens that were decoded for them.
    n_tokens: u64,
}

/// Returns true if two intervals have nothing in common.
fn are_apart(a: &Estimate, b: &Estimate) -> bool {
    let is_below =
        |a: &Estimate, b: &Estimate| matches!((a.hi, b.lo), (Some(hi), Some(lo)) if hi < lo);
    is_below(a, b) || is_below(b, a)
}

/// The bytes of a model's files.
pub fn file_bytes(engine: &impl Engine, path: &Path) -> Result<u64> {
    let bytes = engine.inspect(path)?.identity.file_bytes;
    bytes.with_context(|| format!("--like {}: its size is not known", path.display()))
}

/// The tensors that have another type in a model than in the map's.
fn changed_types(engine: &impl Engine, path: &Path, header: &MapHeader) -> Result<Mixture> {
    let of_map = |name: &str| header.tensors.iter().find(|tensor| tensor.name == name);
    let tensors = engine.blueprint(path, None)?.tensors.into_iter();
    let changed = tensors.filter(|of| of_map(&of.name).is_none_or(|known| known.kind != of.kind));
    Ok(changed.map(|of| (of.name, of.kind)).collect())
}
