//! `--until`: an evaluation stops where the mean is known well enough.

use serde_json::json;

use crate::numbers::number;
use crate::session::{Session, has};

#[test]
fn each_model_stops_where_its_own_interval_is_narrow_enough() {
    let session = Session::new();
    // Enough short windows to stop before its end.
    session.ok("-m @f16 -t @eval -w ref.gz -c 12 -q");
    let run = session.ok("-m @q4 -m @q8 -r ref.gz --until 12% --json until.json -q --full");
    run.prints(&["the mean is known to ±", "stopped at --until 12% after "]);
    let json = session.read_json("until.json");
    let n_windows = |model: usize| json["models"][model]["n_windows"].as_u64().unwrap();
    for model in 0..2 {
        let until = &json["models"][model]["until"];
        has(until, &json!({"target": 0.12, "reached": true}));
        let mean = &json["models"][model]["kld"]["mean"];
        let ends = ["cluster_hi", "cluster_lo"].map(|end| number(&mean[end]));
        let width = (ends[0] - ends[1]) / 2.0 / number(&mean["value"]);
        assert!((width - number(&until["relative_half_width"])).abs() < 1e-9);
        assert!(width < 0.12, "{width}");
        assert!((100..until["of"].as_u64().unwrap()).contains(&n_windows(model)));
    }
    // The head states the windows of both, not those of one.
    let mut of_both = [0, 1].map(n_windows);
    of_both.sort_unstable();
    let [fewest, most] = of_both;
    assert_ne!(fewest, most);
    run.prints(&[&format!("in {fewest} to {most} windows of 12")]);

    let records = session.records("tiny-q4_K_M@ref.kls");
    let windows = records.iter().step_by(11).map(|record| record.window);
    assert!(!windows.is_sorted(), "a sample, not the start of the text");
    let info = session.info("tiny-q4_K_M@ref.kls --verify");
    has(&info, &json!({"until": 0.12, "n_rows": records.len()}));
    let shown = session.ok("info tiny-q4_K_M@ref.kls");
    shown.prints(&["until", "±12 %"]);

    // The report of the sidecar has the line too, but for the reference's number of windows.
    let report = session.ok("report tiny-q4_K_M@ref.kls -q");
    let stopped = format!("stopped at --until 12% after {} windows", n_windows(0));
    report.prints(&[&stopped]);
    let report = session.json("report .");
    let mut models = report["models"].as_array().unwrap().iter();
    assert!(models.all(|model| model["until"]["reached"] == true));

    // What is done is not repeated, and another target is another run.
    let resumed = session.result("-m @q4 -r ref.gz --until 12% --resume");
    assert_eq!(resumed["n_resumed"], records.len());
    let other = session.result("-m @q4 -r ref.gz --until 10% --force");
    assert!(other["n_tokens"].as_u64().unwrap() > records.len() as u64);

    // A text that is too short says how much would do.
    let line = "-m @q4 -r ref.gz --until 0.5% --json short.json -q --no-sidecar";
    let run = session.ok(line);
    run.prints(&["needs at least 450 windows, and there are 381"]);
    let model = session.read_json("short.json")["models"][0].take();
    assert_eq!(model["until"]["reached"], false);
}

#[test]
fn a_stream_is_read_until_it_is_enough_or_ends() {
    let session = Session::new();
    // One that ended is the same evaluation each time.
    let few = "-n 1000 --sidecar n.kls";
    for more in ["", "", "--resume", few, few] {
        let run = session.ok(&format!("-m @q4 -r @klpy --until 50% -q {more}"));
        run.prints(&["--until needs at least 100 windows"]);
    }
    session.ok("-m @f16 -t @eval -w ref.gz -c 6 -q --format kl.py");
    let line = "-m @q4 -r ref.gz --until 30%";
    let result = session.result(line);
    has(&result["until"], &json!({"reached": true, "of": 837}));
    assert!(result["n_windows"].as_u64().unwrap() < 837);
    let again = session.result(&format!("{line} --resume"));
    let same = json!({"n_resumed": result["n_tokens"], "timing": null, "until": result["until"]});
    has(&again, &same);
}
