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
    ClaimedSidecar, Evaluated, Evaluation, Measures, Queue, TokenLog, evaluate_each,
};
use crate::commands::observer::Watch;
use crate::commands::ref_model::RefModel;
use crate::commands::reference::{EvaluatedEntries, check_vocabulary, open_again, open_rows};
use crate::commands::settings::{EvaluateSettings, RunSettings, Subject};
use crate::pipeline::{DeviceClock, Error, MakeSource, Sources};

/// The evaluations of a run, all against one reference.
pub struct Against<'r, 'e> {
    pub settings: &'r EvaluateSettings,
    pub engine: &'e dyn Engine,
    pub watch: &'r Watch<'r>,
    /// The reference; of a model that is not loaded yet, what its file shows.
    pub about: About,
    /// The part of the sidecars' header that is the same for all models.
    pub header: SidecarHeader,
    /// The model that runs beside the evaluated ones, if the reference is one and loaded.
    pub ref_model: Option<&'r RefModel<'e>>,
    /// The reference in a pipe, which is open from the start, for the only model.
    pub piped: Cell<Option<Reference>>,
}

impl<'e> Against<'_, 'e> {
    /// Checks a model and its output before it is loaded, and before hours are spent on the models before
    /// it.
    pub fn look_ahead(&self, subject: &Subject) -> Result<()> {
        let (settings, about, engine) = (self.settings, &self.about, self.engine);
        let sidecar = ClaimedSidecar::claim(&settings.results, subject)?;
        if settings.shelf.awaits(&subject.path) {
            return sidecar.map_or(Ok(()), |of| self.check_held(&of, subject, None));
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
        let mut header = self.header.clone();
        header.model = model;
        let options = self.largest_context(subject);
        let mut backend = settled_identity(self.engine, &options);
        backend.weights = recorded_weights(subject.is_dequantized);
        header.backend = Some(backend);
        held.check(&header, true)
    }

    /// The options of a context of this model, as far as they are known before it is loaded.
    fn largest_context(&self, subject: &Subject) -> ContextOptions {
        let precedents = [self.about.backend.as_ref(), None];
        let options = largest_context(&self.settings.run, Some(self.about.n_ctx), precedents);
        subject.with_cache_types(options)
    }

    /// The evaluation that an earlier run has finished, of a model that is not on this machine any more;
    /// `None` where the model is needed.
    fn recall<'v>(&'v self, subject: &'v Subject) -> Result<Option<(Evaluation<'v>, TokenLog)>> {
        let settings = &self.settings.results;
        if !self.settings.shelf.awaits(&subject.path) {
            return Ok(None);
        }
        let Some(sidecar) = ClaimedSidecar::claim(settings, subject)? else {
            return Ok(None);
        };
        let mut evaluation = self.evaluation(subject, self.header.clone(), None, &|| Ok(()));
        Ok(evaluation.recall(&sidecar).map(|log| (evaluation, log)))
    }

    /// An evaluation that is to record this. `tokens`: the vocabulary of its model.
    fn evaluation<'v>(
        &'v self,
        subject: &'v Subject,
        header: SidecarHeader,
        tokens: Option<&'v dyn Model>,
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
            tokens,
            check_models,
            not_available: Vec::new(),
            input_time: self.ref_model.map(|of| of.input_time),
            started: Instant::now(),
        }
    }

    /// Evaluates each model of the queue. One that is evaluated again, as in the cells of a sweep, stays
    /// loaded.
    pub fn evaluate(&self, queue: Queue<'_>) -> Result<Report> {
        let (settings, info) = (self.settings, ReferenceInfo::new(&self.about));
        let mut needed: Vec<&Path> = Vec::new();
        for subject in queue.subjects() {
            // What is wrong is said when its turn comes.
            if !matches!(self.recall(subject), Ok(Some(_))) {
                needed.push(&subject.path);
            }
        }
        needed.dedup();
        let mut loaded: Option<Box<dyn Model + 'e>> = None;
        let report = settings.shelf.evaluate(&needed, self.watch, |arrivals| {
            evaluate_each(info, queue, &settings.results, |subject| {
                let kept = loaded
                    .take()
                    .filter(|model| self.is_kept(&**model, subject));
                if let Some((evaluation, log)) = self.recall(subject)? {
                    return evaluation.of_recalled(log);
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
        kept: Option<Box<dyn Model + 'e>>,
    ) -> Result<(Evaluated, Box<dyn Model + 'e>)> {
        let sidecar = ClaimedSidecar::claim(&self.settings.results, subject)?;
        let reference = match (self.ref_model, self.piped.take()) {
            (Some(model), _) => model.windows(),
            (None, Some(piped)) => piped,
            (None, None) => open_again(&self.about.path, &self.header.reference)?,
        };
        let started = Instant::now();
        let model = kept.map_or_else(|| self.load(subject), Ok)?;
        let begun = sidecar.as_ref();
        let (header, options) = self.plan(subject, &reference, &*model, begun)?;
        let check_models = || {
            let reference = self.ref_model.map(|of| &*of.model);
            let mut models = [Some(&*model), reference].into_iter().flatten();
            Ok(models.try_for_each(|model| check_files(model, self.watch))?)
        };
        let mut evaluation = self.evaluation(subject, header, Some(&*model), &check_models);
        evaluation.started = started;
        let evaluated = self.run(evaluation, sidecar, reference, &*model, &options)?;
        Ok((evaluated, model))
    }

    /// True if a loaded model can be evaluated again as it is. With auto, a smaller cache may leave room
    /// for more layers.
    fn is_kept(&self, model: &dyn Model, subject: &Subject) -> bool {
        let is_auto = self.settings.run.model.n_gpu_layers == GpuLayers::Auto;
        let facts = model.facts();
        let is_same =
            facts.path == subject.path && facts.options.is_dequantized == subject.is_dequantized;
        subject.cache.is_some() && !is_auto && is_same
    }

    /// Loads a model.
    fn load(&self, subject: &Subject) -> Result<Box<dyn Model + 'e>> {
        let beside = || (self.largest_context(subject), None);
        let run = RunSettings {
            model: subject.with_weights(&self.settings.run.model),
            ..self.settings.run.clone()
        };
        load(self.engine, &subject.path, &run, beside, self.watch)
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
        let begun = sidecar.and_then(|sidecar| sidecar.backend_of_begun(&header));
        let n_ctx = reference.longest_window().unwrap_or(about.n_ctx);
        let windows = reference.windows().into_iter().flatten();
        let window_rows = windows.map(|window| window.n_rows).max().unwrap_or(n_ctx);
        let mut decoding = Decoding::from_model(model, window_rows, about.n_ctx);
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
        backend.kv_cache_bytes = begun.as_ref().and_then(|begun| begun.kv_cache_bytes);
        backend.kv_cache_sizes = begun.and_then(|begun| begun.kv_cache_sizes);
        if let Some(mut there) = about.backend.clone() {
            if subject.cache.is_some() {
                // Nobody who sweeps the types needs a warning that they differ.
                there.type_k.clone_from(&backend.type_k);
                there.type_v.clone_from(&backend.type_v);
            }
            let has_attention = facts.layers != Layers::Recurrent;
            warn_of_differences(&backend, &there, n_ctx, has_attention, watch);
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
        let first = Mutex::new(None);
        // Only a context shows the size of its cache. An earlier run's is kept: nothing may be left to
        // decode, so that no context is needed.
        if let Some(backend) = header
            .backend
            .as_mut()
            .filter(|of| of.kv_cache_bytes.is_none())
        {
            let context = model.decoder(options)?;
            backend.kv_cache_bytes = Some(context.cache_bytes());
            // The evaluation does not need them.
            backend.kv_cache_sizes = model.cache_sizes(options).ok();
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
                locked(&contexts).push(reference.decoder()?);
            }
            Ok(())
        };
        let make: MakeSource<'_> = Box::new(|| {
            let first = locked(&first).take();
            let decoder = first.map_or_else(|| model.decoder(options), Ok)?;
            give_reference()?;
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
