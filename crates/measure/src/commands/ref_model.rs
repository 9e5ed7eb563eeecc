//! A reference that is a model: it runs beside the evaluated ones, over the same windows.

use std::path::Path;

use anyhow::Result;
use kl_engine::{
    ContextOptions, Decoder, DeviceKind, Engine, EngineError, GpuLayers, Inspected, Model,
    SecondModel,
};
use kl_formats::{
    About, BackendIdentity, Kind, Prompts, Reference, ReferenceSummary, Rows, WindowSpec,
};
use kl_report::Warning;
use kl_report::number::{bytes, count};
use kl_system::shell;

use super::context::{Decoding, backend_identity, context_options, largest_context};
use super::devices;
use super::input;
use super::observer::{Event, Watch};
use super::settings::{EvaluateSettings, ReferenceModel, RunSettings};
use crate::input::{PreparedInput, RawInput, Selection};
use crate::pipeline::InputTime;

/// A loaded reference model, and the windows that it and the evaluated ones run over.
pub struct RefModel<'e> {
    pub model: Box<dyn Model + 'e>,
    options: ContextOptions,
    pub about: About,
    /// Describes it as sidecars record it.
    pub summary: ReferenceSummary,
    windows: Vec<WindowSpec>,
    /// How long it took to prepare the windows.
    pub input_time: InputTime,
}

/// Describes the reference that a model will compute, from its file and the input that was read:
/// windows of 0 tokens are of unknown length.
///
/// # Errors
/// What is wrong with the model's file.
pub fn expected(
    settings: &ReferenceModel,
    raw: &RawInput<'_>,
    engine: &dyn Engine,
) -> Result<About> {
    let ReferenceModel { path, input, .. } = settings;
    let Inspected {
        identity,
        tokenizer,
        ..
    } = engine.inspect(path)?;
    let n_vocab = tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.n_tokens);
    let mut about = About::new(Kind::Model, path, input.n_ctx.unwrap_or(0), n_vocab);
    (about.model, about.tokenizer) = (Some(identity), tokenizer);
    about.text = Some(raw.text.clone());
    about.prompts = input.prompts.as_ref().map(|_| Prompts {
        sampling: input.sampling(),
        ..Prompts::default()
    });
    Ok(about)
}

/// Loads the model, and cuts the windows. `evaluation`: the settings of the models that are evaluated.
/// `check` gets what is known of the reference once its windows are planned, before any answer is
/// generated.
///
/// # Errors
/// What is wrong with the input or the model; those of `check`.
pub fn load<'e>(
    settings: &ReferenceModel,
    raw: RawInput<'_>,
    evaluation: &EvaluateSettings,
    engine: &'e dyn Engine,
    watch: &Watch<'_>,
    check: &mut dyn FnMut(&About) -> Result<()>,
) -> Result<RefModel<'e>> {
    let ReferenceModel { path, input, run } = settings;
    announce_memory(settings, evaluation, engine, watch)?;
    let memory_beside = || memory_beside(settings, evaluation, engine);
    let model = devices::load(engine, path, run, memory_beside, watch)?;
    let selection = Selection {
        max_rows: run.max_rows,
        ..Selection::default()
    };
    if input.generate.is_some() {
        let text =
            "not kept: --resume generates them again; a reference written with -w keeps them";
        watch.event(&Event::Plan("answers", text));
    }
    let describe = |planned: &PreparedInput, backend: BackendIdentity| {
        input::describe(Kind::Model, path, planned, backend)
    };
    let planned = input::plan(raw, &*model, &selection, watch)?;
    check(&describe(&planned, BackendIdentity::default()))?;
    let prepared = input::complete(planned, &*model, run, None, watch)?;
    // Its context has one window open at a time.
    let (max_rows, n_ctx) = (
        prepared.plan.max_rows_of_window(),
        prepared.provenance.n_ctx,
    );
    let decoding = Decoding::from_model(&*model, max_rows, n_ctx).one_by_one();
    let options = context_options(run, prepared.longest_window, decoding, [None; 2]);
    let about = describe(&prepared, backend_identity(engine, &*model, &options)?);
    input::announce(&about, watch);
    let input_time = prepared.time();
    let windows = prepared.plan.windows;
    Ok(RefModel {
        input_time,
        summary: ReferenceSummary::of_model(&about, &windows),
        model,
        options,
        about,
        windows,
    })
}

/// States how much memory the two models need, and warns if that is more than there is.
fn announce_memory(
    settings: &ReferenceModel,
    evaluation: &EvaluateSettings,
    engine: &dyn Engine,
    watch: &Watch<'_>,
) -> Result<()> {
    let ReferenceModel { path, run, .. } = settings;
    // A file that holds no model is reported when its turn comes.
    let sizes = evaluation
        .models
        .iter()
        .map(|path| file_bytes(engine, path).unwrap_or(0));
    let (n_models, largest) = (sizes.len() as u64, sizes.max().unwrap_or(0));
    let evaluated = match n_models {
        1 => "the model".to_owned(),
        n => format!("one of {} models at a time", count(n)),
    };
    let reference_bytes = file_bytes(engine, path)?;
    let both_bytes = reference_bytes + largest;
    let is_on_cpu = |run: &RunSettings| run.model.n_gpu_layers == GpuLayers::Count(0);
    let free_bytes = engine
        .devices()?
        .into_iter()
        .filter(|device| device.kind == DeviceKind::Cpu)
        .map(|cpu| cpu.memory_free)
        .max();
    if is_on_cpu(run)
        && is_on_cpu(&evaluation.run)
        && free_bytes.is_some_and(|free_bytes| both_bytes > free_bytes)
    {
        let message = format!(
            "the two models do not fit into the memory together: their weights are read from the disk for every window; write a reference (kl -m {} -t TEXT -w REF), and evaluate against that (-r REF)",
            shell::file(path)
        );
        watch.warn(Warning::new("larger_than_memory", message));
    }
    let [both, reference, largest] = [both_bytes, reference_bytes, largest].map(bytes);
    let text = format!("{both}: {reference} of the reference model, {largest} of {evaluated}");
    watch.event(&Event::Plan("memory", &text));
    Ok(())
}

/// The contexts and the second model that need memory beside the reference model: its own contexts,
/// and the largest evaluated model with as many, which so has the memory first.
fn memory_beside(
    settings: &ReferenceModel,
    evaluation: &EvaluateSettings,
    engine: &dyn Engine,
) -> (ContextOptions, Option<SecondModel>) {
    let context = |run| largest_context(run, settings.input.n_ctx, [None; 2]);
    let evaluated = &evaluation.run;
    let has_own_devices = evaluated.model.devices != settings.run.model.devices;
    let largest = evaluation
        .models
        .iter()
        .max_by_key(|path| file_bytes(engine, path).unwrap_or(0));
    let shares_devices = !has_own_devices && evaluated.model.n_gpu_layers != GpuLayers::Count(0);
    let second_model = largest.filter(|_| shares_devices).map(|path| SecondModel {
        path: path.clone(),
        n_gpu_layers: evaluated.model.n_gpu_layers,
        context: context(evaluated),
    });
    (context(&settings.run), second_model)
}

/// The bytes of a model's files.
fn file_bytes(engine: &dyn Engine, path: &Path) -> Result<u64, EngineError> {
    Ok(engine.inspect(path)?.identity.file_bytes.unwrap_or(0))
}

impl RefModel<'_> {
    /// Its windows, whose rows contexts of the model compute.
    pub fn windows(&self) -> Reference {
        let entries = self.windows.iter().map(WindowSpec::entry).collect();
        let rows = Rows::Model(self.windows.clone());
        Reference::new(self.about.clone(), Some(entries), rows)
    }

    /// Creates one more context.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn decoder(&self) -> Result<Box<dyn Decoder + '_>, EngineError> {
        self.model.decoder(&self.options)
    }
}
