//! Evaluates models against a reference.

mod against;

use std::cell::Cell;
use std::path::Path;

use anyhow::{Result, bail};
use kl_engine::{Engine, FlashAttention};
use kl_formats::{About, Fault, Found, Reference, ReferenceSummary, Rows, SidecarHeader, sniff};
use kl_report::number::{count, part, short_percent};
use kl_report::{ReferenceInfo, Report, Warning};
use kl_stats::stats::MIN_WINDOWS_TO_PLAN;
use kl_system::shell;

use super::context::flash_attention;
use super::devices::{connect_devices, warn_without_device};
use super::evaluation::{EarlyStop, Queue, evaluate_each, header_against};
use super::input;
use super::observer::{Observer, Watch};
use super::pipe;
use super::ref_model;
use super::reference::{refuse_folder, warn_of_overlap};
use super::settings::{EvaluateSettings, ReferenceModel, ReferenceSource, Subject};
use crate::pipeline::to_share;
use against::RunAgainst;

/// Evaluates every model.
///
/// # Errors
/// What is wrong with the reference. A model that cannot be evaluated is listed in the report.
pub fn evaluate(
    settings: &EvaluateSettings,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<Report> {
    let watch = &Watch::new(observer);
    for (path, kind) in &settings.skipped {
        watch.note(&format!("{}: skipped: {kind}", path.display()));
    }
    let subjects = settings.subjects();
    let queue = Queue::new(watch, &subjects, &settings.shelf);
    match &settings.reference {
        ReferenceSource::File { path, n_ctx } => {
            against_file(settings, path, *n_ctx, engine, watch, queue)
        }
        ReferenceSource::Model(model) => against_model(settings, model, engine, watch, queue),
    }
}

/// Evaluates every model against a file.
fn against_file(
    settings: &EvaluateSettings,
    path: &Path,
    n_ctx: Option<u32>,
    engine: &dyn Engine,
    watch: &Watch<'_>,
    mut queue: Queue<'_>,
) -> Result<Report> {
    let is_read_once = pipe::is_pipe(path);
    if is_read_once && queue.subjects().count() > 1 {
        bail!(
            "-r {}: is a pipe, which can be read once: evaluate one model against it, or save it first",
            path.display()
        );
    }
    let reference = open(path, settings, watch)?;
    let about = reference.about().clone();
    check_reference(&about, n_ctx)?;
    check_caches(settings, flash_attention(about.backend.as_ref()))?;
    let summary = ReferenceSummary::of(&reference)?;
    let run = RunAgainst {
        settings,
        engine,
        watch,
        header: header(settings, &reference, summary)?,
        about,
        ref_model: None,
        early: settings.early.map(EarlyStop::new),
        piped: Cell::default(),
    };
    queue.look_ahead(|subject| run.look_ahead(subject));
    if !queue.is_empty() {
        warn_of_overlap(&reference, watch);
        warn_of_few_windows(&reference, settings, watch);
        watch.warn_all(run.about.shard.as_ref().map(|shard| {
            let part = part(shard);
            let message = format!("the reference is {part}: the numbers cover only its windows; kl merge makes the whole of the parts");
            Warning::new("part_of_reference", message)
        }));
        connect_devices(engine, &settings.run, watch)?;
    }
    // A stream can only be read from its start, so each model opens the file again, but a pipe.
    run.piped.set(is_read_once.then_some(reference));
    run.evaluate(queue)
}

/// Evaluates every model against another, which stays in memory.
fn against_model(
    settings: &EvaluateSettings,
    model: &ReferenceModel,
    engine: &dyn Engine,
    watch: &Watch<'_>,
    mut queue: Queue<'_>,
) -> Result<Report> {
    check_caches(settings, None)?;
    let raw = input::read(&model.input, watch)?;
    let expected = ref_model::expected(model, &raw, engine)?;
    // Checks the models against what is known of the reference: before any model is loaded, and again
    // once its windows are planned.
    let mut check = |about: &About| {
        let run = RunAgainst {
            settings,
            engine,
            watch,
            about: about.clone(),
            header: expected_header(settings, about),
            ref_model: None,
            early: settings.early.map(EarlyStop::new),
            piped: Cell::default(),
        };
        queue.look_ahead(|subject| run.look_ahead(subject));
        if queue.is_empty() {
            bail!("no model can be evaluated");
        }
        Ok(())
    };
    let loaded = check(&expected).and_then(|()| {
        connect_devices(engine, &settings.run, watch)?;
        if model.run.model.n_gpu_layers != settings.run.model.n_gpu_layers {
            warn_without_device(engine, "--ref-ngl", &model.run, Vec::new(), watch)?;
        }
        ref_model::load(model, raw, settings, engine, watch, &mut check)
    });
    let ref_model = match loaded {
        // Each model has its own reason, which is the result.
        Err(_) if queue.is_empty() => {
            let never_called = |_: &Subject| bail!("the queue is empty");
            let info = ReferenceInfo::new(&expected);
            return Ok(evaluate_each(info, queue, &settings.results, never_called));
        }
        loaded => loaded?,
    };
    let reference = ref_model.windows();
    warn_of_overlap(&reference, watch);
    warn_of_few_windows(&reference, settings, watch);
    let run = RunAgainst {
        settings,
        engine,
        watch,
        header: header(settings, &reference, ref_model.summary.clone())?,
        about: reference.about().clone(),
        ref_model: Some(&ref_model),
        early: settings.early.map(EarlyStop::new),
        piped: Cell::default(),
    };
    let report = run.evaluate(queue)?;
    ref_model.model.drop_last();
    Ok(report)
}

/// Warns that `--until` will not stop before the last of so few windows.
fn warn_of_few_windows(reference: &Reference, settings: &EvaluateSettings, watch: &Watch<'_>) {
    let too_few = to_share(reference, settings.run.max_rows)
        .map(|(n_windows, _)| n_windows as u64)
        .filter(|n| *n < MIN_WINDOWS_TO_PLAN);
    if let (Some(target), Some(n)) = (settings.until, too_few) {
        let message = format!(
            "--until {}% needs at least {MIN_WINDOWS_TO_PLAN} windows, and there are {}: all will be evaluated",
            short_percent(target),
            count(n)
        );
        watch.warn(Warning::new("too_few_to_stop", message));
    }
}

/// Opens the reference. A model or a sidecar in its place is a common mistake, so its error says more.
fn open(path: &Path, settings: &EvaluateSettings, watch: &Watch<'_>) -> Result<Reference> {
    refuse_folder(path)?;
    let error = match pipe::open(path, watch).map_err(|error| error.downcast::<kl_formats::Error>())
    {
        Ok(reference) => return Ok(reference),
        Err(error) => error?,
    };
    let Fault::NotAReference(kind) = &error.fault else {
        return Err(error.into());
    };
    let reference_as_model = settings.models.iter().find(|path| sniff(path).is_ok());
    let (path, word) = (path.display(), shell::file(path));
    match (kind, reference_as_model) {
        (Found::Model, Some(reference)) => bail!(
            "-r {path}: it is a model, and -m {} a reference: swap them",
            reference.display()
        ),
        (Found::Model, None) => bail!(
            "-r {path}: it is a model, not a reference: write one with kl -m {word} -t TEXT -w REF, or use --ref-model {word} -t TEXT"
        ),
        (Found::Sidecar, _) => bail!(
            "-r {path}: {kind}, not a reference: kl report {word} shows it; give -r the reference that it was evaluated against"
        ),
        (Found::Map, _) => bail!("-r {path}: {kind}, not a reference: kl info {word} shows it"),
        _ => Err(error.into()),
    }
}

/// Refuses a reference that no model can be run against, or whose windows have another size than
/// the user expects.
fn check_reference(about: &About, n_ctx: Option<u32>) -> Result<()> {
    /// llama.cpp pads a context to a multiple of this.
    const PADDING: u32 = 256;
    let path = about.path.display();
    if !about.is_decodable {
        bail!(
            "{path}: is a file of kind {}, against which no model can be run: use kl compare with two files of rows",
            about.kind
        );
    }
    if about.n_windows == Some(0) {
        bail!("{path}: holds no windows, so there is nothing to evaluate: write it again");
    }
    let Some(n_ctx) = n_ctx else {
        return Ok(());
    };
    let is_padded =
        about.n_ctx_is_padded && n_ctx.checked_next_multiple_of(PADDING) == Some(about.n_ctx);
    if n_ctx != about.n_ctx && !is_padded {
        bail!(
            "--n-ctx {n_ctx}: {path} has windows of {} tokens: leave --n-ctx out",
            about.n_ctx
        );
    }
    Ok(())
}

/// Refuses quantized values in a KV cache without flash attention, which llama.cpp would refuse once the
/// model is loaded. `precedent`: the flash attention of the reference, where it is recorded.
///
/// # Errors
/// If the run, or a cell of the sweep, wants it.
fn check_caches(settings: &EvaluateSettings, precedent: Option<FlashAttention>) -> Result<()> {
    let EvaluateSettings { run, sweep, .. } = settings;
    if run.flash_attn.or(precedent) != Some(FlashAttention::Off) {
        return Ok(());
    }
    let quantized = sweep
        .caches
        .iter()
        .map(|cell| ("--sweep ctv=", cell.v))
        .chain([("--cache-type-v ", run.type_v)])
        .find(|(_, kind)| kind.is_quantized());
    let Some((flag, kind)) = quantized else {
        return Ok(());
    };
    let reason = match run.flash_attn {
        Some(_) => "and --flash-attn is off",
        None => "and the reference was written without it",
    };
    bail!(
        "{flag}{kind}: llama.cpp quantizes cached values with flash attention only, {reason}: use \
         --flash-attn on or auto, or {flag}f16"
    )
}

/// The part of the sidecars' header that describes the reference, and the tokens that are evaluated.
fn header(
    settings: &EvaluateSettings,
    reference: &Reference,
    summary: ReferenceSummary,
) -> Result<SidecarHeader> {
    let max_rows = settings.run.max_rows;
    let to_share = to_share(reference, max_rows);
    let n_rows = to_share.map(|(_, n_rows)| n_rows);
    let mut header = header_against(reference.about(), summary, n_rows.or(max_rows));
    header.until = settings.until;
    let is_stream = matches!(reference.rows(), Rows::Stream(_));
    header.shard = match (settings.results.part, to_share) {
        (None, _) => None,
        (Some(part), Some((n_windows, n_rows))) if !is_stream => {
            Some(part.shard_of(n_windows, n_rows)?)
        }
        (Some(_), _) => bail!(
            "--shard: {} can only be read from its start: make a file of kl's own with kl convert first, and use that",
            reference.path().display()
        ),
    };
    Ok(header)
}

/// The part of the header that is known before a model computes the reference.
fn expected_header(settings: &EvaluateSettings, about: &About) -> SidecarHeader {
    let mut header = header_against(about, ReferenceSummary::new(about, None), None);
    header.first_scored = about.first_scored;
    header.until = settings.until;
    header.shard = settings.results.part.map(|part| part.shard(0, 0));
    header
}
