#[cfg(unix)]
mod hostile;
mod names;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::fake::{FakeHub, Fault};
use super::{Hub, HubFile, HubStep, Repository};

/// The length of the first file: longer than some blocks.
const SIZE: u64 = 3_000_000;

/// A hub that serves some models, and a cache.
struct Fixture {
    folder: TempDir,
    server: FakeHub,
    /// The lines that a watch was told.
    said: RefCell<Vec<String>>,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = "M-Q4_K_M.gguf,M-Q8_0.gguf,a b/M.IQ4_XS.gguf,notes #1.txt";
        for (i, name) in names.split(',').enumerate() {
            let path = folder.path().join("served/me/M").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let bytes = (0..SIZE as usize + i).map(|at| (at * (i + 7) / 5) as u8);
            fs::write(path, bytes.collect::<Vec<u8>>()).unwrap();
        }
        let server = FakeHub::serve(&folder.path().join("served"));
        let said = RefCell::default();
        Self {
            folder,
            server,
            said,
        }
    }

    fn hub_with(&self, variables: &[(&str, &str)]) -> Hub {
        let mut all = BTreeMap::from([
            ("HF_ENDPOINT", &*self.server.endpoint),
            ("HF_HOME", self.folder.path().to_str().unwrap()),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "1"),
        ]);
        all.extend(variables.iter().copied());
        let variable = |name: &str| all.get(name).map(OsString::from);
        let mut hub = Hub::from_environment(&variable).unwrap();
        hub.wait = Duration::from_millis(1);
        hub
    }

    fn hub(&self) -> Hub {
        self.hub_with(&[])
    }

    fn watch(&self, step: HubStep) -> bool {
        if let HubStep::Message(line) = step {
            self.said.borrow_mut().push(line.to_owned());
        }
        false
    }

    /// The next request for this path meets a fault.
    fn fault(&self, path: &str, fault: Fault) {
        self.server.fault(path, fault);
    }

    fn repository(&self) -> Repository {
        self.listed(&self.hub()).unwrap()
    }

    fn listed(&self, hub: &Hub) -> anyhow::Result<Repository> {
        hub.repository("me/M", &|step| self.watch(step))
    }

    /// The file in which faults happen.
    fn file(&self) -> HubFile {
        self.repository().model(None).unwrap().remove(0)
    }

    fn load(&self, file: &HubFile) -> anyhow::Result<()> {
        self.hub().load(file, false, &|step| self.watch(step))
    }

    /// Loads a file, which must arrive after lines with these words.
    #[track_caller]
    fn arrives(&self, file: &HubFile, said: &[&str]) {
        self.load(file).unwrap();
        assert!(fs::read(self.hub().path_of(file)).unwrap() == self.bytes(file));
        let lines = self.said.take();
        assert_eq!(lines.len(), said.len(), "{lines:?}");
        for (line, what) in lines.iter().zip(said) {
            assert!(line.contains(what), "'{line}' lacks '{what}'");
        }
    }

    /// Loads a file, which must fail with an error that has all these words, and leave no file.
    #[track_caller]
    fn fails(&self, file: &HubFile, what: &[&str]) {
        has(&self.load(file).unwrap_err(), what);
        assert!(!self.hub().path_of(file).exists());
        assert!(!self.hub().blob(file).exists());
    }

    fn bytes(&self, file: &HubFile) -> Vec<u8> {
        fs::read(self.folder.path().join("served/me/M").join(&file.path)).unwrap()
    }

    fn served(&self, file: &HubFile) -> u64 {
        self.server.served(&format!("me/M/{}", file.path))
    }

    fn incomplete(&self, file: &HubFile) -> PathBuf {
        self.hub().blob(file).with_extension("incomplete")
    }

    /// Leaves these bytes of a file, as an earlier run does.
    fn leave(&self, file: &HubFile, bytes: &[u8]) {
        let path = self.incomplete(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

#[track_caller]
fn has(error: &anyhow::Error, what: &[&str]) {
    let text = format!("{error:#}");
    assert!(what.iter().all(|what| text.contains(what)), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn files_are_loaded_once_into_the_cache_of_huggingface_hub() {
    let fixture = Fixture::new();
    let hub = fixture.hub();
    let repository = fixture.repository();
    for file in &repository.files {
        fixture.arrives(file, &[]);
        fixture.load(file).unwrap();
        assert_eq!(fixture.served(file), file.size);
        let link = fs::read_link(hub.path_of(file)).unwrap();
        let up = "../".repeat(2 + file.path.matches('/').count());
        assert_eq!(link, PathBuf::from(format!("{up}blobs/{}", file.digest)));
    }
    assert_eq!(repository.files.len(), 4);
    let main = fixture.folder.path().join("hub/models--me--M/refs/main");
    let commit = fs::read_to_string(main).unwrap();
    assert_eq!(commit, repository.files[0].commit);
    let offline = fixture.hub_with(&[("HF_HUB_OFFLINE", "1")]);
    let cached = fixture.listed(&offline).unwrap();
    assert_eq!(cached.files, repository.files);
}

#[test]
fn a_new_commit_loads_only_what_has_changed() {
    let fixture = Fixture::new();
    let old = fixture.file();
    fixture.arrives(&old, &[]);
    fs::write(fixture.folder.path().join("served/me/M/README.md"), "new").unwrap();
    let new = fixture.file();
    assert_ne!(new.commit, old.commit);
    fixture.load(&new).unwrap();
    assert!(fixture.hub().path_of(&new).exists() && fixture.hub().path_of(&old).exists());
    assert_eq!(fixture.served(&old), old.size);
}

#[test]
fn a_download_that_ends_early_is_continued() {
    for (faults, said, sent_twice) in [
        (
            &[Fault::CutsAfter(1_000_000), Fault::CutsAfter(500_000)][..],
            &[
                "ended at 976.56 KiB of 2.86 MiB",
                "ended at 1.43 MiB of 2.86 MiB",
            ][..],
            0,
        ),
        (
            &[Fault::SilentAfter(1_000_000)],
            &["ended at 976.56 KiB"],
            0,
        ),
        (&[Fault::Shortens(1000)], &["the connection ended at"], 0),
        // A server that sends no parts sends all again.
        (
            &[Fault::CutsAfter(1_000_000), Fault::IgnoresRange],
            &["ended at"],
            1_000_000,
        ),
    ] {
        let fixture = Fixture::new();
        let file = fixture.file();
        for fault in faults {
            fixture.fault("/cdn/", fault.clone());
        }
        fixture.arrives(&file, said);
        assert_eq!(fixture.served(&file), file.size + sent_twice);
    }
}

#[test]
fn what_an_earlier_run_left_is_continued() {
    let fixture = Fixture::new();
    let file = fixture.file();
    let stop = |step: HubStep| matches!(step, HubStep::Arrived(n) if n >= 1_000_000);
    fixture.server.slow_down(20_000_000);
    has(
        &fixture.hub().load(&file, false, &stop).unwrap_err(),
        &["interrupted"],
    );
    let there = fs::metadata(fixture.incomplete(&file)).unwrap().len();
    assert!((1_000_000..SIZE).contains(&there));
    fixture.arrives(&file, &[]);
    let requests = fixture.server.requests();
    let (last, _) = requests.last().unwrap();
    assert!(last.ends_with(&format!(" from {there}")), "{last}");
}

#[test]
fn what_was_left_is_checked() {
    let fixture = Fixture::new();
    let whole = fixture.file();
    fixture.leave(&whole, &fixture.bytes(&whole));
    fixture.arrives(&whole, &[]);
    assert_eq!(fixture.served(&whole), 0);
    let wrong = fixture.repository().file("notes #1.txt").unwrap().remove(0);
    fixture.leave(&wrong, &[1; 1000]);
    fixture.arrives(
        &wrong,
        &["another hash than the hub states: loading it again"],
    );
    let other = fixture.repository().file("M-Q8_0.gguf").unwrap().remove(0);
    fixture.leave(&other, &vec![1; SIZE as usize + 1000]);
    fixture.fault("/cdn/", Fault::Lengthens);
    fixture.arrives(&other, &[]);
}

#[test]
fn what_arrives_wrong_twice_is_an_error() {
    let fixture = Fixture::new();
    let file = fixture.file();
    fixture.fault("/cdn/", Fault::Changes);
    fixture.fault("/cdn/", Fault::Changes);
    fixture.fails(&file, &["M-Q4_K_M.gguf", "another hash", "twice"]);
    assert!(!fixture.incomplete(&file).exists());
}

#[test]
fn a_hub_that_is_busy_is_waited_for() {
    let fixture = Fixture::new();
    let file = fixture.file();
    fixture.fault("/cdn/", Fault::Answers(503, ""));
    fixture.fault("/resolve/", Fault::Answers(429, "Retry-After: 1"));
    let start = Instant::now();
    let busy = "answers 429 Too Many Requests: trying again in 1 s";
    fixture.arrives(&file, &[busy, "answers 503"]);
    assert!(start.elapsed() >= Duration::from_secs(1));
    fixture.fault(
        "/revision/",
        Fault::Answers(429, "RateLimit: \"api\";r=0;t=1"),
    );
    fixture.repository();
    assert_eq!(fixture.said.take().len(), 1);
}

#[test]
fn a_hub_that_stays_busy_is_an_error_and_nothing_is_lost() {
    let fixture = Fixture::new();
    let file = fixture.file();
    fixture.fault("/cdn/", Fault::CutsAfter(1_000_000));
    for _ in 0..5 {
        fixture.fault("/cdn/", Fault::Answers(500, ""));
    }
    fixture.fails(&file, &["M-Q4_K_M.gguf", "answers 500", "repeat the call"]);
    fixture.said.take();
    fixture.fault("/resolve/", Fault::Answers(429, "Retry-After: 86400"));
    fixture.fails(&file, &["answers 429", "in 86400 s"]);
    fixture.arrives(&file, &[]);
    assert_eq!(fixture.served(&file), file.size);
}

#[test]
fn loading_can_be_stopped_while_a_server_is_silent() {
    let fixture = Fixture::new();
    let file = fixture.file();
    fixture.fault("/cdn/", Fault::SilentAfter(1_000_000));
    let start = Instant::now();
    let stop = |_: HubStep| start.elapsed() > Duration::from_millis(500);
    let stopped = fixture.hub().load(&file, false, &stop);
    has(&stopped.unwrap_err(), &["interrupted"]);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn repositories_that_cannot_be_read_are_errors_that_say_what_to_do() {
    let fixture = Fixture::new();
    let (without, with) = (fixture.hub(), fixture.hub_with(&[("HF_TOKEN", "hf_x")]));
    let fails = |hub: &Hub, name: &str, what: &[&str]| {
        let listed = hub.repository(name, &|step| fixture.watch(step));
        has(&listed.unwrap_err(), what);
    };
    let missing = ["me/Missing", "no such repository", "private", "HF_TOKEN"];
    fails(&without, "me/Missing", &missing);
    fails(&with, "me/Missing", &missing[..3]);
    for name in ["M", "me/M/x", "../M", "me/..", "me/M:Q4_K_M", "me/M--x", ""] {
        fails(&without, name, &["USER/REPO"]);
    }
    let terms = format!("accept its terms at {}/me/M", fixture.server.endpoint);
    for (status, hub) in [(401, &without), (403, &with)] {
        fixture.fault(
            "/revision/",
            Fault::Answers(status, "X-Error-Code: GatedRepo"),
        );
        fails(hub, "me/M", &["me/M", "gated", &terms, "HF_TOKEN"]);
    }
    fixture.fault("/revision/", Fault::Answers(401, ""));
    fails(&with, "me/M", &["refuses your token", "HF_TOKEN"]);
    fixture.fault("/revision/", Fault::Answers(418, ""));
    fails(&with, "me/M", &["answers 418"]);
    let closed = fixture.hub_with(&[("HF_ENDPOINT", "http://127.0.0.1:1")]);
    let closed_off = ["127.0.0.1:1 cannot be reached", "cache has no file"];
    fails(&closed, "me/M", &closed_off);
    let odd = Hub::from_environment(&|_| Some("huggingface.co".into()));
    has(&odd.err().unwrap(), &["HF_ENDPOINT", "https://"]);
    let offline = fixture.hub_with(&[("HF_HUB_OFFLINE", "yes")]);
    fails(&offline, "me/M", &["HF_HUB_OFFLINE is set"]);
}

#[test]
fn the_cache_serves_where_the_hub_does_not() {
    let fixture = Fixture::new();
    let file = fixture.file();
    fixture.arrives(&file, &[]);
    let closed = fixture.hub_with(&[("HF_ENDPOINT", "http://127.0.0.1:1")]);
    let cached = fixture.listed(&closed).unwrap();
    assert_eq!(cached.model(None).unwrap(), [file]);
    assert!(fixture.said.take()[0].contains("only the cache is used"));
    has(
        &cached.model(Some("Q8_0")).unwrap_err(),
        &["me/M in the cache: has no 'Q8_0': it has M-Q4_K_M.gguf"],
    );
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let fixture = Fixture::new();
    fs::write(fixture.folder.path().join("token"), "hf_secret\n").unwrap();
    for file in &fixture.repository().files {
        fixture.arrives(file, &[]);
    }
    let requests = fixture.server.requests();
    let is_sent = |path: &str| {
        let mut with_token = requests.iter().filter(|(_, has_token)| *has_token);
        with_token.any(|(line, _)| line.contains(path))
    };
    assert!(is_sent("/api/models/") && is_sent("/resolve/") && is_sent("/resolve-cache/"));
    assert!(!is_sent("/cdn/"));
}

#[test]
fn a_full_disk_is_noticed_before() {
    let fixture = Fixture::new();
    let file = HubFile {
        size: u64::MAX / 2,
        ..fixture.file()
    };
    fixture.fails(&file, &["M-Q4_K_M.gguf", "has no room for", "HF_HUB_CACHE"]);
    assert_eq!(fixture.served(&file), 0);
}

#[test]
fn of_two_loads_of_a_file_the_second_waits_for_the_first() {
    let fixture = Fixture::new();
    let file = fixture.file();
    fixture.server.slow_down(6_000_000);
    std::thread::scope(|scope| {
        let hub = fixture.hub();
        let (file, folder) = (&file, fixture.incomplete(&file));
        let first = scope.spawn(move || hub.load(file, false, &|_| false).unwrap());
        while !folder.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        fixture.load(file).unwrap();
        first.join().unwrap();
    });
    assert!(fixture.said.take()[0].contains("another process loads it"));
    assert_eq!(fixture.served(&file), SIZE);
}

#[test]
fn only_what_was_loaded_with_a_mark_is_discarded() {
    let fixture = Fixture::new();
    let (hub, files) = (fixture.hub(), fixture.repository().files);
    let is_there = |file: &&HubFile| hub.path_of(file).exists();
    let load = |file, mark| hub.load(file, mark, &|step| fixture.watch(step)).unwrap();
    load(&files[0], false);
    load(&files[0], true);
    load(&files[1], true);
    load(&files[1], false);
    load(&files[2], true);
    for file in &files {
        // Another run, as after this one was killed.
        fixture.hub().discard(file).unwrap();
    }
    assert_eq!(files.iter().filter(is_there).count(), 2);
    assert!(hub.path_of(&files[0]).exists() && hub.path_of(&files[1]).exists());
    assert!(!hub.blob(&files[2]).exists() && !hub.path_of(&files[2]).parent().unwrap().exists());
}

#[test]
fn a_repository_of_which_all_is_discarded_leaves_no_folder() {
    let fixture = Fixture::new();
    let hub = fixture.hub();
    for file in fixture.repository().files {
        hub.load(&file, true, &|step| fixture.watch(step)).unwrap();
        hub.discard(&file).unwrap();
    }
    assert!(!fixture.folder.path().join("hub/models--me--M").exists());
}
