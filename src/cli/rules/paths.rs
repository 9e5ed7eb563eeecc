//! Checks that no output of a run is one of its inputs, or another of its outputs.

use std::fs;
use std::path::{Path, PathBuf};

use kl_system::file_id;

use super::wrong;
use crate::commands::folder::{entries, parts_of};
use crate::commands::output::{folder_of, follow_links, partial_path};

/// Refuses a run that would overwrite what it reads or has just written, `--force` or not. `-` is stdout
/// among the outputs. In a folder among the inputs, the run reads the files whose names `is_read` accepts.
pub fn check<'p>(
    inputs: impl IntoIterator<Item = &'p PathBuf>,
    is_read: fn(&Path) -> bool,
    outputs: impl IntoIterator<Item = &'p PathBuf>,
) -> Result<(), String> {
    let (folders, files): (Vec<_>, Vec<_>) = inputs.into_iter().partition(|path| path.is_dir());
    let named: Vec<PathBuf> = files.iter().flat_map(|path| parts_of(path)).collect();
    let found = folders.iter().flat_map(|folder| entries(folder));
    let in_folders: Vec<PathBuf> = found.filter(|path| is_read(path)).collect();
    let places: Vec<PathBuf> = folders.iter().map(|folder| resolved(folder)).collect();
    let mut taken: Vec<PathBuf> = Vec::new();
    for output in outputs {
        let written = [resolved(output), resolved(&partial_path(output))];
        // A file that is not there yet would be read next time.
        let would_be_read =
            |path: &PathBuf| is_read(path) && places.iter().any(|input| input == folder_of(path));
        let is_in_folder = |path: &PathBuf| is_among(path, &in_folders) || would_be_read(path);
        let is_file = !is_dash(output);
        let fault = if is_file && written.iter().any(|path| is_among(path, &named)) {
            "this output, or its .partial file, is an input of this run: name another output"
        } else if is_file && written.iter().any(is_in_folder) {
            "this output, or its .partial file, is one of the files that this run reads in a \
             folder: name another output"
        } else if written.iter().any(|path| taken.contains(path)) {
            "would be written twice: name each output, and each model, once"
        } else {
            taken.extend(written);
            continue;
        };
        return wrong(format!("{}: {fault}", output.display()));
    }
    Ok(())
}

/// True if an output is stdout.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// True if `path` leads to one of these files, under this name or another.
pub fn is_among(path: &Path, files: &[PathBuf]) -> bool {
    let id = |path| file_id(&fs::metadata(path).ok()?);
    let (resolved_path, id_of_path) = (resolved(path), id(path));
    let is_linked = |file| id_of_path.is_some() && id(file) == id_of_path;
    let mut files = files.iter();
    files.any(|file| resolved(file) == resolved_path || is_linked(file))
}

/// The file that a path leads to, whether it exists or not.
fn resolved(path: &Path) -> PathBuf {
    let path = &follow_links(path);
    if let Ok(existing) = fs::canonicalize(path) {
        return existing;
    }
    match (fs::canonicalize(folder_of(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.clone(),
    }
}
