//! The docs against the program: every command in a block runs, on the models of `fixtures/` under
//! the names that the docs use (`scripts/example.sh`), and prints what the docs show.
//!
//! A block is commands if each of its lines starts with the name of a program. Others are text that
//! one of the page's commands has to print, or are listed in `NOT_PRINTED`. Commands that take
//! minutes or need other programs run with `scripts/docs.sh`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::session::program;

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

/// A folder with the files that the docs name, and the `kl` that the commands in it find.
struct Example {
    folder: TempDir,
}

impl Example {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let example = Self { folder };
        let mut script = Command::new("sh");
        script.arg(root().join("scripts/example.sh"));
        assert!(script.arg(example.path()).status().unwrap().success());
        // Examples of one page write the same files again, and run beside other tests.
        let wrapper = format!(
            "#!/bin/sh\n\
             case \" $* \" in *' --threads '*) ;; *' -m '*) set -- \"$@\" --threads 1 ;; esac\n\
             case \" $* \" in\n\
             *' --resume '* | *' --force '*) ;;\n\
             *' -w '* | ' convert '* | ' merge '*) set -- \"$@\" --force ;;\n\
             esac\n\
             exec '{}' \"$@\"\n",
            program().display()
        );
        std::os::unix::fs::symlink(root().join("scripts"), example.path().join("scripts")).unwrap();
        let bin = example.folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("kl"), wrapper).unwrap();
        let mut chmod = Command::new("chmod");
        assert!(
            chmod
                .arg("+x")
                .arg(bin.join("kl"))
                .status()
                .unwrap()
                .success()
        );
        example
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("example")
    }

    /// The files in it, but for those that it came with in folders.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.path()).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.is_file())
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                (name.to_owned(), fs::read(&path).unwrap())
            })
            .collect()
    }

    /// Whether the programs of all commands are there.
    fn has_all(&self, commands: &[String]) -> bool {
        let mut programs = commands.iter().map(|command| first_word(command));
        programs.all(|program| self.run(&format!("command -v {program}")).1 == 0)
    }

    /// Runs a block with `sh`. Returns what it printed, and its exit code.
    fn run(&self, script: &str) -> (String, i32) {
        let bin = self.folder.path().join("bin");
        let path = std::env::var("PATH").unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &format!("exec 2>&1\n{script}")]);
        shell.env("PATH", format!("{}:{path}", bin.display()));
        shell.env("HOME", self.folder.path());
        let output = shell.current_dir(self.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (printed, output.status.code().unwrap_or(-1))
    }
}

/// Lines with every number as `#` and every run of spaces and dashes as one: digits and units of
/// time depend on the machine, and widths on digits.
fn shapes(text: &str) -> Vec<String> {
    text.lines().map(shape).collect()
}

fn shape(line: &str) -> String {
    let line = line.replace(" ms", " s");
    let words = line.split(' ').filter(|word| !word.is_empty());
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '+');
    let words = words.map(|word| {
        let mut shape = String::new();
        for c in word.replace("e-", "-").chars() {
            match is_number(c) {
                true if shape.ends_with('#') => {}
                true => shape.push('#'),
                false => shape.push(c),
            }
        }
        shape
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Runs the blocks of a page one after the other in one folder. Returns what is wrong.
fn faults(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let example = Example::new();
    let mut printed = String::new();
    for block in blocks(&read(page)) {
        let place = format!("{page}:{}", block.line);
        match kind(&block) {
            Kind::Quick if page == OTHER_MACHINES => {
                for command in commands(&block) {
                    // Exit code 2 is wrong usage; a file that is not there is 1.
                    if let (error, 2) = example.run(&command) {
                        faults.push(format!("{place}: {command}\n{error}"));
                    }
                }
            }
            Kind::Quick if page != RECIPES && !example.has_all(&commands(&block)) => {
                println!("{place}: skipped, as a program is missing");
            }
            Kind::Quick if page != RECIPES => {
                let (output, code) = example.run(&block.text);
                if code != 0 {
                    let end: Vec<&str> = output.lines().rev().take(3).collect();
                    faults.push(format!("{place}: exit code {code}: {end:#?}"));
                }
                printed += &output;
            }
            Kind::Shown => {
                let is_listed =
                    |(of, start, _): &(&str, &str, _)| *of == page && block.text.starts_with(start);
                let (shown, printed) = (shapes(&block.text), shapes(&printed));
                let mut places = printed.windows(shown.len());
                if !NOT_PRINTED.iter().any(is_listed) && !places.any(|lines| lines == shown) {
                    faults.push(format!("{place}: no command prints\n{}", block.text));
                }
            }
            _ => {}
        }
    }
    faults
}

#[test]
fn commands_in_the_docs_run_and_print_what_the_docs_show() {
    let pages = pages();
    let faults: Vec<String> = std::thread::scope(|scope| {
        let pages: Vec<_> = pages
            .iter()
            .map(|page| scope.spawn(|| faults(page)))
            .collect();
        pages
            .into_iter()
            .flat_map(|page| page.join().unwrap())
            .collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The README's commands and then the guide's in one folder, as somebody types them who reads both:
/// no step may lose or replace a file of an earlier one.
#[test]
fn the_readme_and_the_guide_keep_all_their_files_in_one_folder() {
    let example = Example::new();
    let mut files = example.files();
    let mut faults = Vec::new();
    for page in ["README.md", "docs/GUIDE.md"] {
        for block in blocks(&read(page)) {
            if kind(&block) != Kind::Quick || block.text.starts_with("scripts/example.sh") {
                continue;
            }
            for command in commands(&block) {
                let place = format!("{page}:{}: {command}", block.line);
                if !example.has_all(std::slice::from_ref(&command)) {
                    println!("{place}: skipped, as a program is missing");
                    continue;
                }
                let (output, code) = example.run(&command);
                if code != 0 {
                    faults.push(format!("{place}: exit code {code}: {output}"));
                }
                if command.starts_with("kl report") && output.contains("Not compared") {
                    faults.push(format!("{place}: leaves something out: {output}"));
                }
                let now = example.files();
                for (name, bytes) in &files {
                    match now.get(name) {
                        Some(same) if same == bytes => {}
                        Some(_) => faults.push(format!("{place}: replaces {name}")),
                        None => faults.push(format!("{place}: loses {name}")),
                    }
                }
                files = now;
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let sidecars: Vec<&str> = files
        .keys()
        .filter_map(|name| name.strip_suffix(".kls"))
        .collect();
    let of_ref = ["fp16-kv8", "pruned", "q2", "q4-kv8", "q4", "q8"];
    let of_ref = of_ref.map(|name| format!("{name}@ref"));
    let mut expected: Vec<&str> = of_ref.iter().map(String::as_str).collect();
    expected.extend([
        "good",
        "moe-q4@moe",
        "new",
        "pruned@answers",
        "q2@answers",
        "q2@fp16",
        "q4-k_f16-v_f16@kv",
        "q4-k_f16-v_q8_0@kv",
        "q4-k_q8_0-v_f16@kv",
        "q4-k_q8_0-v_q8_0@kv",
        "q4@answers",
        "q4@fp16",
        "q4@mixed",
        "q4@short",
        "q8@answers",
    ]);
    expected.sort_unstable();
    assert_eq!(sidecars, expected);
    // The report of many quants compares what was evaluated against ref.gz.
    let csv = String::from_utf8(files["all.csv"].clone()).unwrap();
    let mut compared: Vec<&str> = csv
        .lines()
        .skip(1)
        .filter_map(|row| row.split(',').nth(1))
        .collect();
    compared.sort_unstable();
    assert_eq!(compared, of_ref.map(|name| format!("{name}.kls")));
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
