//! The files of a report: those that the user names, and the sidecars in folders.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kl_formats::{Fault, SidecarReader};

use kl_report::comparison::NotCompared;
use kl_report::number::{count, count_of};

/// The ending of a sidecar's name.
const ENDING: &str = "kls";

/// The ending of the name of a sidecar that is being written.
const PARTIAL_ENDING: &str = ".kls.partial";

/// The files at `paths`, and from each folder, but not from the folders in it, those whose names end like
/// a sidecar's, sorted by name. Evaluations that are under way are listed with the files and folders that
/// cannot be read.
///
/// # Errors
/// If a path does not exist: a report without one of the files that were asked for would go
/// unnoticed in a script.
pub fn find(paths: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<NotCompared>)> {
    let (mut files, mut not_compared) = (Vec::new(), Vec::new());
    for path in paths {
        fs::metadata(path).map_err(|cause| kl_formats::Error {
            path: path.clone(),
            fault: Fault::Io {
                what: "be read",
                cause,
            },
        })?;
        let is_folder = path.is_dir();
        let paths_of_files = if is_folder {
            sidecars_of_folder(path)
        } else {
            Ok(vec![path.clone()])
        };
        if let Err(error) = &paths_of_files {
            not_compared.push(NotCompared::new(path, format!("{error:#}")));
        }
        for path in paths_of_files.into_iter().flatten() {
            if is_folder && is_partial(&path) {
                not_compared.push(not_done(&path));
            } else if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
                // A pipe would be waited for.
                not_compared.push(NotCompared::new(&path, "is not a regular file"));
            } else {
                files.push(path);
            }
        }
    }
    Ok((files, not_compared))
}

/// True if the name of a file in a folder is that of a sidecar, whole or partial.
pub fn is_listed(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING) || is_partial(path)
}

fn is_partial(path: &Path) -> bool {
    path.to_string_lossy().ends_with(PARTIAL_ENDING)
}

/// The whole and the partial sidecars of a folder.
fn sidecars_of_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = "the folder cannot be read";
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).context(unreadable)? {
        paths.push(entry.context(unreadable)?.path());
    }
    paths.retain(|path| is_listed(path));
    paths.sort();
    Ok(paths)
}

/// Lists a sidecar that is being written as not compared, with its progress.
fn not_done(path: &Path) -> NotCompared {
    let progress = SidecarReader::open_cut_off(path)
        .map(|sidecar| {
            let n_done = sidecar.records.len() as u64;
            match sidecar.header.n_records {
                Some(n_all) => format!(": {} of {} tokens", count(n_done), count(n_all)),
                None => format!(": {} so far", count_of(n_done, "token")),
            }
        })
        .unwrap_or_default();
    let why = format!("is not done yet{progress} (if no kl is writing it, --resume continues it)");
    NotCompared::new(path, why)
}
