//! The names of sidecars, and what happens to one that is there.

use std::fs;

use crate::session::{Session, fixture, labels, table};

const ADVICE: [&str; 2] = ["--sidecar", "--force"];

/// Copies a model of `fixtures/`.
fn copy(session: &Session, model: &str, to: &str) {
    let path = session.path(to);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::copy(fixture(model), path).unwrap();
}

#[test]
fn a_sidecar_is_named_after_both_sides() {
    let session = Session::with_reference("");
    // One model against two references is two files.
    session.reference_of("@f16", "other.gz", "-n 100");
    let cases = "
        -m @q4 -r ref.gz => tiny-q4_K_M@ref.kls
        -m @q4 -r other.gz => tiny-q4_K_M@other.kls
        -m @q4 -r ref.gz --label small => small@ref.kls
        -m @q4 -r ref.gz --shard 1/2 => tiny-q4_K_M@ref.1-of-2.kls
        -m @q4 --ref-model @f16 -t short.txt -c 64 => tiny-q4_K_M@tiny-f16.kls
        -m @q8 --ref-model @f16 -t short.txt -c 64 => tiny-q8_0@tiny-f16.kls
        compare ref.gz ref.gz => ref@ref.kls
        compare @npz @peers/mlx-kld-q2_K.npz => mlx-kld-q2_K@mlx-kld-f16.kls";
    for (line, name) in table(cases) {
        assert_eq!(session.result(line)["sidecar"], name[0]);
        assert!(session.exists(name[0]), "{line}");
    }
    // A file of the same rows is another reference than the model.
    let in_memory = "report tiny-q4_K_M@tiny-f16.kls tiny-q8_0@tiny-f16.kls";
    let report = session.ok(in_memory);
    report.prints(&["2 models against", "tiny-f16.gguf"]);
    let report = session.ok(&format!("{in_memory} small@ref.kls"));
    report.prints(&["--ref-model tiny-f16.gguf"]);
}

#[test]
fn models_of_one_name_get_their_folders() {
    let session = Session::with_reference("");
    copy(&session, "q8", "A/Q.gguf");
    copy(&session, "q4", "B/Q.gguf");
    let json = session.json("-m A/Q.gguf -m B/Q.gguf -m @q2 -r ref.gz");
    assert_eq!(labels(&json), ["A-Q", "B-Q", "tiny-q2_K"]);
    let names = ["A-Q@ref.kls", "B-Q@ref.kls", "tiny-q2_K@ref.kls"];
    assert!(names.iter().all(|name| session.exists(name)));
    assert_eq!(session.info("A-Q@ref.kls")["label"], "A-Q");
    session.ok("report .").prints(&["A-Q ", "B-Q "]);
    // Neither a hidden folder nor another model's name makes a label.
    copy(&session, "q8", ".c/Q.gguf");
    copy(&session, "q2", "c-Q.gguf");
    session.ok("-m .c/Q.gguf -m B/Q.gguf -m c-Q.gguf -r ref.gz -q");
    let files = session.files();
    let is_hidden = |name: &&String| name.starts_with('.') && name.ends_with(".kls");
    assert_eq!(files.iter().find(is_hidden), None);
    assert!(session.exists("c-Q@ref.kls"));
    // One after the other they have one name, and the second is refused.
    session.ok("-m A/Q.gguf -r ref.gz -q");
    let first = session.read("Q@ref.kls");
    let other = ["Q@ref.kls: holds another evaluation, of Q.gguf against ref.gz (model."];
    let what = [&other[..], &ADVICE].concat();
    session.fails("-m B/Q.gguf -r ref.gz -q", 1, &what);
    assert!(session.read("Q@ref.kls") == first);
}

#[test]
fn a_sidecar_that_cannot_be_created_says_where_else() {
    let session = Session::with_reference("");
    let long = "y".repeat(100);
    session.write(&format!("{long}.gz"), session.read("ref.gz"));
    let refused = |line: &str, what: &[&str]| {
        let where_else = ["--sidecar", "--no-sidecar"];
        session.fails(line, 1, &[what, &where_else].concat());
    };
    let label = "x".repeat(200);
    let too_long = format!("-m @q8 -r {long}.gz --label {label}");
    refused(&too_long, &["cannot be created"]);
    let nowhere = "-m @q8 -r ref.gz --sidecar none/q8.kls";
    refused(nowhere, &["cannot be created"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let folder = session.path("locked");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
        // Root may write anywhere.
        if fs::write(folder.join("any"), "").is_err() {
            let locked = "-m @q8 -r ref.gz --sidecar locked/q8.kls";
            refused(locked, &["locked/q8.kls", "Permission denied"]);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_label_keeps_a_backslash() {
    let session = Session::with_reference("");
    let labelled = session.result(r"-m @q8 -r ref.gz --label 'a\b'");
    assert_eq!(labelled["label"], r"a\b");
    copy(&session, "q4", r"c\d.gguf");
    let named = session.result(r"-m c\d.gguf -r ref.gz");
    assert_eq!(named["label"], r"c\d");
    assert!(session.exists(r"a\b@ref.kls") && session.exists(r"c\d@ref.kls"));
    session.ok("report .").prints(&[r"a\b", r"c\d"]);
}

#[test]
fn stored_rows_and_their_model_do_not_replace_each_other() {
    let session = Session::with_reference("");
    session.reference_of("@q2", "tiny-q2_K.gz", "");
    let name = "tiny-q2_K@ref.kls";
    let [compared, evaluated] = ["compare ref.gz tiny-q2_K.gz -q", "-m @q2 -r ref.gz -q"];
    for (first, other, what) in [
        (compared, evaluated, "(stored: true there, "),
        (evaluated, compared, "(stored: false there, "),
    ] {
        session.ok(&format!("{first} --force"));
        let before = session.read(name);
        let what = [&[name, what], &ADVICE[..]].concat();
        session.fails(other, 1, &what);
        if other == evaluated {
            session.fails(&format!("{other} --resume"), 1, &what);
        }
        assert!(session.read(name) == before);
        // Each replaces its own.
        session.ok(first);
        assert!(session.read(name) == before);
    }
}

#[test]
fn a_model_that_is_newer_than_its_sidecar_is_read_whole() {
    let session = Session::with_reference("");
    copy(&session, "q8", "q8.gguf");
    session.ok("-m q8.gguf -r ref.gz -q");
    let before = session.read("q8@ref.kls");
    // The same bytes, written later.
    copy(&session, "q8", "q8.gguf");
    let run = session.ok("-m q8.gguf -r ref.gz --resume");
    run.warns(&["q8.gguf: is newer than what q8@ref.kls holds of it"]);
    assert!(session.read("q8@ref.kls") == before);
    let run = session.ok("-m q8.gguf -r ref.gz --resume");
    run.warns_not("is newer");
    // One changed byte of a weight, between the samples that are hashed.
    session.change("q8.gguf", "q8.gguf", |bytes| {
        let n = bytes.len();
        let mut samples = (0..64).map(|i| (n - 4096) * i / 63 + 4096);
        let at = samples.find(|end| *end > n / 2).unwrap();
        bytes[at] ^= 0x40;
    });
    let what = [&["q8@ref.kls: holds other values"][..], &ADVICE].concat();
    for more in ["--resume", ""] {
        let run = session.ends(&format!("-m q8.gguf -r ref.gz -q {more}"), 1);
        run.warns(&what);
    }
    assert!(session.read("q8@ref.kls") == before && !session.exists("q8@ref.kls.partial"));
}

#[test]
fn a_cut_off_sidecar_is_resumed_however_its_model_is_spelled() {
    let session = Session::with_reference("");
    copy(&session, "q4", "models/q4.gguf");
    session.ok("-m models/q4.gguf -r ref.gz -q");
    let whole = session.read("q4@ref.kls");
    session.cut("q4@ref.kls", "q4@ref.kls.partial", 0.5);
    // What is finished is done, whatever another run has left.
    session.ok("-m models/q4.gguf -r ref.gz -q --resume");
    assert!(session.exists("q4@ref.kls.partial"));
    session.remove("q4@ref.kls");
    session.ok("-m ./models/../models/q4.gguf -r ref.gz -q --resume");
    assert!(session.read("q4@ref.kls") == whole);
}

/// One model evaluated in two ways is two rows.
#[test]
fn a_label_names_the_row_and_the_file() {
    let session = Session::with_reference("");
    let plain = session.result("-m @q4 -r ref.gz -n 100");
    assert_eq!(plain["label"], "tiny-q4_K_M");
    let labelled = "-m @q4 -r ref.gz -n 100 -ctk q8_0 --label 'q4, q8 keys'";
    assert_eq!(session.result(labelled)["label"], "q4, q8 keys");
    let info = session.info("'q4, q8 keys@ref.kls'");
    assert_eq!(info["label"], "q4, q8 keys");
    assert!(session.info("tiny-q4_K_M@ref.kls").get("label").is_none());
    let shown = session.ok("info 'q4, q8 keys@ref.kls'");
    shown.prints(&["label", "q4, q8 keys"]);
    let run = session.ok("-m @q4 -r ref.gz -n 100 --label small --no-sidecar");
    run.prints(&["small (", "tiny-q4_K_M.gguf) against ref.gz"]);

    // Several models have a label each, in their order.
    session.reference_of("@q8", "q8.gz", "");
    session.reference_of("@q4", "q4.gz", "");
    for line in ["-m @q8 -m @q4 -r ref.gz", "compare ref.gz q8.gz q4.gz"] {
        let json = session.json(&format!("{line} --label large --label small --force"));
        assert_eq!(labels(&json), ["large", "small"]);
        assert!(session.exists("large@ref.kls") && session.exists("small@ref.kls"));
    }
}
