//! No output of a run may be one of its inputs, or another of its outputs.

use std::fs;
use std::path::{Path, PathBuf};

use super::output::{folder_of, follow_links, partial_path};
use super::settings::{Command, Input, ResultSettings, Sidecar, TemplateChoice, UsageError};

/// Refuses a call that would write over what it reads or has just written, `--force` or not.
pub fn check(command: &Command) -> Result<(), UsageError> {
    let (inputs, outputs) = match command {
        Command::Write(settings) => {
            let mut inputs = vec![settings.model.clone(), settings.input.path().to_owned()];
            if let Input::Prompts(prompts) = &settings.input
                && let TemplateChoice::File(template) = &prompts.template
            {
                inputs.push(template.clone());
            }
            (inputs, vec![settings.target.clone()])
        }
        Command::Read(settings) => {
            let mut inputs = settings.models.clone();
            inputs.push(settings.reference.clone());
            let mut outputs: Vec<PathBuf> = settings
                .models
                .iter()
                .filter_map(|model| sidecar_path(&settings.results, model))
                .collect();
            outputs.extend(settings.results.json.clone());
            (inputs, outputs)
        }
    };
    distinct(&inputs, &outputs)
}

/// Refuses outputs that are inputs, or that are one.
pub fn distinct(inputs: &[PathBuf], outputs: &[PathBuf]) -> Result<(), UsageError> {
    let inputs: Vec<PathBuf> = inputs.iter().map(|path| resolved(path)).collect();
    let mut taken: Vec<PathBuf> = Vec::new();
    for output in outputs {
        let written = [resolved(output), resolved(&partial_path(output))];
        if written.iter().any(|path| inputs.contains(path)) {
            return Err(UsageError(format!(
                "{}: it, or the .partial beside it, is an input of this run: name another output",
                output.display()
            )));
        }
        if written.iter().any(|path| taken.contains(path)) {
            return Err(UsageError(format!(
                "{}: would be written twice (two models of one file name, or --json and --sidecar): \
                 give the models one at a time with --sidecar, or --no-sidecar",
                output.display()
            )));
        }
        taken.extend(written);
    }
    Ok(())
}

/// Where the sidecar of `model`, or of a file in its place, goes.
pub fn sidecar_path(settings: &ResultSettings, model: &Path) -> Option<PathBuf> {
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
    let path = &follow_links(path);
    if let Ok(there) = fs::canonicalize(path) {
        return there;
    }
    match (fs::canonicalize(folder_of(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.clone(),
    }
}
