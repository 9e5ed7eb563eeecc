//! Turns flags into checked settings. clap checks each value by its type, and which flags exclude or
//! need each other; one function per command here checks how the values go together; the command
//! checks what needs the contents of files.

mod evaluate;
mod input;
mod paths;
mod recipe;
mod sensitivity;
#[cfg(test)]
mod tests;
mod write;

use std::slice::from_ref;

use kl_formats::Kind;

use super::args::{
    Args, Cli, ContextArgs, ConvertArgs, DeviceArgs, InfoArgs, MergeArgs, ReportArgs, Subcommand,
};
use crate::commands::is_listed;
use crate::commands::output::Existing;
use crate::commands::settings::{
    CompareSettings, ConvertSettings, EvaluateSettings, MAX_THREADS, MergeSettings, RecipeSettings,
    ReferenceSource, RunSettings, SensitivitySettings, WriteSettings,
};
use crate::engine::ModelOptions;
pub use sensitivity::SensitivityOutputs;

/// A checked call of the program.
#[derive(Debug)]
pub struct Call {
    pub command: Command,
    /// Set if only results, warnings and errors are printed.
    pub quiet: bool,
    /// Set if the machine and llama.cpp's log are shown.
    pub verbose: bool,
}

/// A command, with all that it needs to run.
#[derive(Debug)]
pub enum Command {
    Write(WriteSettings),
    Evaluate(EvaluateSettings),
    Info(InfoArgs),
    Convert(ConvertSettings),
    Merge(MergeSettings),
    Compare(CompareSettings),
    /// With the form that is printed.
    Report(ReportArgs, Form),
    Sensitivity(Box<SensitivitySettings>, SensitivityOutputs),
    Recipe(RecipeSettings),
    /// The servers whose devices are listed too.
    ListDevices(Vec<String>),
    /// The servers to try.
    Doctor(Vec<String>),
}

/// A form of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Markdown,
    ModelCard,
    Json,
    Csv,
    Page,
}

impl Call {
    /// Checks how the flags of a call go together.
    ///
    /// # Errors
    /// What is wrong and what to do, in one line.
    pub fn new(cli: Cli) -> Result<Self, String> {
        let mut verbose = cli.classic.verbose;
        let (quiet, command) = match cli.subcommand {
            None => (cli.classic.quiet, classic(cli.classic)?),
            Some(Subcommand::Info(args)) => (args.quiet, Command::Info(args)),
            Some(Subcommand::Convert(args)) => (args.quiet, convert(args)?),
            Some(Subcommand::Merge(args)) => (args.quiet, merge(args)?),
            Some(Subcommand::Compare(args)) => (args.quiet, evaluate::compare(args)?),
            Some(Subcommand::Report(args)) => (args.quiet, report(args)?),
            Some(Subcommand::Sensitivity(args)) => {
                verbose = args.verbose;
                (args.quiet, sensitivity::sensitivity(*args)?)
            }
            Some(Subcommand::Recipe(args)) => {
                verbose = args.verbose;
                (args.quiet, recipe::recipe(*args)?)
            }
            Some(Subcommand::Doctor(args)) => (false, Command::Doctor(args.rpc)),
        };
        Ok(Self {
            command,
            quiet,
            verbose,
        })
    }
}

/// Refuses a call.
fn wrong<T>(message: impl Into<String>) -> Result<T, String> {
    Err(message.into())
}

/// The command of a classic call. clap has already refused flags for writing beside flags for
/// evaluating, and an input beside a reference that is read.
fn classic(mut args: Args) -> Result<Command, String> {
    check_devices("--device", &args.devices.device)?;
    check_devices("--ref-device", &args.evaluate.ref_device)?;
    if args.list_devices {
        return Ok(Command::ListDevices(args.devices.rpc));
    }
    if let Some(path) = args.evaluate.read_path.take() {
        let (n_ctx, inputs) = (args.n_ctx, vec![path.clone()]);
        return evaluate::evaluate(args, ReferenceSource::File { path, n_ctx }, inputs);
    }
    let sampling = input::sampling(&args.input, &mut args.results.top_k)?;
    if let (Some(_), Some(_)) = (&args.write.write_path, args.results.top_k) {
        return wrong(
            "--top-k with -w needs --temp, for which it chooses among tokens: leave it out, or give \
             it when you evaluate, to list the most divergent tokens",
        );
    }
    let input = input::input(&mut args.input, args.write.format, args.n_ctx, sampling)?;
    let (output, ref_model) = (args.write.write_path.take(), args.evaluate.ref_model.take());
    match (input, output, ref_model) {
        (Some(input), None, Some(model)) => evaluate::against_model(args, input, model),
        (Some(input), Some(output), _) => write::write(args, input, output),
        (Some(_), None, None) => wrong(
            "nothing to do: -t and --prompts need -w REF to write a reference, or --ref-model \
             MODEL to evaluate against it",
        ),
        (None, Some(_), _) => wrong("no text: -w needs -t TEXT or --prompts PROMPTS"),
        (None, None, Some(_)) => wrong("no text: --ref-model needs -t TEXT or --prompts PROMPTS"),
        (None, None, None) => wrong(
            "nothing to do: give -t TEXT -w REF to write a reference, or -r REF or -t TEXT \
             --ref-model MODEL to evaluate against one",
        ),
    }
}

/// Checks a list of devices: each is named once, and `none` stands alone.
fn check_devices(flag: &str, names: &[String]) -> Result<(), String> {
    for (i, name) in names.iter().enumerate() {
        if names.iter().take(i).any(|earlier| earlier == name) {
            return wrong(format!("{flag}: names {name} twice: name each device once"));
        }
        if name == "none" && names.len() > 1 {
            return wrong(format!(
                "{flag}: 'none' means the CPU alone: leave it out, or leave out the others"
            ));
        }
    }
    Ok(())
}

fn convert(args: ConvertArgs) -> Result<Command, String> {
    if args.encoding.is_some() && args.format != Kind::Kl {
        return wrong("--encoding needs --format kl: every other format has its own");
    }
    paths::check(from_ref(&args.input), |_| false, from_ref(&args.output))?;
    Ok(Command::Convert(ConvertSettings {
        target: write::target(args.format, args.encoding)?,
        input: args.input,
        output: args.output,
        bos: args.bos,
        threads: default_threads(),
        existing: Existing::asked(args.force, None),
    }))
}

fn merge(args: MergeArgs) -> Result<Command, String> {
    if paths::is_among(&args.output, &args.parts) {
        return wrong(format!(
            "{}: is the output, and among the parts: name the parts so that a pattern for them does not match it, as in ref.*.gz",
            args.output.display()
        ));
    }
    paths::check(&args.parts, |_| false, from_ref(&args.output))?;
    Ok(Command::Merge(MergeSettings {
        output: args.output,
        parts: args.parts,
        // Without --resume, a file that is there is not one that could be continued.
        existing: Existing::asked(args.force, args.resume.then_some(true)),
    }))
}

/// Chooses the form that is printed, and leaves the files among the outputs.
fn report(mut args: ReportArgs) -> Result<Command, String> {
    let [json, csv] = [&mut args.json, &mut args.csv]
        .map(|path| path.take_if(|path| path.as_os_str() == "-").is_some());
    let printed = [
        (args.markdown, Form::Markdown),
        (args.model_card, Form::ModelCard),
        (json, Form::Json),
        (csv, Form::Csv),
    ];
    let mut printed = printed.into_iter().filter(|(is_asked, _)| *is_asked);
    let form = printed.next().map_or(Form::Text, |(_, form)| form);
    if printed.next().is_some() {
        return wrong(
            "only one of --markdown, --model-card, --json - and --csv - can go to stdout: \
             name a file for the other",
        );
    }
    for condition in &args.fail_if {
        let expression = condition.expression();
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
    paths::check_distinct(&[
        ("--json", args.json.as_ref()),
        ("--csv", args.csv.as_ref()),
        ("--html", args.html.as_ref()),
    ])?;
    let written = [&args.json, &args.csv, &args.html].into_iter().flatten();
    let written: Vec<_> = written.cloned().collect();
    paths::check(&args.paths, is_listed, &written)?;
    Ok(Command::Report(args, form))
}

/// Settings of a model's run in a classic call, to write a reference or to be evaluated.
fn classic_run(args: &Args) -> RunSettings {
    let mut run = run_settings(&args.devices, &args.context);
    run.model.use_mmap = (args.mmap || args.no_mmap).then_some(args.mmap);
    run.max_rows = max_rows(args.n_tokens);
    run
}

/// Settings of a model's run over all rows.
fn run_settings(devices: &DeviceArgs, context: &ContextArgs) -> RunSettings {
    let model = ModelOptions {
        n_gpu_layers: devices.n_gpu_layers,
        room: None,
        split_mode: devices.split_mode,
        main_gpu: devices.main_gpu,
        devices: devices.device.clone(),
        tensor_split: devices.tensor_split.clone().unwrap_or_default(),
        tensor_overrides: devices.override_tensor.clone(),
        n_cpu_moe: match devices.cpu_moe {
            true => u32::MAX,
            false => devices.n_cpu_moe.unwrap_or_default(),
        },
        use_mmap: None,
        use_mlock: devices.mlock,
        no_kv_offload: devices.no_kv_offload,
        no_op_offload: devices.no_op_offload,
        is_exchangeable: false,
        is_vocabulary: false,
    };
    RunSettings {
        model,
        rpc: devices.rpc.clone(),
        n_batch: context.n_batch,
        n_ubatch: context.n_ubatch,
        n_parallel: context.parallel,
        threads: context.threads.unwrap_or_else(default_threads),
        flash_attn: context.flash_attn,
        type_k: context.cache_type_k,
        type_v: context.cache_type_v,
        contexts: context.contexts,
        max_rows: None,
    }
}

/// Threads that compute where `--threads` names no other number: one for each physical core that
/// this process may use, since more would wait for each other.
pub fn default_threads() -> u32 {
    let n = num_cpus::get_physical().min(num_cpus::get());
    (n as u32).min(MAX_THREADS)
}

/// `--n-tokens`, which has been parsed to -1 or a positive number.
fn max_rows(n_tokens: i64) -> Option<u64> {
    u64::try_from(n_tokens).ok()
}
