//! Measures the KLD that each tensor of a model costs when it is quantized: a map of sensitivity.

mod measure;
mod original;
mod plan;
mod store;
mod windows;

use std::time::Instant;

use anyhow::{Result, anyhow};
use kl_engine::{Engine, Imatrix};
use kl_formats::{MAP_VERSION, MapHeader, MapWindow, ReferenceSummary};
use kl_measure::commands::bench::load_original;
use kl_measure::commands::observer::{Observer, Watch};
use kl_measure::commands::output::NewFile;

use crate::mathematics::Sensitivities;
use crate::report::sensitivity::{Sensitivity, doubts};
use crate::settings::SensitivitySettings;
use measure::Measurement;
use original::Original;
use store::Output;
use windows::{Opened, Windows};

/// A map that was measured.
#[derive(Debug)]
pub struct Mapped {
    pub file: NewFile,
    /// The results of the map; `None` if it is one part of several.
    pub sensitivity: Option<Sensitivity>,
}

/// Measures a map.
///
/// # Errors
/// What is wrong with the model, the text, the reference or the output, or a model whose results move
/// from call to call. A map that was cut off keeps its cells, for `--resume`.
pub fn sensitivity(
    settings: &SensitivitySettings,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<Mapped> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let read = settings.imatrix.as_deref().map(Imatrix::read).transpose()?;
    let imatrix = read.as_ref();
    let mut original = Original::inspect(settings, engine, imatrix, watch)?;
    let opened = Opened::new(&settings.input, watch)?;
    let mut output = Output::create(settings)?;
    let (path, run) = (&settings.model, &settings.run);
    let model = load_original(engine, path, run, opened.n_ctx(), watch)?;
    let weights = model.weights()?;
    original.keep(&weights.exchangeable()?)?;
    original.mark(&weights.unmeasured()?);
    let windows = opened.draw(settings, engine, &*model, output.begun(), watch)?;
    // What cannot be continued is refused before the original's rows are computed.
    let header = output.agreed(header(&original, &windows, imatrix)?)?;
    let finished = output.finished(&header);
    let was_whole = finished.is_some();
    let map = match finished {
        Some(map) => map,
        None => {
            let bench = windows.keep(run, &*model, watch)?;
            let (file, writer) = output.begin(header)?;
            let measurement = Measurement {
                settings,
                model: &*model,
                weights,
                bench,
                imatrix,
                original: &original,
                file,
                writer,
            };
            measurement.run()?
        }
    };
    model.drop_last();
    let metadata = std::fs::metadata(&settings.output);
    let file = NewFile {
        path: settings.output.display().to_string(),
        is_map: true,
        was_whole,
        file_bytes: metadata.map_or(0, |metadata| metadata.len()),
        n_rows: map.cells.len() as u64,
        wall_s: started.elapsed().as_secs_f64(),
    };
    let mut sensitivity = None;
    if map.header.shard.is_none() {
        let confidence = settings.confidence;
        let derived = Sensitivities::from_map(&map, confidence);
        let costs = derived.map_err(|error| anyhow!("{}: {error}", file.path))?;
        let seconds = (!was_whole).then_some(file.wall_s);
        watch.warn_all(doubts(&map));
        let warnings = watch.warnings();
        sensitivity = Some(Sensitivity::new(&map, costs, confidence, seconds, warnings));
    }
    Ok(Mapped { file, sensitivity })
}

fn header(original: &Original, windows: &Windows, imatrix: Option<&Imatrix>) -> Result<MapHeader> {
    let reference = windows.file.as_ref().map(|(file, _)| file);
    let listed = windows.windows.iter().map(|spec| MapWindow {
        window: spec.window,
        n_rows: spec.n_rows,
    });
    Ok(MapHeader {
        kl_map: MAP_VERSION,
        provenance: windows.about.provenance.clone(),
        reference: reference.map(ReferenceSummary::of).transpose()?,
        windows: listed.collect(),
        measured_type: original.measured_type,
        types: original.types.clone(),
        imatrix: imatrix.map(|imatrix| imatrix.identity.clone()),
        metadata_bytes: original.blueprint.metadata_bytes,
        alignment: original.blueprint.alignment,
        tensors: original.blueprint.tensors.clone(),
    })
}
