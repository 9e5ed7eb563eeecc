//! `kl report`: several evaluations side by side, from their sidecars alone.

use serde_json::{Value, json};

use crate::numbers::{accurate, number};
use crate::session::{Session, has, labels};

/// A session with the sidecars of all four fixtures, and without the reference.
fn session() -> Session {
    let session = Session::with_reference("");
    session.ok("-m @q2 -m @q4 -m @q8 -m @f16 -r ref.gz -q");
    session.remove("ref.gz");
    session
}

/// The model of a report with this label.
#[track_caller]
fn model<'j>(json: &'j Value, label: &str) -> &'j Value {
    let mut models = json["models"].as_array().unwrap().iter();
    let found = models.find(|model| model["label"] == label);
    found.unwrap_or_else(|| panic!("no {label}: {:?}", labels(json)))
}

/// Why a file is not compared.
#[track_caller]
fn why<'j>(json: &'j Value, file: &str) -> &'j str {
    let mut files = json["not_compared"].as_array().unwrap().iter();
    let found = files.find(|of| of["sidecar"].as_str().unwrap().ends_with(file));
    found.unwrap()["why"].as_str().unwrap()
}

#[test]
fn sidecars_of_one_reference_are_ranked_and_paired() {
    let session = session();
    let json = session.json("report .");
    let order = ["tiny-f16", "tiny-q8_0", "tiny-q4_K_M", "tiny-q2_K"];
    assert_eq!(labels(&json), order);
    let expected = json!({"reference": {"file_name": "ref.gz"}, "not_compared": []});
    has(&json, &expected);
    let floor = json!({"is_reference_model": true, "is_noise_floor": true, "pareto": false,
        "difference_to_best": null});
    has(model(&json, "tiny-f16"), &floor);
    let best = model(&json, "tiny-q8_0");
    let itself = json!({"difference_to_best": null, "ratio_to_best": null,
        "indistinguishable_from_best": true});
    has(best, &itself);
    let mean = |model: &Value| number(&model["kld"]["mean"]["value"]);
    for label in ["tiny-q4_K_M", "tiny-q2_K"] {
        let model = model(&json, label);
        let difference = number(&model["difference_to_best"]["value"]);
        assert!((difference - (mean(model) - mean(best))).abs() < 1e-12);
        let ratio = &model["ratio_to_best"];
        accurate(number(&ratio["value"]), mean(model) / mean(best), label);
        assert!(number(&ratio["p_holm"]) >= number(&ratio["p"]));
        assert_eq!(model["pareto"], true);
    }
    // Each with the best, and each with the next in size: q8_0 is both for q4_K_M.
    let pairs = json["pairs"].as_array().unwrap();
    for kind in ["best", "size"] {
        let of_kind = pairs.iter().filter(|pair| pair["kind"] == kind);
        assert_eq!(of_kind.count(), 2, "{kind}");
    }
    let worst = &best["top"][0];
    assert!(number(&worst["kld"]) > 0.0 && worst["window"].is_u64());
}

#[test]
fn every_output_goes_where_it_is_asked_for_and_replaces_an_earlier_report_alone() {
    let session = session();
    let run = session.ok("report . --csv all.csv --json all.json");
    run.prints(&[
        "tiny-q8_0 is nearest to the original",
        "\n4 models against ref.gz\n",
    ]);
    let csv = session.read_text("all.csv");
    assert_eq!(csv.lines().count(), 5);
    assert_eq!(session.ok("report . --csv -").stdout, csv);
    let json = session.ok("report . --json -").stdout;
    assert_eq!(json.as_bytes(), session.read("all.json"));
    let markdown = session.ok("report . --markdown");
    markdown.prints(&["| model | size |", "| tiny-q8\\_0 | "]);
    let breakdown = session.ok("report . --breakdown");
    breakdown.prints(&["Mean KLD by position in the window"]);

    session.ok("report . --csv all.csv --json all.json -q");
    session.write("notes.csv", "my,notes\n");
    // The result of an evaluation took long.
    let evaluation =
        "{\n  \"kl_version\": \"0.1.0\",\n  \"json_version\": 1,\n  \"reference\": {\n";
    session.write("run.json", format!("{evaluation}    \"path\": "));
    let cases = "
        => exit 2 | FILE
        . --json - --csv - => exit 2 | only one of
        . --markdown --csv - => exit 2 | only one of
        . --pair --markdown => exit 2 | --markdown
        . --pair => --pair compares two models, and 4 are given
        tiny-q2_K@ref.kls --pair => and 1 are given
        . --csv notes.csv => notes.csv | --force
        . --json run.json => run.json | --force
        . --json none/all.json => none/all.json
        none => none
        notes.csv => notes.csv
        notes.csv run.json => none of 2 files can be reported | notes.csv
        tiny-q2_K@ref.kls --csv tiny-q2_K@ref.kls => exit 2 | input";
    session.fails_each(1, "report", cases);
    session.ok("report . --json run.json --force -q");
}

#[test]
fn two_models_are_compared_in_depth() {
    let session = session();
    let line = "report tiny-q4_K_M@ref.kls tiny-q8_0@ref.kls --pair";
    let run = session.ok(line);
    run.prints(&[
        "tiny-q8_0 is nearest to the original",
        "\nKLD, nats, and its ratio\n",
    ]);
    run.prints(&["\n  same top token, only one "]);
    let json = session.json(line);
    let sides = json!({"a": {"label": "tiny-q4_K_M"}, "b": {"label": "tiny-q8_0"}});
    has(&json, &sides);
    let of = |key: &str| number(json.pointer(key).unwrap());
    let (a, b) = (of("/a/mean_kld"), of("/b/mean_kld"));
    assert!((of("/difference/value") - (a - b)).abs() < 1e-12);
    accurate(of("/ratio/value"), a / b, "ratio");
    assert_eq!(json["top"].as_array().unwrap().len(), 10);
    let [a, b] = ["/a", "/b"].map(|side| of(&format!("{side}/acceptance/mean/value")));
    assert!((of("/acceptance_difference/value") - (a - b)).abs() < 1e-12);
    assert!(run.stdout.lines().count() <= 50, "{}", run.stdout);
    run.prints_not("\nTokens that the quant drafts");
    let full = session.ok(&format!("{line} --full"));
    full.prints(&["\nTokens that the quant drafts"]);
}

#[test]
fn what_was_not_measured_alike_is_listed_with_the_reason() {
    let session = session();
    session.reference_of("@f16", "other.gz", "-c 32");
    session.ok("-m @q8 -r other.gz --sidecar other.kls -q");
    session.reference("");
    session.ok("-m @q4 -r ref.gz -n 100 --sidecar part.kls -q");
    session.write("text.kls", "not a sidecar");
    session.cut("tiny-q8_0@ref.kls", "cut.kls", 0.9999);
    session.flip("tiny-q8_0@ref.kls", "damaged.kls", 0.5);
    // Evaluations that are not done, as while a loop runs.
    session.cut("tiny-q8_0@ref.kls", "half.kls.partial", 0.5);
    session.write("new.kls.partial", "");
    let json = session.json("report .");
    assert_eq!(json["models"].as_array().unwrap().len(), 4);
    for (file, reason) in [
        (
            "other.kls",
            "another reference, other.gz, with windows of 32, not 64",
        ),
        ("part.kls", "has 100 tokens, and the others"),
        ("text.kls", "not a sidecar"),
        ("cut.kls", "incomplete: "),
        ("damaged.kls", "checksum"),
        ("half.kls.partial", "is not done yet: "),
        ("half.kls.partial", " tokens "),
        ("new.kls.partial", "is not done yet"),
    ] {
        let why = why(&json, file);
        assert!(why.contains(reason), "{file}: {why}");
    }
    // A file that was asked for and is not there would go unnoticed in a script.
    let missing = ["none.kls: cannot be read", "No such file"];
    session.fails("report . none.kls", 1, &missing);
    let run = session.ok("report .");
    run.prints(&["\nNot compared\n", "\n  ./cut.kls\n"]);

    // It is grouped by its reference. A quant of another model cannot be evaluated against this one.
    session.reference_of("@gpt2", "gpt2.gz", "-c 48");
    session.ok("-m @gpt2 -r gpt2.gz -q --sidecar g1.kls");
    session.ok("-m @gpt2 -r gpt2.gz -q --label two --sidecar g2.kls");
    session.reference_of("@q8", "again.gz", "");
    session.ok("-m @q2 -r again.gz -q --sidecar again.kls");
    let json = session.json("report .");
    let reason = why(&json, "g1.kls");
    assert_eq!(reason, why(&json, "g2.kls"));
    let other = "was evaluated against another reference, gpt2.gz, of another model, ";
    assert!(reason.starts_with(other), "{reason}");
    assert!(reason.ends_with(": report it apart") && !reason.contains("evaluate it"));
    // Another quant of the same model may do as the reference, or not: no file shows it.
    let again = why(&json, "again.kls");
    let advice = "of the model tiny-q8_0.gguf, not tiny-f16.gguf: evaluate it against ref.gz if it is a quant of";
    assert!(again.contains(advice), "{again}");
    let text = session.ok("report .").stdout;
    let both = "\n  ./g1.kls\n  ./g2.kls\n    was evaluated";
    assert!(text.contains(both), "{text}");
    assert_eq!(text.matches("gpt2.gz").count(), 1, "{text}");
    let markdown = session.ok("report . --markdown");
    markdown.prints(&["- `./g1.kls`, `./g2.kls`: was evaluated"]);
}

#[test]
fn a_copy_is_listed_once_and_the_same_name_is_told_apart() {
    let session = session();
    session.write("copy.kls", session.read("tiny-q4_K_M@ref.kls"));
    let json = session.json("report . ./tiny-q2_K@ref.kls");
    assert_eq!(json["models"].as_array().unwrap().len(), 4);
    session.remove("copy.kls");

    session.reference("");
    session.ok("-m @q4 -r ref.gz -ctk q8_0 --sidecar k.kls -q");
    session.ok("-m @f16 -r ref.gz -ctk q8_0 --sidecar f.kls -q");
    let json = session.json("report .");
    model(&json, "tiny-q4_K_M (KV f16)");
    model(&json, "tiny-q4_K_M (K q8_0, V f16)");
    model(&json, "tiny-f16 (KV f16)");
    // The reference's model with another cache is not the noise floor.
    let cached = json!({"is_reference_model": true, "is_noise_floor": false});
    has(model(&json, "tiny-f16 (K q8_0, V f16)"), &cached);
    let run = session.ok("report .");
    run.prints(&["Set-up, where models differ\n", "K q8_0, V f16"]);
}
