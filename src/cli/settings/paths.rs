//! Checks that no output of a run is one of its inputs, or another of its outputs.

use std::fs;
use std::path::{Path, PathBuf};

use super::usage_error::{UsageError, wrong};
use crate::commands::output::{folder_of, follow_links, partial_path};

/// Refuses a run that would overwrite what it reads or has just written, `--force` or not.
pub fn check(inputs: &[PathBuf], outputs: &[PathBuf]) -> Result<(), UsageError> {
    let inputs: Vec<PathBuf> = inputs.iter().map(|path| resolved(path)).collect();
    let mut taken: Vec<PathBuf> = Vec::new();
    for output in outputs {
        let written = [resolved(output), resolved(&partial_path(output))];
        if written.iter().any(|path| inputs.contains(path)) {
            return wrong(format!(
                "{}: this output, or its .partial file, is an input of this run: name another \
                 output",
                output.display()
            ));
        }
        if written.iter().any(|path| taken.contains(path)) {
            return wrong(format!(
                "{}: would be written twice (by a model that is given twice, or as --json and \
                 --sidecar): evaluate one model at a time with --sidecar, or use --no-sidecar",
                output.display()
            ));
        }
        taken.extend(written);
    }
    Ok(())
}

/// Whether `path` leads to one of these files.
pub fn is_among(path: &Path, files: &[PathBuf]) -> bool {
    let path = resolved(path);
    files.iter().any(|file| resolved(file) == path)
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
