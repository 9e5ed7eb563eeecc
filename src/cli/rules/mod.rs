//! Checks how the flags of a call go together. clap checks each value by its type, and which flags
//! exclude or need each other; one function per command here checks the rest; the command checks what
//! needs the contents of files.

mod classic;
mod paths;
mod pick;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use kl_formats::{Encoding, Kind, Target};

use super::args::{
    Cli, Command, CompareArgs, ConvertArgs, MergeArgs, RecipeArgs, ReportArgs, SensitivityArgs,
};
use super::request::Request;
use super::request::check::CheckRequest;
use super::request::compare::CompareRequest;
use super::request::convert::ConvertRequest;
use super::request::merge::MergeRequest;
use super::request::recipe::RecipeRequest;
use super::request::report::ReportRequest;
use super::request::sensitivity::SensitivityRequest;
use crate::commands::is_listed;
use crate::commands::output::Existing;
use crate::commands::settings::{
    CompareSettings, ConvertSettings, ResultSettings, Sweep, default_threads,
};
use crate::engine::ModelOptions;
use classic::{check_results, labels};

/// Checks how the flags of a call go together.
///
/// # Errors
/// What is wrong and what to do, in one line.
pub fn check(cli: Cli) -> Result<Box<dyn Request>, String> {
    let Some(command) = cli.command else {
        return classic::check(cli.classic);
    };
    Ok(match command {
        Command::Pick(args) => Box::new(pick::check(*args)?),
        Command::Info(args) => Box::new(args),
        Command::Convert(args) => Box::new(convert(args)?),
        Command::Merge(args) => Box::new(merge(args)?),
        Command::Compare(args) => Box::new(compare(*args)?),
        Command::Report(args) => Box::new(report(args)?),
        Command::Sensitivity(args) => Box::new(sensitivity(*args)?),
        Command::Recipe(args) => Box::new(recipe(*args)?),
        Command::Check(args) => Box::new(CheckRequest::from(*args)),
        Command::Doctor(args) => Box::new(args),
    })
}

/// Refuses a call.
fn wrong<T>(message: impl Into<String>) -> Result<T, String> {
    Err(message.into())
}

/// Checks a list of devices: each is named once, and `none` stands alone.
fn check_devices(flag: &str, names: &[String]) -> Result<(), String> {
    for (i, name) in names.iter().enumerate() {
        if names.iter().take(i).any(|earlier| earlier == name) {
            return wrong(format!("{flag}: names {name} twice: name each device once"));
        }
        if name == ModelOptions::NO_DEVICE && names.len() > 1 {
            return wrong(format!(
                "{flag}: 'none' means the CPU alone: leave it out, or leave out the others"
            ));
        }
    }
    Ok(())
}

fn convert(args: ConvertArgs) -> Result<ConvertRequest, String> {
    if args.encoding.is_some() && args.format != Kind::Kl {
        return wrong("--encoding needs --format kl: every other format has its own");
    }
    paths::check([&args.input], |_| false, [&args.output])?;
    Ok(ConvertRequest(ConvertSettings {
        target: target(args.format, args.encoding)?,
        input: args.input,
        output: args.output,
        bos: args.bos,
        existing: Existing::by_flags(args.force, None),
        threads: default_threads(),
    }))
}

/// A kind of file, and how it is to store rows.
///
/// # Errors
/// An encoding that the format does not have.
fn target(kind: Kind, encoding: Option<Encoding>) -> Result<Target, String> {
    let target =
        Target::new(kind, encoding).map_err(|error| format!("--encoding: {error}: omit it"))?;
    if target == Target::LlamaCpp && encoding.is_some() {
        return wrong(format!(
            "--format {kind} always stores 16-bit log-probabilities: omit --encoding"
        ));
    }
    Ok(target)
}

fn merge(args: MergeArgs) -> Result<MergeRequest, String> {
    if paths::is_among(&args.output, &args.parts) {
        return wrong(format!(
            "{}: is the output, and among the parts: name the parts so that a pattern for them does not match it, as in ref.*.gz",
            args.output.display()
        ));
    }
    paths::check(&args.parts, |_| false, [&args.output])?;
    Ok(MergeRequest(args.into()))
}

fn compare(args: CompareArgs) -> Result<CompareRequest, String> {
    let (json, detail) = (args.results.json.clone(), args.results.detail());
    let results = ResultSettings {
        labels: labels(&args.others, &args.results.label)?,
        reference: args.reference.clone(),
        existing: Existing::by_flags(args.force, None),
        ..args.results.into()
    };
    let inputs = vec![args.reference.clone()];
    check_results(
        &results,
        json.as_ref(),
        &args.others,
        &Sweep::none(false),
        inputs,
    )?;
    let settings = CompareSettings {
        reference: args.reference,
        others: args.others,
        max_rows: args.max_rows,
        vocabulary: args.vocabulary,
        threads: default_threads(),
        results,
    };
    Ok(CompareRequest {
        settings,
        json,
        detail,
    })
}

fn report(args: ReportArgs) -> Result<ReportRequest, String> {
    let is_printed = |path: &Option<PathBuf>| path.as_deref().is_some_and(paths::is_dash);
    let (json, csv) = (is_printed(&args.json), is_printed(&args.csv));
    let printed = [args.markdown, args.model_card, json, csv];
    if printed.into_iter().filter(|is_asked| *is_asked).count() > 1 {
        return wrong(
            "only one of --markdown, --model-card, --json - and --csv - can go to stdout: name a file \
         for the other",
        );
    }
    for condition in &args.fail_if {
        let expression = &condition.expression;
        if args.pair && !condition.is_of_pair() {
            return wrong(format!(
                "--fail-if '{expression}': names a number of one model: leave --pair out, or name one of two, as in 'ratio.upper > 1.05'"
            ));
        } else if !args.pair && !condition.is_of_model() {
            return wrong(format!(
                "--fail-if '{expression}': names a number of two models: add --pair"
            ));
        }
    }
    let outputs = [&args.json, &args.csv, &args.html];
    paths::check(&args.paths, is_listed, outputs.into_iter().flatten())?;
    Ok(args.into())
}

fn sensitivity(args: SensitivityArgs) -> Result<SensitivityRequest, String> {
    check_devices("--device", &args.run.model.devices)?;
    let files = [&args.imatrix, &args.read_path, &args.text_path];
    let inputs = files.into_iter().flatten().chain([&args.model]);
    let results = [&args.json, &args.csv, &args.html];
    let outputs = results.into_iter().flatten().chain([&args.output]);
    paths::check(inputs, |_| false, outputs)?;
    Ok(args.into())
}

fn recipe(args: RecipeArgs) -> Result<RecipeRequest, String> {
    check_devices("--device", &args.run.model.devices)?;
    if args.model.is_some() && args.text_path.is_none() && args.quantize.is_none() {
        return wrong(
            "nothing to do with -m: give -t TEXT to measure the recipe, or --quantize OUT to write its file",
        );
    }
    let models = [&args.like, &args.model];
    let files = [&args.text_path, &args.imatrix, &args.report];
    let inputs = files.into_iter().chain(models).flatten();
    let results = [&args.output, &args.json, &args.html, &args.quantize];
    let outputs = results.into_iter().flatten();
    paths::check(inputs.chain([&args.map]), |_| false, outputs)?;
    args.try_into()
}
