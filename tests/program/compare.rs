//! `kl compare`: stored rows against stored rows.

use std::fs;

use serde_json::Value;

use crate::numbers::{accurate, number};
use crate::session::{Session, fixture};

/// From rows that numpy and the safetensors library stored, `kl` computes what numpy does in
/// float64.
#[test]
fn every_kind_gives_numpys_numbers() {
    let session = Session::new();
    let pairs = fs::read(fixture("peers/compare.json")).unwrap();
    let pairs: Vec<Value> = serde_json::from_slice(&pairs).unwrap();
    assert_eq!(pairs.len(), 6);
    let close = |ours: &Value, numpys: &Value| accurate(number(ours), number(numpys), "numpy");
    for pair in &pairs {
        let [reference, other] = ["ref", "other"].map(|key| pair[key].as_str().unwrap());
        let line = format!("compare @peers/{reference} @peers/{other} --json-tokens");
        let result = session.result(&line);
        let klds = pair["kld"].as_array().unwrap();
        assert_eq!(result["n_tokens"], klds.len());
        let ours = result["tokens"]["kld"].as_array().unwrap();
        for (ours, kld) in ours.iter().zip(klds) {
            close(ours, kld);
        }
        close(&result["kld"]["mean"]["value"], &pair["mean"]);
        let reverse = &result["reverse_kld"]["mean"]["value"];
        close(reverse, &pair["reverse_mean"]);
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
        assert!(result["model"]["size_bytes"].is_null());
        assert_eq!(result["is_reference_model"], false);
    }
}

/// All columns of the tokens except their texts.
fn columns(result: &Value) -> Value {
    let mut tokens = result["tokens"].clone();
    tokens.as_object_mut().unwrap().remove("text");
    tokens
}

#[test]
fn stored_rows_give_what_their_model_gives() {
    let session = Session::with_reference("");
    session.reference_of("@q2", "q2.gz", "--encoding f32");
    let evaluated = session.result("-m @q2 -r ref.gz --json-tokens");
    let compared = session.result("compare ref.gz q2.gz --json-tokens");
    assert_eq!(columns(&compared), columns(&evaluated), "to the bit");
    assert_eq!(compared["kld"], evaluated["kld"]);
    assert_eq!(compared["perplexity"], evaluated["perplexity"]);
    let size = &evaluated["model"]["size_bytes"];
    assert_eq!(compared["model"]["size_bytes"], *size);
    assert_eq!(compared["model"]["path"], "q2.gz");
    assert!(number(&compared["kld"]["mean"]["value"]) > 1e-4);
    assert!(session.exists("q2@ref.kls") && session.exists("tiny-q2_K@ref.kls"));

    fs::copy(session.path("ref.gz"), session.path("copy.gz")).unwrap();
    let run = session.ok("compare ref.gz copy.gz q2.gz -q --json -");
    run.warns_not("exactly 0");
    let json = run.json();
    assert_eq!(json["models"][0]["is_reference_model"], true);
    assert_eq!(json["models"][0]["kld"]["max"], 0.0);
    assert_eq!(json["models"][1]["is_reference_model"], false);
}

#[test]
fn the_same_file_twice_is_warned_of() {
    let session = Session::new();
    let run = session.ok("compare @npz @npz -q");
    run.warns(&["mlx-kld-f16.npz", "exactly 0", "twice"]);
    let run = session.ok("compare @npz @peers/mlx-kld-q2_K.npz -q");
    run.warns_not("exactly 0");

    // A model whose header differs in its name alone.
    session.reference("--encoding f32");
    session.change("@f16", "renamed.gguf", |model| {
        let name = b"tiny stories";
        let mut texts = model.windows(name.len());
        let at = texts.position(|text| text == name).unwrap();
        model[at] = b'T';
    });
    let run = session.ok("-m renamed.gguf -m @f16 -m @q8 -r ref.gz -q");
    run.warns(&["renamed.gguf", "exactly 0", "twice"]);
    assert_eq!(run.stderr.matches("exactly 0").count(), 1, "{}", run.stderr);
}

#[test]
fn windows_are_paired_by_their_tokens_in_any_order() {
    let session = Session::with_reference("--encoding f32");
    session.reference_of("@f16", "part.gz", "--encoding f32 -n 150");
    session.reference_of("@f16", "half.gz", "--score half");
    let run = session.ok("compare part.gz ref.gz -q --json -");
    let result = &run.json()["models"][0];
    assert_eq!(result["n_tokens"], 150, "OTHER's further rows do not count");
    // A window cut short is computed in batches of another shape.
    assert!(
        number(&result["kld"]["max"]) < 1e-3,
        "another window's would be far off"
    );
    run.warns(&["left out"]);
    // The other way round windows and rows are missing.
    let cases = "
        part.gz => part.gz | 1 to 24 | swap
        half.gz => half.gz | window 0 | ref.gz | 1 to 63 | swap";
    session.fails_each(1, "compare ref.gz", cases);
    let result = session.result("compare half.gz ref.gz");
    assert!(number(&result["kld"]["max"]) < 1e-3);
    let result = session.result("compare ref.gz ref.gz -n 70");
    assert_eq!(result["n_tokens"], 70);
}

#[test]
fn kl_pys_and_llama_cpps_files_can_stand_on_either_side() {
    let session = Session::with_reference("--encoding f32 -fa off --score all");
    session.reference_of("@f16", "kl_py.gz", "--format kl.py");
    for files in ["ref.gz kl_py.gz", "kl_py.gz ref.gz", "kl_py.gz kl_py.gz"] {
        let result = session.result(&format!("compare {files}"));
        assert_eq!(result["kld"]["max"], 0.0, "{files}");
        assert!(result["perplexity"].is_object());
    }
    session.reference_of("@f16", "base.kld", "--format llama.cpp");
    // The base file holds the text's own first tokens, the other file BOS instead.
    session.ok("convert base.kld base.gz --format kl --encoding f32 --bos 1 -q");
    for files in ["base.kld base.gz", "base.gz base.kld"] {
        let line = format!("compare {files} --stats logits,llama-perplexity --force");
        let result = session.result(&line);
        assert_eq!(result["kld"]["max"], 0.0, "{files}");
        let why = &result["logits_not_available"];
        assert_eq!(why, "log_probabilities_only");
        assert!(result["llama_perplexity"].is_object());
    }
}

#[test]
fn files_that_do_not_match_are_refused() {
    let session = Session::with_reference("");
    session.reference_of("@f16", "kl_py.gz", "--format kl.py");
    // The same number of rows, at other positions.
    session.reference_of("@f16", "half.gz", "--score half");
    const SINGLES: &str = "@peers/safetensors-f32";
    let cases = "
        ref.gz => exit 2 | OTHER
        ref.gz ref.gz -n 0 => exit 2 | --n-tokens
        ref.gz ref.gz --json ref.gz --force => exit 2 | ref.gz | input
        ref.gz @f16 => model
        ref.gz @npz => mlx-kld-f16.npz | window 0 | position | same text
        kl_py.gz @peers/safetensors-f32 -q => same text
        ref.gz @safetensors => safetensors-f16 | 0 to 31 | ref.gz | 63
        half.gz @safetensors => positions 0 | half.gz | 32
        @npz @peers/safetensors-f32 => 1 of the 2 windows | -n";
    session.fails_each(1, "compare", cases);
    session.ok(&format!("compare @npz {SINGLES} -n 20 -q"));
    let run = session.ends("compare ref.gz ref.gz none.gz -q --no-sidecar", 1);
    run.warns(&["none.gz"]).warns(&["1 of 2"]);
    for file in ["@npz", "@safetensors"] {
        let line = format!("convert {file} o.gz --format kl");
        session.fails(&line, 1, &["kl compare"]);
    }
    let lossy = "compare @npz @peers/mlx-kld-q2_K.npz -q --fail-if 'kld.mean > 0.001'";
    session.ends(lossy, 3);
    session.write("mlx-kld-f16@mlx-kld-f16.kls", "precious");
    let taken = ["mlx-kld-f16@mlx-kld-f16.kls", "--force"];
    session.fails("compare @npz @npz", 1, &taken);
}

/// Two of the three prompts are paired by their tokens; the third has the number of one of these.
#[test]
fn windows_of_other_tokens_are_refused() {
    let session = Session::new();
    for (name, prompts) in [
        ("here", "a dog\na cat\na big cat"),
        ("there", "a hen\na dog\na cat"),
    ] {
        session.write(&format!("{name}.txt"), prompts);
        let write = format!("-m @f16 --prompts {name}.txt -w {name}.gz");
        session.ok(&format!("{write} --score all -q"));
    }
    let cases = "
        => there.gz: window 2 has token | window 2 of here.gz | differ in text
        -n 5 => there.gz: window 2 has token | window 2 of here.gz | differ in text";
    session.fails_each(1, "compare here.gz there.gz", cases);
    // Each model answers in its own words, so two of their references are not of the same tokens.
    for model in ["f16", "q2"] {
        let write = format!("-m @{model} -w {model}.gz -q --prompts @prompts");
        session.ok(&format!("{write} --generate 40"));
    }
    let why = "answers that a model generated are its own; evaluate the other model against this \
               reference, with kl -m MODEL -r";
    session.fails("compare f16.gz q2.gz", 1, &["q2.gz: window", why]);
}

#[test]
fn damaged_files_and_folders_are_one_line() {
    let session = Session::new();
    for folder in ["empty", "gap", "named", "cut"] {
        fs::create_dir(session.path(folder)).unwrap();
    }
    let windows = [0, 1].map(|window| format!("@peers/safetensors-f16/{window}.safetensors"));
    for (window, to) in [
        (0, "gap/0.safetensors"),
        (1, "gap/2.safetensors"),
        (0, "named/0.safetensors"),
        (1, "named/model.safetensors"),
        (0, "cut/0.safetensors"),
    ] {
        session.write(to, session.read(&windows[window]));
    }
    session.cut(&windows[1], "cut/1.safetensors", 0.99);
    session.cut("@peers/mlx-kld-q2_K.npz", "cut.npz", 0.99);
    session.flip("@peers/mlx-kld-q2_K.npz", "bad.npz", 0.25);
    let cases = "
        empty => empty | safetensors
        gap => gap | window 1
        named => model.safetensors | number
        cut => 1.safetensors | incomplete
        cut.npz => cut.npz | incomplete
        bad.npz => bad.npz | logprobs_0.npy | window 0";
    session.fails_each(1, "compare @safetensors", cases);
    session.fails_each(1, "compare", &cases.replace(" =>", " @safetensors =>"));
    session.fails_each(1, "info --verify", cases);
    let one_window = format!("info {}", windows[0]);
    session.fails(&one_window, 1, &["folder"]);
}
