//! The words of clap: help as it is, an error in one line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{EXIT_USAGE, args};

/// Prints clap's help, or its error about `args`, and returns the exit code.
pub fn show(error: &Error, args: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is not an error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
    } else {
        say!("kl: {}", one_line(error, args));
    }
    ExitCode::from(EXIT_USAGE)
}

/// An error in one line: what is wrong, a similar name if there is one, and whose help to read.
pub(super) fn one_line(error: &Error, args: &[OsString]) -> String {
    let command = args::command();
    let subcommand = |name: &str| Some(format!("kl {}", command.find_subcommand(name)?.get_name()));
    let called = args.get(1).and_then(|arg| subcommand(arg.to_str()?));
    let called = called.as_deref().unwrap_or("kl");
    if let Some(ContextValue::String(stray)) = error.get(ContextKind::InvalidSubcommand) {
        // After a flag, clap calls any stray argument a subcommand; and a file may come first.
        let is_file = error.kind() == ErrorKind::ArgumentConflict || stray.contains(['.', '/']);
        if let Some(name) = subcommand(stray) {
            return format!("'{stray}' must be the first argument ({name} --help shows how)");
        } else if is_file {
            return format!(
                "unexpected argument '{stray}': each file needs its flag, each model its own -m"
            );
        }
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim);
    let (tips, message): (Vec<&str>, Vec<&str>) = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .partition(|line| line.starts_with("tip:"));
    let message = message.join(" ");
    let message = message.trim().trim_start_matches("error: ");
    // The other tips explain how to pass a flag as a value.
    let similar = tips.iter().find(|tip| tip.contains("similar"));
    let similar = similar.map(|tip| tip.trim_start_matches("tip:").trim().to_owned());
    let hint = hint(error, args).or(similar);
    let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
    let message = plain_words(message);
    format!("{message}{hint} ({called} --help shows the flags)")
}

/// Advice on an error where clap's tip, if it has one, would lead astray.
fn hint(error: &Error, args: &[OsString]) -> Option<String> {
    let named = |kind| error.get(kind).map(ToString::to_string);
    let flag = named(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let of_other_commands = || of_other_commands(&flag?).map(str::to_owned);
            of_other_tools(args).or_else(of_other_commands)
        }
        ErrorKind::ValueValidation => of_other_tools(args),
        ErrorKind::ArgumentConflict if flag == named(ContextKind::PriorArg) => {
            Some("give it once".to_owned())
        }
        ErrorKind::ArgumentConflict => {
            // The order of the two depends on the command line.
            let both = [flag?, named(ContextKind::PriorArg)?];
            let mut names = both.iter().filter_map(|name| name.split(' ').next());
            if !names.clone().any(|name| name == "--read-path") {
                return None;
            }
            let inputs = ["--text-path", "--prompts", "--score", "--stride"];
            let input = names.find(|name| inputs.contains(name))?;
            Some(format!(
                "a reference holds its own text and windows: omit {input}"
            ))
        }
        _ => None,
    }
}

/// Hints for the flags of a command line that are llama-perplexity's, all at once.
fn of_other_tools(args: &[OsString]) -> Option<String> {
    let flags = args
        .iter()
        .filter_map(|arg| arg.to_str()?.split('=').next());
    let hint = |flag| Some(format!("instead of {flag}: {}", of_llama_perplexity(flag)?));
    let mut hints: Vec<_> = flags.filter_map(hint).collect();
    hints.dedup();
    (!hints.is_empty()).then(|| hints.join("; "))
}

/// kl's words for a flag of llama-perplexity.
fn of_llama_perplexity(flag: &str) -> Option<&'static str> {
    Some(match flag {
        "--hf-repo" | "--hf-file" | "--hf-token" | "--model-url" => {
            "kl downloads nothing: get the model first (hf download REPOSITORY FILE --local-dir ., or curl -LO URL), then -m FILE"
        }
        "-f" | "--file" => "the text is -t TEXT",
        "--kl-divergence-base" | "--save-all-logits" => {
            "-w REF writes a reference, -r REF reads one; both can be llama.cpp's"
        }
        "--kl-divergence" => "-r REF evaluates against a reference, llama.cpp's too",
        "--chunks" => "it is --max-windows N",
        "--ppl-stride" => "it is --stride N",
        "--threads-batch" => "it is --threads N",
        "--perplexity" => "every report has the perplexity",
        "-p" | "--prompt" => "prompts are read from --prompts FILE",
        "--jinja" | "--chat-template" => {
            "--prompts uses the model's template, or that of --chat-template-file"
        }
        "--lora" | "--lora-scaled" => "merge the adapter into the model first",
        _ => return None,
    })
}

/// A hint for a flag that this command does not have, but another one.
fn of_other_commands(flag: &str) -> Option<&'static str> {
    Some(match flag {
        "--html" | "--csv" | "--markdown" | "--model-card" | "--pair" => {
            "kl report has it, for the sidecars (.kls) that an evaluation writes"
        }
        "--fail-if" | "--allow-excluded" => "an evaluation (kl -r) and kl compare have it",
        _ => return None,
    })
}

/// A message of clap's without the words of Rust's parsers.
fn plain_words(message: &str) -> String {
    let whole = "expected a whole number";
    let message = message
        .replace("invalid digit found in string", whole)
        .replace("cannot parse integer from empty string", whole)
        .replace(
            "number too large to fit in target type",
            "the number is too large",
        )
        .replace(
            "number too small to fit in target type",
            "the number is too small",
        );
    let simple = in_range(&message).or_else(|| one_of(&message));
    simple.unwrap_or(message)
}

/// A message of clap's about a number that is out of range, with the range in words.
fn in_range(message: &str) -> Option<String> {
    let (start, range) = message.rsplit_once(" is not in ")?;
    let (start, _number) = start.rsplit_once(' ')?;
    let (least, most) = range.split_once("..=")?;
    Some(format!("{start} expected a number from {least} to {most}"))
}

/// A message of clap's about a word that is none of those possible, with these in a sentence.
fn one_of(message: &str) -> Option<String> {
    let (start, words) = message
        .strip_suffix(']')?
        .split_once(" [possible values: ")?;
    let (first, last) = words.rsplit_once(", ")?;
    Some(format!("{start}: expected {first} or {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{settings, short_flags};

    /// Returns what clap prints of a call in a terminal of 80 columns.
    fn printed(line: &str) -> String {
        let command = args::command().term_width(80);
        let mut command = command.mut_subcommands(|subcommand| subcommand.term_width(80));
        let shown = command
            .try_get_matches_from_mut(line.split(' '))
            .unwrap_err();
        shown.render().to_string()
    }

    /// The line on stderr of a call that is refused.
    fn refused(line: &str) -> String {
        let args = short_flags::expand(line.split(' ').map(OsString::from));
        let message = match args::parse(&args) {
            Ok(cli) => settings::check(cli).unwrap_err(),
            Err(error) => one_line(&error, &args),
        };
        assert!(!message.contains('\n'), "{line}: one line");
        message
    }

    #[test]
    fn flags_of_llama_perplexity_are_translated() {
        let hint = |line: &str| {
            let args: Vec<_> = line.split(' ').map(OsString::from).collect();
            of_other_tools(&args).unwrap_or_default()
        };
        assert!(hint("kl -m a --kl-divergence-base=x").contains("-r REF"));
        let both = hint("kl -m a -f wiki.txt --save-all-logits b");
        assert!(
            both.contains("-t TEXT") && both.contains("-w REF"),
            "{both}"
        );
        assert_eq!(hint("kl -m a -t f"), "");
    }

    #[test]
    fn help_fits_80_columns() {
        for (name, line) in [
            ("short", "kl -h"),
            ("long", "kl --help"),
            ("info", "kl info --help"),
            ("convert", "kl convert --help"),
            ("compare", "kl compare --help"),
            ("compare_short", "kl compare -h"),
            ("report", "kl report --help"),
            ("sensitivity", "kl sensitivity --help"),
            ("recipe", "kl recipe --help"),
            ("recipe_short", "kl recipe -h"),
            ("doctor", "kl doctor --help"),
        ] {
            let help = printed(line);
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            insta::assert_snapshot!(name, help);
        }
    }

    #[test]
    fn short_help_fits_a_screen_and_stands_for_no_arguments() {
        assert!(printed("kl -h").lines().count() <= 38);
        assert_eq!(printed("kl"), printed("kl -h"));
        assert_eq!(printed("kl help"), printed("kl --help"));
        assert_eq!(printed("kl help convert"), printed("kl convert --help"));
    }

    #[test]
    fn refusals_name_the_flag_and_what_to_do() {
        let calls = [
            "kl -r ref.gz",
            "kl -m a",
            "kl -m a -t t",
            "kl -m a -w w",
            "kl -m a -t t -r r",
            "kl -m a -w w -r r",
            "kl -m a -t t -w w --json j --top-k 3",
            "kl -m a -r r --score half --stride 4",
            "kl -m a -t t --prompts p -w w",
            "kl -m a -t t -w w --generate 5",
            "kl -m a -t t -w w -c 64 --score 64",
            "kl -m a -t t -w w --format kl.py --resume",
            "kl -m a -t t -w w --format kl.py --score half",
            "kl -m a -t t -w w --format kl.py --encoding hidden",
            "kl -m a -t t -w w --format llama.cpp -n 9",
            "kl -m a -t t -w w --format llama.cpp -c 2",
            "kl -m a -t t -w w --format llama.cpp --score all",
            "kl -m a -t t -w w --format llama.cpp --stride 4",
            "kl -m a -t t -w w --shard 0/2 --format kl.py",
            "kl -m a -t t -w w --span a=b..c",
            "kl -m a -t t -w w --score answers",
            "kl -m a --prompts p -w w --format kl.py",
            "kl -m a --prompts p -w w --score half",
            "kl -m a --prompts p -w w --span a=b..c",
            "kl -m a --prompts p -w w --generate 2 --score 3",
            "kl -m a --prompts p -w w --generate 2 --score answers",
            "kl -m a --prompts p -w w --generate 2 --top-p 0.5",
            "kl -m a --prompts p -w w --temp 0.7",
            "kl -m a -m b -r r --sidecar s",
            "kl -m a -r r --sidecar s --json ./s",
            "kl -m a -m ./a -r r",
            "kl -m a -m b -t t -w w",
            "kl -m a --ref-model b",
            "kl -m a -t t --ref-model b -r r",
            "kl -m a -t t --ref-model b -w w",
            "kl -m a -t t --ref-model b --format kl.py",
            "kl -m a -t t --ref-model /",
            "kl -m a -t t --ref-model b --json b",
            "kl -m a -t t --ref-model b --json t",
            "kl -m a -t t --ref-model b -c 64 --score 64",
            "kl -m a -t t --ref-model b --shard 0/2 --until 5%",
            "kl -m a --prompts p --generate 5 --ref-model b --shard 0/2",
            "kl -m a -r r --ref-ngl 9",
            "kl -m a -r r --ref-device CUDA0",
            "kl -m a -t 4 -r r",
            "kl -m a -t x=t -t y -w w",
            "kl -m a -t x= -w w",
            "kl -m a -t x=- -t y=- -w w",
            "kl -m a -t x=t -w w --format kl.py",
            "kl -m a -m b -r r --label x",
            "kl -m a -m b -r r --label x --label x",
            "kl -m a -r r --label x/y",
            "kl -m a -r r --label .x",
            "kl -m a -t t -w w -c 1",
            "kl -m a -t t -w -",
            "kl -m a -r r -r s",
            "kl -m a --ref-model b -t t --ref-model c",
            "kl -m a -t t -w w -c 64 --n-ctx 128",
            "kl -m a -t t -w w -c -1",
            "kl -m a -r r -b -1 -ub -1",
            "kl -m a -r r --threads -1",
            "kl -m a -t t -w w --max-windows -1",
            "kl -m a -r r -q -q --top-k 0",
            "kl report a --json b --json c",
            "kl -m a -r r -n 0",
            "kl -m a -r r -b 0",
            "kl -m a -r r -ngl many",
            "kl -m a -r r -ngl 4000000000",
            "kl -m a -r r -mg x",
            "kl -m a -r r -dev none,none",
            "kl -m a -r r -dev ,",
            "kl -m a -r r -dev CUDA0,CUDA0",
            "kl -m a -t t --ref-model b --ref-device none,CUDA0",
            "kl -m a -r r --rpc a,,b",
            "kl -m a -r r --rpc :50052",
            "kl -m a -f t -w w",
            "kl -m a -f t --save-all-logits b",
            "kl -hf a/b -r r",
            "kl -m a -mu https://example.org/a.gguf -r r",
            "kl -m org/model-GGUF:Q4_K_M -r r",
            "kl -m hf://org/model-GGUF/a.gguf -r r",
            "kl -m https://example.org/a.gguf -r r",
            "kl -m none*.gguf -r r",
            "kl -m a -t https://example.org/wiki.txt -w w",
            "kl report none*.kls",
            "kl -m a -r r --file t",
            "kl -m a -r r --html x",
            "kl report a --fail-if x",
            "kl -m a -r r --lora l",
            "kl -m a -r r --temp 0",
            "kl -m a -r r -tb 4",
            "kl -m a -r r -ub512x",
            "kl a.gguf t.txt",
            "kl -m a --kl-divergence-base r",
            "kl -m a -r r -ctk q9_0",
            "kl -m a -r r --sweep ctk=f16,q9_0",
            "kl -m a -r r --sweep ctk=f16 b.gguf",
            "kl -m a -r r --sweep ctk=f16 -ctv q8_0",
            "kl -m a -r r -ts 1,-1",
            "kl -m a -r r -ts 0,0",
            "kl -m a -r r -ot blk",
            "kl -m a -r r -ncmoe -1",
            "kl -m a -r r -sm rows",
            "kl -m a -r r --threads 513",
            "kl -m a -r r --threads 100000",
            "kl -m a -r r --threads 0",
            "kl -m a -r r --resume --force",
            "kl -m a -r r --json-tokens",
            "kl -m a -r r --json r",
            "kl -m a -r r --vocab all",
            "kl -m a -r r --confidence 95",
            "kl -m a -r r --fail-if same_top<0.9",
            "kl -m a -r r --fail-if ratio.upper>1",
            "kl report a --pair --fail-if kld.mean>1",
            "kl -m a -r r --fail-if kld.men>1",
            "kl -m a -r r --fail-if logits.mean_abs_diff.mean>1",
            "kl -m a -r r --no-sidecars",
            "kl -m a -t t -w w --format gguf",
            "kl -m a -t t -w w --format llama.cpp --encoding u16",
            "kl -m a -r r b.gguf",
            "kl -m a convert in out",
            "kl a.gguf",
            "kl convret in out",
            "kl convert in out",
            "kl convert in out --format kl.py --encoding f32",
            "kl convert in in --format kl.py",
            "kl merge out a --resume --force",
            "kl convert in out --format kl --encoding nope",
            "kl convert in out --format kl --encoding hidden",
            "kl compare a",
            "kl compare a b --vocab tokenizer",
            "kl info",
            "kl report",
            "kl report a --markdown --csv -",
            "kl report a --pair --html p",
            "kl report a --fail-if ratio.upper>1",
            "kl report a --pair --fail-if ratio.uper>1",
            "kl report a --html -",
            "kl recipe map",
            "kl recipe map --size 4.2X",
            "kl recipe map --bpw 0",
            "kl recipe map --bpw 4.5 --size 4G",
            "kl recipe map --bpw 4.5 --types q4_k,q9_K",
            "kl recipe map --bpw 4.5 -t text",
            "kl recipe map --bpw 4.5 -m a",
            "kl recipe map --bpw 4.5 -m a --quantize a",
            "kl recipe map --bpw 4.5 -m a --quantize q -w q",
            "kl recipe map --like b -w b",
            "kl report a --json a",
        ];
        let lines = calls.map(|call| format!("$ {call}\nkl: {}\n", refused(call)));
        insta::assert_snapshot!("refusals", lines.join("\n"));
    }
}
