//! `kl report`: several evaluations side by side, from their sidecars alone.

use serde_json::Value;

use crate::numbers::{accurate, number};
use crate::session::{Session, labels};

/// A session with the sidecars of all four fixtures, and without the reference.
fn session() -> Session {
    let session = Session::new();
    session.reference("");
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
    let json = session.ok("report . --json -").json();
    let order = ["tiny-f16", "tiny-q8_0", "tiny-q4_K_M", "tiny-q2_K"];
    assert_eq!(labels(&json), order);
    assert_eq!(json["reference"]["file_name"], "ref.gz");
    assert_eq!(json["not_compared"].as_array().unwrap().len(), 0);

    let floor = model(&json, "tiny-f16");
    assert_eq!(
        (&floor["is_reference_model"], &floor["is_noise_floor"]),
        (&true.into(), &true.into())
    );
    assert_eq!(floor["pareto"], false);
    assert!(floor["difference_to_best"].is_null());
    let best = model(&json, "tiny-q8_0");
    assert!(best["difference_to_best"].is_null() && best["ratio_to_best"].is_null());
    assert_eq!(best["indistinguishable_from_best"], true);
    let mean = |model: &Value| number(&model["kld"]["mean"]["value"]);
    for label in ["tiny-q4_K_M", "tiny-q2_K"] {
        let model = model(&json, label);
        let to_best = &model["difference_to_best"];
        let difference = mean(model) - mean(best);
        assert!((number(&to_best["value"]) - difference).abs() < 1e-12);
        let ratio = &model["ratio_to_best"];
        accurate(number(&ratio["value"]), mean(model) / mean(best), label);
        assert!(number(&ratio["p_holm"]) >= number(&ratio["p"]));
        assert_eq!(model["pareto"], true);
    }
    // Each with the best, and each with the next in size: q8_0 is both for q4_K_M.
    let pairs = json["pairs"].as_array().unwrap();
    let kinds: Vec<&str> = pairs
        .iter()
        .map(|pair| pair["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "best").count(), 2);
    assert_eq!(kinds.iter().filter(|kind| **kind == "size").count(), 2);
    let worst = &best["top"][0];
    assert!(number(&worst["kld"]) > 0.0 && worst["window"].is_u64());
}

/// Same numbers as the evaluation's own report, to the last digit.
#[test]
fn the_numbers_are_those_of_the_evaluations() {
    let session = Session::new();
    session.reference("");
    let evaluated = session.json("-m @q4 -r ref.gz");
    let reported = session.ok("report tiny-q4_K_M@ref.kls --json -").json();
    for key in [
        "kld",
        "reverse_kld",
        "agreement",
        "perplexity",
        "delta_p",
        "clusters",
        "n_tokens",
    ] {
        assert_eq!(
            evaluated["models"][0][key], reported["models"][0][key],
            "{key}"
        );
    }
}

#[test]
fn every_output_goes_where_it_is_asked_for() {
    let session = session();
    let text = session.ok("report . --csv all.csv --json all.json").stdout;
    assert!(
        text.starts_with("tiny-q8_0 is nearest to the original"),
        "{text}"
    );
    assert!(text.contains("\n4 models against ref.gz\n"), "{text}");
    let csv = String::from_utf8(session.read("all.csv")).unwrap();
    assert_eq!(csv.lines().count(), 5);
    assert_eq!(session.ok("report . --csv -").stdout, csv);
    let json = session.ok("report . --json -").stdout;
    assert_eq!(json.as_bytes(), session.read("all.json"));
    session
        .ok("report . --markdown")
        .prints(&["| model | size |", "| tiny-q8\\_0 | "]);
    session
        .ok("report . --breakdown")
        .prints(&["Mean KLD by position in the window"]);
    session.fails("report . --json - --csv -", 2, &["only one of"]);
    session.fails("report . --markdown --csv -", 2, &["only one of"]);
    session.fails("report . --pair --markdown", 2, &["--markdown"]);
    session.fails("report", 2, &["FILE"]);
}

#[test]
fn an_earlier_report_is_replaced_and_nothing_else_is() {
    let session = session();
    session.ok("report . --csv all.csv --json all.json -q");
    session.ok("report . --csv all.csv --json all.json -q");
    session.write("notes.csv", "my,notes\n");
    session.fails("report . --csv notes.csv", 1, &["notes.csv", "--force"]);
    // The result of an evaluation took long.
    session.write(
        "run.json",
        "{\n  \"kl_version\": \"0.1.0\",\n  \"json_version\": 1,\n  \"reference\": {\n    \"path\": ",
    );
    session.fails("report . --json run.json", 1, &["run.json", "--force"]);
    session.ok("report . --json run.json --force -q");
    session.fails("report . --json none/all.json", 1, &["none/all.json"]);
    session.fails(
        "report tiny-q2_K@ref.kls --csv tiny-q2_K@ref.kls",
        2,
        &["input"],
    );
}

#[test]
fn two_models_are_compared_in_depth() {
    let session = session();
    let line = "report tiny-q4_K_M@ref.kls tiny-q8_0@ref.kls --pair";
    let text = session.ok(line).stdout;
    assert!(
        text.starts_with("tiny-q4_K_M is ")
            && text.contains(" times as far from the original as tiny-q8_0.\n"),
        "{text}"
    );
    let json = session.ok(&format!("{line} --json -")).json();
    assert_eq!(
        (&json["a"]["label"], &json["b"]["label"]),
        (&"tiny-q4_K_M".into(), &"tiny-q8_0".into())
    );
    let mean = |side: &str| number(&json[side]["mean_kld"]);
    let difference = number(&json["difference"]["value"]);
    assert!((difference - (mean("a") - mean("b"))).abs() < 1e-12);
    accurate(
        number(&json["ratio"]["value"]),
        mean("a") / mean("b"),
        "ratio",
    );
    assert_eq!(json["top"].as_array().unwrap().len(), 10);
    let accepted = |side: &str| number(&json[side]["acceptance"]["mean"]["value"]);
    let difference = number(&json["acceptance_difference"]["value"]);
    assert!((difference - (accepted("a") - accepted("b"))).abs() < 1e-12);
    assert!(text.lines().count() <= 40, "{text}");
    let full = session.ok(&format!("{line} --full")).stdout;
    assert!(!text.contains("\nTokens that the quant drafts"), "{text}");
    assert!(full.contains("\nTokens that the quant drafts"), "{full}");
    session.fails(
        "report . --pair",
        1,
        &["--pair compares two models, and 4 are given"],
    );
    session.fails("report tiny-q2_K@ref.kls --pair", 1, &["and 1 are given"]);
}

#[test]
fn what_was_not_measured_alike_is_listed_with_the_reason() {
    let session = session();
    session.ok("-m @f16 -t short.txt -w other.gz -c 32 -q");
    session.ok("-m @q8 -r other.gz --sidecar other.kls -q");
    session.ok("-m @f16 -t short.txt -w ref.gz -c 64 -q");
    session.ok("-m @q4 -r ref.gz -n 100 --sidecar part.kls -q");
    session.write("text.kls", "not a sidecar");
    let mut cut = session.read("tiny-q8_0@ref.kls");
    cut.truncate(cut.len() - 9);
    session.write("cut.kls", &cut);
    let at = cut.len() / 2;
    let mut damaged = session.read("tiny-q8_0@ref.kls");
    damaged[at] ^= 1;
    session.write("damaged.kls", &damaged);
    let json = session.ok("report . --json -").json();
    assert_eq!(json["models"].as_array().unwrap().len(), 4);
    assert!(
        why(&json, "other.kls").contains("another reference, other.gz, with windows of 32, not 64")
    );
    assert!(why(&json, "part.kls").contains("has 100 tokens, and the others"));
    assert!(why(&json, "text.kls").starts_with("not a sidecar"));
    assert!(why(&json, "cut.kls").starts_with("incomplete: "));
    assert!(why(&json, "damaged.kls").contains("checksum"));
    // A file that was asked for and is not there would go unnoticed in a script.
    let missing = ["none.kls: cannot be read", "No such file"];
    session.fails("report . none.kls", 1, &missing);
    let text = session.ok("report .").stdout;
    assert!(text.contains("Not compared\n  ./cut.kls\n"), "{text}");
}

/// A quant of another model cannot be evaluated against this reference.
#[test]
fn what_is_not_compared_is_grouped_by_its_reference_and_names_the_model() {
    let session = session();
    session.ok("-m @gpt2 -t short.txt -w gpt2.gz -c 48 -q");
    session.ok("-m @gpt2 -r gpt2.gz -q --sidecar g1.kls");
    session.ok("-m @gpt2 -r gpt2.gz -q --label two --sidecar g2.kls");
    session.ok("-m @q8 -t short.txt -w again.gz -c 64 -q");
    session.ok("-m @q2 -r again.gz -q --sidecar again.kls");
    let json = session.ok("report . --json -").json();
    let reason = why(&json, "g1.kls");
    assert_eq!(reason, why(&json, "g2.kls"));
    assert!(
        reason.starts_with("was evaluated against another reference, gpt2.gz, of another model, "),
        "{reason}"
    );
    assert!(
        reason.ends_with(": report it apart") && !reason.contains("evaluate it"),
        "{reason}"
    );
    // Another quant of the same model may do as the reference, or not: no file shows it.
    let again = why(&json, "again.kls");
    assert!(again.contains("of the model tiny-q8_0.gguf, not tiny-f16.gguf: evaluate it against ref.gz if it is a quant of"), "{again}");
    let text = session.ok("report .").stdout;
    assert!(
        text.contains("\n  ./g1.kls\n  ./g2.kls\n    was evaluated"),
        "{text}"
    );
    assert_eq!(text.matches("gpt2.gz").count(), 1, "{text}");
    session
        .ok("report . --markdown")
        .prints(&["- `./g1.kls`, `./g2.kls`: was evaluated"]);
}

#[test]
fn a_report_of_nothing_is_one_clear_line() {
    let session = Session::new();
    std::fs::create_dir(session.path("empty")).unwrap();
    session.fails("report empty", 1, &["no sidecars (.kls)"]);
    session.fails("report none", 1, &["none"]);
    session.write("a.kls", "a");
    session.write("b.kls", "b");
    session.fails("report a.kls", 1, &["a.kls"]);
    session.fails(
        "report a.kls b.kls",
        1,
        &["none of 2 files can be reported", "a.kls"],
    );
    assert_eq!(session.files(), ["a.kls", "b.kls", "empty"]);
}

#[test]
fn a_folder_shows_what_is_done_while_a_loop_runs() {
    let session = session();
    let whole = session.read("tiny-q4_K_M@ref.kls");
    session.remove("tiny-q4_K_M@ref.kls");
    session.write("tiny-q4_K_M@ref.kls.partial", &whole[..whole.len() / 2]);
    session.write("new@ref.kls.partial", "");
    let json = session.ok("report . --json -").json();
    assert_eq!(labels(&json), ["tiny-f16", "tiny-q8_0", "tiny-q2_K"]);
    let partial = why(&json, "tiny-q4_K_M@ref.kls.partial");
    assert!(
        partial.starts_with("is not done yet: ") && partial.contains(" tokens "),
        "{partial}"
    );
    assert!(why(&json, "new@ref.kls.partial").starts_with("is not done yet"));
}

#[test]
fn a_copy_is_listed_once_and_the_same_name_is_told_apart() {
    let session = session();
    session.write("copy.kls", session.read("tiny-q4_K_M@ref.kls"));
    let json = session.ok("report . ./tiny-q2_K@ref.kls --json -").json();
    assert_eq!(json["models"].as_array().unwrap().len(), 4);
    session.remove("copy.kls");

    session.ok("-m @f16 -t short.txt -w ref.gz -c 64 -q");
    session.ok("-m @q4 -r ref.gz -ctk q8_0 --sidecar k.kls -q");
    session.ok("-m @f16 -r ref.gz -ctk q8_0 --sidecar f.kls -q");
    let json = session.ok("report . --json -").json();
    for label in [
        "tiny-q4_K_M (KV f16)",
        "tiny-q4_K_M (K q8_0, V f16)",
        "tiny-f16 (KV f16)",
    ] {
        model(&json, label);
    }
    // The reference's model with another cache is not the noise floor.
    let cached = model(&json, "tiny-f16 (K q8_0, V f16)");
    assert_eq!(
        (&cached["is_reference_model"], &cached["is_noise_floor"]),
        (&true.into(), &false.into())
    );
    let text = session.ok("report .").stdout;
    assert!(text.contains("Set-up, where models differ\n"), "{text}");
    assert!(text.contains("K q8_0, V f16"), "{text}");
}

#[test]
fn a_run_without_sidecars_says_what_is_missing() {
    let session = Session::new();
    session.reference("");
    let run = session.ok("-m @q2 -m @q4 -r ref.gz -q --no-sidecar");
    run.prints(&[
        "2 models against ref.gz",
        "no ratios on the same tokens: --no-sidecar leaves",
    ]);
    run.prints_not("to the best");
    let run = session.ok("-m @q2 -m @q4 -r ref.gz -q --json -");
    assert!(
        !run.stdout.contains("against"),
        "JSON alone: {}",
        run.stdout
    );
}
