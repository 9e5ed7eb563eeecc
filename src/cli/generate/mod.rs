//! `kl --generate KIND`: the man page, and completions for shells. They are made from the flags
//! themselves, and go to stdout, so that they are there however `kl` was installed.

mod man;

use std::ffi::OsString;

use clap_complete::Shell;

use super::args;

/// What can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Man,
    Completions(Shell),
}

/// The names of what can be generated, as ripgrep has them.
const KINDS: [(&str, Kind); 4] = [
    ("man", Kind::Man),
    ("complete-bash", Kind::Completions(Shell::Bash)),
    ("complete-zsh", Kind::Completions(Shell::Zsh)),
    ("complete-fish", Kind::Completions(Shell::Fish)),
];

/// What the call `kl --generate KIND` asks for; `None` for any other call. Beside other flags, and
/// with a number, `--generate` is the flag of prompts.
///
/// # Errors
/// A kind that does not exist: what to write instead.
pub fn asked(args: &[OsString]) -> Option<Result<Kind, String>> {
    let args: Option<Vec<&str>> = args.iter().skip(1).map(|arg| arg.to_str()).collect();
    let name = match *args?.as_slice() {
        ["--generate", name] => name,
        [arg] => arg.strip_prefix("--generate=")?,
        _ => return None,
    };
    if name.parse::<i64>().is_ok() || name.starts_with('-') {
        return None;
    }
    let found = KINDS.iter().find(|(known, _)| *known == name);
    Some(found.map(|(_, kind)| *kind).ok_or_else(|| {
        let names = KINDS.map(|(name, _)| name).join(", ");
        format!(
            "--generate {name}: expected one of {names}; or, beside --prompts-file, a number of tokens"
        )
    }))
}

/// The man page in roff, or a script that a shell loads.
pub fn text(kind: Kind) -> String {
    match kind {
        Kind::Man => man::page(),
        Kind::Completions(shell) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::command(), "kl", &mut script);
            String::from_utf8_lossy(&script).into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Option<Result<Kind, String>> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        super::asked(&args)
    }

    #[test]
    fn only_a_call_of_its_own_generates() {
        assert_eq!(asked("kl --generate man"), Some(Ok(Kind::Man)));
        let zsh = Kind::Completions(Shell::Zsh);
        assert_eq!(asked("kl --generate=complete-zsh"), Some(Ok(zsh)));
        assert_eq!(asked("kl --generate 64"), None);
        assert_eq!(asked("kl --generate"), None);
        assert_eq!(asked("kl -m a --generate man"), None);
        let error = asked("kl --generate complete-tcsh").unwrap().unwrap_err();
        assert!(error.contains("complete-fish"), "{error}");
    }
}
