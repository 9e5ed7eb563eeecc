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
        let is_folder = path.is_dir();
        let mut found = Ok(vec![path.clone()]);
        if is_folder {
            found = in_folder(path);
        }
        if let Err(error) = &found {
            others.push(NotCompared::new(path, format!("{error:#}")));
        }
        for path in found.into_iter().flatten() {
            if is_folder && is_partial(&path) {
                others.push(not_done(&path));
            } else if fs::metadata(&path).is_ok_and(|about| !about.is_file()) {
                // A pipe would be waited for.
                others.push(NotCompared::new(&path, "is not a regular file"));
            } else {
                files.push(path);
            }
        }
    }
    Ok((files, others))
}

/// Returns true if a file of a folder is a sidecar by its name, a whole or a partial one.
pub fn is_listed(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING) || is_partial(path)
}

fn is_partial(path: &Path) -> bool {
    path.to_string_lossy().ends_with(PARTIAL_ENDING)
}

/// The whole and the partial sidecars of a folder.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = "the folder cannot be read";
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).context(unreadable)? {
        paths.push(entry.context(unreadable)?.path());
    }
    paths.retain(|path| is_listed(path));
    paths.sort();
    Ok(paths)
}

/// Why a sidecar that is being written is not compared, and how far it is.
fn not_done(path: &Path) -> NotCompared {
    let progress = SidecarReader::open_cut_off(path).map(|sidecar| {
        let n = sidecar.records.len() as u64;
        match sidecar.header.n_records {
            Some(of) => format!(": {} of {} tokens", count(n), count(of)),
            None => format!(": {} so far", count_of(n, "token")),
        }
    });
    let progress = progress.unwrap_or_default();
    let why = format!("is not done yet{progress} (if no kl is writing it, --resume continues it)");
    NotCompared::new(path, why)
}
