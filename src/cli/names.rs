//! Files by name: a path that starts with `hf:` names a model or another file of a hub, and llama.cpp's
//! flags for such names are other spellings of it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::env;
use std::ffi::{OsStr, OsString};
use std::iter;

use anyhow::Result;
use clap::{Arg, Command};
use regex::Regex;

use crate::commands::Shelf;
use crate::hub::{Hub, HubFile, HubStep, Repository};

/// The start of a path that names a file of a hub, which is loaded: `hf:USER/REPO[:QUANT]`, or
/// `hf:USER/REPO/FILE`.
pub const HUB: &str = "hf:";

const MODEL: &str = "--model=";
const REF_MODEL: &str = "--ref-model=";

/// The parts of a name: the repository, and which of its files.
struct HubName {
    /// As in `--model=`; empty where the name is a word of its own.
    flag: String,
    /// As in `bartowski/Llama-3.2-1B-Instruct-GGUF`.
    repository: String,
    quant: Option<String>,
    /// The file's path in the repository.
    file: Option<String>,
}

impl HubName {
    /// Reads `hf:USER/REPO[:QUANT]` or `hf:USER/REPO/FILE`, alone or after `--FLAG=`.
    fn of(arg: &OsStr) -> Option<Self> {
        let arg = arg.to_str().filter(|arg| arg.contains(HUB))?;
        let pattern =
            format!("^(?s)(--[^=]*=(?:[^=]*=)?|){HUB}([^/]*/[^/:]*)(?::([^/]*))?(?:/(.*))?$");
        let found = Regex::new(&pattern).ok()?.captures(arg)?;
        let part = |index| Some(found.get(index)?.as_str().to_owned());
        Some(Self {
            flag: part(1)?,
            repository: part(2)?,
            quant: part(3),
            file: part(4),
        })
    }
}

/// Shows the flags of names in the help of a command that runs a model; clap itself never gets their values.
pub fn with_flags(command: Command) -> Command {
    const OF_MODEL: &str = "Model by its name on Hugging Face: -hf REPO[:QUANT]";
    const MORE: &str = "As in -hf bartowski/Llama-3.2-1B-Instruct-GGUF:Q6_K. Without QUANT it is Q4_K_M, or \
         Q8_0, or the first. It is loaded unless it is in the cache, that of other programs (HF_HOME). Any \
         other file that is read has a name too: hf:USER/REPO/FILE, as in -r hf:USER/REPO/ref.gz.";
    let flag = |beside: &str, name: &'static str, value: &'static str| {
        let mut args = command.get_arguments().enumerate();
        let (index, path) = args.find(|(_, arg)| arg.get_id() == beside)?;
        let plain = Arg::new(name).long(name).value_name(value);
        let headed = plain.help_heading(path.get_help_heading()?.to_owned());
        Some(headed.display_order(index + 1))
    };
    let more = format!("{OF_MODEL}\n\n{MORE}");
    let model = flag("model", "hf-repo", "REPO")
        .map(|flag| flag.aliases(["hf", "hfr"]).help(OF_MODEL).long_help(more));
    let file = flag("model", "hf-file", "FILE").map(|flag| {
        let with_repo = flag.alias("hff").requires("hf-repo");
        with_repo.help("File of --hf-repo, by its path there (-hff)")
    });
    let ref_model = flag("ref_model", "ref-hf", "REPO")
        .map(|flag| flag.help("Model to evaluate against, by its name: --ref-hf REPO[:QUANT]"));
    command.args([model, file, ref_model].into_iter().flatten())
}

/// The index of the `--` after which arguments are neither flags nor names; their number without it.
pub fn literal_from(args: &[OsString]) -> usize {
    let end = args.iter().position(|arg| arg == "--");
    end.unwrap_or(args.len())
}

/// Turns the flags of names into those of paths, `--hf-repo NAME` into `--model=hf:NAME`, before clap
/// sees them. Each `--hf-file` belongs to the `--hf-repo` before it; a call with one of each may have them in
/// either order, as in llama.cpp. What follows `--` stays as it is.
///
/// # Errors
/// A `--hf-file` that belongs to no `--hf-repo`, or to one that has a file.
pub fn as_paths(mut args: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let literal = args.split_off(literal_from(&args));
    let (mut paths, mut n_repositories): (Vec<OsString>, _) = (Vec::new(), 0);
    // The index in `paths` of the last repository, and a file before the first one.
    let (mut last, mut early): (Option<usize>, Option<String>) = (None, None);
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        let (flag, value) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (text, None),
        };
        let path = match flag {
            "--hf-repo" | "--hf" | "--hfr" => Some(MODEL),
            "--ref-hf" => Some(REF_MODEL),
            "--hf-file" | "--hff" => None,
            _ => {
                paths.push(arg);
                continue;
            }
        };
        let is_value = |next: &OsString| next.to_str().is_some_and(|next| !next.starts_with('-'));
        let next = || args.next_if(is_value)?.into_string().ok();
        match (path, value.or_else(next)) {
            (Some(path), Some(name)) => {
                if path == MODEL {
                    (last, n_repositories) = (Some(paths.len()), n_repositories + 1);
                }
                paths.push(format!("{path}{HUB}{name}").into());
            }
            (None, Some(file)) => match last.and_then(|index| paths.get_mut(index)) {
                Some(repository) => name_file(repository, &file)?,
                None => {
                    if let Some(first) = early.replace(file) {
                        let file = early.unwrap_or_default();
                        return Err(format!(
                            "--hf-file: '{first}' and '{file}' stand before any --hf-repo: give each after its own"
                        ));
                    }
                }
            },
            // clap says that the value is missing.
            (_, None) => paths.push(arg),
        }
    }
    if let Some(file) = early {
        match last.and_then(|index| paths.get_mut(index)) {
            Some(repository) if n_repositories == 1 => name_file(repository, &file)?,
            Some(_) => {
                return Err(format!(
                    "--hf-file: '{file}' stands before several --hf-repo: give it after its own"
                ));
            }
            // clap says which flag is missing.
            None => paths.push(format!("--hf-file={file}").into()),
        }
    }
    paths.extend(literal);
    Ok(paths)
}

/// Names the file of a repository, in the place of its quant.
///
/// # Errors
/// If a file is named already.
fn name_file(repository: &mut OsString, file: &str) -> Result<(), String> {
    // What is wrong with a name is said where it is read.
    if let Some(name) = HubName::of(repository) {
        if let Some(first) = name.file {
            let of = name.repository;
            return Err(format!(
                "--hf-file: '{first}' and '{file}' are both given for {of}: give each after a --hf-repo of its own"
            ));
        }
        *repository = format!("{MODEL}{HUB}{}/{file}", name.repository).into();
    }
    Ok(())
}

/// Refuses `--quants` and `--discard` in a call that names nothing for them. `picks`: patterns of quants may choose in
/// a folder too.
///
/// # Errors
/// What to give besides.
pub fn check(
    args: &[OsString],
    quants: &[String],
    discard: bool,
    picks: bool,
) -> Result<(), &'static str> {
    let flags = args.iter().take(literal_from(args));
    let names = || flags.clone().filter_map(|arg| HubName::of(arg));
    let is_whole = |of: &HubName| of.flag != REF_MODEL && of.file.is_none() && of.quant.is_none();
    let n_whole = names().filter(is_whole).count();
    let have_choice = n_whole == 1 || picks && n_whole == 0;
    if !quants.is_empty() && !have_choice {
        return Err(
            "--quants chooses among the files of one repository: name it with -hf USER/REPO",
        );
    }
    if discard && names().next().is_none() {
        return Err("--discard removes what -hf has loaded, and no other file");
    }
    Ok(())
}

/// The files of a repository that its name alone stands for.
#[derive(Debug, Clone, Copy)]
pub enum Chosen<'q> {
    /// The one that llama.cpp takes.
    One,
    /// Those whose quant matches one of these patterns.
    Quants(&'q [String]),
    /// Those too, or all without a pattern; and the unquantized original, unless the call names another.
    ToPick(&'q [String]),
}

impl<'q> Chosen<'q> {
    /// The files that `--quants` chooses, if it is given, for `kl pick` or another command.
    pub fn new(quants: &'q [String], picks: bool) -> Self {
        match (picks, quants.is_empty()) {
            (true, _) => Self::ToPick(quants),
            (false, false) => Self::Quants(quants),
            (false, true) => Self::One,
        }
    }

    /// The models of a repository that these are; `None`: the one that llama.cpp takes.
    fn of(self, repository: &Repository) -> Result<Option<Vec<Vec<HubFile>>>> {
        Ok(match self {
            Self::One => None,
            Self::Quants(quants) | Self::ToPick(quants) => Some(repository.quants_or_all(quants)?),
        })
    }
}

/// Replaces each name by the path that its file has, or will have, in the cache. A repository's name
/// becomes several models if these are `chosen`. What follows `--` stays as it is. `None`: the call names
/// nothing.
///
/// # Errors
/// What is wrong with a name, or why the hub does not answer.
pub fn resolve(
    args: &mut Vec<OsString>,
    chosen: Chosen<'_>,
    discard: bool,
) -> Result<Option<Shelf>> {
    let literal = args.split_off(literal_from(args));
    let names_one = args.iter().any(|arg| HubName::of(arg).is_some());
    if !names_one {
        args.extend(literal);
        return Ok(None);
    }
    let hub = Hub::from_environment(&|variable| env::var_os(variable))?;
    let follow = |step: HubStep<'_>| {
        if let HubStep::Message(line) = step {
            say!("kl: {line}");
        }
        false
    };
    let names_original = args.iter().any(|arg| {
        let flag = arg.to_string_lossy();
        ["--original", REF_MODEL]
            .iter()
            .any(|original| flag.starts_with(original))
    });
    let mut repositories = BTreeMap::new();
    let (mut resolved, mut files) = (Vec::new(), BTreeMap::new());
    for arg in args.drain(..) {
        let Some(name) = HubName::of(&arg) else {
            resolved.push(arg);
            continue;
        };
        let repository = match repositories.entry(name.repository) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let repository = hub.repository(new.key(), &follow)?;
                new.insert(repository)
            }
        };
        let several = match (&name.file, &name.quant) {
            (None, None) if name.flag != REF_MODEL => chosen.of(repository)?,
            _ => None,
        };
        let picks = several.is_some() && matches!(chosen, Chosen::ToPick(_));
        let original = (picks && !names_original).then(|| repository.original());
        let models = match (several, name.file) {
            (Some(several), _) => several,
            (None, Some(file)) => vec![repository.file(&file)?],
            (None, None) => vec![repository.model(name.quant.as_deref())?],
        };
        let later = if picks { "" } else { MODEL };
        let flags = iter::once(&*name.flag).chain(iter::repeat(later));
        let original = original
            .transpose()?
            .flatten()
            .map(|parts| (parts, REF_MODEL));
        for (parts, flag) in models.into_iter().zip(flags).chain(original) {
            let Some(path) = parts.first().map(|first| hub.path_of(first)) else {
                continue;
            };
            let mut word = OsString::from(flag);
            word.push(&path);
            resolved.push(word);
            files.insert(path, parts);
        }
    }
    resolved.extend(literal);
    *args = resolved;
    let has_pattern = !matches!(chosen, Chosen::One);
    Ok(Some(Shelf::new(hub, files, discard, has_pattern)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(line: &str) -> String {
        match as_paths(line.split(' ').map(OsString::from).collect()) {
            Err(why) => why,
            Ok(args) => {
                let args = args.into_iter().map(|arg| arg.into_string().unwrap());
                args.collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn flags_of_names_are_spellings_of_paths() {
        for (line, expected) in [
            ("kl --hf a/b -r c", "kl --model=hf:a/b -r c"),
            ("kl --hf-repo=a/b:Q8_0", "kl --model=hf:a/b:Q8_0"),
            ("kl --ref-hf a/b", "kl --ref-model=hf:a/b"),
            (
                "kl --hff d/c.gguf --hfr a/b:Q4_0",
                "kl --model=hf:a/b/d/c.gguf",
            ),
            ("kl --hf-file c.gguf", "kl --hf-file=c.gguf"),
            (
                "kl --hf A/a --hff a.gguf --hf B/b --hff=b.gguf",
                "kl --model=hf:A/a/a.gguf --model=hf:B/b/b.gguf",
            ),
            (
                "kl --hf A/a:Q8_0 --hf B/b --ref-hf C/c --hff b.gguf",
                "kl --model=hf:A/a:Q8_0 --model=hf:B/b/b.gguf --ref-model=hf:C/c",
            ),
            (
                "kl --hf A/a --hff a.gguf --hf B/b",
                "kl --model=hf:A/a/a.gguf --model=hf:B/b",
            ),
            ("kl --hf a/b -- --hf c", "kl --model=hf:a/b -- --hf c"),
            ("kl --hf -- a/b", "kl --hf -- a/b"),
            ("kl --hf -r c", "kl --hf -r c"),
            ("kl --hf", "kl --hf"),
            ("kl -m hf:a/b", "kl -m hf:a/b"),
        ] {
            assert_eq!(spelled(line), expected);
        }
    }

    #[test]
    fn a_file_without_a_repository_of_its_own_is_refused() {
        for (line, expected) in [
            (
                "kl --hf A/a --hff a.gguf --hff b.gguf",
                "'a.gguf' and 'b.gguf' are both given for A/a",
            ),
            ("kl --hf A/a/a.gguf --hff b.gguf", "both given for A/a"),
            (
                "kl --hff a.gguf --hf A/a --hff b.gguf",
                "'b.gguf' and 'a.gguf' are both given",
            ),
            (
                "kl --hff a.gguf --hf A/a --hf B/b",
                "'a.gguf' stands before several",
            ),
            (
                "kl --hff a.gguf --hff b.gguf --hf A/a",
                "'a.gguf' and 'b.gguf' stand before any",
            ),
        ] {
            assert!(spelled(line).contains(expected), "{}", spelled(line));
        }
    }

    #[test]
    fn a_name_has_a_repository_and_may_choose_a_file() {
        let parts = |word: &str| {
            let word = OsString::from(word);
            let name = HubName::of(&word)?;
            let or_none = |part: Option<String>| part.unwrap_or("-".to_owned());
            let (quant, file) = (or_none(name.quant), or_none(name.file));
            Some([name.flag, name.repository, quant, file].join(" "))
        };
        for (word, expected) in [
            ("hf:a/b", " a/b - -"),
            ("--model=hf:a/b:IQ4_XS", "--model= a/b IQ4_XS -"),
            ("--text-path=x=hf:a/b/c", "--text-path=x= a/b - c"),
            ("hf:a/b/c/d.gguf", " a/b - c/d.gguf"),
        ] {
            assert_eq!(parts(word).as_deref(), Some(expected));
        }
        for word in ["hf:a", "a/b", "code=hf:a/b", "--sidecar", "x.hf:a/b"] {
            assert_eq!(parts(word), None, "{word}");
        }
    }
}
