//! `-m FOLDER`: every model in it, and models that are split into several files.

use std::fs;

use crate::gguf::{Gguf, Pair, gguf};
use crate::session::{Session, fixture, labels};

/// A folder `quants` with two models, one of them split, and files that are none.
fn session() -> Session {
    let session = Session::with_reference("");
    fs::create_dir(session.path("quants")).unwrap();
    fs::copy(fixture("q2"), session.path("quants/b.gguf")).unwrap();
    let whole = Gguf::read(fs::read(fixture("q4")).unwrap());
    for part in [0, 1] {
        let name = format!("quants/a-0000{}-of-00002.gguf", part + 1);
        session.write(&name, whole.part(part));
    }
    // What an mmproj file looks like: another architecture, no vocabulary.
    let clip = gguf(&[Pair::text("general.architecture", "clip")]);
    session.write("quants/mmproj.gguf", clip);
    session.write("quants/notes.txt", "not a model");
    session
}

#[test]
fn a_folder_stands_for_its_models_in_the_order_of_their_names() {
    let session = session();
    let run = session.ok("-m quants -m @q8 -r ref.gz --json o.json");
    run.warns(&["quants/mmproj.gguf", "skipped", "the vision or audio part"]);
    let result = session.read_json("o.json");
    assert_eq!(labels(&result), ["a", "b", "tiny-q8_0"]);
    let models = &result["models"];
    let first = models[0]["model"]["path"].as_str().unwrap();
    assert!(first.ends_with("quants/a-00001-of-00002.gguf"), "{first}");
    // A split model is the whole one: its size and its numbers.
    let whole = session.result("-m @q4 -r ref.gz --no-sidecar");
    for key in ["size_bytes", "n_params", "bpw"] {
        assert_eq!(models[0]["model"][key], whole["model"][key], "{key}");
    }
    assert_eq!(models[0]["kld"], whole["kld"]);
    let info = session.info("a@ref.kls");
    let bytes = [1, 2].map(|part| session.length(&format!("quants/a-0000{part}-of-00002.gguf")));
    assert_eq!(info["model"]["file_bytes"], bytes[0] + bytes[1]);
    // Another second part makes it another model.
    let hash = info["model"]["sample_sha256"].clone();
    let second = "quants/a-00002-of-00002.gguf";
    session.change(second, second, |bytes| *bytes.last_mut().unwrap() ^= 1);
    session.ok("-m quants/a-00001-of-00002.gguf -r ref.gz -q --force");
    let info = session.info("a@ref.kls");
    assert_ne!(info["model"]["sample_sha256"], hash);
}

/// One that fails does not stop the others.
#[test]
fn a_split_model_that_lacks_a_part_fails_alone() {
    let session = session();
    session.remove("quants/a-00002-of-00002.gguf");
    let run = session.ends("-m quants -r ref.gz -q --json o.json", 1);
    run.warns(&["a-00002-of-00002.gguf"]).warns(&["1 of 2"]);
    let json = session.read_json("o.json");
    assert_eq!(labels(&json), ["b"]);
    let failed = json["failed"][0]["path"].as_str().unwrap();
    assert!(failed.contains("a-00001-of-00002.gguf"), "{failed}");
    assert!(session.exists("b@ref.kls"));
}
