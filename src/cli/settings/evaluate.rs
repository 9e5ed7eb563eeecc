//! The flags of an evaluation, against a file or a model, and of `kl compare`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::input::{check_score, files};
use super::{Command, classic_run, paths, wrong};
use crate::cli::args::{Args, cells};
use crate::commands::output::Existing;
use crate::commands::settings::{
    CompareSettings, EvaluateSettings, ReferenceModel, ReferenceSource, ResultSettings,
    RunSettings, Stats,
};
use crate::commands::subject::{CacheTypes, Subject};
use crate::commands::{ModelsOfFolder, is_gguf, labels_of_namesakes, models_of_folder, one_line};
use crate::engine::CacheType;
use crate::input::Source;
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
    let mut results = args.results;
    results.part = args.shard;
    results.existing = Existing::asked(args.force, Some(args.resume));
    results.reference.clone_from(name);
    check_results(&mut results, &models, &sweep, inputs)?;
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
pub fn compare(mut args: Box<CompareSettings>) -> Result<Command, String> {
    args.results.existing = Existing::asked(args.force, None);
    args.results.reference.clone_from(&args.reference);
    let inputs = vec![args.reference.clone()];
    check_results(&mut args.results, &args.others, &[], inputs)?;
    Ok(Command::Compare(args))
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

/// Checks the flags for the results of evaluations, and labels the evaluations: one of each of these
/// `files`, models or files of rows, or with a sweep one of each cell. `inputs`: the other files that
/// the run reads.
fn check_results(
    results: &mut ResultSettings,
    files: &[PathBuf],
    sweep: &[CacheTypes],
    mut inputs: Vec<PathBuf>,
) -> Result<(), String> {
    let n = files.len() * sweep.len().max(1);
    if results.sidecar.is_some() && n > 1 {
        return wrong(format!(
            "--sidecar names one file, but {n} are evaluated: omit it, and each gets its own"
        ));
    }
    results.labels = labels(files, std::mem::take(&mut results.label))?;
    if results.json_tokens && results.json.is_none() {
        return wrong("--json-tokens needs --json PATH to write the tokens to");
    }
    for condition in &results.conditions {
        let (kind, name) = match condition.section() {
            "logits" | "jensen_shannon" | "smoothed_kld" => (Stats::Logits, "logits"),
            "llama_perplexity" => (Stats::LlamaPerplexity, "llama-perplexity"),
            _ => continue,
        };
        if !results.stats.contains(&kind) {
            let condition = condition.expression();
            return wrong(format!("--fail-if '{condition}' needs --stats {name}"));
        }
    }
    let (sidecar, json) = (results.sidecar.as_ref(), results.json.as_ref());
    paths::check_distinct(&[("--sidecar", sidecar), ("--json", json)])?;
    inputs.extend_from_slice(files);
    let subjects = files.iter().flat_map(|path| Subject::of_model(path, sweep));
    let sidecars = subjects.filter_map(|subject| results.sidecar_path(&subject));
    let json = results.json.clone().filter(|path| path.as_os_str() != "-");
    let outputs: Vec<PathBuf> = sidecars.chain(json).collect();
    // Of folders, -m reads the models and kl compare the rows.
    let is_read = |path: &Path| is_gguf(path) || kl_formats::safetensors::is_window(path);
    paths::check(&inputs, is_read, &outputs)
}
