//! Picks the quant to run: writes a reference of the original, evaluates each quant against it, times it, and decides
//! by the rules of `kl_report::pick`. All that is measured stays in a folder, and a call that goes on from there
//! measures nothing twice.

mod files;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Error, Result, bail, ensure};
use kl_engine::{CacheType, Engine, GpuLayers, gguf, memory};
use kl_formats::{Kind, Reference, Target};
use kl_report::layout::list;
use kl_report::number::{bytes, count_of};
use kl_report::pick::early::EarlyRule;
use kl_report::pick::rule::Limits;
use kl_report::pick::{LeftOut, Pick, StoppedModel, Wishes};
use kl_report::unit;
use kl_stats::stats::Confidence;

use super::observer::{Event, Observer, Watch};
use super::output::Existing;
use super::report::Reported;
use super::settings::{
    CacheTypes, ComparedVocabulary, EvaluateSettings, ReferenceSource, ReportSettings,
    ResultSettings, RunSettings, Sweep, WriteSettings,
};
use super::shelf::Shelf;
use super::{evaluate, labels_of_namesakes, report, write};
use crate::input::{DEFAULT_N_CTX, STARTER, Source};
use crate::pipeline::to_share;
pub use files::Candidates;
use files::Chosen;

/// The tokens of the context, unless the user or the model sets fewer.
const DEFAULT_CONTEXT: u64 = 8192;

/// The tokens of an answer to a starter prompt.
const N_GENERATED: u32 = 64;

/// The name of the reference in the folder.
const REFERENCE: &str = "reference.gz";

/// Settings for picking a quant.
#[derive(Debug)]
pub struct PickSettings {
    /// The quants, and the original that they are measured against.
    pub candidates: Candidates,
    /// The text or the prompts; `None`: the original's answers to the starter prompts where it has a chat template,
    /// else the starter text.
    pub input: Option<Source>,
    /// The folder that keeps the reference and the sidecars.
    pub folder: PathBuf,
    /// The tokens of the context that there must be memory for; `None`: 8,192, or as many as the model was trained
    /// on.
    pub context: Option<u64>,
    /// The bytes that a quant may take; `None`: what the devices that run it, or the machine, have free.
    pub memory: Option<u64>,
    /// The mean KLD, in nats, below which the pick's interval must end.
    pub max_kld: Option<f64>,
    /// The types of the KV cache that each quant is tried with; empty: those of `run` alone.
    pub caches: Vec<CacheType>,
    pub confidence: Confidence,
    /// The treatment of what an earlier run has left in the folder.
    pub existing: Existing,
    pub run: RunSettings,
    /// Models of a hub, which are loaded when their turn comes.
    pub shelf: Arc<Shelf>,
}

/// Measures the quants, and picks one.
///
/// # Errors
/// Why the reference cannot be written, or why no quant can be evaluated. A quant that fails alone is listed in the
/// pick.
pub fn pick(settings: &PickSettings, engine: &dyn Engine, observer: &dyn Observer) -> Result<Pick> {
    let mut run = settings.run.clone();
    // It is the default here, of which nobody needs to hear that it has no effect.
    if run.model.n_gpu_layers == GpuLayers::Auto && !engine.can_offload()? {
        run.model.n_gpu_layers = GpuLayers::Count(0);
    }
    let picking = Picking {
        settings,
        run,
        engine,
        observer,
        watch: &Watch::new(observer),
    };
    let shelf = &*settings.shelf;
    let mut chosen = settings.candidates.choose(shelf)?;
    picking.open_folder()?;
    let free_memory = || free_memory(engine, &picking.run);
    let limits = Limits {
        memory: settings
            .memory
            .map_or_else(free_memory, |limit| Ok(Some(limit)))?,
        max_kld: settings.max_kld,
    };
    if let Some(limit) = limits.memory {
        chosen.leave_out_too_large(limit);
    }
    picking.announce(&chosen, limits.memory);
    let reference = picking.reference(&chosen.original.path)?;
    let model = reference.about().model.as_ref();
    let trained = model.and_then(|model| model.context_length);
    let shorter = trained.map_or(DEFAULT_CONTEXT, |n| DEFAULT_CONTEXT.min(n.max(1)));
    let wishes = Wishes {
        context: settings.context.unwrap_or(shorter),
        limits,
        is_original: chosen.original.precision.is_float(),
    };
    picking.measure(chosen, &reference, wishes)
}

/// What every step of a pick needs.
struct Picking<'p> {
    settings: &'p PickSettings,
    /// The way to run the models.
    run: RunSettings,
    engine: &'p dyn Engine,
    observer: &'p dyn Observer,
    watch: &'p Watch<'p>,
}

impl Picking<'_> {
    fn reference_path(&self) -> PathBuf {
        self.settings.folder.join(REFERENCE)
    }

    /// Makes the folder, or refuses one of an earlier run that is not to be continued.
    fn open_folder(&self) -> Result<()> {
        let folder = &self.settings.folder;
        let shown = folder.display();
        let mut entries = fs::read_dir(folder).into_iter().flatten();
        if let (Existing::Refuse(advice), Some(_)) = (self.settings.existing, entries.next()) {
            bail!("{shown}: exists: {advice}, -w names another folder");
        }
        fs::create_dir_all(folder).with_context(|| format!("{shown}: cannot be made"))
    }

    /// Says what will be loaded and kept, and how to make it shorter.
    fn announce(&self, chosen: &Chosen, memory_limit: Option<u64>) {
        let shelf = &*self.settings.shelf;
        let plan = |name, text: &str| self.watch.event(&Event::Plan(name, text));
        let quants = chosen.quants.iter();
        let n = count_of(chosen.quants.len() as u64, "quant");
        let total: u64 = quants.clone().map(|file| file.bytes).sum();
        let all = quants.chain([&chosen.original]);
        let awaited = all.filter(|file| shelf.awaits(&file.path));
        let to_load: u64 = awaited.map(|file| file.bytes).sum();
        let loaded = match (to_load, shelf.discards()) {
            (0, _) => String::new(),
            (n, true) => format!("; {} to load, two files at a time", bytes(n)),
            (n, false) => format!("; {} to load, which stay (--discard)", bytes(n)),
        };
        let size = bytes(total);
        plan(
            "quants",
            &format!("{n}, {size}{loaded}; for fewer, --quants 'Q4_*,Q5_*'"),
        );
        if let Some(limit) = memory_limit {
            let limit = bytes(limit);
            plan(
                "memory",
                &format!("{limit} for weights, KV cache and buffers (--memory)"),
            );
        }
    }

    /// Writes the reference, unless it is whole, and opens it. Loads the original, and may remove it afterwards.
    fn reference(&self, original: &Path) -> Result<Reference> {
        let (path, shelf, watch) = (self.reference_path(), &*self.settings.shelf, self.watch);
        let is_resumed = self.settings.existing == Existing::Resume;
        let is_whole = is_resumed && Reference::open(&path).is_ok();
        // Where the original is at hand, `write` checks that the reference is of it and of this text.
        if is_whole && shelf.awaits(original) {
            shelf.discard(original, watch);
        } else {
            shelf.evaluate(&[original], watch, |arrivals| {
                arrivals.wait(original)?;
                self.write_reference(&path, original)
            })?;
            watch.check()?;
        }
        Ok(Reference::open(&path)?)
    }

    /// Writes the original's reference, or resumes one that was begun.
    fn write_reference(&self, path: &Path, original: &Path) -> Result<()> {
        let input = match &self.settings.input {
            Some(input) => input.clone(),
            None => {
                let header = gguf::read(original)?;
                starter(header.text("tokenizer.chat_template").is_some())
            }
        };
        let name = original.file_name().unwrap_or_default().display();
        let plan = format!("{name}, over {}; for less, -n", in_words(&input));
        self.watch.event(&Event::Plan("against", &plan));
        let settings = WriteSettings {
            model: original.to_owned(),
            input,
            output: path.to_owned(),
            target: Target::new(Kind::Kl, None).map_err(Error::msg)?,
            chooses_encoding: true,
            part: None,
            existing: self.settings.existing,
            run: self.run.clone(),
        };
        write(&settings, self.engine, self.observer).map(drop)
    }

    /// The rule by which some of so many quants are not measured to the end, and says when it looks at them.
    fn early_rule(&self, n_quants: usize, reference: &Reference, wishes: &Wishes) -> EarlyRule {
        let windows = to_share(reference, self.run.max_rows);
        let rule = EarlyRule {
            n_quants,
            n_windows: windows.map_or(0, |(n_windows, _)| n_windows as u64),
            context: wishes.context,
            max_kld: wishes.limits.max_kld,
        };
        if let Some(n) = rule.looks_after() {
            let n = count_of(n, unit(reference.about().prompts.is_some()));
            let plan = format!("after {n}, those that cannot be the pick any more");
            self.watch.event(&Event::Plan("stopping", &plan));
        }
        rule
    }

    /// Evaluates and times each quant, and picks one of them.
    fn measure(&self, chosen: Chosen, reference: &Reference, wishes: Wishes) -> Result<Pick> {
        let settings = self.settings;
        let caches = settings
            .caches
            .iter()
            .map(|&kind| CacheTypes { k: kind, v: kind });
        let mut quants = chosen.quants;
        // Only what is measured already can stop another: the smaller and faster ones, or with a highest KLD, none but the
        // first, which is best the nearest.
        quants.sort_by_key(|file| match wishes.limits.max_kld {
            Some(_) => u64::MAX - file.bytes,
            None => file.bytes,
        });
        let models: Vec<PathBuf> = quants.into_iter().map(|file| file.path).collect();
        let n_quants = models.len() * caches.len().max(1);
        let evaluated = EvaluateSettings {
            skipped: Vec::new(),
            reference: ReferenceSource::File {
                path: self.reference_path(),
                n_ctx: None,
            },
            vocabulary: ComparedVocabulary::default(),
            until: None,
            early: Some(self.early_rule(n_quants, reference, &wishes)),
            measures_speed: true,
            sweep: Sweep {
                weights: vec![self.run.model.is_dequantized],
                caches: caches.collect(),
            },
            results: ResultSettings {
                confidence: settings.confidence,
                labels: labels_of_namesakes(&models),
                sidecar_folder: Some(settings.folder.clone()),
                for_context: Some(wishes.context),
                reference: self.reference_path(),
                existing: settings.existing,
                ..ResultSettings::default()
            },
            models,
            run: self.run.clone(),
            shelf: settings.shelf.clone(),
        };
        let measured = evaluate(&evaluated, self.engine, &WithoutTables(self.observer))?;
        self.watch.check()?;
        let failed = measured.failed.iter();
        let failed = failed.map(|failure| LeftOut::new(failure.path.as_ref(), &failure.error));
        let mut left_out = chosen.left_out;
        left_out.extend(failed);
        let (mut sidecars, mut stopped) = (Vec::new(), Vec::new());
        for model in measured.models {
            match (model.sidecar, model.interrupted) {
                (_, Some(interrupted)) => stopped.push(StoppedModel {
                    result: model.result,
                    stopped: interrupted,
                }),
                (Some(sidecar), None) => sidecars.push(PathBuf::from(sidecar)),
                (None, None) => {}
            }
        }
        let compared = ReportSettings {
            paths: sidecars,
            confidence: settings.confidence,
            for_context: Some(wishes.context),
            compares_every_two: true,
            ..ReportSettings::default()
        };
        let first = left_out.last().map_or("there is none", |last| &*last.why);
        ensure!(
            !compared.paths.is_empty(),
            "no quant could be evaluated: {first}"
        );
        match report(&compared, self.observer)? {
            Reported::Comparison(comparison) => {
                Ok(Pick::new(*comparison, wishes, stopped, left_out))
            }
            Reported::Pair(_) => bail!("no two quants were to be compared in depth"),
        }
    }
}

/// The text that comes with `kl`: prompts, which a model with a chat template answers, or prose.
fn starter(has_template: bool) -> Source {
    if has_template {
        return Source {
            prompts: Some(STARTER.into()),
            generate: Some(N_GENERATED),
            ..Source::default()
        };
    }
    Source::one_text(Path::new(STARTER), DEFAULT_N_CTX)
}

/// What the models run over, in words.
fn in_words(source: &Source) -> String {
    let name = |path: &Path, starter: &str| match path.to_str() {
        Some(STARTER) => starter.to_owned(),
        _ => path.display().to_string(),
    };
    let Some(prompts) = &source.prompts else {
        let texts = source.texts.iter();
        return list(
            texts
                .map(|text| name(&text.path, "the starter text"))
                .collect(),
        );
    };
    let prompts = name(prompts, "the starter prompts");
    match source.generate {
        Some(n) => format!(
            "its answers of up to {} to {prompts}",
            count_of(n.into(), "token")
        ),
        None => prompts,
    }
}

/// The bytes that are free for a model: of the devices that run it, or of the machine; `None` where neither is
/// known.
fn free_memory(engine: &dyn Engine, run: &RunSettings) -> Result<Option<u64>> {
    let options = &run.model;
    let is_chosen = |name: &String| options.devices.is_empty() || options.devices.contains(name);
    let devices = engine.devices()?;
    let chosen = devices
        .iter()
        .filter(|device| device.kind.is_gpu() && is_chosen(&device.name));
    let free: u64 = chosen.map(|device| device.memory_free).sum();
    let uses_devices = options.n_gpu_layers != GpuLayers::Count(0) && free > 0;
    Ok(if uses_devices {
        Some(free)
    } else {
        memory::available()
    })
}

/// An observer that sees all but the tables and documents of an evaluation: those of a pick take their place.
struct WithoutTables<'o>(&'o dyn Observer);

impl Observer for WithoutTables<'_> {
    fn on_event(&self, event: &Event<'_>) {
        if !matches!(event, Event::Compared(_) | Event::Report(_)) {
            self.0.on_event(event);
        }
    }

    fn should_stop(&self) -> bool {
        self.0.should_stop()
    }
}
