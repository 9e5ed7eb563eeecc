//! Hubs and caches that hold what they should not: an error in one line, nothing outside of the cache, and
//! nothing that does not end.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Fixture, SIZE, has};
use crate::fake::Fault;
use crate::{Hub, differs_from_name};

const COMMIT: &str = "0123456789012345678901234567890123456789";

/// A listing of one file.
fn listed(path: &str, size: &str) -> String {
    let path = serde_json::to_string(path).unwrap();
    format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":{path},"size":{size},"blobId":"{COMMIT}"}}]}}"#
    )
}

fn cache(fixture: &Fixture) -> PathBuf {
    fixture.folder.path().join("hub/models--me--M")
}

/// A file outside of the cache, which must stay as it is.
fn outside(fixture: &Fixture) -> PathBuf {
    let path = fixture.folder.path().join("precious");
    fs::write(&path, "precious").unwrap();
    path
}

#[track_caller]
fn is_untouched(path: &Path) {
    assert_eq!(fs::read_to_string(path).unwrap(), "precious");
}

fn make_pipe(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_listing_that_makes_no_sense_is_an_error_in_one_short_line() {
    let long = "x".repeat(1 << 20);
    let nested = "[".repeat(100_000);
    let two = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{0},{0}]}}"#,
        format!(
            r#"{{"rfilename":"a","size":{},"blobId":"{COMMIT}"}}"#,
            u64::MAX / 4
        )
    );
    for (answer, what) in [
        (listed("a.gguf", "18446744073709551615"), "not sound"),
        (two, "not sound"),
        (
            listed("a.gguf", "18446744073709551616"),
            "does not answer as a hub does",
        ),
        (listed("a.gguf", "-1"), "does not answer as a hub does"),
        (
            listed("a.gguf", &format!("\"{long}\"")),
            "does not answer as a hub does",
        ),
        (listed(&long, "1"), "not sound"),
        (listed(&format!("../{long}"), "1"), "not sound"),
        (listed("a\u{0}.gguf", "1"), "not sound"),
        (listed("/etc/passwd", "1"), "not sound"),
        (listed("a\\b.gguf", "1"), "not sound"),
        (
            format!(r#"{{"sha":"{long}","siblings":[]}}"#),
            "no commit of 'main'",
        ),
        (
            format!(r#"{{"sha":"{COMMIT}","siblings":{nested}"#),
            "does not answer",
        ),
        (format!(r#"{{"x":{nested}"#), "does not answer"),
        (String::new(), "does not answer"),
    ] {
        let fixture = Fixture::new();
        fixture.fault("/revision/", Fault::Says(answer));
        let error = fixture.listed(&fixture.hub()).unwrap_err();
        has(&error, &["me/M", what]);
        assert!(format!("{error:#}").len() < 500, "{error:#}");
    }
}

#[test]
fn names_of_any_length_make_a_short_line() {
    let fixture = Fixture::new();
    let name = |i: usize| {
        let path = format!("{i}/").repeat(200) + "a.gguf";
        format!(r#"{{"rfilename":"{path}","size":1,"blobId":"{COMMIT}"}}"#)
    };
    let files: Vec<String> = (1..20).map(name).collect();
    let answer = format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, files.join(","));
    fixture.fault("/revision/", Fault::Says(answer));
    let repository = fixture.repository();
    let error = repository.model(Some(&"q".repeat(10_000))).unwrap_err();
    has(&error, &["has no 'qqqq"]);
    assert!(error.to_string().len() < 2_000);
}

#[test]
fn a_redirect_to_nowhere_is_an_error_at_once() {
    for location in [
        "Location: file:///etc/passwd",
        "Location: ",
        "X-No-Location: 1",
        "Location: ftp://127.0.0.1/x",
        "Location: https://",
        "Location: javascript:alert(1)",
    ] {
        let fixture = Fixture::new();
        fixture.fault("/revision/", Fault::Answers(302, location));
        let error = fixture.listed(&fixture.hub()).unwrap_err();
        has(&error, &["me/M", "redirects to", "kl loads nothing"]);
        assert!(fixture.said.take().is_empty());
        assert_eq!(fixture.server.requests().len(), 1);
    }
}

#[test]
fn a_part_that_was_not_asked_for_is_not_taken() {
    for fault in [Fault::SendsEarlierPart(1000), Fault::Answers(416, "")] {
        let fixture = Fixture::new();
        let file = fixture.file();
        fixture.fault("/cdn/", Fault::CutsAfter(1_000_000));
        fixture.fault("/cdn/", fault);
        // No second time because of another hash.
        fixture.arrives(&file, &["ended at"]);
    }
}

#[test]
fn a_server_that_sends_drops_is_given_up() {
    let fixture = Fixture::new();
    let file = fixture.file();
    for _ in 0..10 {
        fixture.fault("/cdn/", Fault::CutsAfter(10));
    }
    fixture.fails(
        &file,
        &["M-Q4_K_M.gguf", "the connection ended", "repeat the call"],
    );
}

#[test]
fn no_number_of_a_header_makes_it_wait_for_years() {
    for header in [
        "Retry-After: 18446744073709551615",
        "Retry-After: 18446744073709551616",
        "Retry-After: -1",
        "RateLimit: \"api\";r=0;t=18446744073709551615",
    ] {
        let fixture = Fixture::new();
        let file = fixture.file();
        for _ in 0..6 {
            fixture.fault("/resolve/", Fault::Answers(429, header));
        }
        fixture.fails(&file, &["answers 429", "repeat the call"]);
    }
}

#[test]
fn the_environment_is_read_or_refused() {
    let fixture = Fixture::new();
    let refused = |name: &'static str, value: OsString| {
        let variable = move |asked: &str| match asked {
            "HOME" => Some(OsString::from("/nowhere")),
            _ => Some(value.clone()).filter(|_| asked == name),
        };
        Hub::from_environment(&variable).err().unwrap()
    };
    for (name, value) in [
        ("HF_ENDPOINT", "me:secret@hub.co"),
        ("HF_ENDPOINT", "https://"),
        ("HF_ENDPOINT", "https://me:secret@"),
        ("HF_ENDPOINT", "https://hub.co/?secret"),
        ("HF_ENDPOINT", "ftp://hub.co"),
        ("HF_DOWNLOAD", ""),
        ("HF_TOKEN", "hf_secret\nX-Header: 1"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "ten"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "-1"),
    ] {
        if !value.is_empty() {
            let error = refused(name, value.into());
            has(&error, &[name]);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
    for name in ["HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"] {
        has(
            &refused(name, OsString::from_vec(vec![0xff])),
            &[name, "UTF-8"],
        );
    }
    // These wait long, and not for ever.
    for silence in ["18446744073709551615", "99999999999999999999999", "0"] {
        let hub = fixture.hub_with(&[("HF_HUB_DOWNLOAD_TIMEOUT", silence)]);
        assert_eq!(fixture.listed(&hub).unwrap().files.len(), 4);
    }
}

#[test]
fn a_cache_may_have_any_name() {
    let fixture = Fixture::new();
    let home = fixture
        .folder
        .path()
        .join(OsString::from_vec(vec![b'h', 0xff]));
    let variable = |name: &str| match name {
        "HF_HOME" => Some(home.clone().into_os_string()),
        "HF_ENDPOINT" => Some(OsString::from(&fixture.server.endpoint)),
        _ => None,
    };
    let hub = Hub::from_environment(&variable).unwrap();
    hub.load(&fixture.file(), false, &|_| false).unwrap();
    assert!(hub.path_of(&fixture.file()).starts_with(&home));
}

#[test]
fn the_password_of_a_hub_is_not_shown() {
    let fixture = Fixture::new();
    let with_password = fixture.server.endpoint.replace("//", "//me:secret@");
    let hub = fixture.hub_with(&[("HF_ENDPOINT", &with_password)]);
    for fault in [
        Fault::Says("{}".to_owned()),
        Fault::Answers(403, "X-Error-Code: GatedRepo"),
        Fault::Answers(401, ""),
        Fault::Answers(418, ""),
        Fault::Answers(302, ""),
    ] {
        fixture.fault("/revision/", fault);
        let error = format!("{:#}", fixture.listed(&hub).unwrap_err());
        assert!(
            error.contains("127.0.0.1") && !error.contains("secret"),
            "{error}"
        );
    }
    let closed = fixture.hub_with(&[("HF_ENDPOINT", "http://me:secret@127.0.0.1:1")]);
    let error = format!("{:#}", fixture.listed(&closed).unwrap_err());
    assert!(
        error.contains("127.0.0.1:1") && !error.contains("secret"),
        "{error}"
    );
}

#[test]
fn pipes_in_the_cache_are_not_waited_for() {
    let fixture = Fixture::new();
    let file = fixture.file();
    let locks = fixture.folder.path().join("hub/.locks/models--me--M");
    for pipe in [
        locks.join(format!("{}.lock", file.digest)),
        fixture.incomplete(&file),
    ] {
        make_pipe(&pipe);
        fixture.fails(&file, &["M-Q4_K_M.gguf", "is in the way", "remove it"]);
        fs::remove_file(pipe).unwrap();
    }
    make_pipe(&cache(&fixture).join("refs/main"));
    make_pipe(&fixture.hub().blob(&file).with_extension("kl-verified"));
    make_pipe(&fixture.hub().path_of(&file));
    make_pipe(&fixture.folder.path().join("token"));
    let offline = fixture.hub_with(&[("HF_HUB_OFFLINE", "1")]);
    has(
        &fixture.listed(&offline).unwrap_err(),
        &["cache has no file"],
    );
    fixture.arrives(&file, &[]);
    let commit = fs::read_to_string(cache(&fixture).join("refs/main")).unwrap();
    assert_eq!(commit, file.commit);
}

#[test]
fn only_a_commit_is_a_commit() {
    let fixture = Fixture::new();
    let main = cache(&fixture).join("refs/main");
    fs::create_dir_all(main.parent().unwrap()).unwrap();
    let offline = fixture.hub_with(&[("HF_HUB_OFFLINE", "1")]);
    let root = fixture.folder.path().to_str().unwrap();
    for commit in [root, "/", "..", "../..", "", "main"] {
        fs::write(&main, commit).unwrap();
        has(
            &fixture.listed(&offline).unwrap_err(),
            &["cache has no file"],
        );
    }
    // A folder that is a link is not walked.
    fs::write(&main, COMMIT).unwrap();
    let snapshot = cache(&fixture).join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    symlink("/", snapshot.join("root")).unwrap();
    has(
        &fixture.listed(&offline).unwrap_err(),
        &["cache has no file"],
    );
}

#[test]
fn links_do_not_lead_out_of_the_cache() {
    let fixture = Fixture::new();
    let (file, precious) = (fixture.file(), outside(&fixture));
    let hub = fixture.hub();
    let blob = hub.blob(&file);
    fs::create_dir_all(blob.parent().unwrap()).unwrap();
    symlink(&precious, fixture.incomplete(&file)).unwrap();
    fixture.fails(&file, &["incomplete is in the way", "remove it"]);
    fs::remove_file(fixture.incomplete(&file)).unwrap();
    for name in ["kl-discard", "kl-verified"] {
        symlink(&precious, blob.with_extension(name)).unwrap();
    }
    let locks = fixture.folder.path().join("hub/.locks/models--me--M");
    symlink(
        &precious,
        locks.join(format!("main.{}.tmp", std::process::id())),
    )
    .unwrap();
    hub.load(&file, true, &|_| false).unwrap();
    is_untouched(&precious);
    // The folder of a commit that is a link to elsewhere.
    let elsewhere = fixture.folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let other = fixture
        .repository()
        .file("a b/M.IQ4_XS.gguf")
        .unwrap()
        .remove(0);
    let folder = hub.path_of(&other).parent().unwrap().to_owned();
    symlink(&elsewhere, &folder).unwrap();
    has(
        &fixture.load(&other).unwrap_err(),
        &["a b is in the way", "remove it"],
    );
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn nothing_but_branches_is_left_in_refs() {
    let fixture = Fixture::new();
    let file = fixture.file();
    let refs = cache(&fixture).join("refs");
    fs::create_dir_all(refs.join("main")).unwrap();
    has(
        &fixture.load(&file).unwrap_err(),
        &["main cannot be written"],
    );
    assert_eq!(fs::read_dir(refs).unwrap().count(), 1);
    let locks = fixture.folder.path().join("hub/.locks/models--me--M");
    assert_eq!(fs::read_dir(locks).unwrap().count(), 1);
}

#[test]
fn a_changed_byte_in_the_cache_is_seen() {
    let fixture = Fixture::new();
    let hub = fixture.hub();
    for file in fixture.repository().files {
        fixture.arrives(&file, &[]);
        let (path, blob) = (hub.path_of(&file), hub.blob(&file));
        let never = || panic!("it is known to be right");
        // It is not read again while nothing shows that it was written to.
        hub.load(&file, false, &|_| never()).unwrap();
        assert!(!differs_from_name(&path, || Ok(())).unwrap());
        let mut bytes = fixture.bytes(&file);
        bytes[SIZE as usize / 2] ^= 1;
        fs::write(&blob, &bytes).unwrap();
        assert!(differs_from_name(&path, || Ok(())).unwrap());
        let what = [&*file.path, "another hash", "remove", &*file.digest];
        has(&fixture.load(&file).unwrap_err(), &what);
        has(&fixture.load(&file).unwrap_err(), &what);
        fs::remove_file(&blob).unwrap();
        fixture.arrives(&file, &[]);
    }
}

#[test]
fn what_another_program_has_loaded_is_hashed_once() {
    let fixture = Fixture::new();
    let (hub, file) = (fixture.hub(), fixture.file());
    fixture.arrives(&file, &[]);
    let stamp = hub.blob(&file).with_extension("kl-verified");
    fs::remove_file(&stamp).unwrap();
    let read = std::cell::Cell::new(0);
    let count = |_: crate::HubStep| {
        read.set(read.get() + 1);
        false
    };
    hub.load(&file, false, &count).unwrap();
    let first = read.get();
    hub.load(&file, false, &count).unwrap();
    assert!(first > 0 && read.get() == first);
    let offline = fixture.hub_with(&[("HF_HUB_OFFLINE", "1")]);
    let cached = fixture.listed(&offline).unwrap();
    fs::remove_file(&stamp).unwrap();
    let mut bytes = fixture.bytes(&file);
    bytes[0] ^= 1;
    fs::write(hub.blob(&file), bytes).unwrap();
    let loaded = offline.load(&cached.files[0], false, &|_| false);
    has(&loaded.unwrap_err(), &["another hash"]);
}

#[test]
fn a_blob_of_ollama_has_its_hash_in_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = folder.path().join("models/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let blob = blobs.join(format!("sha256-{of_nothing}"));
    fs::write(&blob, "").unwrap();
    assert!(!differs_from_name(&blob, || Ok(())).unwrap());
    fs::write(&blob, "x").unwrap();
    assert!(differs_from_name(&blob, || Ok(())).unwrap());
    // Elsewhere, a name is a name.
    let elsewhere = folder.path().join(of_nothing);
    fs::write(&elsewhere, "x").unwrap();
    assert!(!differs_from_name(&elsewhere, || Ok(())).unwrap());
}

#[test]
fn a_blob_that_another_snapshot_links_is_not_discarded() {
    let fixture = Fixture::new();
    let (hub, file) = (fixture.hub(), fixture.file());
    hub.load(&file, true, &|_| false).unwrap();
    let blob = hub.blob(&file);
    let other = cache(&fixture)
        .join("snapshots")
        .join(COMMIT)
        .join("b/c.gguf");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    symlink(format!("../../../blobs/{}", file.digest), &other).unwrap();
    hub.discard(&file).unwrap();
    assert!(blob.exists() && other.exists() && !hub.path_of(&file).exists());
    // It is not kl's alone any more.
    hub.load(&file, true, &|_| false).unwrap();
    hub.discard(&file).unwrap();
    assert!(hub.path_of(&file).exists());
}

#[test]
fn of_two_files_with_the_same_bytes_the_last_one_takes_the_blob_along() {
    let fixture = Fixture::new();
    let served = fixture.folder.path().join("served/me/M");
    fs::copy(
        served.join("M-Q4_K_M.gguf"),
        served.join("twin-Q4_K_M.gguf"),
    )
    .unwrap();
    let (hub, repository) = (fixture.hub(), fixture.repository());
    let twins =
        ["M-Q4_K_M.gguf", "twin-Q4_K_M.gguf"].map(|path| repository.file(path).unwrap().remove(0));
    for twin in &twins {
        hub.load(twin, true, &|_| false).unwrap();
    }
    assert_eq!(fixture.served(&twins[0]) + fixture.served(&twins[1]), SIZE);
    hub.discard(&twins[0]).unwrap();
    assert!(hub.path_of(&twins[1]).exists());
    hub.discard(&twins[1]).unwrap();
    assert!(!cache(&fixture).exists());
}
