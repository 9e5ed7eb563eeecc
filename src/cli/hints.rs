//! Advice on flags that `kl` does not have: llama.cpp's tools have them, or they are misspelt.

use std::ffi::OsString;

use super::short_flags;

/// Flags of llama-perplexity, and kl's words for them.
const OF_LLAMA_PERPLEXITY: [(&[&str], &str); 11] = [
    (
        &["--hf-repo", "--hf-file", "--hf-token", "--model-url"],
        "kl downloads nothing: get the model first (hf download REPOSITORY FILE --local-dir ., or curl -LO URL), then -m FILE",
    ),
    (&["-f", "--file"], "the text is -t TEXT"),
    (
        &["--kl-divergence-base", "--save-all-logits"],
        "-w REF writes a reference, -r REF reads one; both can be llama.cpp's",
    ),
    (
        &["--kl-divergence"],
        "-r REF evaluates against a reference, llama.cpp's too",
    ),
    (&["--chunks"], "it is --max-windows N"),
    (&["--ppl-stride"], "it is --stride N"),
    (&["--threads-batch"], "it is --threads N"),
    (&["--perplexity"], "every report has the perplexity"),
    (&["-p", "--prompt"], "prompts are read from --prompts FILE"),
    (
        &["--jinja", "--chat-template"],
        "--prompts uses the model's template, or that of --chat-template-file",
    ),
    (
        &["--lora", "--lora-scaled"],
        "merge the adapter into the model first",
    ),
];

/// Flags of some commands of `kl`, and which those are.
const OF_OTHER_COMMANDS: [(&[&str], &str); 2] = [
    (
        &["--html", "--csv", "--markdown", "--model-card", "--pair"],
        "kl report has it, for the sidecars (.kls) that an evaluation writes",
    ),
    (
        &["--fail-if", "--allow-excluded"],
        "an evaluation (kl -r) and kl compare have it",
    ),
];

/// The similarity of two flags, from 0 to 1, from which on one is taken for the other.
const SIMILAR: f64 = 0.7;

/// Hints for the flags of a command line that are llama-perplexity's, all at once.
pub fn of_other_tools(args: &[OsString]) -> Option<String> {
    let hint = |flag| {
        let words = words(&OF_LLAMA_PERPLEXITY, flag)?;
        Some(format!("instead of {flag}: {words}"))
    };
    let mut hints: Vec<_> = flags(args).filter_map(hint).collect();
    hints.dedup();
    (!hints.is_empty()).then(|| hints.join("; "))
}

/// A hint for a flag that this command does not have, but another one.
pub fn of_other_commands(flag: &str) -> Option<String> {
    words(&OF_OTHER_COMMANDS, flag).map(str::to_owned)
}

/// A hint for a flag of one dash that is misspelt, such as `-nlg`, which clap reads as `-n lg`.
pub fn of_misspelt(args: &[OsString]) -> Option<String> {
    let known = short_flags::known();
    let likeness = |known: &str, flag| strsim::normalized_damerau_levenshtein(known, flag);
    flags(args).find_map(|flag| {
        let word = flag.strip_prefix('-')?;
        if word.len() < 2 || !word.chars().all(|c| c.is_ascii_lowercase()) {
            return None;
        }
        let known = known.iter();
        let closest = known.max_by(|a, b| likeness(a, flag).total_cmp(&likeness(b, flag)))?;
        (likeness(closest, flag) >= SIMILAR).then(|| format!("a similar flag exists: '{closest}'"))
    })
}

fn flags(args: &[OsString]) -> impl Iterator<Item = &str> {
    let flags = args.iter().filter_map(|arg| arg.to_str());
    let flags = flags.map(|arg| arg.split('=').next().unwrap_or(arg));
    flags.filter(|arg| arg.starts_with('-'))
}

/// The words of a table for a flag.
fn words(table: &[(&[&str], &'static str)], flag: &str) -> Option<&'static str> {
    let mut known = table.iter();
    let (_, words) = known.find(|(flags, _)| flags.contains(&flag))?;
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint_of(line: &str) -> String {
        let args: Vec<_> = line.split(' ').map(OsString::from).collect();
        let hint = of_other_tools(&args).or_else(|| of_misspelt(&args));
        hint.unwrap_or_default()
    }

    #[test]
    fn flags_of_llama_perplexity_are_translated() {
        assert!(hint_of("kl -m a -f wiki.txt").contains("-t TEXT"));
        assert!(hint_of("kl -m a --kl-divergence-base=x").contains("-r REF"));
        assert!(hint_of("kl -m a --chunks 4").contains("--max-windows"));
        let both = hint_of("kl -m a -f wiki.txt --save-all-logits b");
        assert!(
            both.contains("-t TEXT") && both.contains("-w REF"),
            "{both}"
        );
    }

    #[test]
    fn misspelt_short_flags_are_recognised() {
        assert!(hint_of("kl -m a -nlg 99").contains("'-ngl'"));
        for line in ["kl -m a", "kl -n lg", "kl -n -1", "kl -vq", "kl -rref.gz"] {
            assert_eq!(hint_of(line), "", "{line}");
        }
    }
}
