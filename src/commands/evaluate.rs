//! Evaluates models against a reference.

use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_formats::{About, Fault, Found, Reference, ReferenceSummary, SidecarHeader, States, sniff};

use super::context::{
    Decoding, Precedent, Split, backend_identity, check_models, check_parallel, check_windows,
    context_options, largest_context, record_calls, settled_identity, shorter_reference,
};
use super::devices::{check_reference_offload, connect_devices, load};
use super::differences;
use super::evaluation::{
    Evaluated, Evaluation, Measures, Queue, SidecarFile, Turn, evaluate_each, header_against,
};
use super::input;
use super::observer::{Observer, Watch};
use super::ref_model::{self, RefModel};
use super::reference::{
    Entries, check_vocabulary, open_again, open_rows, refuse_folder, warn_of_overlap,
};
use super::settings::{EvaluateSettings, ReferenceModel, ReferenceSource};
use super::subject::Subject;
use crate::engine::{
    ContextOptions, Decoder as _, Engine, EngineError, FlashAttention, GpuLayers, Layers, Model,
    Room,
};
use crate::lock::locked;
use crate::pipeline::{DeviceClock, Sources, to_share};
use crate::report::{ReferenceInfo, Report, Warning};

/// Evaluates every model.
///
/// # Errors
/// What is wrong with the reference. A model that cannot be evaluated is listed in the report.
pub fn evaluate<E: Engine>(
    settings: &EvaluateSettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<Report> {
    let watch = &Watch::new(observer);
    for (path, what) in &settings.skipped {
        let path = path.display();
        watch.note(&format!(
            "{path}: skipped: holds no language model ({what})"
        ));
    }
    match &settings.reference {
        ReferenceSource::File { path, n_ctx } => {
            against_file(settings, path, *n_ctx, engine, watch)
        }
        ReferenceSource::Model(model) => against_model(settings, model, engine, watch),
    }
}

/// Evaluates every model against a file.
fn against_file<E: Engine>(
    settings: &EvaluateSettings,
    path: &Path,
    n_ctx: Option<u32>,
    engine: &E,
    watch: &Watch<'_>,
) -> Result<Report> {
    let reference = open(path, settings)?;
    check_reference(reference.about(), n_ctx)?;
    let precedent = Precedent::of(reference.about().backend.as_ref());
    check_caches(settings, precedent.flash_attn)?;
    let summary = ReferenceSummary::of(&reference)?;
    let run = Run {
        settings,
        engine,
        watch,
        header: header(settings, &reference, summary)?,
        path,
        ref_model: None,
    };
    let about = reference.about().clone();
    let longest = reference.longest_window().unwrap_or(about.n_ctx);
    let subjects = settings.subjects();
    let mut queue = Queue::new(watch, &subjects);
    queue.look_ahead(|subject| {
        look_ahead(
            settings,
            engine,
            subject,
            &about,
            Some((&run.header, longest)),
        )
    });
    if !queue.is_empty() {
        warn_of_overlap(&reference, watch);
        watch.warn_all(about.shard.map(Warning::PartOfReference));
        connect_devices(engine, &settings.run, watch)?;
    }
    drop(reference);
    Ok(run.evaluate(ReferenceInfo::new(&about), queue))
}

/// Opens the reference. A model or a sidecar in its place is a common mistake, so its error says more.
fn open(path: &Path, settings: &EvaluateSettings) -> Result<Reference> {
    refuse_folder(path)?;
    let error = match Reference::open(path) {
        Ok(reference) => return Ok(reference),
        Err(error) => error,
    };
    let Fault::NotAReference(found) = &error.fault else {
        return Err(error.into());
    };
    let is_reference = |model: &&PathBuf| sniff(model).is_ok();
    let (swapped, path) = (settings.models.iter().find(is_reference), path.display());
    match (found, swapped) {
        (Found::Model, Some(reference)) => bail!(
            "-r {path}: it is a model, and -m {} a reference: swap them",
            reference.display()
        ),
        (Found::Model, None) => bail!(
            "-r {path}: it is a model, not a reference: write one with kl -m {path} -t TEXT -w REF, or use --ref-model {path} -t TEXT"
        ),
        (Found::Sidecar, _) => bail!(
            "-r {path}: {found}, not a reference: kl report {path} shows it; give -r the reference that it was evaluated against"
        ),
        (Found::Map, _) => bail!("-r {path}: {found}, not a reference: kl info {path} shows it"),
        _ => Err(error.into()),
    }
}

/// Evaluates every model against another, which stays in memory.
fn against_model<E: Engine>(
    settings: &EvaluateSettings,
    model: &ReferenceModel,
    engine: &E,
    watch: &Watch<'_>,
) -> Result<Report> {
    check_caches(settings, None)?;
    let raw = input::read(&model.input, watch)?;
    let expected = ref_model::expected(model, &raw, engine)?;
    let subjects = settings.subjects();
    let queue = RefCell::new(Queue::new(watch, &subjects));
    let check = |about: &About| {
        let mut queue = queue.borrow_mut();
        queue.look_ahead(|subject| look_ahead(settings, engine, subject, about, None));
        match queue.is_empty() {
            true => bail!("no model can be evaluated"),
            false => Ok(()),
        }
    };
    let loaded = check(&expected).and_then(|()| {
        connect_devices(engine, &settings.run, watch)?;
        if model.run.model.n_gpu_layers != settings.run.model.n_gpu_layers {
            check_reference_offload(engine, &model.run, watch)?;
        }
        ref_model::load(model, raw, settings, engine, watch, &check)
    });
    let mut queue = queue.into_inner();
    let ref_model = match loaded {
        // Each model has its own reason, which is the result.
        Err(_) if queue.is_empty() => {
            let unused = |_: &Subject, _| bail!("the queue is empty");
            let info = ReferenceInfo::new(&expected);
            return Ok(evaluate_each(info, queue, &settings.results, unused));
        }
        loaded => loaded?,
    };
    let reference = ref_model.windows();
    let about = reference.about();
    warn_of_overlap(&reference, watch);
    let run = Run {
        settings,
        engine,
        watch,
        header: header(settings, &reference, ref_model.summary.clone())?,
        path: &model.path,
        ref_model: Some(&ref_model),
    };
    let longest = reference.longest_window().unwrap_or(about.n_ctx);
    queue.look_ahead(|subject| {
        look_ahead(
            settings,
            engine,
            subject,
            about,
            Some((&run.header, longest)),
        )
    });
    let report = run.evaluate(ReferenceInfo::new(about), queue);
    ref_model.model.drop_last();
    Ok(report)
}

/// Checks a model and its output before it is loaded, and before hours are spent on what comes before
/// it. `about` is what is known of the reference; `planned` what the sidecar will record of it and its
/// longest window, once all of it is known.
fn look_ahead<E: Engine>(
    settings: &EvaluateSettings,
    engine: &E,
    subject: &Subject,
    about: &About,
    planned: Option<(&SidecarHeader, u32)>,
) -> Result<()> {
    let sidecar = SidecarFile::create(&settings.results, subject)?;
    let model = engine.inspect(&subject.path)?;
    if subject.cell.is_some() && model.layers == Layers::Recurrent {
        bail!(
            "{}: has no KV cache to sweep: evaluate it without --sweep",
            subject.path.display()
        );
    }
    check_parallel(&settings.run, engine, &subject.path)?;
    if let (Some(tokenizer), 1..) = (&model.tokenizer, about.n_vocab) {
        let entries = Entries {
            path: &subject.path,
            n_vocab: tokenizer.n_tokens,
            tokenizer: Some(tokenizer),
            n_used: Some(tokenizer.n_tokens.saturating_sub(model.n_padding)),
        };
        // What it warns of is said when the model is evaluated.
        check_vocabulary(about, &entries, settings.vocabulary, &Watch::new(&()))?;
    }
    let Some(held) = sidecar.as_ref().and_then(SidecarFile::held) else {
        return Ok(());
    };
    held.check_model(&model.identity, false)?;
    match planned {
        Some((header, _)) => {
            held.check_reference(&header.reference)?;
            held.check_tokens(header)?;
        }
        None => {
            held.check_expected_reference(about)?;
            held.check_goal(settings.results.part, settings.until)?;
        }
    }
    let run = &settings.run;
    let precedent = Precedent::of(about.backend.as_ref());
    let options = subject.with_cache_types(largest_context(run, Some(about.n_ctx), precedent));
    let mut settled = settled_identity(engine, &options);
    let is_together = model.layers.can_decode_together()
        && matches!(settings.reference, ReferenceSource::File { .. });
    let begun = precedent.or_begun(held.header.backend.as_ref());
    let precedents = [precedent, begun].map(|precedent| precedent.split);
    if let Some(n_ctx) = planned.map(|(_, longest)| longest)
        && let Some(Split { calls, n_seq }) = Split::settled(run, n_ctx, is_together, precedents)
    {
        let options = ContextOptions {
            calls,
            n_seq,
            ..options
        };
        record_calls(&mut settled, &options);
    }
    held.check_settled(&settled)
}

/// The sidecars' record of the reference, and of which of its tokens are evaluated.
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
    header.shard = match (settings.results.part, to_share) {
        (None, _) => None,
        (Some(part), Some((n_windows, n_rows))) => Some(part.of(n_windows, n_rows)?),
        (Some(_), None) => bail!(
            "--shard: {} can only be read from its start: make a file of kl's own with kl convert first, and use that",
            reference.path().display()
        ),
    };
    Ok(header)
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

/// A run over one reference.
struct Run<'r, 'e, E: Engine> {
    settings: &'r EvaluateSettings,
    engine: &'e E,
    watch: &'r Watch<'r>,
    /// What the sidecars of all models record alike.
    header: SidecarHeader,
    /// The reference: a file, which must keep its fingerprint, or a model.
    path: &'r Path,
    /// The model, if it is one, which runs beside the evaluated ones.
    ref_model: Option<&'r RefModel<E::Model<'e>>>,
}

impl<'e, E: Engine> Run<'_, 'e, E> {
    fn evaluate(&self, info: ReferenceInfo, queue: Queue<'_>) -> Report {
        let mut loaded = None;
        let results = &self.settings.results;
        evaluate_each(info, queue, results, |subject, turn| {
            let (evaluated, model) = self.evaluate_one(subject, loaded.take(), turn)?;
            loaded = model;
            Ok(evaluated)
        })
    }

    /// Runs a model over the reference. `loaded`: the model of the cell before, which is returned if the
    /// next may be of it too.
    fn evaluate_one(
        &self,
        subject: &Subject,
        loaded: Option<E::Model<'e>>,
        turn: Turn,
    ) -> Result<(Evaluated, Option<E::Model<'e>>)> {
        let Self {
            settings,
            watch,
            ref_model,
            ..
        } = self;
        let run = &settings.run;
        let mut sidecar = SidecarFile::create(&settings.results, subject)?;
        if let Some(sidecar) = &mut sidecar {
            sidecar.read_cut_off();
        }
        // Opened for each model: a stream can only be read from its start.
        let mut reference = match ref_model {
            Some(model) => model.windows(),
            None => open_again(self.path, &self.header.reference)?,
        };
        let started = Instant::now();
        let precedent = Precedent::of(reference.about().backend.as_ref());
        let model = self.model_of(subject, loaded, reference.about().n_ctx, precedent)?;
        let facts = model.facts();
        let entries = Entries {
            path: &facts.path,
            n_vocab: facts.n_vocab,
            tokenizer: facts.tokenizer.as_ref(),
            n_used: Some(facts.n_used_vocab),
        };
        let n_compared = check_vocabulary(reference.about(), &entries, settings.vocabulary, watch)?;
        let longest = reference.longest_window();
        if let Some(longest) = longest {
            check_windows(longest, &model, shorter_reference(reference.about()), watch)?;
        }
        let about = reference.about().clone();
        let n_ctx = longest.unwrap_or(about.n_ctx);
        let windows = reference.windows().into_iter().flatten();
        let window_rows = windows.map(|window| window.n_rows).max().unwrap_or(n_ctx);
        let decoding = match ref_model {
            None => Decoding::of(&model, window_rows),
            // The reference model decodes window by window beside it.
            Some(_) => Decoding::of(&model, window_rows).one_by_one(),
        };
        check_models(about.model.as_ref(), &facts.identity, watch);
        let mut header = self.header.clone();
        header.model = Some(facts.identity.clone());
        header.n_vocab_compared = Some(n_compared);
        let begun = sidecar.as_ref().and_then(|sidecar| sidecar.begun(&header));
        let precedent = precedent.or_begun(begun.as_ref());
        let options = context_options(run, n_ctx, decoding, precedent);
        let options = subject.with_cache_types(options);
        let n_windows = reference.windows().map(|windows| windows.len());
        Split::announce(&options, decoding, n_windows, watch);
        let mut backend = backend_identity(self.engine, &model, &options)?;
        // What is recorded is not measured again: nothing may be left to decode.
        backend.kv_cache_bytes = begun.and_then(|begun| begun.kv_cache_bytes);
        let first = match backend.kv_cache_bytes {
            Some(_) => None,
            None => Some(model.decoder(&options)?),
        };
        if let Some(decoder) = &first {
            backend.kv_cache_bytes = Some(decoder.cache_bytes());
        }
        let first = Mutex::new(first);
        if let Some(there) = &about.backend {
            let mut there = there.clone();
            if subject.cell.is_some() {
                // Nobody who sweeps the types needs a warning that they differ.
                there.type_k.clone_from(&backend.type_k);
                there.type_v.clone_from(&backend.type_v);
            }
            let run = differences::Run {
                here: &backend,
                there: &there,
                n_ctx,
                has_attention: facts.layers != Layers::Recurrent,
            };
            run.warn(watch);
        }
        header.backend = Some(backend);
        reference.set_bos(facts.bos());
        let device = DeviceClock::default();
        let head =
            |states: &States, section: &mut dyn Read| model.load_head(states, section, run.threads);
        let mut rows = open_rows(reference, head, watch)?;
        let ref_is_offloaded = ref_model.is_some_and(|of| of.model.facts().is_offloaded);
        let computes_reference = match &rows.here {
            Some(here) => here.is_on_device(),
            None => ref_is_offloaded,
        };
        rows.source.device = computes_reference.then(|| device.clone());
        rows.n_entries = n_compared as usize;
        let rows = rows.choose(run.max_rows, header.shard, header.until.is_some());

        let contexts = rows.source.contexts.clone();
        let give_reference = || -> Result<(), EngineError> {
            if let Some(reference) = ref_model {
                contexts.give(Box::new(reference.decoder()?));
            }
            Ok(())
        };
        let make = || {
            let first = locked(&first).take();
            let decoder = first.map_or_else(|| model.decoder(&options), Ok)?;
            give_reference()?;
            Ok(decoder)
        };
        let sources = Sources {
            n: run.n_contexts(facts.is_offloaded || ref_is_offloaded) as usize,
            make,
            device: facts.is_offloaded.then_some(device),
            n_windows: options.n_seq as usize,
        };
        let evaluation = Evaluation {
            subject,
            reference: &about,
            settings: &settings.results,
            watch,
            header,
            measures: Measures::new(&settings.results.stats, &about, None),
            tokens: Some(&model),
            not_available: Vec::new(),
            started,
            is_only: turn.is_only,
        };
        let evaluated = evaluation.run(sidecar, rows, sources)?;
        drop((contexts, first));
        if turn.is_last {
            model.drop_last();
            return Ok((evaluated, None));
        }
        // With auto, a smaller cache may leave room for more layers.
        let is_kept = subject.cell.is_some() && run.model.n_gpu_layers != GpuLayers::Auto;
        Ok((evaluated, is_kept.then_some(model)))
    }

    /// Returns the model of an evaluation: the one that is `loaded` if it is the same, else a new one,
    /// loaded after that was freed.
    fn model_of(
        &self,
        subject: &Subject,
        loaded: Option<E::Model<'e>>,
        n_ctx: u32,
        precedent: Precedent,
    ) -> Result<E::Model<'e>> {
        let run = &self.settings.run;
        let room = || Room {
            context: subject.with_cache_types(largest_context(run, Some(n_ctx), precedent)),
            n_contexts: run.n_contexts(true),
            second_model: None,
        };
        match loaded.filter(|model| model.facts().path == subject.path) {
            Some(model) => Ok(model),
            None => Ok(load(self.engine, &subject.path, run, room, self.watch)?),
        }
    }
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
    let swept = sweep.iter().map(|cell| ("--sweep ctv=", cell.v));
    let mut all = swept.chain([("--cache-type-v ", run.type_v)]);
    let Some((flag, kind)) = all.find(|(_, kind)| kind.is_quantized()) else {
        return Ok(());
    };
    let off = match run.flash_attn {
        Some(_) => "and --flash-attn is off",
        None => "and the reference was written without it",
    };
    bail!(
        "{flag}{kind}: llama.cpp quantizes cached values with flash attention only, {off}: use \
         --flash-attn on or auto, or {flag}f16"
    )
}
