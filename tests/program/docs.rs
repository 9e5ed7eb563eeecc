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

use regex::Regex;
use tempfile::TempDir;

use crate::hub::FakeHub;
use crate::session::{fixture, program};

/// Programs whose commands run in this test, where the machine has them.
const QUICK: [&str; 5] = ["kl", "for", "scripts/example.sh", "cd", "jq"];

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
    ("docs/DESIGN.md", "cli ", "a picture of the modules"),
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

/// The pages that show commands, by their paths from the root.
fn pages() -> Vec<String> {
    let docs = fs::read_dir(root().join("docs")).unwrap();
    let names = docs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let docs = names.filter(|name| name.ends_with(".md"));
    let mut pages: Vec<String> = docs.map(|name| format!("docs/{name}")).collect();
    pages.extend(["README.md", "formats/README.md"].map(str::to_owned));
    pages.sort();
    pages
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// The blocks of a page: between fences, or indented by four spaces after an empty line.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut fenced, mut indented, mut after_empty) = (false, false, true);
    for (line, text) in page.lines().enumerate() {
        let code = text.strip_prefix("    ");
        if let Some(language) = text.strip_prefix("```") {
            fenced = !fenced;
            indented = false;
            if fenced {
                blocks.push(block(line, language));
            }
        } else if fenced || indented && (code.is_some() || text.is_empty()) {
            let text = if fenced {
                text
            } else {
                code.unwrap_or_default()
            };
            let block = blocks.last_mut().unwrap();
            block.text += text;
            block.text.push('\n');
        } else if let (true, Some(code)) = (after_empty, code) {
            indented = true;
            blocks.push(block(line, ""));
            blocks.last_mut().unwrap().text = format!("{code}\n");
        } else {
            indented = false;
        }
        after_empty = text.is_empty();
    }
    for block in &mut blocks {
        block.text.truncate(block.text.trim_end().len());
    }
    blocks
}

fn block(line: usize, language: &str) -> Block {
    Block {
        line: line + 1,
        language: language.to_owned(),
        text: String::new(),
    }
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
    match () {
        () if all(&QUICK) => Kind::Quick,
        () if all(&[&SLOW[..], &QUICK].concat()) => Kind::Slow,
        () => Kind::Shown,
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

/// What a command printed: to stdout, and to stderr.
#[derive(Default)]
struct Output {
    printed: [String; 2],
    code: i32,
}

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
        let kl = example.folder.path().join("bin/kl");
        fs::create_dir(kl.parent().unwrap()).unwrap();
        fs::write(&kl, wrapper).unwrap();
        fs::set_permissions(&kl, fs::Permissions::from_mode(0o755)).unwrap();
        example
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("example")
    }

    /// The files in it, but for those that it came with in folders.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.path()).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.is_file()).map(|path| {
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
    fn run(&self, script: &str) -> Output {
        let bin = self.folder.path().join("bin");
        let path = std::env::var("PATH").unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", script]);
        shell.env("PATH", format!("{}:{path}", bin.display()));
        shell.env("HOME", self.folder.path()).env_remove("HF_HOME");
        shell.env("HF_ENDPOINT", &self.hub.endpoint);
        let output = shell.current_dir(self.path()).output().unwrap();
        let printed = [output.stdout, output.stderr];
        Output {
            printed: printed.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            code: output.status.code().unwrap_or(-1),
        }
    }
}

/// A line without what another run or another machine prints otherwise: times, the digits that its kernels
/// compute, and the widths of columns.
fn without_digits(line: &str) -> String {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        let time = r"(\d+ min )?[\d.,]+ (ms|s|min|h|scored tokens/s|MiB/s|GiB/s)\b";
        Regex::new(&format!(r"{time}|[-+]?\d[\d.,]*(e-\d+)?")).unwrap()
    });
    let line = NUMBER.replace_all(line, "#");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A line of a block that stands for lines which are left out.
const LEFT_OUT: &str = "...";

/// Whether a block shows lines that were printed one after the other. What starts at the top of an output
/// is all of it, unless the block says that lines are left out.
fn is_shown_in(block: &str, printed: &str) -> bool {
    // A line about other work on the machine comes and goes.
    let printed = printed
        .lines()
        .filter(|line| !line.contains("busy elsewhere"));
    let printed: Vec<String> = printed.map(without_digits).collect();
    let shown: Vec<String> = block.lines().map(without_digits).collect();
    let mut rest = &printed[..];
    for part in shown.split(|line| line == LEFT_OUT) {
        let mut places = rest.windows(part.len().max(1));
        let Some(place) = places.position(|lines| lines == part || part.is_empty()) else {
            return false;
        };
        rest = &rest[place + part.len()..];
    }
    let is_whole = shown.len() == printed.len() || shown.iter().any(|line| line == LEFT_OUT);
    is_whole || shown.first() != printed.first()
}

/// The block as it should be, from the output that is most like it: between the first and the last line of
/// each part that have not changed but for digits. `None` where the lines of a part are not there.
fn as_printed(block: &str, outputs: &[String]) -> Option<String> {
    let shapes = |text: &str| text.lines().map(without_digits).collect::<Vec<_>>();
    let shown = shapes(block);
    let n_alike = |text: &&String| {
        let printed = shapes(text);
        let is_alike = |line: &&String| !line.is_empty() && printed.contains(line);
        shown.iter().filter(is_alike).count()
    };
    let output = outputs.iter().max_by_key(n_alike)?;
    let (printed, lines) = (shapes(output), Vec::from_iter(output.lines()));
    if shown.first() == printed.first() && !shown.iter().any(|line| line == LEFT_OUT) {
        return Some(lines.join("\n"));
    }
    let parts = shown.split(|line| line == LEFT_OUT).map(|part| {
        let place = |line: &String| printed.iter().position(|of| of == line && !line.is_empty());
        let places = part.iter().enumerate();
        let mut known = places.filter_map(|(i, line)| Some((i, place(line)?)));
        let (first, from) = known.next()?;
        let (last, to) = known.next_back().unwrap_or((first, from));
        let end = (to + part.len() - last).min(lines.len());
        Some(lines.get(from.saturating_sub(first)..end)?.join("\n"))
    });
    let parts = parts.collect::<Option<Vec<_>>>()?;
    Some(parts.join(&format!("\n{LEFT_OUT}\n")))
}

/// Puts other text in the place of a block: with the block's own indentation.
fn replace(page: &str, block: &str, text: &str) {
    let indented = |text: &str| {
        let lines = text.lines().map(|line| match line {
            "" => String::new(),
            line => format!("    {line}"),
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let old = read(page);
    let new = if old.contains(&indented(block)) {
        old.replace(&indented(block), &indented(text))
    } else {
        old.replace(block, text)
    };
    fs::write(root().join(page), new).unwrap();
}

/// The pages in the order in which somebody reads them.
fn in_reading_order() -> Vec<String> {
    let rank = |page: &String| {
        let first = [
            "README.md",
            "docs/GUIDE.md",
            "docs/READING.md",
            "docs/REPORT.md",
        ];
        let place = first.iter().position(|first| page == first);
        place.unwrap_or(first.len())
    };
    let mut pages = pages();
    pages.sort_by_key(rank);
    pages
}

/// The commands of all pages in one folder, from top to bottom, as somebody types them who reads all of
/// them: each works, none loses or replaces a file of an earlier one, and what the pages show is what the
/// commands print.
#[test]
fn the_commands_in_the_docs_print_what_the_docs_show() {
    let example = Example::new();
    let mut files = example.files();
    let (mut faults, mut shown) = (Vec::new(), Vec::new());
    // The pages of which a program is missing, so that not all that they show is printed.
    let mut in_part = Vec::new();
    for page in in_reading_order() {
        let mut printed: Vec<String> = Vec::new();
        for block in blocks(&read(&page)) {
            let place = format!("{page}:{}", block.line);
            let is_listed =
                |(of, start, _): &(&str, &str, _)| *of == page && block.text.starts_with(start);
            match kind(&block) {
                Kind::Shown if !NOT_PRINTED.iter().any(is_listed) => {
                    shown.push((page.clone(), block.line, block.text, printed.clone()));
                }
                Kind::Quick if page != RECIPES && !block.text.starts_with("scripts/example.sh") => {
                    for command in commands(&block) {
                        let place = format!("{place}: {command}");
                        if page != OTHER_MACHINES && !example.has(&command) {
                            println!("{place}: skipped, as its program is missing");
                            in_part.push(page.clone());
                            continue;
                        }
                        let Output { printed: now, code } = example.run(&command);
                        let [stdout, stderr] = &now;
                        // Of other machines only the flags are checked: exit code 2 is wrong usage.
                        if code == 2 || code != 0 && page != OTHER_MACHINES {
                            faults.push(format!("{place}: exit code {code}: {stderr}"));
                        }
                        if command.starts_with("kl report") && stdout.contains("Not compared") {
                            faults.push(format!("{place}: leaves something out: {stdout}"));
                        }
                        let after = example.files();
                        for (name, bytes) in &files {
                            match after.get(name) {
                                Some(same) if same == bytes => {}
                                // A report is made again and again.
                                Some(_) if command.starts_with("kl report") => {}
                                Some(_) => faults.push(format!("{place}: replaces {name}")),
                                None => faults.push(format!("{place}: loses {name}")),
                            }
                        }
                        files = after;
                        printed.extend(now);
                    }
                }
                _ => {}
            }
        }
    }
    let updates = std::env::var("INSTA_UPDATE").is_ok_and(|value| value == "always");
    for (page, line, block, printed) in shown {
        if in_part.contains(&page) || printed.iter().any(|printed| is_shown_in(&block, printed)) {
            continue;
        }
        match as_printed(&block, &printed).filter(|_| updates) {
            Some(text) => replace(&page, &block, &text),
            None => faults.push(format!("{page}:{line}: no command prints\n{block}")),
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
            let programs = commands(&block);
            let programs = programs.iter().map(|command| first_word(command));
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
            match shell.status().unwrap() {
                status if status.success() => {}
                status => faults.push(format!("{place}: {status}")),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
