//! Models by name, from a hub on the loopback address: one, a reference, and a whole shelf of quants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::gguf::Gguf;
use crate::hub::{FakeHub, Fault};
use crate::session::{Run, Session, fixture, labels, send, wait_until};

/// The quants of the repository `me/tiny-GGUF`.
const QUANTS: [(&str, &str); 4] = [
    ("f16", "tiny-f16.gguf"),
    ("q8", "tiny-Q8_0.gguf"),
    ("q4", "tiny-Q4_K_M.gguf"),
    ("q2", "tiny-Q2_K.gguf"),
];

const SHELF: &str = "-hf me/tiny-GGUF --quants 'Q*' -r ref.gz -q";

/// A hub with a repository of quants and a reference, and a session that knows it.
struct Shelf {
    session: Session,
    hub: FakeHub,
    folder: TempDir,
}

impl Shelf {
    fn new() -> Self {
        let mut session = Session::with_reference("");
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("me/tiny-GGUF");
        fs::create_dir_all(&repository).unwrap();
        for (alias, name) in QUANTS {
            fs::copy(fixture(alias), repository.join(name)).unwrap();
        }
        fs::copy(session.path("ref.gz"), repository.join("ref.gz")).unwrap();
        let hub = FakeHub::serve(folder.path());
        session.hub = Some(hub.endpoint.clone());
        Self {
            session,
            hub,
            folder,
        }
    }

    fn repository(&self) -> PathBuf {
        self.folder.path().join("me/tiny-GGUF")
    }

    /// The bytes that were sent of a file of the repository.
    fn served(&self, name: &str) -> u64 {
        self.hub.served(&format!("me/tiny-GGUF/{name}"))
    }

    /// The path of a file in the cache, from the session's folder.
    fn cached(&self, name: &str) -> String {
        let snapshots = "hf/hub/models--me--tiny-GGUF/snapshots";
        let mut commits = fs::read_dir(self.session.path(snapshots)).unwrap();
        let commit = commits.next().unwrap().unwrap().file_name();
        format!("{snapshots}/{}/{name}", commit.into_string().unwrap())
    }

    /// The number of files in the cache, whole or not.
    fn n_blobs(&self) -> usize {
        let folder = self.session.path("hf/hub/models--me--tiny-GGUF/blobs");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let stems = entries.filter_map(|entry| Some(entry.path().file_stem()?.to_owned()));
        stems.collect::<BTreeSet<_>>().len()
    }

    /// The sidecars of the shelf, with their bytes.
    fn sidecars(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.session.files().into_iter();
        let names = names.filter(|name| name.ends_with(".kls"));
        let sidecars = names.map(|name| (name.clone(), self.session.read(&name)));
        sidecars.collect()
    }
}

fn size(alias: &str) -> u64 {
    fs::metadata(fixture(alias)).unwrap().len()
}

#[test]
fn a_model_by_name_is_llama_cpps_and_is_loaded_once() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    session.ok("-hf me/tiny-GGUF -r ref.gz -q");
    session.ok("-m @q4 -r ref.gz -q --sidecar local.kls");
    let same = ["tiny-Q4_K_M@ref.kls", "local.kls"].map(|name| session.record_bits(name));
    assert_eq!(same[0], same[1]);
    for line in [
        "-m hf:me/tiny-GGUF:q4_k_m -r ref.gz --force -q",
        "-hf me/tiny-GGUF -hff tiny-Q4_K_M.gguf -r hf:me/tiny-GGUF/ref.gz --force -q",
        "info hf:me/tiny-GGUF",
    ] {
        session.ok(line);
    }
    assert_eq!(shelf.served("tiny-Q4_K_M.gguf"), size("q4"));
    assert_eq!(shelf.served("ref.gz"), session.length("ref.gz"));
}

#[test]
fn nothing_is_loaded_to_run_over_a_text_that_is_not_there() {
    let shelf = Shelf::new();
    for line in [
        "-hf me/tiny-GGUF:Q8_0 -t none.txt -w new.gz",
        "-hf me/tiny-GGUF:Q8_0 --ref-hf me/tiny-GGUF:F16 -t none.txt",
        "-hf me/tiny-GGUF:Q8_0 -r none.txt",
        "sensitivity -hf me/tiny-GGUF:Q8_0 -t none.txt -w new.jsonl",
        "check -hf me/tiny-GGUF:Q8_0 -t none.txt",
    ] {
        shelf.session.fails(line, 1, &["none.txt: cannot be read"]);
    }
    assert_eq!(shelf.served("tiny-Q8_0.gguf"), 0);
}

#[test]
fn all_parts_of_a_split_model_are_loaded_and_discarded() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    let file = Gguf::read(session.read("@q4"));
    let names = [1, 2].map(|part| format!("split-Q5_K_M-0000{part}-of-00002.gguf"));
    for (part, name) in (0..).zip(&names) {
        fs::write(shelf.repository().join(name), file.part(part)).unwrap();
    }
    session.ok("-hf me/tiny-GGUF:Q5_K_M -r ref.gz -q --discard");
    session.ok("-m @q4 -r ref.gz -q --sidecar local.kls");
    let same = ["split-Q5_K_M@ref.kls", "local.kls"].map(|name| session.record_bits(name));
    assert_eq!(same[0], same[1]);
    assert!(names.iter().all(|name| shelf.served(name) > 0));
    assert_eq!(shelf.n_blobs(), 0);
}

#[test]
fn a_reference_by_name_is_known_by_its_hash() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    session.ok("-m @q8 -r ref.gz -q --sidecar local.kls");
    session.ok("-m @q8 -r hf:me/tiny-GGUF/ref.gz -q --sidecar by-name.kls");
    assert!(session.read("local.kls") == session.read("by-name.kls"));
    session.ok("-hf me/tiny-GGUF:q8_0 --ref-hf me/tiny-GGUF:f16 -t short.txt -c 64 -q");
    assert!(session.exists("tiny-Q8_0@tiny-f16.kls"));
}

#[test]
fn a_shelf_needs_room_for_two_and_leaves_a_report_by_the_repositorys_names() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    shelf.hub.slow_down(4 << 20);
    let mut child = session.spawn(&format!("{SHELF} --discard"));
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(shelf.n_blobs());
    }
    let run = Run::from(child.wait_with_output().unwrap());
    assert_eq!(run.code, 0, "{}", run.stderr);
    run.prints(&["tiny-Q8_0", "tiny-Q4_K_M", "tiny-Q2_K"]);
    assert!((1..=2).contains(&most), "{most} at once");
    assert_eq!(shelf.n_blobs(), 0);
    let report = session.json("report .");
    assert_eq!(labels(&report), ["tiny-Q8_0", "tiny-Q4_K_M", "tiny-Q2_K"]);
    // What is done is not loaded again, and what is needed again is.
    let before = shelf.hub.requests().len();
    let resumed = session.json(&format!("{SHELF} --discard --resume"));
    assert_eq!(resumed["complete"], true);
    let asked = &shelf.hub.requests()[before..];
    let is_load = |(request, _): &(String, bool)| request.contains("/resolve/");
    assert!(!asked.iter().any(is_load), "{asked:?}");
    session.ok(&format!("{SHELF} --discard --resume --top-k 1"));
    assert_eq!(shelf.served("tiny-Q2_K.gguf"), 2 * size("q2"));
}

#[test]
fn a_shelf_that_is_killed_again_and_again_makes_the_same_sidecars() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    let line = format!("{SHELF} --discard --resume");
    session.ok(&line);
    let whole = shelf.sidecars();
    whole.keys().for_each(|name| session.remove(name));
    shelf.hub.slow_down(4 << 20);
    for (alias, name) in [QUANTS[1], QUANTS[3]] {
        let half = size(alias) * 3 / 2;
        let killed = session.cut_off(&line, "-KILL", || shelf.served(name) >= half);
        assert!(killed.is_some(), "{name}");
    }
    session.ok(&line);
    assert!(shelf.sidecars() == whole);
    assert_eq!(shelf.n_blobs(), 0);
    let mut requests = shelf.hub.requests().into_iter();
    assert!(requests.any(|(request, _)| request.contains(" from ")));
    // It was whole when the second kill came.
    assert!(shelf.served("tiny-Q4_K_M.gguf") <= 2 * size("q4"));
}

/// As a run leaves it that is killed between the two.
#[test]
fn a_model_that_was_evaluated_and_not_yet_discarded_is_discarded_by_the_next_run() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    let line = format!("{SHELF} --discard --resume");
    session.ok(&line);
    session.ok("-hf me/tiny-GGUF -r ref.gz -q --sidecar other.kls");
    session.ok(&line);
    assert_eq!(shelf.n_blobs(), 1, "nobody asked to discard it");
    let blob = fs::canonicalize(session.path(&shelf.cached("tiny-Q4_K_M.gguf"))).unwrap();
    fs::write(blob.with_extension("kl-discard"), "").unwrap();
    session.ok(&line);
    assert_eq!(shelf.n_blobs(), 0);
    assert_eq!(shelf.served("tiny-Q4_K_M.gguf"), 2 * size("q4"));
}

#[test]
fn what_is_wrong_with_a_name_is_one_line() {
    let shelf = Shelf::new();
    let cases = "
        me/tiny-GGUF:Q5_K_M -r ref.gz => me/tiny-GGUF | 'Q5_K_M' | Q4_K_M
        me/none-GGUF -r ref.gz => me/none-GGUF | no such repository
        me/tiny-GGUF --quants 'Q8*,IQ*' -r ref.gz => 'IQ*'
        me/tiny-GGUF --hf-file none.gguf -r ref.gz => none.gguf
        me/tiny-GGUF -r hf:me/tiny-GGUF/none.gz => none.gz";
    shelf.session.fails_each(1, "-hf", cases);
    for _ in 0..8 {
        shelf.hub.fault("tiny-Q4_K_M", Fault::Changes);
    }
    let run = shelf.session.ends("-hf me/tiny-GGUF -r ref.gz -q", 1);
    assert!(run.stderr.contains("tiny-Q4_K_M.gguf"), "{}", run.stderr);
    assert!(shelf.sidecars().is_empty());
}

#[test]
fn one_model_that_cannot_be_loaded_does_not_stop_the_others() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    for _ in 0..8 {
        shelf.hub.fault("tiny-Q8_0", Fault::Changes);
    }
    let run = session.ends(SHELF, 1);
    assert!(run.stderr.contains("tiny-Q8_0.gguf"), "{}", run.stderr);
    let left = Vec::from_iter(shelf.sidecars().into_keys());
    assert_eq!(left, ["tiny-Q2_K@ref.kls", "tiny-Q4_K_M@ref.kls"]);
}

#[test]
fn each_file_is_of_the_repository_before_it() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    let two = "-hf me/tiny-GGUF -hff tiny-Q8_0.gguf -hf me/tiny-GGUF -hff tiny-Q2_K.gguf";
    let report = session.json(&format!("{two} -r ref.gz"));
    assert_eq!(labels(&report), ["tiny-Q8_0", "tiny-Q2_K"]);
    assert_eq!(shelf.served("tiny-Q4_K_M.gguf"), 0);
    session.fails_each(
        2,
        "-hf me/tiny-GGUF",
        "-hff a.gguf -hff b.gguf -r ref.gz => --hf-file | 'a.gguf' and 'b.gguf' | me/tiny-GGUF",
    );
    // What follows `--` is a path.
    session.fails(
        "info -- hf:me/tiny-GGUF",
        1,
        &["hf:me/tiny-GGUF: cannot open"],
    );
}

#[test]
fn a_changed_byte_in_the_cache_is_seen_before_it_is_used() {
    let shelf = Shelf::new();
    let session = &shelf.session;
    session.ok("-hf me/tiny-GGUF:Q8_0 -r hf:me/tiny-GGUF/ref.gz -q");
    let [model, reference] = ["tiny-Q8_0.gguf", "ref.gz"].map(|name| shelf.cached(name));
    session.ok(&format!("info {model} --verify"));
    for name in [&model, &reference] {
        session.change(name, name, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
    }
    for line in [
        "-hf me/tiny-GGUF:Q8_0 -r ref.gz -q --force",
        "info hf:me/tiny-GGUF:Q8_0 --verify -q",
        "-m @q4 -r hf:me/tiny-GGUF/ref.gz -q",
    ] {
        session.fails(line, 1, &["another hash", "remove"]);
    }
    let found = session.ends(&format!("info {model} --verify --json -q"), 1);
    assert_eq!(found.json()["verification"]["findings"][0]["kind"], "hash");
    session.fails(
        &format!("info {reference} --verify -q"),
        1,
        &["another hash"],
    );
}

#[test]
fn what_a_hostile_hub_answers_is_one_line() {
    let shelf = Shelf::new();
    let file = |path: &str, size: &str| {
        let commit = "0123456789012345678901234567890123456789";
        format!(
            r#"{{"sha":"{commit}","siblings":[{{"rfilename":"{path}","size":{size},"blobId":"{commit}"}}]}}"#
        )
    };
    let long = "x".repeat(10_000_000);
    for answer in [
        file("a-Q4_K_M.gguf", "18446744073709551615"),
        file(&long, "1"),
        file("../a.gguf", "1"),
        long,
    ] {
        shelf.hub.fault("/revision/", Fault::Says(answer));
        let run = shelf
            .session
            .fails("-hf me/tiny-GGUF -r ref.gz", 1, &["me/tiny-GGUF"]);
        assert!(run.stderr.len() < 1_000);
    }
    let to_a_file = Fault::Answers(302, "Location: file:///etc/passwd");
    shelf.hub.fault("/revision/", to_a_file);
    let what = ["redirects to 'file:///etc/passwd'"];
    shelf.session.fails("-hf me/tiny-GGUF -r ref.gz", 1, &what);
    let mut command = shelf.session.command("-hf me/tiny-GGUF -r ref.gz -q");
    command.env("HF_HUB_DOWNLOAD_TIMEOUT", "18446744073709551615");
    let run = Run::from(command.output().unwrap());
    assert_eq!(run.code, 0, "{}", run.stderr);
}

/// A download listens to Ctrl-C. Reading a text does not: afterwards, the first one ends the program.
#[cfg(unix)]
#[test]
fn after_a_download_the_first_signal_is_heard() {
    let shelf = Shelf::new();
    // Long enough to be shown.
    shelf.hub.slow_down(size("q8"));
    let mut command = shelf
        .session
        .command("-hf me/tiny-GGUF:Q8_0 -t - -w new.gz");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A text that does not end.
    let text = child.stdin.take();
    let model = "hf/hub/models--me--tiny-GGUF/snapshots";
    wait_until(&mut child, || shelf.session.exists(model));
    std::thread::sleep(Duration::from_millis(500));
    send("-TERM", child.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let is_over = child.try_wait().unwrap().is_some();
    let _ = child.kill();
    drop(text);
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    child.wait().unwrap();
    assert!(is_over, "{said}");
    assert!(said.contains("interrupted"), "{said}");
}
