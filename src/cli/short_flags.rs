//! llama.cpp's flags of one dash and several letters, which clap does not know, become aliases of
//! flags with two dashes before clap sees them.

use std::ffi::OsString;

use super::{args, names};

/// llama.cpp's flags that `kl` does not have, and that clap would read as flags of one letter: `-h -f`.
/// In their long form they are refused.
const NOT_HERE: [(&str, &str); 3] = [
    ("-hft", "--hf-token"),
    ("-mu", "--model-url"),
    ("-tb", "--threads-batch"),
];

/// The spellings with one dash, as `-ngl`: the aliases that are one word.
fn known() -> Vec<String> {
    let command = args::command();
    let flags = command.get_arguments();
    let aliases = flags.filter_map(clap::Arg::get_all_aliases).flatten();
    let words = aliases.filter(|alias| alias.chars().all(char::is_alphabetic));
    words.map(|alias| format!("-{alias}")).collect()
}

/// Gives every such flag a second dash, in `-ngl=9` and `-ngl9` as well as in `-ngl 9`, and makes paths of
/// names. What follows `--` stays as it is.
///
/// # Errors
/// A name of a file that belongs to no name of a repository.
pub fn expand(args: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let known = known();
    let mut args: Vec<OsString> = args.into_iter().collect();
    let literal = names::literal_from(&args);
    for arg in args.iter_mut().take(literal) {
        let long = arg.to_str().and_then(|arg| long_form(arg, &known));
        if let Some(long) = long {
            *arg = long.into();
        }
    }
    names::as_paths(args)
}

fn long_form(arg: &str, known: &[String]) -> Option<String> {
    let flag = arg.split('=').next().unwrap_or(arg);
    if let Some((_, long)) = NOT_HERE.iter().find(|(short, _)| *short == flag) {
        return Some(format!("{long}{}", arg.strip_prefix(flag)?));
    }
    // A number may follow without a space, as in `-ngl99`.
    let word = flag.trim_end_matches(|c: char| c.is_ascii_digit());
    if !known.iter().any(|known| known == word) {
        return None;
    }
    let value = arg.strip_prefix(word)?;
    let is_apart = value.is_empty() || value.starts_with('=');
    let between = if is_apart { "" } else { "=" };
    Some(format!("-{word}{between}{value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_llama_cpp_get_a_second_dash() {
        assert_eq!(known().len(), 18);
        for (line, expected) in [
            ("kl -ngl 99", "kl --ngl 99"),
            ("-ngl=99", "--ngl=99"),
            ("-ngl99 -c4096", "--ngl=99 -c4096"),
            ("-n 9 -m a-ngl", "-n 9 -m a-ngl"),
            ("-ub512x", "-ub512x"),
            ("-hf=a/b", "--model=hf:a/b"),
            ("-- -ngl", "-- -ngl"),
            ("-- -hf a/b --hf a/b", "-- -hf a/b --hf a/b"),
            (
                "-hf a/b -- -hff c hf:a/b",
                "--model=hf:a/b -- -hff c hf:a/b",
            ),
        ] {
            let args = expand(line.split(' ').map(OsString::from)).unwrap();
            let args = args.into_iter().map(|arg| arg.into_string().unwrap());
            assert_eq!(args.collect::<Vec<_>>().join(" "), expected);
        }
    }
}
