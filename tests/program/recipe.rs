//! `kl recipe` on the fixtures: from a map to a file, measured on another text.

use std::fs;

use serde_json::Value;

use crate::session::{Session, fixture};

/// The two halves of the held-out text: `a.txt` and `b.txt`.
fn halves(session: &Session) {
    let text = fs::read_to_string(fixture("eval")).unwrap();
    let half = text.len() / 2;
    let end = half + text[half..].find('\n').unwrap() + 1;
    session.write("a.txt", &text[..end]);
    session.write("b.txt", &text[end..]);
}

/// A map of few tokens, on the first half.
fn small_map(session: &Session) {
    halves(session);
    session.ok("sensitivity -m @f16 -t a.txt -n 254 -w map -q");
}

fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or_else(|| panic!("{of} is no number"))
}

/// A map of one half of the text, judged on the other: better than llama.cpp's own mixtures of the same
/// size. What is measured in memory is what the file gives, to the bit.
#[test]
fn a_recipe_beats_the_mixture_of_its_size_on_another_text() {
    let session = Session::new();
    halves(&session);
    session.ok("sensitivity -m @f16 -t a.txt -w map -q");
    session.ok("-m @f16 -t b.txt -c 128 -w b.gz --encoding f32 -q");
    for (like, most) in [("q4", 0.95), ("q2", 0.70)] {
        let flags = format!("--like @{like} -m @f16 -t b.txt -c 128 --cluster window");
        let quantize = format!("--quantize {like}.gguf --json {like}.json");
        session.ok(&format!("recipe map {flags} {quantize} -w {like}.txt"));
        let recipe = session.read_json(&format!("{like}.json"));
        let ratio = number(&recipe["check"]["like"]["ratio"]["value"]);
        assert!(ratio <= most, "{like}: {ratio}");
        assert_eq!(recipe["check"]["control"], 0.0);
        assert_eq!(recipe["gap"], 0.0);
        let [predicted, measured] = ["predicted", "measured"].map(|name| &recipe["kld"][name]);
        // At few bits a recipe prefers tensors that were measured too low, and this half is harder.
        let value = number(&measured["value"]);
        let off = number(&predicted["value"]) / value;
        let least = if like == "q4" { 0.7 } else { 0.6 };
        assert!((least..=1.3).contains(&off), "{like}: {off}");
        let bytes = session.length(&format!("{like}.gguf"));
        assert_eq!(recipe["size_bytes"], bytes);
        assert!(bytes <= session.length(&format!("@{like}")));

        // The file, on the same tokens.
        let again = session.ok(&format!(
            "recipe map --like {like}.gguf -m @f16 -t b.txt -c 128 --cluster window --json -"
        ));
        let again = again.json();
        let in_memory = number(&again["kld"]["measured"]["value"]);
        assert_eq!(in_memory, value);
        assert_eq!(number(&again["check"]["like"]["kld"]["value"]), value);
        let evaluated = session.result(&format!("-m {like}.gguf -r b.gz --no-sidecar"));
        // Over more tokens of the same text.
        let off = number(&evaluated["kld"]["mean"]["value"]) / value;
        assert!((0.9..1.1).contains(&off), "{like}: {off}");
    }
}

#[test]
fn a_recipe_needs_no_model() {
    let session = Session::new();
    small_map(&session);
    let run = session.ok("recipe map --size 1.2MB -w types --json r.json");
    run.prints(&[
        "A recipe for tiny-f16.gguf, by map",
        "<- this recipe",
        "--tensor-type-file types",
        "--token-embedding-type",
    ]);
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 80));
    let recipe = session.read_json("r.json");
    let size = recipe["size_bytes"].as_u64().unwrap();
    assert!((1_190_000..=1_200_000).contains(&size), "{size}");
    assert_eq!(recipe["kld"]["measured"], Value::Null);
    let tensors = recipe["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 22);
    let types = String::from_utf8(session.read("types")).unwrap();
    assert_eq!(types.lines().count(), 22);

    // Only what was asked for.
    let few = session
        .ok("recipe map --bpw 5 --types q4_K,q6_k --json -")
        .json();
    let mut kinds = few["tensors"].as_array().unwrap().iter();
    assert!(kinds.all(|of| of["type"] == "q4_K" || of["type"] == "q6_K"));
    let more = session.ok("recipe map --kld 0.001 --json -").json();
    assert!(number(&more["kld"]["predicted"]["value"]) <= 0.001);
    session.fails("recipe map --bpw 5 -w types", 1, &["types", "--force"]);
    session.ok("recipe map --bpw 5 -w types --force -q");
    // As kl report does, it replaces what it has made before, and nothing else.
    for bits in [5, 6] {
        session.ok(&format!(
            "recipe map --bpw {bits} --json r.json --html r.html -q"
        ));
    }
    let evaluated = "{\n  \"kl_version\": \"0.1.0\",\n  \"json_version\": 1,\n  \"reference\": {";
    session.write("run.json", evaluated);
    session.write("notes.html", "<html>my notes");
    session.fails(
        "recipe map --bpw 5 --json run.json",
        1,
        &["run.json: exists already"],
    );
    session.fails(
        "recipe map --bpw 5 --html notes.html",
        1,
        &["notes.html: exists already"],
    );
}

#[test]
fn what_makes_no_recipe_is_named() {
    let session = Session::new();
    small_map(&session);
    session.reference("");
    session.ok("-m @q4 -r ref.gz -q --sidecar q4.kls");
    let cases = "
        map --size 100K => the smallest file has
        map --bpw 4 --types tq1_0 => --types tq1_0 | q4_K
        ref.gz --bpw 4 => it is a reference
        q4.kls --bpw 4 => it is a sidecar
        @f16 --bpw 4 => it is a model
        map --bpw 4 -m @mamba -t b.txt => another model
        map --bpw 4 -m @q4 -t b.txt => another model
        map --like b.txt => not a GGUF model
        map --bpw 4 --imatrix b.txt => without an importance matrix
        map --bpw 4 -m @f16 -t none.txt => none.txt";
    session.fails_each(1, "recipe -w types", cases);
    assert!(!session.exists("types") && !session.exists("types.partial"));
    // Before anything is measured.
    session.write("there.gguf", "mine");
    let quantize = "recipe map --bpw 4 -m @f16 -t b.txt --quantize";
    session.fails(&format!("{quantize} there.gguf"), 1, &["exists already"]);
    assert_eq!(session.read("there.gguf"), b"mine");
    assert!(!session.exists("q.gguf") && !session.exists("q.gguf.partial"));

    let own = session.ok("recipe map --bpw 4 -m @f16 -t a.txt -c 128 -n 500");
    own.warns(&["the map was made on this text"]);

    // Cut off in the middle of a line.
    let map = session.read("map");
    session.write("cut", &map[..map.len() * 9 / 10]);
    let cut = session.ok("recipe cut --bpw 8");
    cut.warns(&["the map is not finished"]);
    assert_eq!(session.read("cut"), map[..map.len() * 9 / 10]);
    let end = map.iter().position(|byte| *byte == b'\n').unwrap();
    session.write("cut", &map[..end / 2]);
    session.fails("recipe cut --bpw 8", 1, &["cut"]);
}

/// The whole way on other architectures: the file is what was measured.
#[test]
fn every_architecture_goes_from_a_map_to_a_file() {
    for (model, n_ctx) in [("mixtral", 96), ("qwen2", 96), ("gpt2", 48), ("mamba", 96)] {
        let session = Session::new();
        halves(&session);
        let path = fixture(&format!("architectures/{model}.gguf"));
        fs::copy(&path, session.path("f16.gguf")).unwrap();
        session.ok(&format!(
            "sensitivity -m f16.gguf -t a.txt -c {n_ctx} -n 190 -w map -q"
        ));
        let text = format!("-t b.txt -c {n_ctx} -n 500");
        session.ok(&format!(
            "recipe map --bpw 8 -m f16.gguf {text} --quantize q.gguf --json r.json -q"
        ));
        let recipe = session.read_json("r.json");
        assert_eq!(recipe["size_bytes"], session.length("q.gguf"), "{model}");
        let measured = number(&recipe["kld"]["measured"]["value"]);
        assert!(measured > 0.0, "{model}");
        let like = session.ok(&format!(
            "recipe map --like q.gguf -m f16.gguf {text} --json -"
        ));
        let like = like.json();
        assert_eq!(
            number(&like["check"]["like"]["kld"]["value"]),
            measured,
            "{model}"
        );
    }
}
