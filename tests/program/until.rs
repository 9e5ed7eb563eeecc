//! `--until`: an evaluation stops where the mean is known well enough.

use crate::numbers::number;
use crate::session::Session;

/// A reference of enough short windows to stop before its end.
fn session() -> Session {
    let session = Session::new();
    session.ok("-m @f16 -t @eval -w ref.gz -c 12 -q");
    session
}

#[test]
fn each_model_stops_where_its_own_interval_is_narrow_enough() {
    let session = session();
    let run = session.ok("-m @q4 -m @q8 -r ref.gz --until 12% --json until.json -q --full");
    run.prints(&["the mean is known to ±", "stopped at --until 12% after "]);
    let json = session.read_json("until.json");
    let n_windows = |model: usize| json["models"][model]["n_windows"].as_u64().unwrap();
    for model in 0..2 {
        let until = &json["models"][model]["until"];
        assert_eq!(
            (&until["target"], &until["reached"]),
            (&0.12.into(), &true.into())
        );
        let mean = &json["models"][model]["kld"]["mean"];
        let ends = ["cluster_hi", "cluster_lo"].map(|end| number(&mean[end]));
        let width = (ends[0] - ends[1]) / 2.0 / number(&mean["value"]);
        assert!((width - number(&until["relative_half_width"])).abs() < 1e-9);
        assert!(width < 0.12, "{width}");
        assert!((100..until["of"].as_u64().unwrap()).contains(&n_windows(model)));
    }
    // The head states the tokens of both, not those of one.
    let of_both = |what: &str| {
        let mut n = [0, 1].map(|model| json["models"][model][what].as_u64().unwrap());
        n.sort_unstable();
        assert_ne!(n[0], n[1]);
        n.map(|n| {
            if n < 1000 {
                n.to_string()
            } else {
                format!("{},{:03}", n / 1000, n % 1000)
            }
        })
        .join(" to ")
    };
    let (tokens, windows) = (of_both("n_tokens"), of_both("n_windows"));
    run.prints(&[&format!(
        "{tokens} tokens of eval.txt in {windows} windows of 12"
    )]);

    let records = session.records("tiny-q4_K_M@ref.kls");
    let windows: Vec<u32> = records
        .iter()
        .step_by(11)
        .map(|record| record.window)
        .collect();
    assert!(!windows.is_sorted(), "a sample, not the start of the text");
    let info = session.info("tiny-q4_K_M@ref.kls");
    assert_eq!(
        (&info["until"], &info["n_rows"]),
        (&0.12.into(), &records.len().into())
    );
    session
        .ok("info tiny-q4_K_M@ref.kls")
        .prints(&["until", "±12 %"]);
    session.ok("info tiny-q4_K_M@ref.kls --verify -q");

    // The report of the sidecar has the line too, but for the reference's number of windows.
    session
        .ok("report tiny-q4_K_M@ref.kls -q")
        .prints(&[&format!(
            "stopped at --until 12% after {} windows",
            n_windows(0)
        )]);
    let report = session.ok("report . --json -").json();
    let models = report["models"].as_array().unwrap();
    assert!(
        models.iter().all(|model| model["until"]["reached"] == true),
        "{report}"
    );

    // What is done is not repeated, and another target is another run.
    let resumed = session.json("-m @q4 -r ref.gz --until 12% --resume");
    assert_eq!(resumed["models"][0]["n_resumed"], records.len());
    let other = session.json("-m @q4 -r ref.gz --until 10% --force");
    assert!(other["models"][0]["n_tokens"].as_u64().unwrap() > records.len() as u64);
}

#[test]
fn a_text_that_is_too_short_says_how_much_would_do() {
    let session = session();
    let run = session.ok("-m @q4 -r ref.gz --until 0.5% --json until.json -q");
    run.prints(&["needs at least 450 windows, and there are 381"]);
    let until = session.read_json("until.json")["models"][0]["until"].take();
    assert_eq!(until["reached"], false);

    session.reference("--force");
    let run = session.ok("-m @q4 -r ref.gz --until 50% -q --force");
    run.prints(&["--until needs at least 100 windows, and there are 8"]);
    // A stream that ended is the same evaluation each time.
    for more in [
        "",
        "",
        " --resume",
        " -n 1000 --sidecar n.kls",
        " -n 1000 --sidecar n.kls",
    ] {
        session
            .ok(&format!("-m @q4 -r @klpy --until 50% -q{more}"))
            .prints(&["--until needs at least 100 windows"]);
    }
}

#[test]
fn a_stream_is_read_until_it_is_enough() {
    let session = Session::new();
    session.ok("-m @f16 -t @eval -w ref.gz -c 6 -q --format kl.py");
    let line = "-m @q4 -r ref.gz --until 30%";
    let result = session.result(line);
    assert_eq!(result["until"]["reached"], true);
    assert_eq!(result["until"]["of"], 837);
    assert!(result["n_windows"].as_u64().unwrap() < 837);
    let again = session.result(&format!("{line} --resume"));
    assert_eq!(again["n_resumed"], result["n_tokens"]);
    assert_eq!(again["timing"], serde_json::Value::Null);
    assert_eq!(again["until"], result["until"]);
}

#[test]
fn widths_are_shares_of_the_mean() {
    let session = Session::new();
    for width in ["5", "0", "60%", "0.01%", "-5%", "5%%", "nan", "five"] {
        let line = format!("-m none.gguf -r none.gz --until={width}");
        session.fails(&line, 2, &["--until", "0.1% to 50%", "5%"]);
    }
    let write = "-m none.gguf -t none.txt -w ref.gz --until 5%";
    session.fails(write, 2, &["--until", "cannot be used with"]);
}
