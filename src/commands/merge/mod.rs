//! Makes one file of parts that were computed one by one, byte for byte what one run writes.

mod references;
mod sidecars;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_formats::is_sidecar;
use serde::Serialize;

use super::observer::{Observer, Watch};
use super::output::{Overwrite, PartialFile};
use super::settings::MergeSettings;
use crate::report::Warning;

/// A file that was made of its parts.
#[derive(Serialize, Debug)]
pub struct Merged {
    /// The file, as given.
    pub path: String,
    pub n_parts: usize,
    pub file_bytes: u64,
    /// Rows; of a sidecar, records.
    pub n_rows: u64,
    pub wall_s: f64,
    pub warnings: Vec<Warning>,
}

/// Writes the whole of all its parts, references or sidecars.
///
/// # Errors
/// If a part is missing, comes twice or belongs to another whole, if a file is not a part, or if the
/// output cannot be written.
pub fn merge(settings: &MergeSettings, observer: &dyn Observer) -> Result<Merged> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let overwrite = Overwrite::asked(settings.force, None);
    let output = PartialFile::create(&settings.output, overwrite)?;
    let parts = &settings.parts;
    let (n_rows, file_bytes) = match kind_of_all(parts)? {
        Kind::Sidecars => sidecars::merge(parts, output, watch)?,
        Kind::References => references::merge(parts, output, settings, watch)?,
    };
    Ok(Merged {
        path: settings.output.display().to_string(),
        n_parts: parts.len(),
        file_bytes,
        n_rows,
        wall_s: started.elapsed().as_secs_f64(),
        warnings: watch.warnings(),
    })
}

/// What the parts are parts of.
enum Kind {
    Sidecars,
    References,
}

/// Recognises the parts by their bytes.
fn kind_of_all(parts: &[PathBuf]) -> Result<Kind> {
    let (sidecars, others): (Vec<_>, Vec<_>) = parts.iter().partition(|path| is_sidecar(path));
    match (sidecars.first(), others.first()) {
        (Some(sidecar), Some(other)) => bail!(
            "{} is a sidecar and {} is not: merge sidecars and references one after the other",
            sidecar.display(),
            other.display()
        ),
        (Some(_), None) => Ok(Kind::Sidecars),
        (None, _) => Ok(Kind::References),
    }
}
