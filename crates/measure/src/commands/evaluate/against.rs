//! The evaluations of a run against one reference: each model is loaded, checked against it, and run over
//! its tokens.

use std::cell::Cell;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_engine::{ContextOptions, Engine, EngineError, GpuLayers, Layers, Model};
use kl_formats::{About, ModelIdentity, Reference, SidecarHeader, States};
use kl_report::{ReferenceInfo, Report, RowsHere};
use kl_system::locked;

use crate::commands::context::{
    Decoding, ReadFromDisk, Split, backend_identity, check_files, check_models, check_parallel,
    check_windows, context_options, largest_context, recorded_weights, settled_identity,
};
use crate::commands::devices::load;
use crate::commands::differences::warn_of_differences;
use crate::commands::evaluation::{
    ClaimedSidecar, EarlyStop, Evaluated, Evaluation, Measures, Queue, Recalled, evaluate_each,
};
use crate::commands::observer::Watch;
use crate::commands::ref_model::RefModel;
use crate::commands::reference::{EvaluatedEntries, check_vocabulary, open_again, open_rows};
use crate::commands::settings::{EvaluateSettings, RunSettings, Subject};
use crate::commands::speed::measure_speed;
use crate::pipeline::{DeviceClock, Error, MakeSource, Sources};

/// The evaluations of a run, all against one reference.
pub struct RunAgainst<'r, 'e> {
    pub settings: &'r EvaluateSettings,
    pub engine: &'e dyn Engine,
    pub watch: &'r Watch<'r>,
    /// The reference; of a model that is not loaded yet, what its file shows.
    pub about: About,
    /// The part of the sidecars' header that is the same for all models.
    pub header: SidecarHeader,
    /// The model that runs beside the evaluated ones, if the reference is one and loaded.
    pub ref_model: Option<&'r RefModel<'e>>,
    /// What is known for stopping models early, where that is wanted.
    pub early: Option<EarlyStop>,
    /// The reference in a pipe, which is open from the start, for the only model.
    pub piped: Cell<Option<Reference>>,
}

impl<'e> RunAgainst<'_, 'e> {
    /// Checks a model and its output before it is loaded, and before hours are spent on the models before
    /// it.
    pub fn look_ahead(&self, subject: &Subject) -> Result<()> {
        let (settings, about, engine) = (self.settings, &self.about, self.engine);
        let sidecar = ClaimedSidecar::claim(&settings.results, subject)?;
        if settings.shelf.awaits(&subject.path) {
            return sidecar.map_or(Ok(()), |sidecar| {
                self.check_existing(&sidecar, subject, None)
            });
        }
        let model = engine.inspect(&subject.path)?;
        if subject.cache.is_some() && model.layers == Layers::Recurrent {
            bail!(
                "{}: has no KV cache to sweep: evaluate it without --sweep",
                subject.path.display()
            );
        }
        check_parallel(&settings.run, engine, &subject.path)?;
        if let (Some(tokenizer), 1..) = (&model.tokenizer, about.n_vocab) {
            let entries = EvaluatedEntries {
                path: &subject.path,
                n_vocab: tokenizer.n_tokens,
                tokenizer: Some(tokenizer),
                n_used: Some(tokenizer.n_tokens.saturating_sub(model.n_padding)),
            };
            // What it warns of is said when the model is evaluated.
            check_vocabulary(about, &entries, settings.vocabulary, &Watch::new(&()))?;
        }
        sidecar.map_or(Ok(()), |sidecar| {
            self.check_existing(&sidecar, subject, Some(model.identity))
        })
    }

    /// Checks that what an earlier run has left under the sidecar's name is of this evaluation. `model`: as
    /// far as it is known.
    fn check_existing(
        &self,
        sidecar: &ClaimedSidecar,
        subject: &Subject,
        model: Option<ModelIdentity>,
    ) -> Result<()> {
        let Some(existing) = sidecar.existing() else {
            return Ok(());
        };
        let mut header = self.header.clone();
        header.model = model;
        let options = self.largest_context(subject);
        let mut backend = settled_identity(self.engine, &options);
        backend.weights = recorded_weights(subject.is_dequantized);
        header.backend = Some(backend);
        existing.check(&header, true)
    }

    /// The options of a context of this model, as far as they are known before it is loaded.
    fn largest_context(&self, subject: &Subject) -> ContextOptions {
        let precedents = [self.about.backend.as_ref(), None];
        let options = largest_context(&self.settings.run, Some(self.about.n_ctx), precedents);
        subject.with_cache_types(options)
    }

    /// The evaluation that an earlier run has finished, or stopped early, of a model that is not on this machine any
    /// more; `None` where the model is needed.
    fn recall<'v>(&'v self, subject: &'v Subject) -> Result<Option<(Evaluation<'v>, Recalled)>> {
        let settings = &self.settings.results;
        if !self.settings.shelf.awaits(&subject.path) {
            return Ok(None);
        }
        let Some(sidecar) = ClaimedSidecar::claim(settings, subject)? else {
            return Ok(None);
        };
        let existing = sidecar.existing();
        let has_speed = existing.is_some_and(|existing| existing.header.speed.is_some());
        if self.settings.measures_speed && !has_speed {
            return Ok(None);
        }
        let mut evaluation = self.evaluation(subject, self.header.clone(), None, &|| Ok(()));
        let recalled = evaluation.recall(sidecar);
        Ok(recalled.map(|recalled| (evaluation, recalled)))
    }

    /// An evaluation whose sidecar is to have this header. `vocabulary`: that of its model.
    fn evaluation<'v>(
        &'v self,
        subject: &'v Subject,
        header: SidecarHeader,
        vocabulary: Option<&'v dyn Model>,
        check_models: &'v dyn Fn() -> Result<(), Error>,
    ) -> Evaluation<'v> {
        let settings = &self.settings.results;
        Evaluation {
            subject,
            reference: &self.about,
            settings,
            watch: self.watch,
            header,
            measures: Measures::new(&settings.stats, &self.about, None),
            vocabulary,
            check_models,
            early: self.early.as_ref(),
            not_available: Vec::new(),
            input_time: self.ref_model.map(|ref_model| ref_model.input_time),
            started: Instant::now(),
        }
    }

    /// Evaluates each model of the queue. One that is evaluated again, as in the cells of a sweep, stays
    /// loaded.
    pub fn evaluate(&self, queue: Queue<'_>) -> Result<Report> {
        let (settings, info) = (self.settings, ReferenceInfo::new(&self.about));
        // What is wrong is said when its turn comes.
        let is_needed = |subject: &&Subject| !matches!(self.recall(subject), Ok(Some(_)));
        let mut needed: Vec<&Subject> = queue.subjects().filter(is_needed).collect();
        if self.early.as_ref().is_some_and(EarlyStop::may_stop) {
            // Beside those that are finished, others may turn out to have been stopped.
            needed.retain(is_needed);
        }
        let mut needed_paths: Vec<&Path> =
            needed.into_iter().map(|subject| &*subject.path).collect();
        needed_paths.dedup();
        for path in queue.subjects().map(|subject| &*subject.path) {
            if !needed_paths.contains(&path) {
                settings.shelf.discard(path, self.watch);
            }
        }
        let mut last_model: Option<Box<dyn Model + 'e>> = None;
        let report = settings
            .shelf
            .evaluate(&needed_paths, self.watch, |arrivals| {
                evaluate_each(info, queue, &settings.results, |subject| {
                    let loaded_model = last_model
                        .take()
                        .filter(|model| self.can_reuse(&**model, subject));
                    if let Some((evaluation, recalled)) = self.recall(subject)? {
                        return evaluation.conclude_recalled(recalled);
                    }
                    if arrivals.wait(&subject.path)? {
                        self.look_ahead(subject)?;
                    }
                    let (evaluated, model) = self.evaluate_one(subject, loaded_model)?;
                    last_model = Some(model);
                    Ok(evaluated)
                })
            });
        if let Some(model) = last_model {
            model.drop_last();
        }
        Ok(report)
    }

    /// Evaluates a model, which stays loaded. `loaded_model`: the same one, if it is loaded already.
    fn evaluate_one(
        &self,
        subject: &Subject,
        loaded_model: Option<Box<dyn Model + 'e>>,
    ) -> Result<(Evaluated, Box<dyn Model + 'e>)> {
        let sidecar = ClaimedSidecar::claim(&self.settings.results, subject)?;
        let reference = match (self.ref_model, self.piped.take()) {
            (Some(model), _) => model.windows(),
            (None, Some(piped)) => piped,
            (None, None) => open_again(&self.about.path, &self.header.reference)?,
        };
        let started = Instant::now();
        let model = loaded_model.map_or_else(|| self.load(subject), Ok)?;
        let (header, options) = self.plan(subject, &reference, &*model, sidecar.as_ref())?;
        let check_models = || {
            let reference_model = self.ref_model.map(|ref_model| &*ref_model.model);
            let mut models = [Some(&*model), reference_model].into_iter().flatten();
            Ok(models.try_for_each(|model| check_files(model, self.watch))?)
        };
        let mut evaluation = self.evaluation(subject, header, Some(&*model), &check_models);
        evaluation.started = started;
        let evaluated = self.run(evaluation, sidecar, reference, &*model, &options)?;
        Ok((evaluated, model))
    }

    /// True if a loaded model can be evaluated again as it is. With auto, a smaller cache may leave room
    /// for more layers.
    fn can_reuse(&self, model: &dyn Model, subject: &Subject) -> bool {
        let is_auto = self.settings.run.model.n_gpu_layers == GpuLayers::Auto;
        let facts = model.facts();
        let is_same =
            facts.path == subject.path && facts.options.is_dequantized == subject.is_dequantized;
        subject.cache.is_some() && !is_auto && is_same
    }

    /// Loads a model.
    fn load(&self, subject: &Subject) -> Result<Box<dyn Model + 'e>> {
        let memory_beside = || (self.largest_context(subject), None);
        let run = RunSettings {
            model: subject.with_weights(&self.settings.run.model),
            ..self.settings.run.clone()
        };
        load(self.engine, &subject.path, &run, memory_beside, self.watch)
    }

    /// Refuses what cannot be evaluated together, chooses how windows are decoded, and describes it in
    /// the sidecar's header. Warns where the reference's rows were computed otherwise.
    fn plan(
        &self,
        subject: &Subject,
        reference: &Reference,
        model: &dyn Model,
        sidecar: Option<&ClaimedSidecar>,
    ) -> Result<(SidecarHeader, ContextOptions)> {
        let (facts, about, run, watch) =
            (model.facts(), &self.about, &self.settings.run, self.watch);
        let (entries, vocabulary) = (
            EvaluatedEntries::from_model(facts),
            self.settings.vocabulary,
        );
        let mut header = self.header.clone();
        header.n_vocab_compared = Some(check_vocabulary(about, &entries, vocabulary, watch)?);
        if let Some(longest) = reference.longest_window() {
            check_windows(longest, model, watch)?;
        }
        check_models(about.model.as_ref(), &facts.identity, watch);
        header.model = Some(facts.identity.clone());
        let begun_header = sidecar.and_then(|sidecar| sidecar.begun_header(&header));
        let begun_backend = begun_header.and_then(|begun_header| begun_header.backend.clone());
        header.speed = begun_header.and_then(|begun_header| begun_header.speed);
        let n_ctx = reference.longest_window().unwrap_or(about.n_ctx);
        let window_rows = reference
            .windows()
            .into_iter()
            .flatten()
            .map(|window| window.n_rows)
            .max()
            .unwrap_or(n_ctx);
        let mut decoding = Decoding::from_model(model, window_rows, about.n_ctx);
        // The reference model decodes window by window beside it.
        decoding.is_together &= self.ref_model.is_none();
        let precedents = [about.backend.as_ref(), begun_backend.as_ref()];
        let options = context_options(run, n_ctx, decoding, precedents);
        let mut options = subject.with_cache_types(options);
        let n_windows = reference.windows().map(|windows| windows.len());
        let read_from_disk = ReadFromDisk::recognize(
            &mut options,
            run,
            (decoding, n_windows),
            begun_backend.as_ref(),
            (self.engine, model),
        )?;
        Split::announce(&options, decoding, n_windows, watch);
        if let Some(read_from_disk) = read_from_disk {
            read_from_disk.announce(&options, n_windows, facts, watch);
        }
        let mut backend = backend_identity(self.engine, model, &options)?;
        backend.kv_cache_bytes = begun_backend
            .as_ref()
            .and_then(|begun_backend| begun_backend.kv_cache_bytes);
        if let Some(begun_backend) = begun_backend {
            backend.kv_cache_sizes = begun_backend.kv_cache_sizes;
            backend.compute_sizes = begun_backend.compute_sizes;
        }
        if let Some(mut reference_backend) = about.backend.clone() {
            if subject.cache.is_some() {
                // Nobody who sweeps the types needs a warning that they differ.
                reference_backend.type_k.clone_from(&backend.type_k);
                reference_backend.type_v.clone_from(&backend.type_v);
            }
            let has_attention = facts.layers != Layers::Recurrent;
            warn_of_differences(&backend, &reference_backend, n_ctx, has_attention, watch);
        }
        header.backend = Some(backend);
        Ok((header, options))
    }

    /// Runs the model over the reference.
    fn run(
        &self,
        mut evaluation: Evaluation<'_>,
        sidecar: Option<ClaimedSidecar>,
        mut reference: Reference,
        model: &dyn Model,
        options: &ContextOptions,
    ) -> Result<Evaluated> {
        let (run, header) = (&self.settings.run, &mut evaluation.header);
        if self.settings.measures_speed && header.speed.is_none() {
            header.speed = measure_speed(model, options, run, self.watch)?;
        }
        let first_context = Mutex::new(None);
        // Only a context shows the size of its cache. An earlier run's is kept: nothing may be left to
        // decode, so that no context is needed.
        if let Some(backend) = header
            .backend
            .as_mut()
            .filter(|backend| backend.kv_cache_bytes.is_none())
        {
            let context = model.decoder(options)?;
            backend.kv_cache_bytes = Some(context.cache_bytes());
            // The evaluation does not need them.
            if let Ok(sizes) = model.context_sizes(options) {
                backend.kv_cache_sizes = Some(sizes.cache);
                backend.compute_sizes = Some(sizes.compute);
            }
            *locked(&first_context) = Some(context);
        }
        reference.set_bos(model.facts().bos());
        let load_head =
            |states: &States, section: &mut dyn Read| model.load_head(states, section, run.threads);
        let mut rows = open_rows(reference, load_head, self.watch)?;
        let ref_is_offloaded = self
            .ref_model
            .is_some_and(|ref_model| ref_model.model.facts().is_offloaded);
        let device_computes_reference = rows
            .rows_here
            .as_ref()
            .map_or(ref_is_offloaded, RowsHere::is_on_device);
        let device = DeviceClock::default();
        rows.device = device_computes_reference.then(|| device.clone());
        if let Some(n_compared) = header.n_vocab_compared {
            rows.n_entries = n_compared as usize;
        }
        let may_end_early = header.until.is_some() || evaluation.early.is_some();
        let rows = rows.choose(run.max_rows, header.shard, may_end_early);
        let (contexts, ref_model) = (rows.contexts.clone(), self.ref_model);
        let add_reference_context = || -> Result<(), EngineError> {
            if let Some(ref_model) = ref_model {
                locked(&contexts).push(ref_model.decoder()?);
            }
            Ok(())
        };
        let make: MakeSource<'_> = Box::new(|| {
            let first_context = locked(&first_context).take();
            let decoder = first_context.map_or_else(|| model.decoder(options), Ok)?;
            add_reference_context()?;
            Ok(Box::new(decoder))
        });
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
