//! No output of a run may be one of its inputs, or another of its outputs.

use std::fs;
use std::path::{Path, PathBuf};

use super::output::folder_of;
use super::settings::{Command, ReadSettings, Sidecar, UsageError};

/// Refuses a call that would write over what it reads or has just written, `--force` or not.
pub fn check(command: &Command) -> Result<(), UsageError> {
    let (inputs, outputs) = match command {
        Command::Write(settings) => (
            vec![settings.model.clone(), settings.text.clone()],
            vec![settings.target.clone()],
        ),
        Command::Read(settings) => {
            let mut inputs = settings.models.clone();
            inputs.push(settings.reference.clone());
            let mut outputs: Vec<PathBuf> = settings
                .models
                .iter()
                .filter_map(|model| sidecar_path(settings, model))
                .collect();
            outputs.extend(settings.json.clone());
            (inputs, outputs)
        }
    };
    let inputs: Vec<PathBuf> = inputs.iter().map(|path| resolved(path)).collect();
    let mut taken: Vec<PathBuf> = Vec::new();
    for output in &outputs {
        let output_path = resolved(output);
        if inputs.contains(&output_path) {
            return Err(UsageError(format!(
                "{}: is an input of this run: name another output",
                output.display()
            )));
        }
        if taken.contains(&output_path) {
            return Err(UsageError(format!(
                "{}: would be written twice (two models of one file name, or --json and --sidecar): \
                 give the models one at a time with --sidecar, or --no-sidecar",
                output.display()
            )));
        }
        taken.push(output_path);
    }
    Ok(())
}

/// Where the sidecar of `model` goes.
pub fn sidecar_path(settings: &ReadSettings, model: &Path) -> Option<PathBuf> {
    match &settings.sidecar {
        Sidecar::None => None,
        Sidecar::At(path) => Some(path.clone()),
        Sidecar::ByModel => {
            let mut name = model.file_name()?.to_owned();
            name.push(".kls");
            Some(name.into())
        }
    }
}

/// The file that a path leads to, whether it is there or not.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(there) = fs::canonicalize(path) {
        return there;
    }
    match (fs::canonicalize(folder_of(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}
