//! The files that a report is made of: those that are named, and the sidecars in folders.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kl_formats::{Fault, SidecarReader};

use crate::report::comparison::NotCompared;
use crate::report::number::{count, count_of};

/// The ending of a sidecar's name.
const ENDING: &str = "kls";

/// The ending of the name of one that is being written.
const PARTIAL_ENDING: &str = ".kls.partial";

/// The files at `paths`, and of each folder those whose names end like a sidecar's: sorted by name,
/// and not of the folders in it. Evaluations that are under way, and what cannot be read, are
/// listed.
///
/// # Errors
/// If a path does not exist: a report without one of the files that were asked for would go
/// unnoticed in a script.
pub fn find(paths: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<NotCompared>)> {
    let (mut files, mut others) = (Vec::new(), Vec::new());
    for path in paths {
        fs::metadata(path).map_err(|cause| kl_formats::Error {
            path: path.clone(),
            fault: Fault::Io {
                what: "be read",
                cause,
            },
        })?;
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        match in_folder(path) {
            Ok(entries) => {
                let is_partial = |path: &PathBuf| path.to_string_lossy().ends_with(PARTIAL_ENDING);
                let (partial, whole): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_partial);
                files.extend(whole);
                others.extend(partial.iter().map(|path| not_done(path)));
            }
            Err(error) => others.push(NotCompared::new(path, format!("{error:#}"))),
        }
    }
    // A pipe would be waited for.
    let is_special = |path: &PathBuf| fs::metadata(path).is_ok_and(|about| !about.is_file());
    let (special, files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_special);
    let special = special.iter();
    others.extend(special.map(|path| NotCompared::new(path, "is not a regular file".to_owned())));
    Ok((files, others))
}

/// Returns true if a file of a folder is a sidecar by its name, a whole or a partial one.
pub fn is_listed(path: &Path) -> bool {
    let is_whole = path.extension().is_some_and(|ending| ending == ENDING);
    is_whole || path.to_string_lossy().ends_with(PARTIAL_ENDING)
}

/// The whole and the partial sidecars of a folder.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = "the folder cannot be read";
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).context(unreadable)? {
        let path = entry.context(unreadable)?.path();
        if is_listed(&path) {
            entries.push(path);
        }
    }
    entries.sort();
    Ok(entries)
}

/// Why a sidecar that is being written is not compared, and how far it is.
fn not_done(path: &Path) -> NotCompared {
    let progress = match SidecarReader::open_cut_off(path) {
        Ok(sidecar) => {
            let n = count(sidecar.records.len() as u64);
            match sidecar.header.n_records {
                Some(of) => format!(": {n} of {} tokens", count(of)),
                None => format!(
                    ": {} so far",
                    count_of(sidecar.records.len() as u64, "token")
                ),
            }
        }
        Err(_) => String::new(),
    };
    let why = format!("is not done yet{progress} (if no kl is writing it, --resume continues it)");
    NotCompared::new(path, why)
}
