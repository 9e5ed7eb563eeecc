//! Evaluates models against a reference.

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_formats::{About, Reference, Shard, States};

use super::context::{Precedent, backend_identity, check_offload, check_windows, context_options};
use super::differences;
use super::evaluation::{Evaluated, Evaluation, Measures, SidecarFile, evaluate_each};
use super::head::readable;
use super::observer::{Observer, Watch};
use super::reference::{is_same_model, open_again, warn_of_overlap};
use super::settings::{EvaluateSettings, RelativeWidth};
use super::vocabulary::check_vocabulary;
use crate::engine::{Engine, Model};
use crate::pipeline::{ReferenceRows, to_share};
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
    let reference = Reference::open(&settings.reference)?;
    check_reference(settings, reference.about())?;
    warn_of_overlap(&reference, watch);
    if let Some(shard) = reference.about().shard {
        watch.warn(Warning::PartOfReference(shard));
    }
    let shard = shard(settings, &reference)?;
    let info = ReferenceInfo::new(reference.about());
    let fingerprint = reference.fingerprint()?;
    drop(reference);
    check_offload(engine, &settings.run, watch)?;
    let look_ahead = |path: &Path| {
        drop(SidecarFile::create(&settings.results, path)?);
        Ok(engine.inspect(path)?)
    };
    let models = &settings.models;
    Ok(evaluate_each(
        watch,
        info,
        models,
        &settings.results,
        look_ahead,
        |path, info, is_last| {
            let run = ModelRun {
                settings,
                engine,
                watch,
                path,
                info,
                shard,
                is_last,
            };
            run.evaluate(fingerprint.as_deref())
        },
    ))
}

/// Which part of the reference's windows is to be evaluated; `None`: all.
fn shard(settings: &EvaluateSettings, reference: &Reference) -> Result<Option<Shard>> {
    let Some(part) = settings.results.part else {
        return Ok(None);
    };
    let Some((n_windows, n_rows)) = to_share(reference, settings.run.max_rows) else {
        bail!(
            "--shard: {} can only be read from its start: make a file of kl's own with kl convert first, and use that",
            reference.path().display()
        );
    };
    part.of(n_windows, n_rows).map(Some)
}

/// Refuses a reference that no model can be run against, or whose windows have another size than
/// the user expects.
fn check_reference(settings: &EvaluateSettings, about: &About) -> Result<()> {
    /// llama.cpp pads a context to a multiple of this.
    const PADDING: u32 = 256;
    let path = about.path.display();
    if !about.is_decodable {
        bail!(
            "{path}: is a file of kind {}, against which no model can be run: use kl compare with two files of rows",
            about.kind
        );
    }
    let Some(n_ctx) = settings.n_ctx else {
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

/// One model of a run.
struct ModelRun<'r, E> {
    settings: &'r EvaluateSettings,
    engine: &'r E,
    watch: &'r Watch<'r>,
    path: &'r Path,
    info: &'r ReferenceInfo,
    shard: Option<Shard>,
    is_last: bool,
}

impl<E: Engine> ModelRun<'_, E> {
    /// Runs the model over the reference, which must still be the one that the run began with.
    fn evaluate(&self, fingerprint: Option<&str>) -> Result<Evaluated> {
        let Self {
            settings,
            watch,
            path,
            ..
        } = self;
        let run = &settings.run;
        let sidecar = SidecarFile::create(&settings.results, path)?;
        // Opened anew for each model: a stream can only be read from its start.
        let (mut reference, reference_summary) = open_again(&settings.reference, fingerprint)?;
        let started = Instant::now();
        let model = self.engine.load(path, &run.model)?;
        let vocabulary = settings.vocabulary;
        let n_compared = check_vocabulary(reference.about(), &model, vocabulary, watch)?;
        let longest = reference.longest_window();
        if let Some(longest) = longest {
            check_windows(longest, &model, watch)?;
        }
        let about = reference.about().clone();
        let n_ctx = longest.unwrap_or(about.n_ctx);
        let precedent = Precedent::of(about.backend.as_ref());
        let options = context_options(run, n_ctx, model.n_vocab(), precedent);
        let backend = backend_identity(self.engine, run, &options)?;
        if let Some(there) = &about.backend {
            let run = differences::Run {
                here: &backend,
                there,
                n_ctx,
                has_attention: model.has_attention(),
            };
            run.warn(watch);
        }
        reference.set_bos(model.bos());
        let head =
            |states: &States, section: &mut dyn Read| model.head(states, section, run.threads);
        let reference = readable(reference, head, watch)?;

        let identity = model.identity();
        let evaluation = Evaluation {
            path,
            reference: self.info,
            settings: &settings.results,
            watch,
            is_reference_model: is_same_model(about.model.as_ref(), Some(&identity)),
            model: identity,
            n_vocab_compared: n_compared,
            backend: Some(backend),
            reference_summary,
            groups: about.groups.clone(),
            prompts: about.prompts.as_ref().map(|prompts| prompts.labels()),
            measures: Measures::new(
                &settings.results.stats,
                about.is_base_file,
                about.holds_log_probabilities(),
            ),
            shard: self.shard,
            until: settings.until.map(RelativeWidth::get),
            is_resumable: true,
            tokens: Some(&model),
            not_available: Vec::new(),
            started,
            loaded: started.elapsed(),
        };
        let rows = match (self.shard, settings.until) {
            (Some(shard), _) => ReferenceRows::part(reference, run.max_rows, shard),
            (None, Some(_)) => ReferenceRows::sampled(reference, run.max_rows),
            (None, None) => ReferenceRows::new(reference, run.max_rows),
        };
        let rows = rows.cut_to(n_compared);
        let n_contexts = match settings.contexts {
            Some(n) => n as usize,
            None if model.is_offloaded() => 2,
            None => 1,
        };
        let make = || Ok(model.decoder(&options)?);
        let evaluated = evaluation.run(sidecar, rows, n_contexts, make)?;
        drop(evaluation);
        if self.is_last {
            model.drop_last();
        }
        Ok(evaluated)
    }
}
