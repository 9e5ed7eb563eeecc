//! `kl --generate KIND`: the man page, and completions for shells. They are made from the flags
//! themselves, and go to stdout, so that they are there however `kl` was installed.

mod man;

use std::ffi::OsString;

use clap::{Arg, Command};
use clap_complete::Shell;

use super::args;

/// The text that the call `kl --generate KIND` asks for: the man page in roff, or the script that a shell
/// loads, by the names that ripgrep has for them; `None` for any other call. Beside other flags, and with a
/// number, `--generate` is the flag of prompts.
///
/// # Errors
/// A kind that does not exist: what to write instead.
pub fn asked(args: &[OsString]) -> Option<Result<String, String>> {
    let args: Option<Vec<&str>> = args.iter().skip(1).map(|arg| arg.to_str()).collect();
    let name = match *args?.as_slice() {
        ["--generate", name] => name,
        [arg] => arg.strip_prefix("--generate=")?,
        _ => return None,
    };
    if name.parse::<i64>().is_ok() || name.starts_with('-') {
        return None;
    }
    Some(Ok(match name {
        "man" => man::page(),
        "complete-bash" => completions(Shell::Bash, args::command()),
        "complete-zsh" => completions(Shell::Zsh, args::command()),
        "complete-fish" => completions(Shell::Fish, args::command().mut_args(for_fish)),
        _ => {
            return Some(Err(format!(
                "--generate {name}: expected one of man, complete-bash, complete-zsh, complete-fish; \
                 or, beside --prompts, a number of tokens"
            )));
        }
    }))
}

fn completions(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "kl", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// A flag as fish can read it, which takes `n-ubatch` for a flag `n` that stands for `ubatch`.
fn for_fish(arg: Arg) -> Arg {
    let is_misread =
        arg.get_short().is_none() && arg.get_long().is_some_and(|long| long.starts_with("n-"));
    let mut aliases = arg.get_all_aliases().unwrap_or_default().into_iter();
    match aliases.next().filter(|_| is_misread).map(str::to_owned) {
        Some(alias) => arg.long(alias),
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Option<Result<String, String>> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        super::asked(&args)
    }

    #[test]
    fn only_a_call_of_its_own_generates() {
        let starts = |line, start| asked(line).unwrap().unwrap().starts_with(start);
        assert!(starts("kl --generate man", ".ie "));
        assert!(starts("kl --generate=complete-zsh", "#compdef kl"));
        assert_eq!(asked("kl --generate 64"), None);
        assert_eq!(asked("kl --generate"), None);
        assert_eq!(asked("kl -m a --generate man"), None);
        let error = asked("kl --generate complete-tcsh").unwrap().unwrap_err();
        assert!(error.contains("complete-fish"), "{error}");
    }
}
