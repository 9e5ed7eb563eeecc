//! Evaluates models against a reference.

use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_formats::{
    About, Fault, Found, ModelIdentity, Reference, ReferenceSummary, SidecarHeader, States, sniff,
};

use super::context::{
    Decoding, ReadFromDisk, Split, backend_identity, check_models, check_parallel, check_windows,
    context_options, flash_attention, largest_context, settled_identity, shorter_reference,
};
use super::devices::{connect_devices, load, warn_without_device};
use super::differences;
use super::evaluation::{
    ClaimedSidecar, Evaluated, Evaluation, Measures, Queue, evaluate_each, header_against,
};
use super::input;
use super::observer::{Observer, Watch};
use super::ref_model::{self, RefModel};
use super::reference::{
    Entries, check_vocabulary, open_again, open_rows, refuse_folder, warn_of_overlap,
};
use super::settings::{EvaluateSettings, ReferenceModel, ReferenceSource, Subject};
use crate::engine::{
    ContextOptions, Decoder as _, Engine, EngineError, FlashAttention, GpuLayers, Layers, Model,
    Vocabulary,
};
use crate::lock::locked;
use crate::pipeline::{DeviceClock, RowsHere, Sources, to_share};
use crate::report::number::part;
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
    let subjects = settings.subjects();
    let queue = Queue::new(watch, &subjects);
    match &settings.reference {
        ReferenceSource::File { path, n_ctx } => {
            against_file(settings, path, *n_ctx, engine, watch, queue)
        }
        ReferenceSource::Model(model) => against_model(settings, model, engine, watch, queue),
    }
}

/// Evaluates every model against a file.
fn against_file<E: Engine>(
    settings: &EvaluateSettings,
    path: &Path,
    n_ctx: Option<u32>,
    engine: &E,
    watch: &Watch<'_>,
    mut queue: Queue<'_>,
) -> Result<Report> {
    let reference = open(path, settings)?;
    let about = reference.about().clone();
    check_reference(&about, n_ctx)?;
    check_caches(settings, flash_attention(about.backend.as_ref()))?;
    let summary = ReferenceSummary::of(&reference)?;
    let against = Against {
        settings,
        engine,
        watch,
        header: header(settings, &reference, summary)?,
        about,
        ref_model: None,
    };
    queue.look_ahead(|subject| against.look_ahead(subject));
    if !queue.is_empty() {
        warn_of_overlap(&reference, watch);
        watch.warn_all(against.about.shard.as_ref().map(|shard| {
            let part = part(shard);
            let message = format!("the reference is {part}: the numbers cover only its windows; kl merge makes the whole of the parts");
            Warning::new("part_of_reference", message)
        }));
        connect_devices(engine, &settings.run, watch)?;
    }
    // A stream can only be read from its start, so each model opens the file again.
    drop(reference);
    against.evaluate(queue)
}

/// Evaluates every model against another, which stays in memory.
fn against_model<E: Engine>(
    settings: &EvaluateSettings,
    model: &ReferenceModel,
    engine: &E,
    watch: &Watch<'_>,
    queue: Queue<'_>,
) -> Result<Report> {
    check_caches(settings, None)?;
    let raw = input::read(&model.input, watch)?;
    let expected = ref_model::expected(model, &raw, engine)?;
    let queue = RefCell::new(queue);
    // What is known is checked before any model is loaded, and the windows before they are answered.
    let check = |about: &About| {
        let against = Against {
            settings,
            engine,
            watch,
            about: about.clone(),
            header: expected_header(settings, about),
            ref_model: None,
        };
        let mut queue = queue.borrow_mut();
        queue.look_ahead(|subject| against.look_ahead(subject));
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
        ref_model::load(model, raw, settings, engine, watch, &check)
    });
    let queue = queue.into_inner();
    let ref_model = match loaded {
        // Each model has its own reason, which is the result.
        Err(_) if queue.is_empty() => {
            let unused = |_: &Subject| bail!("the queue is empty");
            let info = ReferenceInfo::new(&expected);
            return Ok(evaluate_each(info, queue, &settings.results, unused));
        }
        loaded => loaded?,
    };
    let reference = ref_model.windows();
    warn_of_overlap(&reference, watch);
    let against = Against {
        settings,
        engine,
        watch,
        header: header(settings, &reference, ref_model.summary.clone())?,
        about: reference.about().clone(),
        ref_model: Some(&ref_model),
    };
    let report = against.evaluate(queue)?;
    ref_model.model.drop_last();
    Ok(report)
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
        (Some(part), Some((n_windows, n_rows))) => Some(part.shard_of(n_windows, n_rows)?),
        (Some(_), None) => bail!(
            "--shard: {} can only be read from its start: make a file of kl's own with kl convert first, and use that",
            reference.path().display()
        ),
    };
    Ok(header)
}

/// The same of a reference that a model is still to compute, as far as it is known.
fn expected_header(settings: &EvaluateSettings, about: &About) -> SidecarHeader {
    let mut header = header_against(about, ReferenceSummary::new(about, None), None);
    header.first_scored = about.first_scored;
    header.until = settings.until;
    header.shard = settings.results.part.map(|part| part.shard(0, 0));
    header
}

/// The evaluations of a run, all against one reference.
struct Against<'r, 'e, E: Engine> {
    settings: &'r EvaluateSettings,
    engine: &'e E,
    watch: &'r Watch<'r>,
    /// The reference, as far as it is known.
    about: About,
    /// What the sidecars of all models record alike.
    header: SidecarHeader,
    /// The model that runs beside the evaluated ones, if the reference is one and loaded.
    ref_model: Option<&'r RefModel<E::Model<'e>>>,
}

impl<'e, E: Engine> Against<'_, 'e, E> {
    /// Checks a model and its output before it is loaded, and before hours are spent on what comes
    /// before it.
    fn look_ahead(&self, subject: &Subject) -> Result<()> {
        let (settings, about, engine) = (self.settings, &self.about, self.engine);
        let sidecar = ClaimedSidecar::claim(&settings.results, subject)?;
        if settings.shelf.awaits(&subject.path) {
            return sidecar.map_or(Ok(()), |of| self.check_held(&of, subject, None));
        }
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
        sidecar.map_or(Ok(()), |of| {
            self.check_held(&of, subject, Some(model.identity))
        })
    }

    /// Checks that what an earlier run has left under the sidecar's name is of this evaluation. `model`: as
    /// far as it is known.
    fn check_held(
        &self,
        sidecar: &ClaimedSidecar,
        subject: &Subject,
        model: Option<ModelIdentity>,
    ) -> Result<()> {
        let Some(held) = sidecar.held() else {
            return Ok(());
        };
        let (run, about) = (&self.settings.run, &self.about);
        let precedents = [about.backend.as_ref(), None];
        let options = largest_context(run, Some(about.n_ctx), precedents);
        let options = subject.with_cache_types(options);
        let mut header = self.header.clone();
        header.model = model;
        header.backend = Some(settled_identity(self.engine, &options));
        held.check(&header, false)
    }

    /// The evaluation that an earlier run has finished, of a model that is not on this machine any more;
    /// `None` where the model is needed.
    fn recall(&self, subject: &Subject) -> Result<Option<Evaluated>> {
        let settings = &self.settings.results;
        if !self.settings.shelf.awaits(&subject.path) {
            return Ok(None);
        }
        let Some(sidecar) = ClaimedSidecar::claim(settings, subject)? else {
            return Ok(None);
        };
        self.evaluation(subject, self.header.clone(), None)
            .recall(&sidecar)
    }

    /// An evaluation that is to record this. `tokens`: the vocabulary of its model.
    fn evaluation<'v>(
        &'v self,
        subject: &'v Subject,
        header: SidecarHeader,
        tokens: Option<&'v dyn Vocabulary>,
    ) -> Evaluation<'v> {
        let settings = &self.settings.results;
        Evaluation {
            subject,
            reference: &self.about,
            settings,
            watch: self.watch,
            header,
            measures: Measures::new(&settings.stats, &self.about, None),
            tokens,
            not_available: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Evaluates each model of the queue. One that is evaluated again, as in the cells of a sweep, stays
    /// loaded.
    fn evaluate(&self, queue: Queue<'_>) -> Result<Report> {
        let (settings, info) = (self.settings, ReferenceInfo::new(&self.about));
        let mut needed: Vec<&Path> = Vec::new();
        for subject in queue.subjects() {
            if self.recall(subject)?.is_none() {
                needed.push(&subject.path);
            }
        }
        needed.dedup();
        let mut loaded: Option<E::Model<'e>> = None;
        let report = settings.shelf.evaluate(&needed, self.watch, |arrivals| {
            evaluate_each(info, queue, &settings.results, |subject| {
                let kept = loaded.take().filter(|model| self.is_kept(model, subject));
                if let Some(evaluated) = self.recall(subject)? {
                    return Ok(evaluated);
                }
                if arrivals.wait(&subject.path)? {
                    self.look_ahead(subject)?;
                }
                let (evaluated, model) = self.evaluate_one(subject, kept)?;
                loaded = Some(model);
                Ok(evaluated)
            })
        });
        if let Some(last) = loaded {
            last.drop_last();
        }
        Ok(report)
    }

    /// Evaluates a model, which stays loaded. `kept`: the same one, if it is loaded.
    fn evaluate_one(
        &self,
        subject: &Subject,
        kept: Option<E::Model<'e>>,
    ) -> Result<(Evaluated, E::Model<'e>)> {
        let sidecar = ClaimedSidecar::claim(&self.settings.results, subject)?;
        let reference = match self.ref_model {
            Some(model) => model.windows(),
            None => open_again(&self.about.path, &self.header.reference)?,
        };
        let started = Instant::now();
        let model = kept.map_or_else(|| self.load(subject), Ok)?;
        let begun = sidecar.as_ref();
        let (header, options) = self.plan(subject, &reference, &model, begun)?;
        let mut evaluation = self.evaluation(subject, header, Some(&model));
        evaluation.started = started;
        let evaluated = self.run(evaluation, sidecar, reference, &model, &options)?;
        Ok((evaluated, model))
    }

    /// Whether a model that is loaded is evaluated again. With auto, a smaller cache may leave room for more
    /// layers.
    fn is_kept(&self, model: &E::Model<'e>, subject: &Subject) -> bool {
        let is_auto = self.settings.run.model.n_gpu_layers == GpuLayers::Auto;
        subject.cell.is_some() && !is_auto && model.facts().path == subject.path
    }

    /// Loads a model.
    fn load(&self, subject: &Subject) -> Result<E::Model<'e>> {
        let run = &self.settings.run;
        let precedents = [self.about.backend.as_ref(), None];
        let context = || largest_context(run, Some(self.about.n_ctx), precedents);
        let beside = || (subject.with_cache_types(context()), None);
        Ok(load(self.engine, &subject.path, run, beside, self.watch)?)
    }

    /// Refuses what cannot be evaluated together, chooses how windows are decoded, and describes it in
    /// the sidecar's header. Warns where the reference's rows were computed otherwise.
    fn plan(
        &self,
        subject: &Subject,
        reference: &Reference,
        model: &E::Model<'e>,
        sidecar: Option<&ClaimedSidecar>,
    ) -> Result<(SidecarHeader, ContextOptions)> {
        let (facts, about, run, watch) =
            (model.facts(), &self.about, &self.settings.run, self.watch);
        let (entries, vocabulary) = (Entries::from_model(facts), self.settings.vocabulary);
        let mut header = self.header.clone();
        header.n_vocab_compared = Some(check_vocabulary(about, &entries, vocabulary, watch)?);
        if let Some(longest) = reference.longest_window() {
            check_windows(longest, model, shorter_reference(about), watch)?;
        }
        check_models(about.model.as_ref(), &facts.identity, watch);
        header.model = Some(facts.identity.clone());
        let begun = sidecar.and_then(|sidecar| sidecar.backend_of_begun(&header));
        let n_ctx = reference.longest_window().unwrap_or(about.n_ctx);
        let windows = reference.windows().into_iter().flatten();
        let window_rows = windows.map(|window| window.n_rows).max().unwrap_or(n_ctx);
        let mut decoding = Decoding::from_model(model, window_rows);
        // The reference model decodes window by window beside it.
        decoding.is_together &= self.ref_model.is_none();
        let precedents = [about.backend.as_ref(), begun.as_ref()];
        let options = context_options(run, n_ctx, decoding, precedents);
        let mut options = subject.with_cache_types(options);
        let n_windows = reference.windows().map(|windows| windows.len());
        let read_from_disk = ReadFromDisk::recognize(
            &mut options,
            run,
            (decoding, n_windows),
            begun.as_ref(),
            (self.engine, model),
        )?;
        Split::announce(&options, decoding, n_windows, watch);
        if let Some(weights) = read_from_disk {
            weights.announce(&options, n_windows, facts, watch);
        }
        let mut backend = backend_identity(self.engine, model, &options)?;
        backend.kv_cache_bytes = begun.and_then(|begun| begun.kv_cache_bytes);
        if let Some(mut there) = about.backend.clone() {
            if subject.cell.is_some() {
                // Nobody who sweeps the types needs a warning that they differ.
                there.type_k.clone_from(&backend.type_k);
                there.type_v.clone_from(&backend.type_v);
            }
            let set_ups = differences::SetUps {
                here: &backend,
                there: &there,
                n_ctx,
                has_attention: facts.layers != Layers::Recurrent,
            };
            set_ups.warn(watch);
        }
        header.backend = Some(backend);
        Ok((header, options))
    }

    /// Runs the model over the reference.
    fn run<'m>(
        &self,
        mut evaluation: Evaluation<'_>,
        sidecar: Option<ClaimedSidecar>,
        mut reference: Reference,
        model: &'m E::Model<'e>,
        options: &ContextOptions,
    ) -> Result<Evaluated> {
        let (run, header) = (&self.settings.run, &mut evaluation.header);
        let first = Mutex::new(None);
        // What an earlier run has recorded is not measured again: nothing may be left to decode.
        if let Some(backend) = header
            .backend
            .as_mut()
            .filter(|of| of.kv_cache_bytes.is_none())
        {
            let context = model.decoder(options)?;
            backend.kv_cache_bytes = Some(context.cache_bytes());
            *locked(&first) = Some(context);
        }
        reference.set_bos(model.facts().bos());
        let head =
            |states: &States, section: &mut dyn Read| model.load_head(states, section, run.threads);
        let mut rows = open_rows(reference, head, self.watch)?;
        let ref_is_offloaded = (self.ref_model).is_some_and(|of| of.model.facts().is_offloaded);
        let here = rows.here.as_ref();
        let computes_reference = here.map_or(ref_is_offloaded, RowsHere::is_on_device);
        let device = DeviceClock::default();
        rows.device = computes_reference.then(|| device.clone());
        if let Some(n_compared) = header.n_vocab_compared {
            rows.n_entries = n_compared as usize;
        }
        let rows = rows.choose(run.max_rows, header.shard, header.until.is_some());
        let (contexts, ref_model) = (rows.contexts.clone(), self.ref_model);
        let give_reference = || -> Result<(), EngineError> {
            if let Some(reference) = ref_model {
                locked(&contexts).push(Box::new(reference.decoder()?));
            }
            Ok(())
        };
        let make = || {
            let first = locked(&first).take();
            let decoder = first.map_or_else(|| model.decoder(options), Ok)?;
            give_reference()?;
            Ok(decoder)
        };
        let is_offloaded = model.facts().is_offloaded;
        let sources = Sources {
            n: run.n_contexts(is_offloaded || ref_is_offloaded) as usize,
            make,
            device: is_offloaded.then_some(device),
            n_windows: options.n_seq as usize,
        };
        evaluation.run(sidecar, rows, sources)
    }
}
