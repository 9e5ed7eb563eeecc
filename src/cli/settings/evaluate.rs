//! The flags of an evaluation, against a file or a model, and of `kl compare`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::input::{check_score, files};
use super::{Command, classic_run, default_threads, max_rows, paths, wrong};
use crate::cli::args::{Args, CompareArgs, ResultArgs, cells};
use crate::commands::output::Existing;
use crate::commands::settings::{
    CompareSettings, EvaluateSettings, ReferenceModel, ReferenceSource, ResultSettings,
    RunSettings, Sidecar, Stats,
};
use crate::commands::subject::{CacheTypes, Subject};
use crate::commands::{ModelsOfFolder, is_gguf, labels_of_namesakes, models_of_folder, one_line};
use crate::engine::CacheType;
use crate::input::Source;
use crate::pipeline::Part;
use crate::report::number::count_of;

/// `--ref-model`: against a model that runs over `input` too.
pub fn against_model(args: Args, input: Source, path: PathBuf) -> Result<Command, String> {
    if path.is_dir() {
        return wrong(format!(
            "--ref-model {}: is a folder: name the one model to evaluate against",
            path.display()
        ));
    }
    if let (Some(part), true) = (args.shard, input.is_answered()) {
        return wrong(format!(
            "--shard {part}: with --ref-model and --generate, each part would generate the answers of all: \
             write a reference first (-m {} -w REF), and share the evaluation out with -r REF",
            path.display()
        ));
    }
    check_score(&input)?;
    let (inputs, run) = (files(&input, &path), of_reference(&args));
    let model = Box::new(ReferenceModel { path, input, run });
    evaluate(args, ReferenceSource::Model(model), inputs)
}

/// Settings of the reference model's run: those of the evaluated models, except where it has flags
/// of its own. Its cache is not theirs: what `-ctk` and `-ctv` change is to be measured.
fn of_reference(args: &Args) -> RunSettings {
    let mut run = classic_run(args);
    if let Some(n_gpu_layers) = args.evaluate.ref_ngl {
        run.model.n_gpu_layers = n_gpu_layers;
    }
    if !args.evaluate.ref_device.is_empty() {
        run.model.devices.clone_from(&args.evaluate.ref_device);
    }
    (run.type_k, run.type_v) = (CacheType::default(), CacheType::default());
    run
}

/// Checks the flags of an evaluation; `inputs`: the files that are read besides the models.
pub fn evaluate(
    args: Args,
    reference: ReferenceSource,
    mut inputs: Vec<PathBuf>,
) -> Result<Command, String> {
    let run = classic_run(&args);
    let name = match &reference {
        ReferenceSource::File { path, .. } => path,
        ReferenceSource::Model(model) => &model.path,
    };
    let ModelsOfFolder { models, skipped } = models(&args.model)?;
    inputs.extend(args.model);
    let sweep = cells(&args.evaluate.sweep)?;
    let existing = Existing::asked(args.force, Some(args.resume));
    let evaluated = Evaluated {
        files: &models,
        sweep: &sweep,
        reference: name,
    };
    let results = result_settings(args.results, &evaluated, inputs, args.shard, existing)?;
    Ok(Command::Evaluate(EvaluateSettings {
        models,
        skipped,
        reference,
        vocabulary: args.evaluate.vocab.unwrap_or_default(),
        until: args.evaluate.until,
        sweep,
        results,
        run,
    }))
}

/// The models that are given, and those of the folders that are.
fn models(given: &[PathBuf]) -> Result<ModelsOfFolder, String> {
    let mut all = ModelsOfFolder::default();
    for path in given {
        if path.is_dir() {
            let of_folder = models_of_folder(path).map_err(|error| one_line(&error))?;
            all.models.extend(of_folder.models);
            all.skipped.extend(of_folder.skipped);
        } else {
            all.models.push(path.clone());
        }
    }
    Ok(all)
}

/// `kl compare`.
pub fn compare(args: CompareArgs) -> Result<Command, String> {
    let (reference, others) = (args.reference, args.others);
    let (inputs, existing) = (vec![reference.clone()], Existing::asked(args.force, None));
    let evaluated = Evaluated {
        files: &others,
        sweep: &[],
        reference: &reference,
    };
    Ok(Command::Compare(CompareSettings {
        results: result_settings(args.results, &evaluated, inputs, None, existing)?,
        reference,
        others,
        max_rows: max_rows(args.n_tokens),
        vocabulary: args.vocab.unwrap_or_default(),
        threads: default_threads(),
    }))
}

/// The evaluated models, and the reference.
struct Evaluated<'e> {
    /// Models, or files of rows.
    files: &'e [PathBuf],
    /// The cells of a sweep, with each of which each model is run; empty without one.
    sweep: &'e [CacheTypes],
    reference: &'e Path,
}

/// The labels of these files, by their paths: those `given`, one for each file in order, or else those
/// that tell files of one name apart. Labels of the cells of a sweep differ by their types.
fn labels(files: &[PathBuf], given: Vec<String>) -> Result<BTreeMap<PathBuf, String>, String> {
    if given.is_empty() {
        return Ok(labels_of_namesakes(files));
    }
    if given.len() != files.len() {
        return wrong(format!(
            "--label: {} for {} evaluations: give one for each model, in their order, or none",
            count_of(given.len() as u64, "label"),
            files.len()
        ));
    }
    let twice = (1..)
        .zip(&given)
        .find(|(i, label)| given.iter().skip(*i).any(|other| other == *label));
    if let Some((_, label)) = twice {
        return wrong(format!(
            "--label {label}: names two evaluations: give each its own"
        ));
    }
    Ok(files.iter().cloned().zip(given).collect())
}

/// Checks the flags for the results of evaluations. `inputs`: the other files that the run reads.
fn result_settings(
    args: ResultArgs,
    evaluated: &Evaluated<'_>,
    mut inputs: Vec<PathBuf>,
    part: Option<Part>,
    existing: Existing,
) -> Result<ResultSettings, String> {
    let Evaluated {
        files,
        sweep,
        reference,
    } = *evaluated;
    let n_files = files.len();
    let n = n_files * sweep.len().max(1);
    if args.sidecar.is_some() && n > 1 {
        return wrong(format!(
            "--sidecar names one file, but {n} are evaluated: omit it, and each gets its own"
        ));
    }
    let labels = labels(files, args.label)?;
    if args.json_tokens && args.json.is_none() {
        return wrong("--json-tokens needs --json PATH to write the tokens to");
    }
    for condition in &args.fail_if {
        let (kind, name) = match condition.section() {
            "logits" | "jensen_shannon" | "smoothed_kld" => (Stats::Logits, "logits"),
            "llama_perplexity" => (Stats::LlamaPerplexity, "llama-perplexity"),
            _ => continue,
        };
        if !args.stats.contains(&kind) {
            let condition = condition.expression();
            return wrong(format!("--fail-if '{condition}' needs --stats {name}"));
        }
    }
    let (sidecar, json) = (args.sidecar.as_ref(), args.json.as_ref());
    paths::check_distinct(&[("--sidecar", sidecar), ("--json", json)])?;
    let settings = ResultSettings {
        confidence: args.confidence,
        labels,
        stats: args.stats,
        json: args.json,
        json_tokens: args.json_tokens,
        top_k: args.top_k,
        breakdown: args.breakdown,
        full: args.full,
        clusters: args.cluster,
        conditions: args.fail_if,
        allow_excluded: args.allow_excluded,
        part,
        sidecar: match args.sidecar {
            _ if args.no_sidecar => Sidecar::None,
            Some(path) => Sidecar::At(path),
            None => Sidecar::Against(reference.to_owned()),
        },
        existing,
    };
    inputs.extend_from_slice(files);
    let subjects = files.iter();
    let subjects = subjects.flat_map(|path| Subject::of_model(path, sweep));
    let sidecars = subjects.filter_map(|subject| settings.sidecar_path(&subject));
    let json = settings.json.clone().filter(|path| path.as_os_str() != "-");
    let outputs: Vec<PathBuf> = sidecars.chain(json).collect();
    // Of folders, -m reads the models and kl compare the rows.
    let is_read = |path: &Path| is_gguf(path) || kl_formats::safetensors::is_window(path);
    paths::check(&inputs, is_read, &outputs)?;
    Ok(settings)
}
