//! Measures what each tensor of a model costs when it is quantized: a map of sensitivity.

mod measure;
mod original;
mod plan;
mod store;
mod windows;

use std::time::Instant;

use anyhow::{Result, anyhow};
use kl_formats::{MAP_VERSION, MapHeader, SensitivityMap};

use super::context::{check_parallel, largest_context};
use super::devices::{connect_devices, load};
use super::observer::{Observer, Watch};
use super::output::NewFile;
use super::settings::SensitivitySettings;
use crate::engine::{Engine, Exchange as _, Imatrix, Model as _};
use crate::recipe::Sensitivities;
use crate::report::sensitivity::{Sensitivity, doubts};
use measure::Measurement;
use original::Original;
use store::Output;
use windows::{Opened, Windows};

/// A map that was measured.
#[derive(Debug)]
pub struct Mapped {
    pub file: NewFile,
    /// What the map says; `None` of a part.
    pub sensitivity: Option<Sensitivity>,
}

/// Measures a map.
///
/// # Errors
/// What is wrong with the model, the text, the reference or the output, or a model whose results move
/// from call to call. A map that was cut off keeps its cells, for `--resume`.
pub fn sensitivity<E: Engine>(
    settings: &SensitivitySettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<Mapped> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let imatrix = settings.imatrix.as_deref().map(Imatrix::read).transpose()?;
    let imatrix = imatrix.as_ref();
    let mut original = Original::inspect(settings, engine, imatrix, watch)?;
    check_parallel(&settings.run, engine, &settings.model)?;
    let text = settings.text();
    let opened = Opened::new(settings, text.as_ref(), watch)?;
    let mut output = Output::create(settings)?;
    connect_devices(engine, &settings.run, watch)?;
    let n_ctx = opened.n_ctx();
    let context = || largest_context(&settings.run, n_ctx, [None; 2]);
    let (path, run) = (&settings.model, &settings.run);
    let model = load(engine, path, run, || (context(), None), watch)?;
    original.keep(&model.exchangeable()?)?;
    let windows = opened.draw(settings, engine, &model, output.begun(), watch)?;
    let header = header(&original, &windows, imatrix);
    let finished = output.finished(&header)?;
    let was_whole = finished.is_some();
    let map = match finished {
        Some(map) => map,
        None => {
            let bench = windows.keep(&settings.run, &model, watch)?;
            let mut measurement = Measurement {
                settings,
                model: &model,
                bench,
                imatrix,
                original: &original,
                store: output.begin(header)?,
            };
            match measurement.measure_all() {
                Ok(()) => measurement.store.finish()?,
                Err(error) => return Err(measurement.store.keep_after(error)),
            }
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
    let is_whole = map.header.shard.is_none();
    let sensitivity = is_whole.then(|| described(settings, &map, &file, watch));
    Ok(Mapped {
        file,
        sensitivity: sensitivity.transpose()?,
    })
}

/// What a map says, with the warnings of this run.
fn described(
    settings: &SensitivitySettings,
    map: &SensitivityMap,
    file: &NewFile,
    watch: &Watch<'_>,
) -> Result<Sensitivity> {
    let of = Sensitivities::from_map(map, settings.confidence)
        .map_err(|error| anyhow!("{}: {error}", file.path))?;
    let seconds = (!file.was_whole).then_some(file.wall_s);
    watch.warn_all(doubts(map));
    let (confidence, warnings) = (settings.confidence, watch.warnings());
    Ok(Sensitivity::new(map, of, confidence, seconds, warnings))
}

fn header(original: &Original, windows: &Windows, imatrix: Option<&Imatrix>) -> MapHeader {
    MapHeader {
        kl_map: MAP_VERSION,
        provenance: windows.about.provenance.clone(),
        reference: windows.summary.clone(),
        windows: windows.listed(),
        measured_type: original.measured_type,
        types: original.types.clone(),
        imatrix: imatrix.map(|imatrix| imatrix.identity.clone()),
        metadata_bytes: original.blueprint.metadata_bytes,
        alignment: original.blueprint.alignment,
        tensors: original.blueprint.tensors.clone(),
    }
}
