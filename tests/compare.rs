//! `kl compare`: stored rows against stored rows.

mod common;

use std::fs;
use std::path::Path;

use common::{Q2_K, Session, fixture, rewrite};
use serde_json::Value;

const NPZ: &str = "@peers/mlx-kld-f16.npz";
const DEFLATED: &str = "@peers/mlx-kld-q2_K.npz";
const HALVES: &str = "@peers/safetensors-f16";
const SINGLES: &str = "@peers/safetensors-f32";

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[track_caller]
fn close(ours: &Value, theirs: &Value) {
    let (ours, theirs) = (number(ours), number(theirs));
    assert!(
        (ours - theirs).abs() <= 1e-9 + 1e-6 * theirs.abs(),
        "{ours}, numpy {theirs}"
    );
}

/// Of rows that numpy and the library of safetensors stored, what numpy says in float64.
#[test]
fn every_kind_gives_numpys_numbers() {
    let session = Session::new();
    let pairs = fs::read_to_string(fixture("peers/compare.json")).unwrap();
    let pairs: Vec<Value> = serde_json::from_str(&pairs).unwrap();
    assert_eq!(pairs.len(), 6);
    for pair in &pairs {
        let file = |key: &str| format!("@peers/{}", pair[key].as_str().unwrap());
        let json = session.json(&["compare", &file("ref"), &file("other"), "--json-tokens"]);
        let result = &json["models"][0];
        let klds = pair["kld"].as_array().unwrap();
        assert_eq!(result["n_tokens"], klds.len());
        let ours = result["tokens"]["kld"].as_array().unwrap();
        ours.iter()
            .zip(klds)
            .for_each(|(ours, theirs)| close(ours, theirs));
        close(&result["kld"]["mean"]["value"], &pair["mean"]);
        close(
            &result["reverse_kld"]["mean"]["value"],
            &pair["reverse_mean"],
        );
        close(&result["agreement"]["ref_top1"]["value"], &pair["same_top"]);
        if pair["ppl"].is_null() {
            assert!(result["perplexity"].is_null() && result["delta_p"].is_null());
            assert_eq!(result["not_available"][0]["why"], "no file holds token ids");
        } else {
            close(&result["perplexity"]["ref"], &pair["ppl_ref"]);
            close(&result["perplexity"]["eval"], &pair["ppl"]);
            assert!(result["not_available"].is_null());
        }
        assert!(result["max_at_text"].is_null());
        assert_eq!(result["model"]["size_bytes"], 0);
        assert_eq!(result["is_reference_model"], false);
    }
}

/// All columns of the tokens but their texts.
fn columns(result: &Value) -> Value {
    let mut tokens = result["tokens"].clone();
    tokens.as_object_mut().unwrap().remove("text");
    tokens
}

#[test]
fn stored_rows_give_what_their_model_gives() {
    let session = Session::new();
    session.reference(&[]);
    session.reference_of("@tiny-q2_K.gguf", "q2.gz", &["--encoding", "f32"]);
    let run = session.json(&["-m", "@tiny-q2_K.gguf", "-r", "ref.gz", "--json-tokens"]);
    let compared = session.json(&["compare", "ref.gz", "q2.gz", "--json-tokens"]);
    let (run, compared) = (&run["models"][0], &compared["models"][0]);
    assert_eq!(columns(compared), columns(run), "to the bit");
    assert_eq!(compared["kld"], run["kld"]);
    assert_eq!(compared["perplexity"], run["perplexity"]);
    assert_eq!(compared["model"]["size_bytes"], run["model"]["size_bytes"]);
    assert_eq!(compared["model"]["path"], "q2.gz");
    assert!(number(&compared["kld"]["mean"]["value"]) > 1e-4);
    assert!(session.path("q2.gz.kls").exists() && session.path(&format!("{Q2_K}.kls")).exists());

    fs::copy(session.path("ref.gz"), session.path("copy.gz")).unwrap();
    let json = session.json(&["compare", "ref.gz", "copy.gz", "q2.gz"]);
    assert_eq!(json["models"][0]["is_reference_model"], true);
    assert_eq!(json["models"][0]["kld"]["max"], 0.0);
    assert_eq!(json["models"][1]["is_reference_model"], false);
}

#[test]
fn windows_are_found_by_their_tokens_whatever_their_order() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    session.reference_of(
        "@tiny-f16.gguf",
        "part.gz",
        &["--encoding", "f32", "-n", "150"],
    );
    let run = session.ok(&["compare", "part.gz", "ref.gz", "-q", "--json", "-"]);
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(
        json["models"][0]["n_tokens"], 150,
        "rows that only OTHER has are passed over"
    );
    // A window cut short is computed in batches of another shape.
    assert!(
        number(&json["models"][0]["kld"]["max"]) < 1e-3,
        "another window's would be far off"
    );
    assert!(run.stderr.contains("left out"), "{}", run.stderr);
    // The other way round windows and rows are missing.
    session.fails(
        &["compare", "ref.gz", "part.gz"],
        1,
        &["part.gz", "lacks", "swap the two"],
    );
    let run = session.ok(&[
        "compare", "ref.gz", "ref.gz", "-n", "70", "--json", "-", "-q",
    ]);
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["models"][0]["n_tokens"], 70);
}

#[test]
fn rows_that_the_other_file_lacks_are_named() {
    let session = Session::new();
    session.reference(&[]);
    session.reference_of("@tiny-f16.gguf", "half.gz", &["--score", "half"]);
    session.fails(
        &["compare", "ref.gz", "half.gz"],
        1,
        &[
            "half.gz",
            "window 0",
            "positions 0 to 31",
            "ref.gz",
            "swap the two",
        ],
    );
    let json = session.json(&["compare", "half.gz", "ref.gz"]);
    assert_eq!(json["models"][0]["kld"]["max"], 0.0);
}

#[test]
fn kl_pys_and_llama_cpps_files_on_either_side() {
    let session = Session::new();
    session.reference(&["--encoding", "f32", "-fa", "off"]);
    session.reference_of("@tiny-f16.gguf", "kl_py.gz", &["--format", "kl.py"]);
    for [reference, other] in [
        ["ref.gz", "kl_py.gz"],
        ["kl_py.gz", "ref.gz"],
        ["kl_py.gz"; 2],
    ] {
        let json = session.json(&["compare", reference, other]);
        assert_eq!(json["models"][0]["kld"]["max"], 0.0, "{reference} {other}");
        assert!(json["models"][0]["perplexity"].is_object());
    }
    session.reference_of("@tiny-f16.gguf", "base.kld", &["--format", "llama.cpp"]);
    // The base holds the text's own first tokens, the other file BOS in their place.
    let convert = [
        "convert",
        "base.kld",
        "base.gz",
        "--format",
        "kl",
        "--encoding",
        "f32",
    ];
    session.ok(&[&convert[..], &["--bos", "1", "-q"]].concat());
    for [reference, other] in [["base.kld", "base.gz"], ["base.gz", "base.kld"]] {
        let args = [
            "compare",
            reference,
            other,
            "--stats",
            "logits,llama-perplexity",
        ];
        let json = session.json(&args);
        assert_eq!(json["models"][0]["kld"]["max"], 0.0, "{reference} {other}");
        let why = &json["models"][0]["logits_not_available"];
        assert_eq!(why, "log_probabilities_only");
        assert!(json["models"][0]["llama_perplexity"].is_object());
    }
}

#[test]
fn the_common_part_of_two_vocabularies() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    rewrite(&session, "ref.gz", "long.gz", |_, row, mut logits| {
        logits.extend([3.0 + row as f32; 37]);
        logits
    });
    session.fails(
        &["compare", "ref.gz", "long.gz"],
        1,
        &["long.gz", "rows of 1061", "of 1024", "--vocab common"],
    );
    for [reference, other] in [["ref.gz", "long.gz"], ["long.gz", "ref.gz"]] {
        let json = session.json(&["compare", reference, other, "--vocab", "common"]);
        assert_eq!(json["models"][0]["n_vocab_compared"], 1024);
        assert_eq!(json["models"][0]["kld"]["max"], 0.0);
    }
    session.fails(
        &["compare", "ref.gz", "long.gz", "--vocab", "tokenizer"],
        2,
        &["'tokenizer'", "same, common"],
    );
}

#[test]
fn files_that_do_not_go_together() {
    let session = Session::new();
    session.reference(&[]);
    session.reference_of("@tiny-f16.gguf", "kl_py.gz", &["--format", "kl.py"]);
    session.fails(
        &["compare", "ref.gz", NPZ],
        1,
        &["mlx-kld-f16.npz", "window 0", "position", "not of one text"],
    );
    session.fails(
        &["compare", "kl_py.gz", SINGLES, "-q"],
        1,
        &["not of one text"],
    );
    session.fails(
        &["compare", "ref.gz", HALVES],
        1,
        &["safetensors-f16", "32 rows", "ref.gz 64"],
    );
    // As many rows, and of other positions.
    session.reference_of("@tiny-f16.gguf", "half.gz", &["--score", "half"]);
    session.fails(
        &["compare", "half.gz", HALVES],
        1,
        &["begin at position 0", "half.gz at 32"],
    );
    session.fails(
        &["compare", NPZ, SINGLES],
        1,
        &["lacks 1 of the 2 windows", "-n"],
    );
    session.ok(&["compare", NPZ, SINGLES, "-n", "20", "-q"]);
    let run = session.kl(&[
        "compare",
        "ref.gz",
        "ref.gz",
        "none.gz",
        "-q",
        "--no-sidecar",
    ]);
    assert_eq!(run.code, 1);
    assert!(
        run.stderr.contains("none.gz") && run.stderr.contains("1 of 2"),
        "{}",
        run.stderr
    );
}

#[test]
fn wrong_use() {
    let session = Session::new();
    session.reference(&[]);
    session.fails(&["compare", "ref.gz"], 2, &["OTHER"]);
    session.fails(
        &["compare", "ref.gz", "ref.gz", "-n", "0"],
        2,
        &["--n-tokens"],
    );
    session.fails(
        &["compare", "ref.gz", "ref.gz", "--json", "ref.gz", "--force"],
        2,
        &["is an input"],
    );
    session.fails(&["compare", "ref.gz", "@tiny-f16.gguf"], 1, &["is a model"]);
    for file in [NPZ, HALVES] {
        session.fails(&["-m", "@tiny-f16.gguf", "-r", file], 1, &["kl compare"]);
        session.fails(
            &["convert", file, "o.gz", "--format", "kl"],
            1,
            &["kl compare"],
        );
    }
    let lost = [
        "compare",
        NPZ,
        DEFLATED,
        "-q",
        "--fail-if",
        "kld.mean > 0.001",
    ];
    assert_eq!(session.kl(&lost).code, 3);
    session.write("mlx-kld-f16.npz.kls", "precious");
    session.fails(
        &["compare", NPZ, NPZ],
        1,
        &["mlx-kld-f16.npz.kls", "--force"],
    );
}

/// A copy of the fixture's folder, and what is done to it.
#[test]
fn damaged_files_and_folders_are_one_line() {
    let session = Session::new();
    let copy = |name: &str, from: usize, to: &str| {
        let folder = session.path(name);
        fs::create_dir_all(&folder).unwrap();
        let from = fixture("peers/safetensors-f16").join(format!("{from}.safetensors"));
        fs::copy(from, folder.join(to)).unwrap();
    };
    let refused = |name: &str, what: &[&str]| {
        session.fails(&["compare", HALVES, name], 1, what);
        session.fails(&["compare", name, HALVES], 1, what);
        session.fails(&["info", name, "--verify"], 1, what);
    };
    fs::create_dir(session.path("empty")).unwrap();
    refused("empty", &["empty", "without safetensors files"]);
    copy("gap", 0, "0.safetensors");
    copy("gap", 1, "2.safetensors");
    refused("gap", &["gap", "lacks 1.safetensors"]);
    copy("named", 0, "0.safetensors");
    copy("named", 1, "model.safetensors");
    refused("named", &["model.safetensors", "no number"]);
    let cut = |path: &Path, to: &Path| {
        let bytes = fs::read(path).unwrap();
        fs::write(to, &bytes[..bytes.len() - 100]).unwrap();
    };
    copy("cut", 0, "0.safetensors");
    let last = fixture("peers/safetensors-f16/1.safetensors");
    cut(&last, &session.path("cut/1.safetensors"));
    refused("cut", &["1.safetensors", "lacks 100 bytes"]);
    cut(&fixture("peers/mlx-kld-q2_K.npz"), &session.path("cut.npz"));
    refused("cut.npz", &["cut.npz", "incomplete"]);
    let mut bytes = fs::read(fixture("peers/mlx-kld-q2_K.npz")).unwrap();
    let in_rows = bytes.len() / 4;
    bytes[in_rows] ^= 0x10;
    session.write("bad.npz", bytes);
    refused("bad.npz", &["bad.npz", "logprobs_0.npy", "window 0"]);
    session.fails(
        &["info", "@peers/safetensors-f16/0.safetensors"],
        1,
        &["give the folder"],
    );
}

#[test]
fn info_describes_what_others_store() {
    let session = Session::new();
    let info = |file: &str| {
        let run = session.ok(&["info", file, "--verify", "--json", "-q"]);
        serde_json::from_str::<Value>(&run.stdout).unwrap()
    };
    let npz = info(DEFLATED);
    assert_eq!((&npz["kind"], &npz["n_rows"]), (&"npz".into(), &64.into()));
    assert_eq!(npz["model_path"], "tiny-q2_K");
    assert_eq!(
        (&npz["encoding"], &npz["log_probabilities"]),
        (&"f32".into(), &true.into())
    );
    assert_eq!(npz["verified"]["checks"], "zip");
    let folder = info("@peers/safetensors-bf16");
    assert_eq!(
        (&folder["kind"], &folder["encoding"]),
        (&"safetensors".into(), &"bf16".into())
    );
    assert_eq!(
        (&folder["log_probabilities"], &folder["holds_tokens"]),
        (&false.into(), &true.into())
    );
    let halves = info(HALVES);
    assert_eq!(
        (&halves["log_probabilities"], &halves["holds_tokens"]),
        (&true.into(), &false.into())
    );
    let run = session.ok(&["info", HALVES]);
    assert!(
        run.stdout.contains("f16 log-probabilities"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("token ids          none"),
        "{}",
        run.stdout
    );
}
