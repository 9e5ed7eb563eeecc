//! `kl recipe` on the fixtures: from a map to a file, measured on another text.

use std::fs;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::numbers::number;
use crate::session::{Session, fixture, has};

/// The two halves of the held-out text: `a.txt` and `b.txt`.
fn halves(session: &Session) {
    let text = fs::read_to_string(fixture("eval")).unwrap();
    let half = text.len() / 2;
    let end = half + text[half..].find('\n').unwrap() + 1;
    session.write("a.txt", &text[..end]);
    session.write("b.txt", &text[end..]);
}

/// A map of few tokens of the first half, shared by all tests.
static SMALL_MAP: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let session = Session::new();
    halves(&session);
    session.ok("sensitivity -m @f16 -t a.txt -n 254 -w map -q");
    session.read("map")
});

/// A session with this map, and both halves.
fn with_small_map() -> Session {
    let session = Session::new();
    halves(&session);
    session.write("map", &*SMALL_MAP);
    session
}

/// A map of one half of the text, judged on the other: better than llama.cpp's own mixtures of the same
/// size. What is measured in memory is what the file gives, to the bit.
#[test]
fn a_recipe_beats_the_mixture_of_its_size_on_another_text() {
    let session = Session::new();
    halves(&session);
    session.ok("sensitivity -m @f16 -t a.txt -w map -q");
    session.ok("-m @f16 -t b.txt -c 128 -w b.gz --encoding f32 -q");
    // At few bits a recipe prefers tensors that were measured too low, and this half is harder.
    for (like, most, least) in [("q4", 0.95, 0.7), ("q2", 0.70, 0.6)] {
        let measure = "-m @f16 -t b.txt -c 128 --cluster window --json r.json --force";
        session.ok(&format!(
            "recipe map --like @{like} {measure} --quantize r.gguf -w r.txt"
        ));
        let recipe = session.read_json("r.json");
        let ratio = number(&recipe["check"]["like"]["ratio"]["value"]);
        assert!(ratio <= most, "{like}: {ratio}");
        // Only q2_K has another type for its embedding than its recipe.
        let equal = &recipe["check"]["like"]["at_equal_embedding"];
        if like == "q2" {
            let at_equal_types = number(&equal["ratio"]["value"]);
            assert!(
                (ratio * 0.95..1.0).contains(&at_equal_types),
                "{at_equal_types}"
            );
            assert_eq!(equal["changed"][0]["name"], "token_embd.weight");
            assert!(equal["size_bytes"].as_u64() <= Some(session.length("@q2")));
        } else {
            assert!(equal.is_null(), "{equal}");
        }
        let bytes = session.length("r.gguf");
        let exact = json!({"check": {"control": 0}, "gap": 0, "size_bytes": bytes});
        has(&recipe, &exact);
        assert!(bytes <= session.length(&format!("@{like}")));
        let value = number(&recipe["kld"]["measured"]["value"]);
        let off = number(&recipe["kld"]["predicted"]["value"]) / value;
        assert!((least..=1.3).contains(&off), "{like}: {off}");

        // The file, on the same tokens.
        session.ok(&format!("recipe map --like r.gguf {measure}"));
        let measured = json!({"value": value});
        let again = json!({"kld": {"measured": measured}, "check": {"like": {"kld": measured}}});
        has(&session.read_json("r.json"), &again);
        let evaluated = session.result("-m r.gguf -r b.gz --no-sidecar");
        // Over more tokens of the same text.
        let off = number(&evaluated["kld"]["mean"]["value"]) / value;
        assert!((0.9..1.1).contains(&off), "{like}: {off}");
    }
}

#[test]
fn a_recipe_needs_no_model() {
    let session = with_small_map();
    let run = session.ok("recipe map --size 1.2MB -w types --json r.json");
    run.prints(&["A recipe for tiny-f16.gguf, by map", "<- this recipe"]);
    run.prints(&["--tensor-type-file types", "--token-embedding-type"]);
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 80));
    let recipe = session.read_json("r.json");
    let size = recipe["size_bytes"].as_u64().unwrap();
    assert!((1_190_000..=1_200_000).contains(&size), "{size}");
    assert_eq!(recipe["kld"]["measured"], Value::Null);
    assert_eq!(recipe["tensors"].as_array().unwrap().len(), 22);
    assert_eq!(session.read_text("types").lines().count(), 22);

    // Only what was asked for.
    let recipe = |line: &str| session.ok(&format!("recipe map {line} --json -")).json();
    let few = recipe("--bpw 5 --types q4_K,q6_k");
    let mut kinds = few["tensors"].as_array().unwrap().iter();
    assert!(kinds.all(|of| of["type"] == "q4_K" || of["type"] == "q6_K"));
    let more = recipe("--kld 0.001");
    assert!(number(&more["kld"]["predicted"]["value"]) <= 0.001);
    // As kl report does, it replaces what it has made before, and nothing else.
    for bits in [5, 6] {
        let outputs = "--json r.json --html r.html -q";
        session.ok(&format!("recipe map --bpw {bits} {outputs}"));
    }
    let evaluated = "{\n  \"kl_version\": \"0.1.0\",\n  \"json_version\": 1,\n  \"reference\": {";
    session.write("run.json", evaluated);
    session.write("notes.html", "<html>my notes");
    let cases = "
        -w types => types | --force
        --json run.json => run.json: exists already
        --html notes.html => notes.html: exists already";
    session.fails_each(1, "recipe map --bpw 5", cases);
    session.ok("recipe map --bpw 5 -w types --force -q");
}

#[test]
fn what_makes_no_recipe_is_named() {
    let session = with_small_map();
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
    session.fails_each(1, "recipe -w none", cases);
    // Before anything is measured.
    session.write("there.gguf", "mine");
    let quantize = "recipe map --bpw 4 -m @f16 -t b.txt --quantize";
    session.fails(&format!("{quantize} there.gguf"), 1, &["exists already"]);
    assert_eq!(session.read("there.gguf"), b"mine");
    // A document that names a file is written after it.
    #[cfg(unix)]
    {
        let line = format!("{quantize} cut.gguf --json named.json -q");
        let run = session.in_shell("ulimit -f 200; trap '' XFSZ; \"$@\"", &line);
        assert_eq!(run.code, 1, "{}", run.stderr);
        assert!(!session.exists("cut.gguf") && !session.exists("named.json"));
    }

    let own = session.ok("recipe map --bpw 4 -m @f16 -t a.txt -c 128 -n 500");
    own.warns(&["the map was made on this text"]);

    // Cut off in the middle of a line, and in the header.
    session.cut("map", "cut", 0.9);
    let n_bytes = session.length("cut");
    let cut = session.ok("recipe cut --bpw 8");
    cut.warns(&["the map is not finished"]);
    assert_eq!(session.length("cut"), n_bytes);
    session.change("map", "cut", |map| map.truncate(100));
    session.fails("recipe cut --bpw 8", 1, &["cut"]);
}

/// The whole way on other architectures: the file is what was measured.
#[test]
fn every_architecture_goes_from_a_map_to_a_file() {
    for (model, n_ctx) in [("mixtral", 96), ("qwen2", 96), ("gpt2", 48), ("mamba", 96)] {
        let session = Session::new();
        halves(&session);
        let of = format!("-m @architectures/{model}.gguf");
        session.ok(&format!(
            "sensitivity {of} -t a.txt -c {n_ctx} -n 190 -w map -q"
        ));
        let recipe = |flags: &str| {
            let measure = format!("{of} -t b.txt -c {n_ctx} -n 500 --json -");
            session.ok(&format!("recipe map {flags} {measure}")).json()
        };
        let made = recipe("--bpw 8 --quantize q.gguf");
        assert_eq!(made["size_bytes"], session.length("q.gguf"), "{model}");
        let measured = &made["kld"]["measured"]["value"];
        assert!(number(measured) > 0.0, "{model}");
        let like = recipe("--like q.gguf");
        assert_eq!(like["check"]["like"]["kld"]["value"], *measured, "{model}");
    }
}

/// The last layer of this model predicts further tokens (MTP): no token's probabilities depend on it.
#[test]
fn what_decoding_does_not_use_gets_a_type_of_its_own() {
    let session = Session::with_text();
    let model = "-m @architectures/qwen35.gguf -t short.txt -c 64";
    session.ok(&format!("sensitivity {model} -w map -q"));
    let to_file = "--bpw 11 --quantize q.gguf -w types.txt --json r.json -q";
    let run = session.ok(&format!("recipe map {model} {to_file}"));
    run.prints(&["and 8 tensors that decoding does not use, not measured: q8_0"]);
    run.warns_not("--tensors");
    let recipe = session.read_json("r.json");
    let unmeasured = recipe["unmeasured"].as_array().unwrap();
    assert_eq!(unmeasured.len(), 8);
    for tensor in unmeasured {
        has(tensor, &json!({"type": "q8_0", "why": "unused"}));
        let name = tensor["name"].as_str().unwrap();
        assert!(name.starts_with("blk.2."), "{name}");
        let line = format!("^{}$=q8_0", name.replace('.', "\\."));
        assert!(session.read_text("types.txt").contains(&line), "{line}");
    }
    has(
        &recipe,
        &json!({"check": {"control": 0}, "size_bytes": session.length("q.gguf")}),
    );
}
