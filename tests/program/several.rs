//! A run of several models: a line for each, one table, and what was written.

use crate::numbers::number;
use crate::session::{Session, fixture, table};

/// The lines of stderr that start so.
fn lines<'r>(stderr: &'r str, start: &str) -> Vec<&'r str> {
    let lines = stderr.lines();
    lines.filter(|line| line.starts_with(start)).collect()
}

#[test]
fn each_model_has_a_line_and_the_table_comes_once() {
    let session = Session::with_reference("");
    let long = "a-model-with-a-long-name-of-many-parts-8B-Instruct-q8_0.gguf";
    std::fs::copy(fixture("q8"), session.path(long)).unwrap();
    let line = format!("-m @q4 -m @q2 -m {long} -m @f16 -r ref.gz");
    let run = session.ok(&line);
    let models = lines(&run.stderr, "[");
    assert_eq!(models.len(), 4, "{}", run.stderr);
    run.warns(&["[1/4] tiny-q4_K_M  mean KLD 0.0"]);
    run.warns(&["[4/4] tiny-f16  mean KLD "]);
    // An interval has the clusters of the table, and is only there.
    assert!(models.iter().all(|line| !line.contains(", 0.0")));
    run.warns(&["kl: warning: the intervals rest on 8 windows"]);
    // In a pipe, names are whole.
    let name = long.strip_suffix(".gguf").unwrap();
    run.prints(&[&format!("P {name} ")]);
    assert!(!run.stdout.contains('…'), "{}", run.stdout);
    // What the run prints is what kl report prints later.
    run.prints(&["\n4 models against ref.gz\n", "1 ~P "]);
    assert_eq!(run.stdout, session.ok("report . -q").stdout);
    // With -q, nothing but the table, warnings and errors.
    let quiet = session.ok(&format!("{line} -q --force --json all.json"));
    assert_eq!(quiet.stdout, run.stdout);
    let n_warnings = lines(&quiet.stderr, "kl: warning: ").len();
    assert_eq!(quiet.stderr.lines().count(), n_warnings);
    let json = session.read_json("all.json");
    let mean = |model: usize| number(&json["models"][model]["kld"]["mean"]["value"]);
    assert!(mean(3) < mean(2) && mean(2) < mean(0) && mean(0) < mean(1));
}

#[test]
fn full_reports_come_with_a_flag_or_from_the_sidecar() {
    let session = Session::with_reference("");
    // Also with whatever only whole reports show.
    for flag in [
        "--full",
        "--breakdown",
        "--top-k 2",
        "--stats llama-perplexity",
    ] {
        let line = format!("-m @q4 -m @q2 -r ref.gz -q --force {flag}");
        let text = session.ok(&line).stdout;
        let n = |title: &str| text.matches(title).count();
        let found = (n("\nKL divergence, nats\n"), n("2 models against ref.gz\n"));
        assert_eq!(found, (2, 1), "{flag}: {text}");
    }
    // From the sidecar it is the same, but for the times.
    let one = session.ok("-m @q4 -r ref.gz -q --force --full").stdout;
    let (before, times) = one.split_once("  time ").unwrap();
    let (_, after) = times.split_once("\n\n").unwrap();
    let later = session.ok("report tiny-q4_K_M@ref.kls -q --full").stdout;
    assert_eq!(later, format!("{before}\n{after}"));
    let one = session.ok("-m @q4 -r ref.gz -q --force").stdout;
    let later = session.ok("report tiny-q4_K_M@ref.kls -q").stdout;
    let lines = one.lines().filter(|line| !line.starts_with("  time "));
    assert!(lines.eq(later.lines()), "{one}{later}");
    let breakdown = session.ok("report tiny-q4_K_M@ref.kls --breakdown");
    breakdown.prints(&["KL divergence by position in the window"]);
}

/// What all models share is said once, what some share with their names.
#[test]
fn warnings_that_models_share_come_once() {
    let session = Session::with_reference("");
    let run = session.ok("-m @q8 -m @q4 -m @q2 -r ref.gz -ctk q8_0 -q");
    let shared = lines(&run.stderr, "kl: warning: the type of cached keys");
    assert_eq!(shared.len(), 1, "{}", run.stderr);
    run.warns_not("only: ");
    // A quant as the reference: the original and q8_0 have more bits.
    session.reference_of("@q4", "q4.gz", "");
    let run = session.ok("-m @q8 -m @q2 -r q4.gz -q --no-sidecar");
    run.warns(&["kl: warning: of tiny-q8_0 only: the reference's model has"]);
    // Without sidecars there are no ratios.
    run.prints(&[
        "2 models against q4.gz",
        "no ratios on the same tokens: --no-sidecar leaves",
    ]);
    run.prints_not("to the best");
    let run = session.ok("-m @q2 -m @q4 -r ref.gz -q --json - --no-sidecar");
    run.prints_not("against");
}

#[test]
fn every_file_that_is_written_is_named() {
    let session = Session::with_reference("");
    // One that is whole already is not.
    let cases = "
        -m @q4 -r ref.gz --json one.json => tiny-q4_K_M@ref.kls one.json
        -m @q4 -r ref.gz --resume =>
        -m @q4 -r ref.gz --no-sidecar =>
        -m @q4 -r ref.gz --force -q =>
        -m @q8 -m @q2 -r ref.gz => tiny-q8_0@ref.kls tiny-q2_K@ref.kls
        report . --json r.json --csv r.csv --html r.html => r.json r.csv r.html
        report . --json r.json --csv - -q =>
        report tiny-q8_0@ref.kls tiny-q2_K@ref.kls --pair --json p.json => p.json
        compare ref.gz ref.gz --sidecar c.kls --json c.json => c.kls c.json";
    for (line, expected) in table(cases) {
        let run = session.ok(line);
        let wrote = lines(&run.stderr, "wrote ").join(" ");
        assert_eq!(wrote.replace("wrote ", ""), expected[0], "{line}");
    }
}
