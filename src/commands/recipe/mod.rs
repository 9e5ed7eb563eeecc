//! Chooses the best mixture of types for a size, by a map of sensitivity, measures it, and writes it.

mod inputs;
mod judge;
mod klds;
mod quantize;
mod trials;

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use kl_formats::{MapHeader, Mixture};

use self::inputs::{check_original, check_types, read_imatrix, read_map, warn_of_unknown};
use self::judge::{Judge, file_bytes};
use super::observer::{Observer, Watch};
use super::output::{Existing, PartialFile};
use super::settings::RecipeSettings;
use crate::engine::{Engine, file_kind};
use crate::recipe::{
    Goal, QuantizeCommand, Recipe, Sensitivities, frontier, solve, tensor_type_file,
};
use crate::report::Versions;
use crate::report::number::printable;
use crate::report::recipe::{RecipeKld, RecipeReport, RecipeTensor};
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
    let create = |path| PartialFile::create(path, settings.force, Existing::Replace);
    let output = settings.output.as_deref().map(create).transpose()?;
    let mut map = read_map(&settings.map, watch)?;
    check_types(settings, &map.header)?;
    let imatrix = read_imatrix(settings, &map.header)?;
    if let Some(original) = settings.model.as_deref() {
        check_original(settings, original, &map.header, engine)?;
        drop(settings.quantize.as_deref().map(create).transpose()?);
        // An importance matrix is named in it by its path, which may be another one here.
        let blueprint = engine.blueprint(original, imatrix.as_ref())?;
        map.header.metadata_bytes = blueprint.metadata_bytes;
    }
    let goal = goal(settings, engine)?;
    let of_map = |error| anyhow!("{}: {error}", settings.map.display());
    let costs = Sensitivities::of(&map, settings.confidence).map_err(of_map)?;
    warn_of_unknown(settings, &map.header, &costs, watch);
    let mut recipe = solve(&costs, goal, &settings.types).map_err(of_map)?;
    let text = settings.text();
    let checked = settings.model.as_deref().zip(text.as_ref());
    let checked = checked.map(|(original, source)| {
        let judge = Judge {
            settings,
            original,
            source,
            header: &map.header,
            imatrix: imatrix.as_ref(),
            costs: &costs,
            goal,
            watch,
        };
        judge.check(engine, &mut recipe)
    });
    let (measured, check) = checked.transpose()?.unzip();
    if let Some(output) = output {
        write_types(output, &map.header, &recipe)?;
    }
    let shown = |path: &Path| path.display().to_string();
    Ok(RecipeReport {
        versions: Versions::default(),
        map_path: shown(&settings.map),
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
        types_path: settings.output.as_deref().map(shown),
        quantized_path: settings.quantize.as_deref().map(shown),
        warnings: watch.warnings(),
        model: map.header.provenance.model,
    })
}

/// What the recipe should reach: clap has asked for one of the flags.
fn goal(settings: &RecipeSettings, engine: &impl Engine) -> Result<Goal> {
    if let Some(path) = &settings.like {
        return Ok(Goal::Size(file_bytes(engine, path)?));
    }
    let size = settings.size.map(Goal::Size);
    let goal = size.or(settings.bpw.map(Goal::Bpw));
    goal.or(settings.kld.map(Goal::Kld))
        .context("--size, --bpw, --like or --kld is needed")
}

/// Writes the file for llama-quantize's `--tensor-type-file`.
fn write_types(output: PartialFile, header: &MapHeader, recipe: &Recipe) -> Result<()> {
    let types = tensor_type_file(&named(header, &recipe.mixture));
    let written = output.file()?.write_all(types.as_bytes());
    written.with_context(|| format!("{}: cannot be written", output.path().display()))?;
    output.commit()
}

/// A recipe's mixture with the tensors that keep the original's blocks, as experts in mxfp4 do:
/// llama-quantize would choose other types for them.
fn named(header: &MapHeader, mixture: &Mixture) -> Mixture {
    let tensors = header.tensors.iter();
    let kept = tensors.filter(|of| of.kind.block > 1 && !mixture.contains_key(&of.name));
    let kept = kept.map(|of| (of.name.clone(), of.kind));
    kept.chain(mixture.clone()).collect()
}

/// The call of llama-quantize that writes the file.
fn command(settings: &RecipeSettings, header: &MapHeader, recipe: &Recipe) -> Vec<String> {
    let shown = |path: &Path| path.display().to_string();
    // A map may come from anywhere.
    let given = settings.model.as_deref().map(shown);
    let input = given.or_else(|| header.model_path.as_deref().map(printable));
    let output = settings.quantize.as_deref();
    let imatrix = settings.imatrix.as_deref().map(shown);
    let of_map = header
        .imatrix
        .as_ref()
        .map(|of_map| printable(&of_map.file_name));
    let imatrix = imatrix.or(of_map);
    let types = settings.output.as_deref();
    let mut tensors = header.tensors.iter();
    let command = QuantizeCommand {
        input: input.as_deref().unwrap_or("ORIGINAL.gguf"),
        output: &output.map_or("mine.gguf".to_owned(), shown),
        types: &types.map_or("recipe.txt".to_owned(), shown),
        mixture: &recipe.mixture,
        imatrix: imatrix.as_deref(),
        is_requantized: tensors.any(|tensor| tensor.is_quantizable && tensor.kind.block > 1),
        file_type: file_kind(&header.tensors, &recipe.mixture).name,
        threads: None,
    };
    command.words()
}
