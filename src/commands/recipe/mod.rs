//! Chooses the best mixture of types for a size, by a map of sensitivity, measures it, and writes it.

mod inputs;
mod judge;
mod klds;
mod quantize;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use kl_formats::{ImatrixIdentity, MapHeader};

use self::inputs::{check_original, read_imatrix, read_map, warn_of_unknown};
use self::judge::{Judge, file_bytes};
use super::observer::{Observer, Watch};
use super::output::{Existing, PartialFile};
use super::settings::RecipeSettings;
use crate::engine::{Engine, Imatrix, file_kind};
use crate::recipe::{Goal, Recipe, Sensitivities, flags, frontier, solve, tensor_type_file};
use crate::report::Versions;
use crate::report::number::printable;
use crate::report::recipe::RecipeReport;
pub use quantize::quantize;

/// What a recipe is made of.
struct Inputs<'i> {
    settings: &'i RecipeSettings,
    header: &'i MapHeader,
    imatrix: Option<&'i Imatrix>,
    costs: Sensitivities,
    goal: Goal,
    watch: &'i Watch<'i>,
}

/// Chooses a recipe, measures it if there is a text, and writes its types. Returns with it the importance
/// matrix that was read.
///
/// # Errors
/// What is wrong with the map or the model, or a goal that nothing reaches.
pub fn recipe<E: Engine>(
    settings: &RecipeSettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<(RecipeReport, Option<Imatrix>)> {
    let watch = &Watch::new(observer);
    // Created first, so that a bad path is found before the work is done.
    let create = |path: &PathBuf| PartialFile::create(path, settings.force, Existing::Replace);
    let output = settings.output.as_ref().map(create).transpose()?;
    let mut map = read_map(settings, watch)?;
    let imatrix = read_imatrix(settings, &map.header)?;
    if let Some(original) = &settings.model {
        check_original(&settings.map, original, &map.header, engine)?;
        drop(settings.quantize.as_ref().map(create).transpose()?);
        // An importance matrix is named in it by its path, which may be another one here.
        let blueprint = engine.blueprint(original, imatrix.as_ref())?;
        map.header.metadata_bytes = blueprint.metadata_bytes;
    }
    let goal = goal(settings, engine)?;
    let of_map = |error| anyhow!("{}: {error}", settings.map.display());
    let inputs = Inputs {
        settings,
        header: &map.header,
        imatrix: imatrix.as_ref(),
        costs: Sensitivities::from_map(&map, settings.confidence).map_err(of_map)?,
        goal,
        watch,
    };
    warn_of_unknown(&settings.map, &inputs.costs.unknown, watch);
    let mut recipe = solve(&inputs.costs, goal, &settings.types).map_err(of_map)?;
    let mut check = None;
    if let (Some(original), Some(source)) = (&settings.model, settings.text()) {
        let judge = Judge::new(&inputs, engine, original, &source)?;
        check = Some(judge.check(engine, &mut recipe)?);
    }
    if let Some(output) = output {
        write_types(output, &map.header, &recipe)?;
    }
    let shown = |path: &PathBuf| path.display().to_string();
    let report = RecipeReport {
        versions: Versions::default(),
        map_path: shown(&settings.map),
        frontier: frontier(&inputs.costs, &settings.types),
        command: command(settings, &map.header, &recipe),
        recipe,
        check,
        types_path: settings.output.as_ref().map(shown),
        quantized_path: settings.quantize.as_ref().map(shown),
        warnings: watch.warnings(),
        model: map.header.provenance.model,
    };
    Ok((report, imatrix))
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

/// Writes the file for llama-quantize's `--tensor-type-file`. The tensors that keep the original's blocks,
/// as experts in mxfp4 do, are named too: llama-quantize would choose other types for them.
fn write_types(output: PartialFile, header: &MapHeader, recipe: &Recipe) -> Result<()> {
    let kept = header.tensors.iter().filter(|of| of.kind.block > 1);
    let kept = kept.map(|of| (of.name.clone(), of.kind));
    let types = tensor_type_file(&kept.chain(recipe.mixture()).collect());
    let written = output.file()?.write_all(types.as_bytes());
    written.with_context(|| format!("{}: cannot be written", output.path().display()))?;
    output.commit()
}

/// The words of the call of llama-quantize that writes the file.
fn command(settings: &RecipeSettings, header: &MapHeader, recipe: &Recipe) -> Vec<String> {
    let shown = |path: &PathBuf| path.display().to_string();
    let given =
        |path: &Option<PathBuf>, otherwise: &str| path.as_ref().map_or(otherwise.to_owned(), shown);
    // A map may come from anywhere.
    let original = header.model_path.as_deref().map(printable);
    let of_map = |of: &ImatrixIdentity| printable(&of.file_name);
    let imatrix = settings.imatrix.as_ref().map(shown);
    let imatrix = imatrix.or_else(|| header.imatrix.as_ref().map(of_map));
    let mut tensors = header.tensors.iter();
    let mixture = recipe.mixture();
    let mut words = vec!["llama-quantize".to_owned()];
    if tensors.any(|tensor| tensor.is_quantizable && tensor.kind.block > 1) {
        words.push("--allow-requantize".to_owned());
    }
    words.extend(
        imatrix
            .into_iter()
            .flat_map(|path| ["--imatrix".to_owned(), path]),
    );
    words.extend(flags(&mixture, &given(&settings.output, "recipe.txt")));
    words.extend([
        given(
            &settings.model,
            &original.unwrap_or("ORIGINAL.gguf".to_owned()),
        ),
        given(&settings.quantize, "mine.gguf"),
        file_kind(&header.tensors, &mixture).name.to_owned(),
    ]);
    words
}
