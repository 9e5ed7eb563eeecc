//! Makes one file of parts that were computed one by one, byte for byte what one run writes.

mod compared;
mod references;
mod sidecars;

use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kl_formats::is_sidecar;

use super::observer::{Observer, Watch};
use super::output::{
    NewFile, OnPartial, Overwrite, PartialFile, check_free_space, flushed, follow_links,
    partial_path,
};
use super::settings::MergeSettings;
use compared::Compared;

/// Writes the whole of all its parts, references or sidecars. With `resume`, an output that is
/// already that whole is a success.
///
/// # Errors
/// If a part is missing, comes twice or belongs to another whole, if a file is not a part, or if the
/// output cannot be written.
pub fn merge(settings: &MergeSettings, observer: &dyn Observer) -> Result<NewFile> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let was_whole = settings.resume && settings.output.is_file();
    let (n_rows, file_bytes) = match was_whole {
        true => compare(settings, watch)?,
        false => write(settings, watch)?,
    };
    Ok(NewFile {
        path: settings.output.display().to_string(),
        was_whole,
        file_bytes,
        n_rows,
        wall_s: started.elapsed().as_secs_f64(),
        warnings: watch.warnings(),
    })
}

/// Writes the output. Returns how many rows it has, and how many bytes.
fn write(settings: &MergeSettings, watch: &Watch<'_>) -> Result<(u64, u64)> {
    let mut overwrite = Overwrite::asked(settings.force, None);
    if settings.resume {
        overwrite.on_partial = match is_of_this_merge(settings) {
            true => OnPartial::Replace,
            false => OnPartial::Refuse(
                "it is not of this merge: finish that run, or use --force instead of --resume",
            ),
        };
    }
    let output = PartialFile::create(&settings.output, overwrite)?;
    let (parts, path) = (&settings.parts, output.path().to_owned());
    match kind_of_all(parts)? {
        Kind::Sidecars => {
            let file = BufWriter::new(output.file()?);
            let (n_records, file) = sidecars::merge(parts, file, &path, watch)?;
            let file_bytes = length(&flushed(file, &path)?, &path)?;
            output.commit()?;
            Ok((n_records, file_bytes))
        }
        Kind::References => {
            let lengths = parts.iter().filter_map(|part| fs::metadata(part).ok());
            let size = lengths.map(|about| about.len()).sum();
            check_free_space(&path, &settings.output, size)?;
            let (n_rows, file) = references::merge(parts, output.direct_file(0)?, &path, watch)?;
            Ok((n_rows, output.commit_direct(file)?))
        }
    }
}

/// Returns true if the partial file that exists, if any, is the start of what the parts make: this
/// merge then writes all that it holds.
fn is_of_this_merge(settings: &MergeSettings) -> bool {
    let (parts, path) = (
        &settings.parts,
        &*partial_path(&follow_links(&settings.output)),
    );
    let differs = AtomicBool::new(false);
    // What is wrong with a file or a part is said when the merge writes.
    if let Ok(start) = Compared::open_start(path, &differs) {
        let unheard = &Watch::new(&());
        let _ = match kind_of_all(parts) {
            Ok(Kind::Sidecars) => sidecars::merge(parts, start, path, unheard).map(drop),
            Ok(Kind::References) => references::merge(parts, start, path, unheard).map(drop),
            Err(_) => Ok(()),
        };
    }
    !differs.load(Ordering::Relaxed)
}

/// Checks that the output that exists is the one that the parts make, to the byte.
fn compare(settings: &MergeSettings, watch: &Watch<'_>) -> Result<(u64, u64)> {
    let (parts, path) = (&settings.parts, &*settings.output);
    let unreadable = || format!("{}: cannot be read", path.display());
    let differs = AtomicBool::new(false);
    let file = Compared::open(path, &differs).with_context(unreadable)?;
    let compared = match kind_of_all(parts)? {
        Kind::Sidecars => sidecars::merge(parts, file, path, watch),
        Kind::References => references::merge(parts, file, path, watch),
    };
    let compared = compared.and_then(|(n_rows, file)| {
        file.finish().with_context(unreadable)?;
        Ok(n_rows)
    });
    if differs.load(Ordering::Relaxed) {
        bail!(
            "{}: exists, and is not what these parts make: name another file, or replace it with \
             --force instead of --resume",
            path.display()
        );
    }
    let about = fs::metadata(path).with_context(unreadable)?;
    Ok((compared?, about.len()))
}

fn length(file: &fs::File, path: &Path) -> Result<u64> {
    let about = file.metadata();
    Ok(about
        .with_context(|| format!("{}: cannot be read", path.display()))?
        .len())
}

/// The kind of whole that the parts make.
enum Kind {
    Sidecars,
    References,
}

/// Recognises the parts by their bytes.
fn kind_of_all(parts: &[PathBuf]) -> Result<Kind> {
    if let Some(folder) = parts.iter().find(|path| path.is_dir()) {
        bail!(
            "{}: is a folder: name the parts in it, as in {}",
            folder.display(),
            folder.join("ref.*.gz").display()
        );
    }
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
