//! `kl info MODEL --verify`: damage to a model's file is found and named, and whole files are found whole.

use std::fs;

use serde_json::Value;

use crate::gguf::{Gguf, Pair, set_value, with_pairs};
use crate::session::{Session, fixture};

/// Bytes of a block of q4_0, whose first two are its scale.
const BLOCK: usize = 18;

/// The findings on a model's file: the kind of each, its name, and its message.
#[track_caller]
fn findings(session: &Session, line: &str, code: i32) -> Vec<[String; 3]> {
    let run = session.ends(&format!("info {line} --verify --json -q"), code);
    let found = run.json()["verification"]["findings"].take();
    let word = |of: &Value, key: &str| of[key].as_str().unwrap().to_owned();
    let found = found.as_array().unwrap().iter();
    found
        .map(|of| ["kind", "name", "message"].map(|key| word(of, key)))
        .collect()
}

#[test]
fn whole_models_have_no_findings() {
    let session = Session::new();
    for folder in ["", "architectures", "hostile", "imatrix"] {
        for entry in fs::read_dir(fixture(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "gguf") {
                let none = findings(&session, path.to_str().unwrap(), 0);
                assert_eq!(none, [[""; 3]; 0], "{}", path.display());
            }
        }
    }
    for quant in ["@q8", "@q4", "@q2"] {
        let run = session.ok(&format!("info {quant} --verify --original @f16 -q"));
        run.prints(&[
            "verified      29 tensors, 0 findings",
            "blk.0.attn_v.weight",
        ]);
    }
    let mixtral = "@architectures/mixtral-q4_0.gguf --original @architectures/mixtral.gguf";
    assert_eq!(findings(&session, mixtral, 0), [[""; 3]; 0]);
}

#[test]
fn damage_is_found_and_named() {
    let session = Session::new();
    let file = || Gguf::read(session.read("@architectures/mixtral-q4_0.gguf"));
    let original = "--original @architectures/mixtral.gguf";
    let (gate, down, norm) = (
        "blk.0.ffn_gate_exps.weight",
        "blk.0.ffn_down_exps.weight",
        "blk.0.attn_norm.weight",
    );
    let expert = file().data(gate).len() / 4;
    let finds = |bytes: Vec<u8>, expected: [&str; 3]| {
        session.write("bad.gguf", bytes);
        let found = findings(&session, "bad.gguf", 1);
        let [kind, name, what] = &found[0];
        assert_eq!([kind, name], expected[..2], "{found:?}");
        assert!(found.len() == 1 && what.contains(expected[2]), "{found:?}");
        let run = session.ends("info bad.gguf --verify -q", 1);
        run.prints(&[name, " tensors, 1 finding"]);
        run.warns(&["kl: 1 finding"]);
    };
    let changed = |name: &str, change: &dyn Fn(&mut [u8])| {
        let mut file = file();
        change(file.data(name));
        file.whole()
    };
    let nan = changed(gate, &|data| {
        data[2 * expert + BLOCK..][..2].copy_from_slice(&[0, 0x7e]);
    });
    let where_nan = "expert 2, row 0, block 1: not finite";
    finds(nan, ["not_finite", gate, where_nan]);
    let no_expert = changed(gate, &|data| data[expert..2 * expert].fill(0));
    finds(no_expert, ["zero", gate, "expert 1, row 0"]);
    let no_block = changed(down, &|data| data[20 * BLOCK..][..BLOCK].fill(0));
    finds(no_block, ["zero", down, "expert 0, row 20"]);
    let no_norm = changed(norm, &|data| data.fill(0));
    finds(no_norm, ["zero", norm, "all weights are zero"]);
    let mut without_norm = file();
    without_norm.remove(norm);
    finds(without_norm.whole(), ["refused", norm, "not found"]);
    let overlap = file().with_overlap(gate);
    finds(overlap, ["overlap", gate, "within blk.0."]);

    // Only the original shows these.
    let swapped = changed(gate, &|data| data[..2 * expert].rotate_left(expert));
    session.write("bad.gguf", swapped);
    assert_eq!(findings(&session, "bad.gguf", 0), [[""; 3]; 0]);
    let found = findings(&session, &format!("bad.gguf {original}"), 1);
    assert_eq!(found[0][..2], ["weight_error", gate], "{found:?}");

    session.cut("@architectures/mixtral-q4_0.gguf", "cut.gguf", 0.99);
    let what = ["cut.gguf: incomplete", "tensor \"blk.0."];
    session.fails("info cut.gguf --verify", 1, &what);
}

/// Of another original all weights are others: no download mends that.
#[test]
fn another_original_is_one_finding() {
    let session = Session::new();
    let mut other = Gguf::read(session.read("@architectures/mixtral.gguf"));
    for data in other.all_data() {
        let half = data.len() / 2;
        data.rotate_left(half);
    }
    session.write("other.gguf", other.whole());
    let line = "@architectures/mixtral-q4_0.gguf --original other.gguf";
    let found = findings(&session, line, 1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0][..2], ["other_original", "other.gguf"]);
    assert!(
        found[0][2].contains("give the one that it was made of")
            && !found[0][2].contains("download")
    );
}

#[test]
fn metadata_that_differs_from_the_originals_is_named() {
    let session = Session::new();
    let template = [Pair::text("tokenizer.chat_template", "{{ messages }}")];
    session.write("other.gguf", with_pairs(&session.read("@q4"), &template));
    session.change("other.gguf", "other.gguf", |model| {
        set_value(model, "llama.rope.freq_base", 5e5f32.to_le_bytes());
    });
    let found = findings(&session, "other.gguf --original @f16", 1);
    for (key, what) in [
        ("llama.rope.freq_base", "500000, but in the original 10000"),
        ("tokenizer.chat_template", "in the original nothing"),
    ] {
        let mut found = found.iter();
        let is_it = |of: &&[String; 3]| of[..2] == ["changed", key] && of[2].contains(what);
        assert!(found.any(|of| is_it(&of)), "{key}");
    }
    assert_eq!(found.len(), 2, "{found:?}");
    session.fails("info @q4 --original @f16", 2, &["--verify"]);
    session.fails("info @klpy --verify --original @f16", 1, &["not a model"]);
    let other = "info @q4 --verify --original @architectures/qwen2.gguf";
    session.fails(other, 1, &["--original", "qwen2", "llama"]);

    // Parts are followed.
    let mut file = Gguf::read(session.read("@q4"));
    file.data("blk.1.ffn_up.weight")[..2].copy_from_slice(&[0xff, 0x7f]);
    for part in [0, 1] {
        let name = format!("m-0000{}-of-00002.gguf", part + 1);
        session.write(&name, file.part(part));
    }
    let found = findings(&session, "m-00001-of-00002.gguf --original @f16", 1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0][..2], ["not_finite", "blk.1.ffn_up.weight"]);
}
