//! Chooses the best mixture of types for a size, by a map of sensitivity, measures it, and writes it.

mod check;
mod klds;
mod quantize;
mod round;

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use kl_formats::{GgmlType, MapHeader, MapTensor, Mixture, SensitivityMap, TextIdentity};

use self::check::Trials;
use super::observer::{Observer, Watch};
use super::output::{Existing, PartialFile};
use super::settings::{OriginalSettings, RecipeGoal, RecipeSettings};
use crate::engine::{Engine, Imatrix, TensorFacts, file_type};
use crate::input::Source;
use crate::recipe::{
    Goal, QuantizeCommand, Recipe, Sensitivities, frontier, solve, tensor_type_file,
};
use crate::report::number::{part, printable};
use crate::report::recipe::{
    ChangedType, LikeCheck, RecipeCheck, RecipeKld, RecipeReport, RecipeTensor, SecondRound,
};
use crate::report::{Versions, Warning, few_windows};
use crate::stats::Estimate;
pub use quantize::quantize;

/// Chooses a recipe, measures it if there is a text, and writes its types.
///
/// # Errors
/// What is wrong with the map or the model, or a goal that nothing reaches.
pub fn recipe<E: Engine>(
    settings: &RecipeSettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<RecipeReport> {
    let watch = &Watch::new(observer);
    // Created first, so that a bad path is found before the work is done.
    let replace = settings.existing == Existing::Replace;
    let output = settings.output.as_ref();
    let output = output.map(|path| PartialFile::create(path, replace, Existing::Replace));
    let output = output.transpose()?;
    let mut map = read_map(&settings.map, watch)?;
    let shown = settings.map.display();
    check_types(settings, &map.header)?;
    let imatrix = read_imatrix(settings, &map.header)?;
    let original = settings.original.as_deref();
    if let Some(original) = original {
        check_original(settings, original, &map.header, engine)?;
        check_outputs(original, replace)?;
        // An importance matrix is named in it by its path, which may be another one here.
        let blueprint = engine.blueprint(&original.path, imatrix.as_ref())?;
        map.header.metadata_bytes = blueprint.metadata_bytes;
    }
    let goal = match &settings.goal {
        RecipeGoal::Reach(goal) => *goal,
        RecipeGoal::Like(path) => Goal::Size(file_bytes(engine, path)?),
    };
    let of_map = |error| anyhow!("{shown}: {error}");
    let costs = Sensitivities::of(&map, settings.confidence).map_err(of_map)?;
    warn_of_unknown(settings, &map.header, &costs, watch);
    let mut recipe = solve(&costs, goal, &settings.types).map_err(of_map)?;
    let text = original.and_then(|original| Some((original, original.text.as_ref()?)));
    let checked = text.map(|(original, source)| {
        let judge = Judge {
            settings,
            original,
            source,
            imatrix: imatrix.as_ref(),
            costs: &costs,
            goal,
            watch,
        };
        judge.check(engine, &map.header, &mut recipe)
    });
    let (measured, check) = checked.transpose()?.unzip();
    if let Some(output) = output {
        let types = tensor_type_file(&named(&map.header, &recipe.mixture));
        let written = output.file()?.write_all(types.as_bytes());
        written.with_context(|| format!("{}: cannot be written", output.path().display()))?;
        output.commit()?;
    }
    Ok(RecipeReport {
        versions: Versions::default(),
        map_path: shown.to_string(),
        model: map.header.model.clone(),
        size_bytes: recipe.size_bytes,
        bpw: recipe.bpw,
        kld: RecipeKld {
            predicted: recipe.kld,
            measured,
        },
        gap: recipe.gap,
        tensors: RecipeTensor::of_each(&recipe, &costs),
        frontier: frontier(&costs, &settings.types),
        command: command(settings, &map.header, &recipe),
        check,
        types_path: settings
            .output
            .as_ref()
            .map(|path| path.display().to_string()),
        quantized_path: original
            .and_then(|original| original.quantized.as_ref())
            .map(|path| path.display().to_string()),
        warnings: watch.warnings(),
    })
}

/// A measured KLD that is so many times the predicted one, or the inverse, is far from it.
const FAR_OFF: f64 = 2.0;

/// A recipe to be measured, and what it was made of.
struct Judge<'j> {
    settings: &'j RecipeSettings,
    original: &'j OriginalSettings,
    source: &'j Source,
    imatrix: Option<&'j Imatrix>,
    costs: &'j Sensitivities,
    goal: Goal,
    watch: &'j Watch<'j>,
}

impl Judge<'_> {
    /// Measures the recipe, and after a second round that finds a better one, that one.
    fn check<E: Engine>(
        &self,
        engine: &E,
        header: &MapHeader,
        recipe: &mut Recipe,
    ) -> Result<(Estimate, RecipeCheck)> {
        let Self {
            settings,
            original,
            source,
            watch,
            ..
        } = *self;
        let confidence = settings.confidence;
        let trials = Trials::new(engine, original, source, header, self.imatrix, watch)?;
        let mut klds = trials.judge(&recipe.mixture)?;
        // Chosen once, for all that is measured on these windows.
        let clusters = klds.clusters(original.clusters);
        let no_tokens = || format!("-t {source}: no token has a finite KLD: use another text");
        let estimate = |klds: &klds::Klds| {
            let estimate = klds.estimate(&clusters, confidence);
            estimate.with_context(no_tokens)
        };
        let mut measured = estimate(&klds)?;
        let mut second_round = None;
        if are_apart(&recipe.kld, &measured)
            && let Some(round) = round::second_round(
                &trials,
                self.costs,
                recipe,
                self.goal,
                &settings.types,
                watch,
            )?
        {
            let again = match round.recipe.mixture == recipe.mixture {
                true => klds.clone(),
                false => trials.judge(&round.recipe.mixture)?,
            };
            let paired = again.over(&klds, &clusters, confidence);
            let ratio = paired.and_then(|paired| paired.ratio);
            let is_better = ratio.is_some_and(|ratio| ratio.value < 1.0);
            second_round = Some(SecondRound {
                n_cells: round.n_cells,
                n_tokens: round.n_tokens,
                before: RecipeKld {
                    predicted: recipe.kld,
                    measured: Some(measured),
                },
                after: RecipeKld {
                    predicted: round.recipe.kld,
                    measured: Some(estimate(&again)?),
                },
                ratio,
                kept_back: round.kept_back,
                is_used: is_better,
                changed: ChangedType::of_each(&recipe.mixture, &round.recipe.mixture),
            });
            if is_better {
                (*recipe, klds) = (round.recipe, again);
                measured = estimate(&klds)?;
            }
        }
        let (excluded, infinite) = (klds.n_excluded, klds.n_infinite);
        watch.warn_all((excluded > 0).then_some(Warning::ExcludedTokens(excluded)));
        watch.warn_all((infinite > 0).then_some(Warning::InfiniteKld(infinite)));
        watch.warn_all(few_windows(
            &clusters.clustering,
            klds.n_windows(),
            "window",
        ));
        let (predicted, value) = (recipe.kld.value, measured.value);
        let is_off = predicted > 0.0 && value > 0.0 && {
            let off = value / predicted;
            !(1.0 / FAR_OFF..=FAR_OFF).contains(&off)
        };
        watch.warn_all(is_off.then_some(Warning::PredictionOff {
            predicted,
            measured: value,
        }));
        if let Goal::Kld(most) = self.goal
            && measured.lo.is_some_and(|lo| lo > most)
        {
            watch.warn(Warning::MissedKld {
                most,
                measured: value,
            });
        }
        let control = trials.control()?;
        let (n_tokens, n_windows) = (klds.n_tokens(), klds.n_windows());
        let like = match &settings.goal {
            RecipeGoal::Reach(_) => None,
            RecipeGoal::Like(path) => {
                let of_like = trials.judge_other(engine, path)?;
                let paired = klds.over(&of_like, &clusters, confidence);
                let of_map = changed_types(engine, path, header)?;
                Some(LikeCheck {
                    path: path.display().to_string(),
                    size_bytes: file_bytes(engine, path)?,
                    kld: estimate(&of_like)?,
                    ratio: paired.and_then(|paired| paired.ratio),
                    predicted_ratio: self.costs.predict_ratio(recipe, &of_map),
                })
            }
        };
        let check = RecipeCheck {
            text_path: source.to_string(),
            n_tokens,
            n_windows,
            clusters: clusters.clustering,
            control,
            second_round,
            like,
        };
        Ok((measured, check))
    }
}

/// Returns true if two intervals have nothing in common.
fn are_apart(a: &Estimate, b: &Estimate) -> bool {
    let is_below =
        |a: &Estimate, b: &Estimate| matches!((a.hi, b.lo), (Some(hi), Some(lo)) if hi < lo);
    is_below(a, b) || is_below(b, a)
}

/// Reads the map, as far as it was written.
fn read_map(path: &Path, watch: &Watch<'_>) -> Result<SensitivityMap> {
    let map = SensitivityMap::read(path)?;
    let shown = path.display();
    if let Some(shard) = map.header.shard {
        bail!(
            "{shown}: is {}: join all parts with kl merge first",
            part(&shard)
        );
    }
    if map.is_cut_off {
        watch.warn(Warning::MapCutOff(shown.to_string()));
    }
    Ok(map)
}

/// Warns of tensors that could have a type of the map, and of which it says nothing.
fn warn_of_unknown(
    settings: &RecipeSettings,
    header: &MapHeader,
    costs: &Sensitivities,
    watch: &Watch<'_>,
) {
    let has_choice = |tensor: &&MapTensor| {
        let row = tensor.shape.first().copied().unwrap_or_default();
        let fits =
            |kind: &GgmlType| row.is_multiple_of(kind.block) && kind.bits() < tensor.kind.bits();
        costs.unknown.contains(&tensor.name) && header.types.iter().any(fits)
    };
    let unknown = header.tensors.iter().filter(has_choice);
    if let Some(first) = unknown.clone().next() {
        watch.warn(Warning::UnknownTensors {
            path: settings.map.display().to_string(),
            n: unknown.count() as u64,
            first: first.name.clone(),
        });
    }
}

/// Refuses types of which the map knows no weight errors.
fn check_types(settings: &RecipeSettings, header: &MapHeader) -> Result<()> {
    let known = &header.types;
    let is_unknown = |kind: &&GgmlType| {
        !known.contains(kind) && !header.tensors.iter().any(|tensor| tensor.kind == **kind)
    };
    let Some(kind) = settings.types.iter().find(is_unknown) else {
        return Ok(());
    };
    let known: Vec<&str> = known.iter().map(|kind| kind.name).collect();
    bail!(
        "--types {kind}: {} does not know that type: use some of {}, or make a map with kl sensitivity --types",
        settings.map.display(),
        known.join(",")
    )
}

/// Reads the importance matrix, which must be the one that the map was made with.
fn read_imatrix(settings: &RecipeSettings, header: &MapHeader) -> Result<Option<Imatrix>> {
    let map = settings.map.display();
    match (&settings.imatrix, &header.imatrix) {
        (None, Some(of_map)) if settings.original.is_some() => bail!(
            "--imatrix is missing: {map} was made with {}: give that file",
            of_map.file_name
        ),
        (None, _) => Ok(None),
        (Some(path), None) => bail!(
            "--imatrix {}: {map} was made without an importance matrix: leave it out, or make a map with it (kl sensitivity --imatrix)",
            path.display()
        ),
        (Some(path), Some(of_map)) => {
            let imatrix = Imatrix::read(path)?;
            if imatrix.identity.sha256 != of_map.sha256 {
                bail!(
                    "--imatrix {}: {map} was made with another one, {}: give that file",
                    path.display(),
                    of_map.file_name
                );
            }
            Ok(Some(imatrix))
        }
    }
}

/// Refuses another model than the one that the map was made of.
fn check_original(
    settings: &RecipeSettings,
    original: &OriginalSettings,
    header: &MapHeader,
    engine: &impl Engine,
) -> Result<()> {
    let identity = engine.inspect(&original.path)?.identity;
    match &header.model {
        Some(of_map) if !of_map.is_same(&identity) => bail!(
            "-m {}: {} was made of another model, {}: give that one, or make a map of this one with kl sensitivity",
            original.path.display(),
            settings.map.display(),
            of_map.shown_name().unwrap_or("without a name")
        ),
        _ => Ok(()),
    }
}

/// Finds out what stands in the way of the quantized model, before hours are spent on what comes before.
fn check_outputs(original: &OriginalSettings, replace: bool) -> Result<()> {
    if let Some(path) = &original.quantized {
        drop(PartialFile::create(path, replace, Existing::Replace)?);
    }
    Ok(())
}

/// Returns true if the map was made on this text.
fn is_of_map(header: &MapHeader, text: &TextIdentity) -> bool {
    let mut of_map = header.text.iter().chain(&header.texts);
    text.sha256.is_some() && of_map.any(|of| of.sha256 == text.sha256)
}

/// A recipe's mixture with the tensors that keep the original's blocks, as experts in mxfp4 do:
/// llama-quantize would choose other types for them.
fn named(header: &MapHeader, mixture: &Mixture) -> Mixture {
    let tensors = header.tensors.iter();
    let kept = tensors.filter(|of| of.kind.block > 1 && !mixture.contains_key(&of.name));
    let kept = kept.map(|of| (of.name.clone(), of.kind));
    kept.chain(mixture.clone()).collect()
}

/// The bytes of a model's files.
fn file_bytes(engine: &impl Engine, path: &Path) -> Result<u64> {
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

/// The call of llama-quantize that writes the file.
fn command(settings: &RecipeSettings, header: &MapHeader, recipe: &Recipe) -> Vec<String> {
    let shown = |path: &Path| path.display().to_string();
    let original = settings.original.as_deref();
    let given = original.map(|original| shown(&original.path));
    // A map may come from anywhere.
    let input = given.or_else(|| header.model_path.as_deref().map(printable));
    let output = original.and_then(|original| original.quantized.as_deref());
    let imatrix = settings.imatrix.as_deref().map(shown);
    let of_map = header
        .imatrix
        .as_ref()
        .map(|of_map| printable(&of_map.file_name));
    let imatrix = imatrix.or(of_map);
    let types = settings.output.as_deref();
    let tensors = header.tensors.iter().map(|tensor| TensorFacts {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        kind: tensor.kind,
        is_quantizable: tensor.is_quantizable,
    });
    let tensors: Vec<TensorFacts> = tensors.collect();
    let is_quantized = |tensor: &TensorFacts| tensor.is_quantizable && tensor.kind.block > 1;
    let command = QuantizeCommand {
        input: input.as_deref().unwrap_or("ORIGINAL.gguf"),
        output: &output.map_or("mine.gguf".to_owned(), shown),
        types: &types.map_or("recipe.txt".to_owned(), shown),
        mixture: &recipe.mixture,
        imatrix: imatrix.as_deref(),
        is_requantized: tensors.iter().any(is_quantized),
        file_type: file_type(&tensors, &recipe.mixture).name,
        threads: None,
    };
    command.words()
}
