//! llama.cpp's single-dash long flags, which clap does not know, become the `--long` forms before
//! clap sees them.

use std::ffi::OsString;

/// llama.cpp's spelling, and the long flag that it stands for.
pub const SHORT_FLAGS: [(&str, &str); 14] = [
    ("-ngl", "--n-gpu-layers"),
    ("-ub", "--n-ubatch"),
    ("-fa", "--flash-attn"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sm", "--split-mode"),
    ("-ts", "--tensor-split"),
    ("-mg", "--main-gpu"),
    ("-dev", "--device"),
    ("-ot", "--override-tensor"),
    ("-cmoe", "--cpu-moe"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-nkvo", "--no-kv-offload"),
    ("-np", "--parallel"),
];

/// Other spellings from kl.py and llama.cpp: with underscores, or another name for the same flag.
const ALIASES: [(&str, &str); 11] = [
    ("--text_path", "--text-path"),
    ("--write_path", "--write-path"),
    ("--read_path", "--read-path"),
    ("--n_ctx", "--n-ctx"),
    ("--n_batch", "--n-batch"),
    ("--n_tokens", "--n-tokens"),
    ("--n_gpu_layers", "--n-gpu-layers"),
    ("--ctx-size", "--n-ctx"),
    ("--batch-size", "--n-batch"),
    ("--ubatch-size", "--n-ubatch"),
    ("--gpu-layers", "--n-gpu-layers"),
];

/// llama.cpp's flags that `kl` does not have, and that clap would read as flags of one letter: `-h -f`.
/// In their long form they are refused.
const NOT_HERE: [(&str, &str); 6] = [
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hft", "--hf-token"),
    ("-mu", "--model-url"),
    ("-tb", "--threads-batch"),
];

/// Replaces every flag of the tables with its long form, in `-ngl=9` and `-ngl9` as well as in
/// `-ngl 9`. What follows `--` stays as it is.
pub fn expand(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    args.into_iter()
        .map(|arg| {
            literal |= arg == "--";
            if literal { arg } else { long_form(arg) }
        })
        .collect()
}

fn long_form(arg: OsString) -> OsString {
    let Some(text) = arg.to_str() else { return arg };
    let (flag, value) = match text.split_once('=') {
        Some((flag, value)) => (flag, Some(value)),
        None => (text, None),
    };
    let mut table = SHORT_FLAGS.iter().chain(&ALIASES).chain(&NOT_HERE);
    match (table.find(|(short, _)| *short == flag), value) {
        (Some((_, long)), Some(value)) => format!("{long}={value}").into(),
        (Some((_, long)), None) => (*long).into(),
        (None, _) => with_number(text).map_or(arg, Into::into),
    }
}

/// The long form of a flag that a number follows without a space, as in `-ngl99`.
fn with_number(text: &str) -> Option<String> {
    let flag = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = text
        .strip_prefix(flag)
        .filter(|number| !number.is_empty())?;
    let (_, long) = SHORT_FLAGS.iter().find(|(short, _)| *short == flag)?;
    Some(format!("{long}={number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args;
    use crate::engine::GpuLayers;

    fn expanded(args: &[&str]) -> Vec<String> {
        expand(args.iter().map(OsString::from))
            .into_iter()
            .map(|arg| arg.into_string().unwrap())
            .collect()
    }

    #[test]
    fn every_entry_leads_to_an_existing_flag() {
        let command = args::command();
        for (short, long) in SHORT_FLAGS.iter().chain(&ALIASES) {
            let name = long.strip_prefix("--").unwrap();
            assert!(
                command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some(name)),
                "{short} leads to {long}, which is not a flag"
            );
        }
    }

    #[test]
    fn flags_of_llama_cpp_become_long_ones() {
        assert_eq!(
            expanded(&["kl", "-ngl", "99"]),
            ["kl", "--n-gpu-layers", "99"]
        );
        assert_eq!(expanded(&["-ngl=99"]), ["--n-gpu-layers=99"]);
        assert_eq!(
            expanded(&["-ngl99", "-c4096"]),
            ["--n-gpu-layers=99", "-c4096"]
        );
        assert_eq!(
            expanded(&["-n", "9", "-m", "a-ngl"]),
            ["-n", "9", "-m", "a-ngl"]
        );
        assert_eq!(expanded(&["--", "-ngl"]), ["--", "-ngl"]);
    }

    #[test]
    fn the_classic_call_is_understood() {
        let args = expand(
            "kl -m q4.gguf -m q2.gguf -r ref.gz -ngl 99 -ub 64 -fa on -ctk q8_0 -n -1 -dev CUDA0,CUDA1"
                .split(' ')
                .map(OsString::from),
        );
        let args = args::parse(&args).unwrap().classic;
        assert_eq!(args.model.len(), 2);
        assert_eq!(args.devices.n_gpu_layers, GpuLayers::Count(99));
        assert_eq!(args.context.n_ubatch, Some(64));
        assert_eq!(args.devices.device, ["CUDA0", "CUDA1"]);
        assert_eq!(args.n_tokens, -1);
    }
}
