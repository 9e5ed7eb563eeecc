//! `kl info`: what each kind of file says of itself, and whether it is whole.

mod common;

use std::fs;

use common::{Session, fixture};
use kl_formats::NativeReader;

const KLPY: &str = "@peers/kl_py-f16-c128.gz";
const BASE: &str = "@peers/llama-perplexity-f16-c128.kld";

fn json(session: &Session, args: &[&str]) -> serde_json::Value {
    let run = session.ok(&[&["info", "--json"], args].concat());
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn every_kind_is_recognised_and_told() {
    let session = Session::new();
    session.reference(&["-n", "100", "--score", "half"]);
    session.ok(&["-m", "@tiny-q4_K_M.gguf", "-r", "ref.gz", "-q"]);

    let native = json(&session, &["ref.gz"]);
    assert_eq!(native["kind"], "kl");
    assert_eq!(native["n_rows"], 100);
    assert_eq!(native["first_scored"], 32);
    assert_eq!(native["seed"], 123);
    assert_eq!(native["encoding"], "u16");
    assert_eq!(native["model"]["name"], "tiny stories");
    assert_eq!(native["text"]["name"], "short.txt");
    assert_eq!(native["backend"]["n_batch"], 64);
    assert_eq!(native["verified"], serde_json::Value::Null);
    let file_bytes = fs::metadata(session.path("ref.gz")).unwrap().len();
    assert_eq!(native["file_bytes"], file_bytes);

    let kl_py = json(&session, &[KLPY]);
    assert_eq!(kl_py["kind"], "kl.py");
    assert_eq!(
        (&kl_py["n_ctx"], &kl_py["n_vocab"]),
        (&256.into(), &1024.into())
    );
    assert_eq!(kl_py["model_path"], "tiny-f16.gguf");

    let base = json(&session, &[BASE]);
    assert_eq!(base["kind"], "llama.cpp");
    assert_eq!(
        (&base["n_windows"], &base["n_rows"]),
        (&2.into(), &126.into())
    );
    assert_eq!(base["first_scored"], 64);

    let sidecar = json(&session, &["tiny-q4_K_M.gguf.kls"]);
    assert_eq!(sidecar["kind"], "sidecar");
    assert_eq!(sidecar["n_rows"], 100);
    assert_eq!(sidecar["reference"]["file_name"], "ref.gz");

    for (file, said) in [
        ("ref.gz", "in random order, seed 123"),
        (KLPY, "256 tokens at most"),
        (BASE, "log-probabilities"),
        ("tiny-q4_K_M.gguf.kls", "ref.gz (kl)"),
    ] {
        let run = session.ok(&["info", file]);
        assert!(run.stdout.contains(said), "{}", run.stdout);
        assert_eq!(run.stderr, "");
    }
}

#[test]
fn what_is_whole_is_said_to_be() {
    let session = Session::new();
    session.reference(&[]);
    session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q"]);
    for (file, checks) in [
        ("ref.gz", "checksums"),
        (KLPY, "gzip"),
        (BASE, "length-and-tokens"),
        ("tiny-q8_0.gguf.kls", "checksums"),
    ] {
        let verified = json(&session, &[file, "--verify"])["verified"].clone();
        assert_eq!(verified["checks"], checks, "{file}");
        let n_rows = verified["n_rows"].as_u64().unwrap();
        assert!(n_rows > 100, "{file}: {verified}");
        let run = session.ok(&["info", file, "--verify", "-q"]);
        assert!(run.stdout.contains("whole: every byte"), "{}", run.stdout);
    }
}

#[test]
fn a_flipped_bit_is_found_with_its_window() {
    let session = Session::new();
    let path = session.reference(&[]);
    let reader = NativeReader::open(&path).unwrap();
    let windows = reader.windows().to_vec();
    assert!(windows.len() > 3);
    let whole = fs::read(&path).unwrap();
    for (place, entry) in windows.iter().enumerate().skip(1).take(3) {
        let mut bytes = whole.clone();
        let end = windows.get(place + 1).map(|next| next.offset() as usize);
        bytes[end.unwrap() - 100] ^= 1;
        // A later fault is not the one that is told.
        let later = windows.last().unwrap().offset() as usize;
        bytes[later + 60] ^= 1;
        session.write("bad.gz", &bytes);
        let window = format!("window {}, byte ", entry.window);
        for more in [&["--verify", "-q"][..], &["--verify", "--json", "-q"]] {
            let run = session.fails(&[&["info", "bad.gz"], more].concat(), 1, &[&window]);
            assert!(!run.stdout.contains("whole"), "{}", run.stdout);
        }
        // Without reading everything nothing is to be seen.
        session.ok(&["info", "bad.gz"]);
    }

    let mut sidecar = {
        session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q"]);
        fs::read(session.path("tiny-q8_0.gguf.kls")).unwrap()
    };
    let len = sidecar.len();
    sidecar[len - 9] ^= 4;
    session.write("bad.kls", &sidecar);
    session.fails(&["info", "bad.kls", "--verify"], 1, &["record", "byte"]);

    let mut kl_py = fs::read(fixture("peers/kl_py-f16-c128.gz")).unwrap();
    let middle = kl_py.len() / 2;
    kl_py[middle] ^= 16;
    session.write("bad-kl_py.gz", &kl_py);
    session.fails(
        &["info", "bad-kl_py.gz", "--verify", "-q"],
        1,
        &["corrupt", "window"],
    );

    let base = fs::read(fixture("peers/llama-perplexity-f16-c128.kld")).unwrap();
    session.write("cut.kld", &base[..base.len() - 1]);
    session.fails(&["info", "cut.kld"], 1, &["1 of 2 windows whole"]);
    // Pages that never reached the disk.
    let mut torn = base.clone();
    let length = torn.len();
    torn[length - 5000..].fill(0);
    session.write("torn.kld", torn);
    session.ok(&["info", "torn.kld"]);
    let said = ["torn.kld", "window 1", "row 60", "not to 1"];
    session.fails(&["info", "torn.kld", "--verify", "-q"], 1, &said);
}

#[test]
fn wrong_use_and_files_of_other_kinds_are_one_line() {
    let session = Session::new();
    session.fails(&["info"], 2, &["FILE", "kl info --help"]);
    session.fails(&["info", "a", "--no-such-flag"], 2, &["--no-such-flag"]);
    session.fails(&["info", "no-such-file"], 1, &["no-such-file"]);
    session.fails(&["info", "@tiny-f16.gguf"], 1, &["a model"]);
    assert!(session.ok(&["info", "--help"]).stdout.contains("--verify"));
    // A file may have a subcommand's name.
    session.fails(
        &["-m", "info", "-r", "convert"],
        1,
        &["convert: cannot open"],
    );
}
