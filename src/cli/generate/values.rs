//! What the value of each flag can be, for completions.

use clap::Arg;

use crate::engine::CacheType;

/// What completes the value of a flag or an argument.
#[derive(Debug, PartialEq, Eq)]
pub enum Values {
    /// Folders, and files whose names end so.
    Ending(&'static str),
    /// Files and folders.
    Files,
    Words(Vec<String>),
    /// Nothing: a number, or a name of the user's own.
    Free,
}

/// Words of flags whose value name does not list them.
const WORDS: [(&str, &str); 5] = [
    ("n_gpu_layers", "all auto"),
    ("ref_ngl", "all auto"),
    ("device", "none"),
    ("split_mode", "none layer row tensor"),
    ("stats", "llama-perplexity logits"),
];

/// Models, and the evaluations that `kl report` compares.
const ENDINGS: [(&str, &str); 3] = [("model", "gguf"), ("ref_model", "gguf"), ("paths", "kls")];

/// What completes the value of this flag or argument.
pub fn values(arg: &Arg) -> Values {
    let id = arg.get_id().as_str();
    let name = value_name(arg);
    let possible = arg.get_possible_values();
    if let Some((_, ending)) = ENDINGS.iter().find(|(known, _)| *known == id) {
        Values::Ending(ending)
    } else if let Some((_, words)) = WORDS.iter().find(|(known, _)| *known == id) {
        Values::Words(words.split(' ').map(str::to_owned).collect())
    } else if matches!(id, "cache_type_k" | "cache_type_v") {
        Values::Words(CacheType::names().map(str::to_owned).collect())
    } else if !possible.is_empty() {
        Values::Words(
            possible
                .iter()
                .map(|one| one.get_name().to_owned())
                .collect(),
        )
    } else if name.contains('|') {
        // In `all|half|new|N`, the N stands for a number.
        let words = name.split('|').filter(|word| !is_placeholder(word));
        Values::Words(words.map(str::to_owned).collect())
    } else if arg.is_positional() || name == "PATH" {
        Values::Files
    } else {
        Values::Free
    }
}

/// The name of the value, as in `--model <PATH>`.
pub fn value_name(arg: &Arg) -> &str {
    let names = arg.get_value_names().unwrap_or_default();
    names.first().map_or("", |name| name.as_str())
}

fn is_placeholder(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;
    use crate::cli::args;

    #[test]
    fn every_word_is_accepted() {
        let mut n_words = 0;
        for arg in args::command().get_opts() {
            let Values::Words(words) = values(arg) else {
                continue;
            };
            for word in words {
                let flag = format!("--{}={word}", arg.get_long().unwrap());
                let parsed = args::command().try_get_matches_from(["kl", &flag]);
                let kind = parsed.err().map(|error| error.kind());
                assert!(
                    !matches!(
                        kind,
                        Some(ErrorKind::ValueValidation | ErrorKind::InvalidValue)
                    ),
                    "{flag}"
                );
                n_words += 1;
            }
        }
        assert!(n_words > 40);
    }

    #[test]
    fn tables_name_flags_that_exist() {
        let command = args::command();
        let report = command.find_subcommand("report").unwrap();
        let ids = || command.get_arguments().chain(report.get_arguments());
        for (id, _) in WORDS.iter().chain(&ENDINGS) {
            assert!(ids().any(|arg| arg.get_id() == id), "{id}");
        }
    }
}
