//! Chooses the best mixture of types for a size, by a map of sensitivity, measures it, and writes it.

mod judge;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use kl_engine::{Engine, Imatrix, Quantization, file_kind};
use kl_formats::{ImatrixIdentity, MapHeader, SensitivityMap};
use kl_measure::commands::observer::{Event, FileWork, Observer, Watch};
use kl_measure::commands::output::{Existing, PartialFile};
use kl_report::number::{count, count_of, part, printable};
use kl_report::{Versions, Warning};
use kl_system::{shell, threads};

use self::judge::{Judge, file_bytes};
use crate::mathematics::{Goal, Recipe, Sensitivities, flags, frontier, solve, tensor_type_file};
use crate::report::recipe::RecipeReport;
use crate::settings::{RecipeGoal, RecipeSettings};

/// The inputs of a recipe.
struct Inputs<'i> {
    settings: &'i RecipeSettings,
    header: MapHeader,
    imatrix: Option<Imatrix>,
    costs: Sensitivities,
    goal: Goal,
    watch: &'i Watch<'i>,
}

/// Chooses a recipe, measures it if there is a text, and writes its types. The importance matrix that was read
/// is returned too.
///
/// # Errors
/// What is wrong with the map or the model, or a goal that nothing reaches.
pub fn recipe(
    settings: &RecipeSettings,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<(RecipeReport, Option<Imatrix>)> {
    let watch = &Watch::new(observer);
    // Created first, so that a bad path is found before the work is done.
    let create =
        |path: &PathBuf| PartialFile::create(path, settings.may_replace, Existing::Replace);
    let output = settings.output.as_ref().map(create).transpose()?;
    drop(settings.quantize.as_ref().map(create).transpose()?);
    let inputs = read(settings, engine, watch)?;
    let shown = |path: &PathBuf| path.display().to_string();
    let map_path = shown(&settings.map);
    let solved = solve(&inputs.costs, inputs.goal, &settings.types);
    let mut recipe = solved.map_err(|error| anyhow!("{map_path}: {error}"))?;
    let mut check = None;
    if let (Some(original), Some(source)) = (&settings.model, &settings.text) {
        let judge = Judge::new(&inputs, engine, original, source)?;
        check = Some(judge.check(&mut recipe)?);
    }
    if let Some(output) = output {
        write_types(output, &inputs.header, &recipe)?;
    }
    let report = RecipeReport {
        versions: Versions::default(),
        map_path,
        frontier: frontier(&inputs.costs, &settings.types),
        command: command(settings, &inputs.header, &recipe),
        recipe,
        check,
        types_path: settings.output.as_ref().map(shown),
        quantized_path: settings.quantize.as_ref().map(shown),
        warnings: watch.warnings(),
        model: inputs.header.provenance.model,
    };
    Ok((report, inputs.imatrix))
}

/// Reads a recipe's inputs: the map, the importance matrix and the original, which must belong together.
fn read<'i>(
    settings: &'i RecipeSettings,
    engine: &dyn Engine,
    watch: &'i Watch<'i>,
) -> Result<Inputs<'i>> {
    let mut map = read_map(settings, watch)?;
    let imatrix = read_imatrix(settings, &map.header)?;
    let map_path = settings.map.display();
    if let Some(original) = &settings.model {
        let identity = engine.inspect(original)?.identity;
        if let Some(of_map) = map
            .header
            .model
            .as_ref()
            .filter(|of| !of.is_same(&identity))
        {
            bail!(
                "-m {}: {map_path} was made of another model, {}: give that one, or make a map of this one with kl sensitivity",
                original.display(),
                of_map.shown_name().unwrap_or("without a name")
            );
        }
        // The metadata name an importance matrix by its path, which may be another one here.
        let blueprint = engine.blueprint(original, imatrix.as_ref())?;
        map.header.metadata_bytes = blueprint.metadata_bytes;
    }
    let derived = Sensitivities::from_map(&map, settings.confidence);
    let costs = derived.map_err(|error| anyhow!("{map_path}: {error}"))?;
    if let Some(first) = costs.unknown.first() {
        let n = count_of(costs.unknown.len() as u64, "tensor");
        let advice = if map.is_cut_off {
            "the map is not finished: kl sensitivity --resume measures them"
        } else {
            "if the map was made with --tensors, make it again without"
        };
        let message = format!(
            "{map_path}: says nothing of {n} that could be quantized, {first} first: they keep their type; {advice}"
        );
        watch.warn(Warning::new("unknown_tensors", message));
    }
    let goal = goal(settings, &map.header, engine, watch)?;
    Ok(Inputs {
        settings,
        header: map.header,
        imatrix,
        costs,
        goal,
        watch,
    })
}

/// Reads the map, which may be cut off. It must hold weight errors of all types that are asked for.
fn read_map(settings: &RecipeSettings, watch: &Watch<'_>) -> Result<SensitivityMap> {
    let map = SensitivityMap::read(&settings.map)?;
    let (shown, header) = (settings.map.display(), &map.header);
    if let Some(shard) = &header.shard {
        bail!(
            "{shown}: is {}: join all parts with kl merge first",
            part(shard)
        );
    }
    if map.is_cut_off {
        let message = format!(
            "{shown}: the map is not finished: only its whole lines are used; kl sensitivity --resume continues it"
        );
        watch.warn(Warning::new("map_cut_off", message));
    }
    let own = header.tensors.iter().map(|tensor| tensor.kind);
    let known = Vec::from_iter(header.types.iter().copied().chain(own));
    if let Some(kind) = settings.types.iter().find(|kind| !known.contains(kind)) {
        let listed = Vec::from_iter(header.types.iter().map(|kind| kind.name)).join(",");
        bail!(
            "--types {kind}: {shown} does not know that type: use some of {listed}, or make a map with kl sensitivity --types"
        );
    }
    Ok(map)
}

/// Reads the importance matrix, which must be the one that the map was made with.
fn read_imatrix(settings: &RecipeSettings, header: &MapHeader) -> Result<Option<Imatrix>> {
    let map = settings.map.display();
    let (path, of_map) = match (&settings.imatrix, &header.imatrix) {
        (None, Some(of_map)) if settings.model.is_some() => bail!(
            "--imatrix is missing: {map} was made with {}: give that file",
            of_map.file_name
        ),
        (None, _) => return Ok(None),
        (Some(path), None) => bail!(
            "--imatrix {}: {map} was made without an importance matrix: leave it out, or make a map with it (kl sensitivity --imatrix)",
            path.display()
        ),
        (Some(path), Some(of_map)) => (path, of_map),
    };
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

/// The goal of the recipe as a number.
fn goal(
    settings: &RecipeSettings,
    header: &MapHeader,
    engine: &dyn Engine,
    watch: &Watch<'_>,
) -> Result<Goal> {
    match &settings.goal {
        RecipeGoal::Number(goal) => Ok(*goal),
        RecipeGoal::Like(path) => {
            let like = engine.blueprint(path, None)?;
            if let Some(made_with) = like.made_with.filter(|_| header.imatrix.is_none()) {
                let message = format!(
                    "--like {}: was made with an importance matrix ({made_with}), and the map without: a matrix can buy as much as a recipe; make the map with it (kl sensitivity --imatrix), or compare with a file made without",
                    path.display()
                );
                watch.warn(Warning::new("like_has_imatrix", message));
            }
            Ok(Goal::Size(file_bytes(engine, path)?))
        }
    }
}

/// Writes the file for llama-quantize's `--tensor-type-file`. It also names the tensors that keep the
/// original's type in blocks, such as experts in mxfp4: llama-quantize would choose other types for them.
fn write_types(output: PartialFile, header: &MapHeader, recipe: &Recipe) -> Result<()> {
    let in_blocks = header.tensors.iter().filter(|tensor| tensor.kind.block > 1);
    let kept = in_blocks.map(|tensor| (tensor.name.clone(), tensor.kind));
    let types = tensor_type_file(&kept.chain(recipe.mixture_of_file()).collect());
    let written = output.file()?.write_all(types.as_bytes());
    written.with_context(|| format!("{}: cannot be written", output.path().display()))?;
    output.commit()
}

/// The command, word by word, with which llama-quantize writes the file.
fn command(settings: &RecipeSettings, header: &MapHeader, recipe: &Recipe) -> Vec<String> {
    let shown = |path: &PathBuf| shell::argument(&path.display().to_string());
    let or = |path: &Option<PathBuf>, other: &str| path.as_ref().map_or(other.to_owned(), shown);
    // A map may come from anywhere.
    let safe = |name: &str| shell::argument(&printable(name));
    let recorded = header.model_path.as_deref().map(safe);
    let of_map = |imatrix: &ImatrixIdentity| safe(&imatrix.file_name);
    let given = settings.imatrix.as_ref().map(shown);
    let imatrix = given.or_else(|| header.imatrix.as_ref().map(of_map));
    let mut tensors = header.tensors.iter();
    let mixture = recipe.mixture_of_file();
    let mut words = vec!["llama-quantize".to_owned()];
    if tensors.any(|tensor| tensor.is_quantizable && tensor.kind.block > 1) {
        words.push("--allow-requantize".to_owned());
    }
    if let Some(path) = imatrix {
        words.extend(["--imatrix".to_owned(), path]);
    }
    words.extend(flags(&mixture, &or(&settings.output, "recipe.txt")));
    let original = recorded.unwrap_or("ORIGINAL.gguf".to_owned());
    words.extend([
        or(&settings.model, &original),
        or(&settings.quantize, "mine.gguf"),
        file_kind(&header.tensors, &mixture).name.to_owned(),
    ]);
    words
}

/// Shows how much of a file of so many bytes is there, while `write` writes it.
fn with_progress<T>(
    path: &Path,
    n_bytes_in_all: u64,
    watch: &Watch<'_>,
    write: impl FnOnce() -> T,
) -> T {
    const INTERVAL: Duration = Duration::from_millis(500);
    let label = path.file_stem().unwrap_or_default().to_string_lossy();
    let show = |has_ended: Receiver<()>| {
        while has_ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let n_bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
            let label = &*label;
            watch.event(&Event::File {
                work: FileWork::Quantize,
                label,
                n_bytes,
                n_bytes_in_all,
            });
        }
    };
    let written = thread::scope(|scope| {
        let (end, has_ended) = mpsc::channel();
        // Where the system allows no thread for it, nothing is shown.
        let _shown = threads::spawn_scoped(scope, None, || show(has_ended));
        let written = write();
        drop(end);
        written
    });
    watch.event(&Event::End);
    written
}

/// Writes the file of a recipe, and checks that it has the size and the types that the recipe states.
///
/// # Errors
/// Why the quantizer refuses, a file that cannot be written, or one that is not as stated.
pub fn quantize(
    settings: &RecipeSettings,
    recipe: &Recipe,
    imatrix: Option<&Imatrix>,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<()> {
    let (Some(path), Some(target)) = (&settings.model, &settings.quantize) else {
        return Ok(());
    };
    let (watch, shown) = (&Watch::new(observer), target.display());
    let mixture = recipe.mixture_of_file();
    let output = PartialFile::create(target, settings.may_replace, Existing::Replace)?;
    watch.event(&Event::Plan("quantize", &shown.to_string()));
    let quantization = Quantization {
        input: path,
        output: output.path(),
        mixture: &mixture,
        imatrix,
        threads: settings.run.threads,
    };
    with_progress(output.path(), recipe.size_bytes, watch, || {
        engine.quantize(&quantization)
    })?;
    let metadata = fs::metadata(output.path());
    let bytes = metadata.with_context(|| format!("{shown}: cannot be read again"))?;
    if bytes.len() != recipe.size_bytes {
        bail!(
            "{shown}: has {} bytes, and the recipe states {}: it was not kept; please report this",
            count(bytes.len()),
            count(recipe.size_bytes)
        );
    }
    for tensor in engine.blueprint(output.path(), None)?.tensors {
        let wanted = mixture.get(&tensor.name).copied();
        if let Some(wanted) = wanted.filter(|wanted| *wanted != tensor.kind) {
            bail!(
                "{shown}: {} has type {}, and {wanted} in the recipe: it was not kept; please report this",
                tensor.name,
                tensor.kind
            );
        }
    }
    output.commit()?;
    watch.event(&Event::Wrote(&shown.to_string()));
    Ok(())
}
