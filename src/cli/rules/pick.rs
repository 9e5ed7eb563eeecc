//! `kl pick`: measures quants, and says which one to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{check_devices, classic, paths, wrong};
use crate::cli::args::PickArgs;
use crate::cli::request::pick::PickRequest;
use crate::cli::results::{Outputs, made_again};
use crate::commands::output::Existing;
use crate::commands::pick::{Candidates, PickSettings};
use crate::commands::settings::RunSettings;
use crate::commands::{is_gguf, one_line};
use crate::hub;
use crate::input::{DEFAULT_N_CTX, Source};

/// The end of the name of the folder that keeps what was measured.
const FOLDER_END: &str = "-pick";

/// Checks the flags of `kl pick`.
pub fn check(args: PickArgs) -> Result<PickRequest, String> {
    check_devices("--device", &args.run.model.devices)?;
    let folder = args.folder.unwrap_or_else(|| default_folder(&args.models));
    let input = input(Source::from(args.input), args.window)?;
    let results = [&args.json, &args.csv, &args.html];
    let files = input.iter().flat_map(Source::files).map(Path::to_owned);
    let inputs: Vec<PathBuf> = files.chain(args.models.clone()).collect();
    paths::check(&inputs, is_gguf, results.into_iter().flatten())?;
    let candidates = Candidates::new(args.models, args.ref_model, &args.quants);
    let mut run = RunSettings::from(args.run);
    run.max_rows = args.max_rows;
    Ok(PickRequest {
        settings: PickSettings {
            candidates: candidates.map_err(|error| one_line(&error))?,
            input,
            folder,
            context: args.context,
            memory: args.memory,
            max_kld: args.max_kld,
            caches: args.cache_types.unwrap_or_default(),
            confidence: args.confidence,
            existing: Existing::by_flags(args.force, Some(args.resume)),
            run,
            shelf: Arc::default(),
        },
        outputs: Outputs {
            json: args.json,
            csv: args.csv,
            html: args.html,
            existing: made_again(args.force),
        },
    })
}

/// The input that the flags name; `None` if they name none.
fn input(mut source: Source, window: Option<u32>) -> Result<Option<Source>, String> {
    if source.prompts.is_some() {
        source.n_ctx = window;
        classic::check_prompts(&source)?;
        return Ok(Some(source));
    }
    if source.texts.is_empty() {
        return match window {
            Some(_) => wrong("--window needs -t TEXT: prompts have windows of their own lengths"),
            None => Ok(None),
        };
    }
    source.n_ctx = Some(window.unwrap_or(DEFAULT_N_CTX));
    classic::check_texts(&source)?;
    Ok(Some(source))
}

/// The folder for what is measured of these models: named after their repository, or the folder that they are in.
fn default_folder(models: &[PathBuf]) -> PathBuf {
    let first = models.first().map_or(Path::new(""), PathBuf::as_path);
    let mut names = first.iter().rev().filter_map(|name| name.to_str());
    let repository = names.find_map(hub::repository_of_folder);
    let folder = || {
        let folder = if first.is_dir() {
            Some(first)
        } else {
            first.parent()
        };
        let folder = Path::new(".").join(folder?).canonicalize().ok()?;
        Some(folder.file_name()?.to_string_lossy().into_owned())
    };
    let name = repository.map_or_else(folder, |(_, name)| Some(name.to_owned()));
    format!("{}{FOLDER_END}", name.as_deref().unwrap_or("kl")).into()
}
