//! The flags of `kl sensitivity`.

use std::path::{Path, PathBuf};

use super::input::one_text;
use super::{Command, check_devices, paths, run_settings, wrong};
use crate::cli::args::SensitivityArgs;
use crate::commands::output::Existing;
use crate::commands::settings::{SensitivitySettings, SensitivitySource};

/// The outputs of `kl sensitivity` beside the map.
#[derive(Debug)]
pub struct SensitivityOutputs {
    pub json: Option<PathBuf>,
    pub csv: Option<PathBuf>,
    pub html: Option<PathBuf>,
    /// True to replace whatever is there.
    pub force: bool,
}

/// `kl sensitivity`.
pub fn sensitivity(args: SensitivityArgs) -> Result<Command, String> {
    check_devices("--device", &args.devices.device)?;
    let source = match (args.read_path, args.text_path) {
        (Some(path), _) => SensitivitySource::Reference(path),
        (None, Some(path)) => SensitivitySource::Text(one_text(&path, args.n_ctx)),
        // clap has asked for one of them.
        (None, None) => return wrong("no text: give -t TEXT, or -r REF"),
    };
    let is_stdout = |path: &Path| path.as_os_str() == "-";
    let printed = [&args.json, &args.csv].into_iter().flatten();
    if printed.filter(|path| is_stdout(path)).count() > 1 {
        return wrong(
            "only one of --json - and --csv - can go to stdout: name a file for the other",
        );
    }
    let outputs = [
        ("--write-path", Some(&args.write_path)),
        ("--json", args.json.as_ref()),
        ("--csv", args.csv.as_ref()),
        ("--html", args.html.as_ref()),
    ];
    let outputs = outputs.map(|(flag, path)| (flag, path.filter(|path| !is_stdout(path))));
    paths::check_distinct(&outputs)?;
    let written: Vec<PathBuf> = outputs
        .iter()
        .filter_map(|(_, path)| path.cloned())
        .collect();
    let mut inputs = vec![args.model.clone()];
    inputs.extend(args.imatrix.clone());
    match &source {
        SensitivitySource::Reference(path) => inputs.push(path.clone()),
        SensitivitySource::Text(source) => {
            inputs.extend(source.paths().into_iter().map(Path::to_owned));
        }
    }
    paths::check(&inputs, |_| false, &written)?;
    let mut run = run_settings(&args.devices, &args.context);
    run.model.is_exchangeable = true;
    let settings = SensitivitySettings {
        model: args.model,
        source,
        output: args.write_path,
        max_tokens: args.n_tokens,
        types: args.types,
        measured_type: args.measured_type,
        imatrix: args.imatrix,
        tensors: args.tensors,
        seed: args.seed,
        part: args.shard,
        existing: Existing::asked(args.force, Some(args.resume)),
        confidence: args.confidence,
        run,
    };
    let outputs = SensitivityOutputs {
        json: args.json,
        csv: args.csv,
        html: args.html,
        force: args.force,
    };
    Ok(Command::Sensitivity(Box::new(settings), outputs))
}
