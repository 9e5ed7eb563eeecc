//! The classic calls: `-w` writes a reference, `-r` and `--ref-model` evaluate against one. clap has
//! already refused flags for writing beside flags for evaluating, and an input beside a reference that is
//! read.

use std::collections::{BTreeMap, HashSet};
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kl_formats::{Encoding, Kind, Target};

use super::{check_devices, paths, target, wrong};
use crate::cli::args::{Args, grid};
use crate::cli::request::Request;
use crate::cli::request::devices::DevicesRequest;
use crate::cli::request::evaluate::EvaluateRequest;
use crate::cli::request::write::WriteRequest;
use crate::commands::output::Existing;
use crate::commands::settings::{
    EvaluateSettings, ReferenceModel, ReferenceSource, ResultSettings, RunSettings, Stats, Sweep,
    WriteSettings,
};
use crate::commands::{is_gguf, labels_of_namesakes, models_of_folder, one_line};
use crate::engine::CacheType;
use crate::input::{DEFAULT_N_CTX, NamedText, ScoreFrom, Source};
use crate::report::number::count_of;

/// Checks a classic call.
pub fn check(mut args: Args) -> Result<Box<dyn Request>, String> {
    check_devices("--device", &args.run.model.devices)?;
    check_devices("--ref-device", &args.evaluate.ref_device)?;
    if args.list_devices {
        let servers = args.run.model.rpc;
        return Ok(Box::new(DevicesRequest { servers }));
    }
    let (output, ref_model) = (args.write.write_path.take(), args.evaluate.ref_model.take());
    match (args.evaluate.read_path.take(), output, ref_model) {
        (Some(path), ..) => Ok(Box::new(against_file(args, path)?)),
        (None, Some(output), _) => Ok(Box::new(write(args, output)?)),
        (None, None, Some(model)) => Ok(Box::new(against_model(args, model)?)),
        (None, None, None) => wrong(
            "nothing to do: give -t TEXT -w REF to write a reference, or -r REF or -t TEXT \
             --ref-model MODEL to evaluate against one",
        ),
    }
}

/// `-w`: writes what the one model makes of the input.
fn write(mut args: Args, output: PathBuf) -> Result<WriteRequest, String> {
    let input = check_input(&mut args)?;
    let (kind, encoding, n_models) = (args.write.format, args.write.encoding, args.model.len());
    if args.results.top_k.is_some() {
        return wrong(
            "--top-k with -w needs --temp, for which it chooses among tokens: leave it out, or give it \
         when you evaluate, to list the most divergent tokens",
        );
    }
    let model = args.model.pop().filter(|_| n_models == 1).ok_or_else(|| {
        format!("{n_models} models given: -w writes the reference of one model only")
    })?;
    if model.is_dir() {
        return wrong(format!(
            "{}: is a folder: -w writes the reference of one model, -r evaluates all models of a folder",
            model.display()
        ));
    }
    let is_native = kind == Kind::Kl;
    let target = target(kind, encoding)?;
    if input.prompts.is_none() {
        check_windows(&input, target, args.max_rows)?;
    }
    paths::check(&files(&input, &model), |_| false, [&output])?;
    let run = args.run_settings();
    Ok(WriteRequest(WriteSettings {
        model,
        input,
        output,
        target,
        chooses_encoding: is_native && encoding.is_none(),
        part: args.shard,
        existing: Existing::by_flags(args.force, is_native.then_some(args.resume)),
        run,
    }))
}

/// Checks the flags for a text or prompts, and makes an input of them with what other flags decide: the window's
/// length, and `--top-k`, which otherwise lists tokens.
fn check_input(args: &mut Args) -> Result<Source, String> {
    let (mut source, kind) = (Source::from(take(&mut args.input)), args.write.format);
    if source.prompts.is_none() && source.texts.is_empty() {
        return wrong("no text: -w and --ref-model need -t TEXT or --prompts PROMPTS");
    }
    if source.sampling().is_some() {
        source.top_k = args.results.top_k.take();
    }
    source.n_ctx = args.n_ctx;
    let has_groups = source.texts.iter().any(NamedText::has_groups);
    let holds_states = args.write.encoding.is_some_and(Encoding::holds_states);
    let of_native = [
        (source.prompts.is_some(), "--prompts", "can hold prompts"),
        (
            has_groups,
            "-t NAME=PATH, or -t starter,",
            "can hold groups",
        ),
        (
            args.resume,
            "--resume",
            "has checksums that show which windows are whole; write that, then use kl convert",
        ),
        (
            args.shard.is_some(),
            "--shard",
            "has parts that kl merge can join; write that, then use kl convert",
        ),
        (holds_states, "--encoding hidden", "can hold hidden states"),
    ];
    let mut of_native = of_native.into_iter();
    if let Some((_, flag, why)) = of_native.find(|(is_given, ..)| *is_given && kind != Kind::Kl) {
        return wrong(format!("{flag} needs --format kl: no other format {why}"));
    }
    if source.prompts.is_some() {
        check_prompts(&source)?;
        return Ok(source);
    }
    source.n_ctx.get_or_insert(DEFAULT_N_CTX);
    if kind == Kind::KlPy {
        source.score.get_or_insert(ScoreFrom::All);
    }
    check_texts(&source)?;
    Ok(source)
}

/// Checks windows of texts, whose length is set.
pub fn check_texts(source: &Source) -> Result<(), String> {
    let n_ctx = source.text_n_ctx();
    // With a BOS, the default starts at position 1, which every window has.
    let first_scored = source.score.unwrap_or_default().first(n_ctx, false);
    let n_texts = source.texts.len();
    let unnamed = source.texts.iter().filter(|text| text.group.is_none());
    let texts = source.texts.iter();
    let of_stdin = texts.filter(|text| text.path.as_os_str() == "-");
    if source.scores_given_answers() {
        wrong("--score answers needs --prompts with conversations: a text has no answers")
    } else if unnamed.count() > 0 && n_texts > 1 {
        wrong("-t: several texts each need a name: use -t NAME=PATH")
    } else if of_stdin.count() > 1 {
        wrong("-t: standard input can be read once only: name a file for the other text")
    } else if first_scored >= n_ctx {
        wrong("--score must be less than --n-ctx: no position is left to score")
    } else {
        Ok(())
    }
}

/// Checks prompts and their answers.
pub fn check_prompts(source: &Source) -> Result<(), String> {
    use ScoreFrom::{All, Answers, Half, New};
    match (source.generate, source.score) {
        (Some(_), Some(Answers)) => wrong(
            "--score answers is for the answers that conversations have; without it, --generate \
             scores what it generates",
        ),
        (Some(_), Some(score)) if score != All => wrong(
            "--score can only be all with --generate; without --score, only the generated tokens \
             are scored",
        ),
        (_, Some(Half | New)) => wrong(
            "--score can only be all, answers or a position with --prompts: prompts differ in length \
             and do not overlap",
        ),
        _ if !source.has_answers() && !source.spans.is_empty() => {
            wrong("--span names parts of answers: use it with --generate or --score answers")
        }
        _ => Ok(()),
    }
}

/// Refuses windows of a text that the format cannot express.
fn check_windows(source: &Source, target: Target, max_rows: Option<u64>) -> Result<(), String> {
    let (n_ctx, score) = (source.text_n_ctx(), source.score);
    let is_limited = source.max_windows.is_some() || max_rows.is_some();
    let is_half = score.is_none_or(|score| score.first(n_ctx, false) == n_ctx / 2);
    match target {
        Target::KlPy if score != Some(ScoreFrom::All) => {
            wrong("--format kl.py scores every position: omit --score")
        }
        Target::LlamaCpp if source.stride.is_some() || is_limited || !is_half => wrong(
            "--format llama.cpp holds every whole window of a text in order, each scored in its \
             second half: omit --stride, --max-windows, --n-tokens and --score",
        ),
        Target::LlamaCpp if n_ctx < 3 => {
            wrong("--n-ctx must be at least 3 with --format llama.cpp: no position is scored")
        }
        _ => Ok(()),
    }
}

/// The files that are read for an input, and the model that runs over it.
fn files(source: &Source, model: &Path) -> Vec<PathBuf> {
    let mut files = vec![model.to_owned()];
    files.extend(source.files().into_iter().map(Path::to_owned));
    files
}

/// `-r`: evaluates against a reference that was written.
fn against_file(args: Args, path: PathBuf) -> Result<EvaluateRequest, String> {
    let (n_ctx, inputs) = (args.n_ctx, vec![path.clone()]);
    evaluate(args, ReferenceSource::File { path, n_ctx }, inputs)
}

/// `--ref-model`: evaluates against a model that runs over the input too.
fn against_model(mut args: Args, path: PathBuf) -> Result<EvaluateRequest, String> {
    let input = check_input(&mut args)?;
    if path.is_dir() {
        return wrong(format!(
            "--ref-model {}: is a folder: name the one model to evaluate against",
            path.display()
        ));
    }
    if let Some(part) = args.shard.filter(|_| input.generate.is_some()) {
        return wrong(format!(
            "--shard {part}: with --ref-model and --generate, each part would generate the answers of all: \
             write a reference first (-m {} -w REF), and share the evaluation out with -r REF",
            path.display()
        ));
    }
    let (inputs, run) = (files(&input, &path), of_reference(&args));
    let model = Box::new(ReferenceModel { path, input, run });
    evaluate(args, ReferenceSource::Model(model), inputs)
}

/// Settings of the reference model's run: those of the evaluated models, except where it has flags
/// of its own. Its cache is not theirs: what `-ctk` and `-ctv` change is to be measured.
fn of_reference(args: &Args) -> RunSettings {
    let mut run = args.run_settings();
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
fn evaluate(
    args: Args,
    reference: ReferenceSource,
    mut inputs: Vec<PathBuf>,
) -> Result<EvaluateRequest, String> {
    // Of a folder, all models are evaluated.
    let (mut models, mut skipped) = (Vec::new(), Vec::new());
    for path in &args.model {
        if path.is_dir() {
            let of_folder = models_of_folder(path, &mut skipped);
            models.extend(of_folder.map_err(|error| one_line(&error))?);
        } else {
            models.push(path.clone());
        }
    }
    let run = args.run_settings();
    inputs.extend(args.model);
    let sweep = grid(&args.evaluate.sweep, args.dequantize)?;
    let (json, detail) = (args.results.json.clone(), args.results.detail());
    let results = ResultSettings {
        labels: labels(&models, &args.results.label)?,
        part: args.shard,
        for_context: args.evaluate.for_context,
        reference: reference.path().to_owned(),
        existing: Existing::by_flags(args.force, Some(args.resume)),
        ..args.results.into()
    };
    check_results(&results, json.as_ref(), &models, &sweep, inputs)?;
    let settings = EvaluateSettings {
        models,
        skipped,
        reference,
        vocabulary: args.evaluate.vocab.unwrap_or_default(),
        until: args.evaluate.until,
        early: None,
        measures_speed: args.evaluate.speed,
        sweep,
        results,
        run,
        shelf: Arc::default(),
    };
    Ok(EvaluateRequest {
        settings,
        json,
        detail,
    })
}

/// The labels of these files, by their paths: those `given`, one for each file in order, or else those
/// that tell files of one name apart. Labels of the cells of a sweep differ by their types.
pub fn labels(files: &[PathBuf], given: &[String]) -> Result<BTreeMap<PathBuf, String>, String> {
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
    let mut seen = HashSet::new();
    if let Some(label) = given.iter().find(|label| !seen.insert(*label)) {
        return wrong(format!(
            "--label {label}: names two evaluations: give each its own"
        ));
    }
    Ok(files.iter().cloned().zip(given.iter().cloned()).collect())
}

/// Checks the settings for the results of evaluations, which also go to `json`: one of each of these `files`,
/// models or files of rows, or with a sweep one of each cell. `inputs`: the other files that the run reads.
pub fn check_results(
    results: &ResultSettings,
    json: Option<&PathBuf>,
    files: &[PathBuf],
    sweep: &Sweep,
    mut inputs: Vec<PathBuf>,
) -> Result<(), String> {
    for condition in &results.conditions {
        if !condition.is_of_model() {
            let hint = "names a number of two models: kl report --pair has it";
            return wrong(format!("--fail-if '{}': {hint}", condition.expression));
        }
        let (kind, name) = match condition.section() {
            "logits" | "jensen_shannon" | "smoothed_kld" => (Stats::Logits, "logits"),
            "llama_perplexity" => (Stats::LlamaPerplexity, "llama-perplexity"),
            _ => continue,
        };
        if !results.stats.contains(&kind) {
            let expression = &condition.expression;
            return wrong(format!("--fail-if '{expression}' needs --stats {name}"));
        }
    }
    inputs.extend_from_slice(files);
    let subjects = files.iter().flat_map(|path| sweep.subjects(path));
    let sidecars = subjects.filter_map(|subject| results.sidecar_path(&subject));
    let outputs: Vec<PathBuf> = sidecars.chain(json.cloned()).collect();
    // Of folders, -m reads the models and kl compare the rows.
    let is_read = |path: &Path| is_gguf(path) || kl_formats::safetensors::is_window(path);
    paths::check(&inputs, is_read, &outputs)
}
