//! No output replaces an input, be it named, in a folder that is read, or reached by a link.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::session::Session;

/// A session with files of every kind that commands read, some of them in folders.
fn session() -> Session {
    let session = Session::with_reference("");
    session.ok("-m @q4 -r ref.gz -q --sidecar q4.kls");
    for folder in ["results", "models", "rows", "links"] {
        fs::create_dir(session.path(folder)).unwrap();
    }
    for (from, to) in [
        ("q4.kls", "results/a.kls"),
        ("@q4", "models/q4.gguf"),
        ("@q2", "models/q2.GGUF"),
        ("@peers/safetensors-f16/0.safetensors", "rows/0.safetensors"),
        ("@peers/safetensors-f16/1.safetensors", "rows/1.safetensors"),
        ("ref.gz", "x.partial"), // kl's own temporary name is an output too
    ] {
        fs::copy(session.path(from), session.path(to)).unwrap();
    }
    session.write("results/b.kls.partial", "left over");
    session.write("models/split-00001-of-00002.gguf", "");
    session.write("models/split-00002-of-00002.gguf", "");
    session.write("prompts.txt", "Once upon a time\n");
    session.write("chat.jinja", "{{ messages[0].content }}");
    session.reference_of("@f16", "part.0.gz", "--shard 0/2");
    session.reference_of("@f16", "part.1.gz", "--shard 1/2");
    #[cfg(unix)]
    for file in ["results/a.kls", "models/q4.gguf", "rows/0.safetensors"] {
        use std::os::unix::fs::symlink;
        let (folder, _) = file.split_once('/').unwrap();
        let (_, ending) = file.split_once('.').unwrap();
        let path = |name: &str| session.path(name);
        symlink(path(folder), path(&format!("links/{folder}"))).unwrap();
        symlink(path(file), path(&format!("soft-{ending}"))).unwrap();
        fs::hard_link(path(file), path(&format!("hard-{ending}"))).unwrap();
    }
    session
}

/// Every file below a folder with its bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    all
}

/// Calls without their output, the output's flags (`-`: none), and files that it must not be.
const CALLS: &str = "
    report results => --csv --json --html => results/a.kls results/new.kls results/b.kls ./results/../results/a.kls
    report q4.kls results => --csv --json --html => q4.kls results/a.kls
    report q4.kls => --csv --json --html => q4.kls
    compare rows rows --no-sidecar => --json => rows/0.safetensors rows/9.safetensors
    compare ref.gz rows => --json --sidecar => ref.gz rows/1.safetensors
    -m models -r ref.gz --no-sidecar => --json => models/q2.GGUF models/new.gguf models/split-00002-of-00002.gguf ref.gz
    -m models/split-00001-of-00002.gguf -r ref.gz => --json --sidecar => models/split-00001-of-00002.gguf models/split-00002-of-00002.gguf ref.gz
    -m models/q4.gguf -t short.txt --ref-model models/q2.GGUF => --json --sidecar => short.txt models/q2.GGUF models/q4.gguf
    -m models/q4.gguf -t a=short.txt -t b=prompts.txt => -w => short.txt prompts.txt models/q4.gguf
    -m models/q4.gguf --prompts prompts.txt --chat-template-file chat.jinja => -w => prompts.txt chat.jinja
    convert ref.gz --format kl.py => - => ref.gz
    -m models/q4.gguf -r x.partial --no-sidecar => --json => x
    merge --OUT-- part.0.gz part.1.gz => - => part.0.gz part.1.gz
";

#[cfg(unix)]
const LINKED: &str = "
    report results => --csv --json --html => links/results/a.kls links/results/new.kls soft-kls hard-kls
    report links/results => --csv => results/a.kls soft-kls hard-kls
    report soft-kls => --csv => results/a.kls hard-kls
    compare links/rows ref.gz => --json --sidecar => rows/0.safetensors soft-safetensors hard-safetensors
    -m links/models -r ref.gz --no-sidecar => --json => models/q4.gguf soft-gguf hard-gguf
    -m hard-gguf -t short.txt => -w => models/q4.gguf soft-gguf
";
#[cfg(not(unix))]
const LINKED: &str = "";

#[test]
fn no_output_replaces_an_input() {
    let session = session();
    let before = files(session.folder.path());
    for call in CALLS.trim().lines().chain(LINKED.trim().lines()) {
        let mut columns = call.split("=>").map(str::trim);
        let [call, flags, outputs] = [(); 3].map(|()| columns.next().unwrap());
        let pairs = flags
            .split(' ')
            .flat_map(|flag| outputs.split(' ').map(move |of| (flag, of)));
        for (flag, output) in pairs {
            let line = if call.contains("--OUT--") {
                call.replace("--OUT--", output)
            } else {
                format!("{call} {} {output}", if flag == "-" { "" } else { flag })
            };
            let run = session.fails(&format!("{line} --force"), 2, &[output]);
            let said = [
                "is an input of this run",
                "this run reads in a folder",
                "among the parts",
            ];
            let is_said = said.iter().any(|said| run.stderr.contains(said));
            assert!(is_said, "{line}: {}", run.stderr);
            assert!(files(session.folder.path()) == before, "{line}");
        }
    }
}

#[test]
fn other_files_of_an_input_folder_may_be_written_once() {
    let session = session();
    let outputs =
        ["--csv", "--json", "--html"].map(|flag| format!("{flag} results/all.{}", &flag[2..]));
    session.ok(&format!("report results {}", outputs.join(" ")));
    session.ok("compare rows rows -q --sidecar rows/rows.kls --json rows/rows.json");
    session.remove("models/split-00001-of-00002.gguf");
    session.ok("-m models/q4.gguf -r ref.gz -q --sidecar models/q4.kls --json models/q4.json");
    assert!(session.exists("models/q4.json") && session.exists("results/all.html"));
    // But no file twice.
    let cases = "
        --json x --sidecar x => x: would be written twice
        -m ./models/q4.gguf => q4@ref.kls | twice";
    session.fails_each(2, "-m models/q4.gguf -r ref.gz --force", cases);
}
