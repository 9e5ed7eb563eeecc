//! The flags of an evaluation, against a file or a model, and of `kl compare`.

use std::path::{Path, PathBuf};

use super::input::{check_score, files};
use super::paths;
use super::run::{default_threads, max_rows, run_settings};
use super::usage_error::{UsageError, wrong};
use crate::cli::args::{Args, CompareArgs, EvaluateArgs, ResultArgs};
use crate::commands::settings::{
    CompareSettings, EvaluateSettings, ReferenceModel, ReferenceSource, ResultSettings,
    RunSettings, Sidecar, Stats,
};
use crate::commands::{ModelsOfFolder, is_gguf, labels_of_namesakes, models_of_folder, one_line};
use crate::engine::{CacheType, ModelOptions};
use crate::input::{Part, Source};

/// `-r`: against a file.
pub(super) fn against_file(args: Args, path: PathBuf) -> Result<EvaluateSettings, UsageError> {
    let inputs = vec![path.clone()];
    let n_ctx = args.n_ctx;
    let name = path.clone();
    evaluate_settings(args, ReferenceSource::File { path, n_ctx }, name, inputs)
}

/// `--ref-model`: against a model that runs over `input` too.
pub(super) fn against_model(
    args: Args,
    input: Source,
    path: PathBuf,
) -> Result<EvaluateSettings, UsageError> {
    if path.is_dir() {
        return wrong(format!(
            "--ref-model {}: is a folder: name the one model to evaluate against",
            path.display()
        ));
    }
    check_score(&input)?;
    let inputs = files(&input, std::slice::from_ref(&path));
    let run = of_reference(&args);
    let name = path.clone();
    let model = Box::new(ReferenceModel { path, input, run });
    evaluate_settings(args, ReferenceSource::Model(model), name, inputs)
}

/// How the reference model runs: as the evaluated ones, but where it has flags of its own. Its
/// cache is not theirs: what `-ctk` and `-ctv` change is to be measured.
fn of_reference(args: &Args) -> RunSettings {
    let run = run_settings(args);
    let EvaluateArgs {
        ref_ngl,
        ref_device,
        ..
    } = &args.evaluate;
    let devices = match ref_device.is_empty() {
        true => run.model.devices,
        false => ref_device.clone(),
    };
    RunSettings {
        model: ModelOptions {
            n_gpu_layers: ref_ngl.unwrap_or(run.model.n_gpu_layers),
            devices,
            ..run.model
        },
        type_k: CacheType::default(),
        type_v: CacheType::default(),
        ..run
    }
}

/// Checks the flags of an evaluation against the file or model `name`; `inputs`: the files that are
/// read besides the models.
fn evaluate_settings(
    args: Args,
    reference: ReferenceSource,
    name: PathBuf,
    mut inputs: Vec<PathBuf>,
) -> Result<EvaluateSettings, UsageError> {
    let run = run_settings(&args);
    let ModelsOfFolder { models, skipped } = models(&args.model)?;
    inputs.extend(args.model);
    let results = ResultSettings {
        resume: Some(args.resume),
        ..result_settings(
            args.results,
            &models,
            name,
            inputs,
            args.shard,
            args.force,
            args.quiet,
        )?
    };
    Ok(EvaluateSettings {
        models,
        skipped,
        reference,
        vocabulary: args.evaluate.vocab.unwrap_or_default(),
        until: args.evaluate.until,
        results,
        run,
    })
}

/// The models that are given, and those of the folders that are.
fn models(given: &[PathBuf]) -> Result<ModelsOfFolder, UsageError> {
    let mut all = ModelsOfFolder::default();
    for path in given {
        if path.is_dir() {
            let of_folder = models_of_folder(path).or_else(|error| wrong(one_line(&error)))?;
            all.models.extend(of_folder.models);
            all.skipped.extend(of_folder.skipped);
        } else {
            all.models.push(path.clone());
        }
    }
    Ok(all)
}

impl TryFrom<CompareArgs> for CompareSettings {
    type Error = UsageError;

    fn try_from(args: CompareArgs) -> Result<Self, UsageError> {
        let (results, reference) = (args.results, args.reference);
        Ok(Self {
            results: result_settings(
                results,
                &args.others,
                reference.clone(),
                vec![reference.clone()],
                None,
                args.force,
                args.quiet,
            )?,
            reference,
            others: args.others,
            max_rows: max_rows(args.n_tokens),
            vocabulary: args.vocab.unwrap_or_default(),
            threads: default_threads(),
        })
    }
}

/// Checks the flags for the results of evaluating `evaluated`, models or files, against `reference`;
/// `inputs`: what else the run reads.
fn result_settings(
    args: ResultArgs,
    evaluated: &[PathBuf],
    reference: PathBuf,
    mut inputs: Vec<PathBuf>,
    part: Option<Part>,
    force: bool,
    quiet: bool,
) -> Result<ResultSettings, UsageError> {
    if args.sidecar.is_some() && evaluated.len() > 1 {
        return wrong(format!(
            "--sidecar names one file, but {} are evaluated: omit it, and each gets its own",
            evaluated.len()
        ));
    }
    if args.label.is_some() && evaluated.len() > 1 {
        return wrong(format!(
            "--label names one evaluation, but {} are evaluated: omit it, or evaluate one at a time",
            evaluated.len()
        ));
    }
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
            return wrong(format!(
                "--fail-if '{}' needs --stats {name}",
                condition.expression()
            ));
        }
    }
    let (sidecar, json) = (args.sidecar.as_ref(), args.json.as_ref());
    paths::check_distinct(&[("--sidecar", sidecar), ("--json", json)])?;
    let sidecar = match (args.sidecar, args.no_sidecar) {
        (_, true) => Sidecar::None,
        (Some(path), false) => Sidecar::At(path),
        (None, false) => Sidecar::Against(reference),
    };
    let settings = ResultSettings {
        confidence: args.confidence,
        label: args.label,
        labels_of_namesakes: labels_of_namesakes(evaluated),
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
        sidecar,
        force,
        resume: None,
        quiet,
    };
    inputs.extend_from_slice(evaluated);
    let sidecars = evaluated
        .iter()
        .filter_map(|path| settings.sidecar_path(path));
    let json = settings.json.clone().filter(|path| path.as_os_str() != "-");
    let outputs: Vec<PathBuf> = sidecars.chain(json).collect();
    // Of folders, -m reads the models and kl compare the rows.
    let is_read = |path: &Path| is_gguf(path) || kl_formats::safetensors::is_window(path);
    paths::check(&inputs, is_read, &outputs)?;
    Ok(settings)
}
