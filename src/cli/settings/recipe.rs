//! The flags of `kl recipe`.

use std::path::PathBuf;
use std::slice::from_ref;

use super::input::{check_score, one_text};
use super::{Command, check_devices, max_rows, paths, run_settings, wrong};
use crate::cli::args::RecipeArgs;
use crate::commands::output::Existing;
use crate::commands::settings::{OriginalSettings, RecipeGoal, RecipeSettings, RunSettings};
use crate::recipe::Goal;

/// `kl recipe`.
pub fn recipe(mut args: RecipeArgs) -> Result<Command, String> {
    check_devices("--device", &args.devices.device)?;
    let goal = match (args.size, args.bpw, args.kld, args.like.take()) {
        (Some(bytes), ..) => RecipeGoal::Reach(Goal::Size(bytes)),
        (_, Some(bits), ..) => RecipeGoal::Reach(Goal::Bpw(bits)),
        (_, _, Some(nats), _) => RecipeGoal::Reach(Goal::Kld(nats)),
        (.., Some(path)) => RecipeGoal::Like(path),
        // clap has asked for one of them.
        _ => return wrong("--size, --bpw, --like or --kld is needed"),
    };
    paths::check_distinct(&[
        ("--write-path", args.write_path.as_ref()),
        ("--json", args.json.as_ref()),
        ("--html", args.html.as_ref()),
        ("--quantize", args.quantize.as_ref()),
    ])?;
    let original = args.model.take().map(|path| original(&args, path));
    let original = original.transpose()?;
    let json = args.json.iter().filter(|path| path.as_os_str() != "-");
    let outputs = json.chain(&args.write_path).chain(&args.quantize);
    let outputs = outputs.chain(&args.html);
    let outputs: Vec<PathBuf> = outputs.cloned().collect();
    let mut inputs = from_ref(&args.map).to_vec();
    if let RecipeGoal::Like(path) = &goal {
        inputs.push(path.clone());
    }
    inputs.extend(original.iter().map(|original| original.path.clone()));
    let others = [&args.text_path, &args.imatrix, &args.report];
    inputs.extend(others.into_iter().flatten().cloned());
    paths::check(&inputs, |_| false, &outputs)?;
    Ok(Command::Recipe(RecipeSettings {
        map: args.map,
        goal,
        types: args.types,
        imatrix: args.imatrix,
        confidence: args.confidence,
        output: args.write_path,
        json: args.json,
        html: args.html,
        report: args.report,
        existing: Existing::asked(args.force, None),
        original: original.map(Box::new),
    }))
}

/// What is done with the original.
fn original(args: &RecipeArgs, path: PathBuf) -> Result<OriginalSettings, String> {
    if args.text_path.is_none() && args.quantize.is_none() {
        return wrong(
            "nothing to do with -m: give -t TEXT to measure the recipe, or --quantize OUT to write its file",
        );
    }
    let text = args
        .text_path
        .as_deref()
        .map(|path| one_text(path, args.n_ctx));
    text.iter().try_for_each(check_score)?;
    let mut run = RunSettings {
        max_rows: max_rows(args.n_tokens),
        ..run_settings(&args.devices, &args.context)
    };
    run.model.is_exchangeable = true;
    Ok(OriginalSettings {
        path,
        text,
        clusters: args.cluster,
        run,
        quantized: args.quantize.clone(),
    })
}
