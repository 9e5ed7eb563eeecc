//! The docs against the program: every command in a block runs, on the models of `fixtures/` under
//! the names that the docs use (`scripts/example.sh`), and prints what the docs show.
//!
//! A block is commands if each of its lines starts with the name of a program. Others are text that
//! one of the page's commands above has to print, or are listed in `NOT_PRINTED`. Commands that take
//! minutes or need other programs run with `scripts/docs.sh`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use tempfile::TempDir;

use crate::hub::FakeHub;
use crate::session::{Run, fixture, program};

mod shown;

use shown::{as_printed, is_shown};

/// Programs whose commands run in this test, where the machine has them.
const QUICK: [&str; 7] = [
    "kl",
    "for",
    "scripts/example.sh",
    "cd",
    "jq",
    "mkfifo",
    "llama-perplexity",
];

/// In place of llama-perplexity, `kl` writes a base file, and the whole of it to where the other would write.
const LLAMA_PERPLEXITY: &str = "#!/bin/sh -e
[ \"$1 $3 $5 $7\" = '-m -f -c --save-all-logits' ]
folder=$(mktemp -d)
kl -m \"$2\" -t \"$4\" -c \"$6\" -w \"$folder/base\" --format llama.cpp -q
cat \"$folder/base\" >\"$8\"
rm -r \"$folder\"
";

/// Programs that take minutes, or may be absent: `scripts/docs.sh` runs those that the machine has.
const SLOW: [&str; 8] = [
    "make",
    "cargo",
    "eval",
    "parallel",
    "sbatch",
    "python3",
    "llama-quantize",
    "ggml-rpc-server",
];

/// What has to succeed in a shell before a block that contains the first word can run.
const NEEDS: [(&str, &str); 7] = [
    ("cuda", "command -v nvcc"),
    ("hip", "command -v hipcc"),
    ("rocm", "command -v hipcc"),
    ("vulkan", "command -v glslc"),
    ("metal", "command -v xcrun"),
    ("convert_hf_to_gguf.py", "[ -e convert_hf_to_gguf.py ]"),
    ("plots.py", "python3 -c 'import matplotlib'"),
];

/// A page about machines that the tests cannot assume: only the flags of its commands are checked.
const OTHER_MACHINES: &str = "docs/GPU.md";

/// A page whose recipes run in `shards.rs`.
const RECIPES: &str = "docs/MANY_MACHINES.md";

/// Blocks that no command of their page prints, by page and first words: why.
const NOT_PRINTED: [(&str, &str, &str); 3] = [
    ("docs/DESIGN.md", "src (kl)", "a picture of the crates"),
    ("docs/REFERENCES.md", "u16 ", "formulas"),
    (OTHER_MACHINES, "", "printed on machines with other devices"),
];

/// A block of code in a page, without its indentation or fences.
struct Block {
    line: usize,
    language: String,
    text: String,
}

#[derive(Debug, PartialEq)]
enum Kind {
    /// Commands that run here.
    Quick,
    /// Commands for `scripts/docs.sh`.
    Slow,
    /// What a command prints.
    Shown,
    /// Source code of another language, or a script.
    Source,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages that show commands, by their paths from the root, in the order in which somebody reads them.
fn pages() -> Vec<String> {
    let first = [
        "README.md",
        "docs/GUIDE.md",
        "docs/READING.md",
        "docs/REPORT.md",
    ];
    let docs = fs::read_dir(root().join("docs")).unwrap();
    let names = docs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let docs = names.filter(|name| name.ends_with(".md"));
    let mut others: Vec<String> = docs.map(|name| format!("docs/{name}")).collect();
    others.push("formats/README.md".to_owned());
    others.retain(|page| !first.contains(&page.as_str()));
    others.sort();
    let first = first.into_iter().map(str::to_owned);
    first.chain(others).collect()
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// The blocks of a page: between fences, or indented by four spaces after an empty line.
fn blocks(page: &str) -> Vec<Block> {
    static BLOCK: LazyLock<Regex> = LazyLock::new(|| {
        let fenced = "^```(?<language>.*)\n(?<fenced>(?s:.*?))^```";
        let indented = "^\n(?<indented>( {4}.*\n|\n)* {4}.*\n)";
        Regex::new(&format!("(?m){fenced}|{indented}")).unwrap()
    });
    let block = |found: Captures<'_>| {
        let fenced = found.name("fenced");
        let code = fenced.or(found.name("indented")).unwrap();
        let lines = code.as_str().lines().map(|line| {
            let is_indented = fenced.is_none() && !line.is_empty();
            if is_indented { &line[4..] } else { line }
        });
        Block {
            line: 1 + page[..code.start()].matches('\n').count(),
            language: found
                .name("language")
                .map_or("", |of| of.as_str())
                .to_owned(),
            text: lines.collect::<Vec<_>>().join("\n").trim_end().to_owned(),
        }
    };
    BLOCK.captures_iter(page).map(block).collect()
}

/// The commands of a block without comments, with lines that end in a backslash joined.
fn commands(block: &Block) -> Vec<String> {
    let joined = block.text.replace("\\\n", " ");
    let lines = joined.lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("# "));
    lines.map(str::to_owned).collect()
}

/// The program that a command starts with, after assignments to variables.
fn first_word(command: &str) -> &str {
    let is_assignment = |word: &&str| word.contains('=') && !word.contains("=$(");
    let word = command.split_whitespace().find(|word| !is_assignment(word));
    let word = word.unwrap_or_default().trim_start_matches('(');
    word.split_once("=$(").map_or(word, |(_, program)| program)
}

fn kind(block: &Block) -> Kind {
    if !["", "sh"].contains(&block.language.as_str()) || block.text.starts_with("#!") {
        return Kind::Source;
    }
    let commands = commands(block);
    let all = |programs: &[&str]| commands.iter().all(|c| programs.contains(&first_word(c)));
    if all(&QUICK) {
        Kind::Quick
    } else if all(&[&SLOW[..], &QUICK].concat()) {
        Kind::Slow
    } else {
        Kind::Shown
    }
}

/// A folder with the files that the docs name, and the `kl` and the hub that the commands in it find.
struct Example {
    folder: TempDir,
    hub: FakeHub,
}

/// The repository that the docs name, and its files, of fixtures.
const REPOSITORY: &str = "bartowski/Llama-3.2-1B-Instruct-GGUF";
const IN_REPOSITORY: [(&str, &str); 4] = [
    ("f16", "Llama-3.2-1B-Instruct-f16.gguf"),
    ("q8", "Llama-3.2-1B-Instruct-Q8_0.gguf"),
    ("q4", "Llama-3.2-1B-Instruct-Q4_K_M.gguf"),
    ("q2", "Llama-3.2-1B-Instruct-IQ2_M.gguf"),
];

impl Example {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("hub").join(REPOSITORY);
        fs::create_dir_all(&repository).unwrap();
        for (alias, name) in IN_REPOSITORY {
            fs::copy(fixture(alias), repository.join(name)).unwrap();
        }
        let hub = FakeHub::serve(&folder.path().join("hub"));
        let example = Self { folder, hub };
        let mut script = Command::new("sh");
        script.arg(root().join("scripts/example.sh"));
        assert!(script.arg(example.path()).status().unwrap().success());
        // Other tests run beside this one.
        let wrapper = format!(
            "#!/bin/sh\n\
             case \" $* \" in *' --threads '*) ;; *' -m '*|*' -hf '*) set -- \"$@\" --threads 1 ;; esac\n\
             exec '{}' \"$@\"\n",
            program().display()
        );
        std::os::unix::fs::symlink(root().join("scripts"), example.path().join("scripts")).unwrap();
        let bin = example.folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for (name, script) in [("kl", &*wrapper), ("llama-perplexity", LLAMA_PERPLEXITY)] {
            let program = bin.join(name);
            fs::write(&program, script).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        example
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("example")
    }

    /// The files in it, but for those that it came with in folders.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let files = paths.filter(|path| path.is_file()).map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            (name.to_owned(), fs::read(&path).unwrap())
        });
        files.collect()
    }

    /// Whether the program of a command is there.
    fn has(&self, command: &str) -> bool {
        let found = self.run(&format!("command -v {}", first_word(command)));
        found.code == 0
    }

    /// Runs a command with `sh`.
    fn run(&self, script: &str) -> Run {
        let bin = self.folder.path().join("bin");
        let path = std::env::var("PATH").unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", script]);
        shell.env("PATH", format!("{}:{path}", bin.display()));
        shell.env("HOME", self.folder.path()).env_remove("HF_HOME");
        shell.env("HF_ENDPOINT", &self.hub.endpoint);
        Run::from(shell.current_dir(self.path()).output().unwrap())
    }
}

/// Puts other text in the place of a block: with the block's own indentation.
fn replace(page: &str, block: &str, text: &str) {
    let indented = |text: &str| {
        let lines = text.lines().map(|line| format!("    {line}"));
        let lines = lines.map(|line| line.trim_end().to_owned());
        lines.collect::<Vec<_>>().join("\n")
    };
    let old = read(page);
    let new = old.replace(&indented(block), &indented(text));
    let new = if new == old {
        old.replace(block, text)
    } else {
        new
    };
    fs::write(root().join(page), new).unwrap();
}

/// Runs a command of a page, which may lose or replace no file of those that are there. Returns what it
/// printed to stdout and to stderr.
fn run_one(
    example: &Example,
    page: &str,
    command: &str,
    files: &mut BTreeMap<String, Vec<u8>>,
    faults: &mut Vec<String>,
) -> [String; 2] {
    let Run {
        code,
        stdout,
        stderr,
    } = example.run(command);
    // Of other machines only the flags are checked: exit code 2 is wrong usage.
    if code == 2 || code != 0 && page != OTHER_MACHINES {
        faults.push(format!("{page}: {command}: exit code {code}: {stderr}"));
    }
    let is_report = command.starts_with("kl report");
    if is_report && stdout.contains("Not compared") {
        faults.push(format!("{page}: {command}: leaves something out: {stdout}"));
    }
    let after = example.files();
    // A report is made again and again.
    for (name, bytes) in &*files {
        if !after.contains_key(name) || after[name] != *bytes && !is_report {
            faults.push(format!("{page}: {command}: loses or replaces {name}"));
        }
    }
    *files = after;
    [stdout, stderr]
}

/// The commands of all pages in one folder, from top to bottom, as somebody types them who reads all of
/// them: each works, none loses or replaces a file of an earlier one, and what the pages show is what the
/// commands print. With `INSTA_UPDATE=always`, what they show is replaced.
#[test]
fn the_commands_in_the_docs_print_what_the_docs_show() {
    let example = Example::new();
    let (mut files, mut faults) = (example.files(), Vec::new());
    let updates = std::env::var("INSTA_UPDATE").is_ok_and(|value| value == "always");
    for page in pages() {
        let mut printed: Vec<String> = Vec::new();
        // Where a program is missing, not all that the page shows is printed.
        let mut is_whole = true;
        let mut shown = Vec::new();
        for block in blocks(&read(&page)) {
            let is_listed =
                |(of, start, _): &(&str, &str, _)| *of == page && block.text.starts_with(start);
            match kind(&block) {
                Kind::Shown if !NOT_PRINTED.iter().any(is_listed) => {
                    shown.push((block, printed.clone()));
                }
                Kind::Quick if page != RECIPES && !block.text.starts_with("scripts/example.sh") => {
                    for command in commands(&block) {
                        if page == OTHER_MACHINES || example.has(&command) {
                            let now = run_one(&example, &page, &command, &mut files, &mut faults);
                            printed.extend(now);
                        } else {
                            println!("{page}: {command}: skipped, as its program is missing");
                            is_whole = false;
                        }
                    }
                }
                _ => {}
            }
        }
        shown.retain(|(block, printed)| is_whole && !is_shown(&block.text, printed));
        for (Block { line, text, .. }, printed) in shown {
            match as_printed(&text, &printed).filter(|_| updates) {
                Some(new) => replace(&page, &text, &new),
                None => faults.push(format!("{page}:{line}: no command prints\n{text}")),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether a shell says yes.
fn succeeds(script: &str) -> bool {
    let mut shell = Command::new("sh");
    let quiet = format!("{{ {script}; }} >/dev/null 2>&1");
    let shell = shell.args(["-c", &quiet]).current_dir(root());
    shell.status().unwrap().success()
}

#[test]
#[ignore = "takes many minutes: scripts/docs.sh"]
fn slow_commands_in_the_docs_run() {
    let mut faults = Vec::new();
    for page in pages().iter().filter(|page| *page != RECIPES) {
        for block in blocks(&read(page)) {
            if kind(&block) != Kind::Slow {
                continue;
            }
            let place = format!("{page}:{}", block.line);
            let commands = commands(&block);
            let programs = commands.iter().map(|command| first_word(command));
            let programs = programs.map(|program| format!("command -v {program}"));
            let needs = NEEDS.iter().filter(|(word, _)| block.text.contains(word));
            let mut needs = programs.chain(needs.map(|(_, script)| (*script).to_owned()));
            if let Some(absent) = needs.find(|script| !succeeds(script)) {
                println!(
                    "{place}: skipped, as this fails: {absent}\n{}\n",
                    block.text
                );
                continue;
            }
            println!("{place}: runs\n{}", block.text);
            let mut shell = Command::new("sh");
            shell.args(["-e", "-c", &block.text]).current_dir(root());
            let path = std::env::var("PATH").unwrap();
            let release = root().join("target/release");
            shell.env("PATH", format!("{}:{path}", release.display()));
            let status = shell.status().unwrap();
            if !status.success() {
                faults.push(format!("{place}: {status}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
