//! Identical output: the first token at which a quant's own greedy answer differs is the one that its
//! sidecar gives.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;

use crate::answers::answers;
use crate::numbers::number;
use crate::session::{Session, fixture, has};

/// The first sentences of the held-out text, one a line.
fn sentences(n: usize) -> String {
    let text = fs::read_to_string(fixture("eval")).unwrap();
    let sentences = text.split(['.', '\n']).map(str::trim);
    let mut lines: Vec<String> = Vec::new();
    for sentence in sentences.filter(|sentence| sentence.len() > 20) {
        let line = format!("{sentence}.\n");
        if lines.len() < n && !lines.contains(&line) {
            lines.push(line);
        }
    }
    assert_eq!(lines.len(), n);
    lines.concat()
}

/// A session with a greedy reference of these prompts in `ref.gz`.
fn with_reference(n_prompts: usize, flags: &str) -> Session {
    let session = Session::new();
    session.write("prompts.txt", sentences(n_prompts));
    let write = "-m @f16 --prompts prompts.txt -w ref.gz -q";
    session.ok(&format!("{write} {flags}"));
    session
}

/// The number of tokens that two answers begin with alike; `None` if they are the same.
fn first_difference(one: &[u32], other: &[u32]) -> Option<usize> {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    (one.len() != same || other.len() != same).then_some(same)
}

/// The number of tokens before the first that differs, in each window's greedy records.
fn of_records(session: &Session, name: &str) -> BTreeMap<u32, Option<usize>> {
    let mut first = BTreeMap::<u32, (usize, bool)>::new();
    for record in session.records(name) {
        assert!(record.is_greedy());
        let (n_same, differs) = first.entry(record.window).or_default();
        *differs |= record.eval_top != record.token;
        *n_same += usize::from(!*differs);
    }
    let of_window =
        |(window, (n_same, differs)): (u32, (usize, bool))| (window, differs.then_some(n_same));
    first.into_iter().map(of_window).collect()
}

/// Each quant answers 100 prompts by itself, token by token, in calls of one token: the reference's
/// rows and, as it says so, the evaluation's are computed in calls of the same shape.
#[test]
fn a_quants_own_answers_differ_where_its_sidecar_says() {
    const N: usize = 100;
    let generate = "--generate 48 -np 1 -b 1 -ub 1 --encoding f32";
    let session = with_reference(N, generate);
    let of_reference = answers(&session, "ref.gz");
    // So many differ at least, or nothing is shown.
    for (quant, least) in [("q8", 1), ("q4", 10), ("q2", 50)] {
        let read = format!("-m @{quant} -r ref.gz --sidecar out.kls --force");
        let result = session.result(&read);
        let write = format!("-m @{quant} --prompts prompts.txt -w out.gz --force");
        session.ok(&format!("{write} -q {generate}"));
        let recorded = of_records(&session, "out.kls");
        assert_eq!(recorded.len(), N);
        let mut n_differ = 0;
        for (prompt, own) in answers(&session, "out.gz").iter().enumerate() {
            let own = first_difference(&of_reference[prompt], own);
            assert_eq!(recorded[&(prompt as u32)], own, "{quant}, prompt {prompt}");
            n_differ += usize::from(own.is_some());
        }
        let identical = json!({"n_answers": N, "cut_at": 48, "n_differ": n_differ});
        has(&result["identical_output"], &identical);
        assert!(n_differ >= least, "{quant}: {n_differ} differ");
    }
}

#[test]
fn the_report_says_how_many_answers_are_the_same() {
    let session = with_reference(5, "--generate 12 -b 1 -ub 1");
    let run = session.ok("-m @f16 -r ref.gz --no-sidecar -q");
    run.prints(&["All 5 greedy answers are the same to the end or the cut at 12 tokens"]);
    session.ok("-m @q2 -r ref.gz --sidecar q2.kls -q");
    // A run and a report print the same; so does a gate.
    let run = session.ok("report q2.kls --json q2.json");
    let json = session.read_json("q2.json");
    let identical = &json["models"][0]["identical_output"];
    let share = number(&identical["same_to_the_end"]["value"]);
    run.prints(&["greedy answers", &format!("{:.2} %", 100.0 * share)]);
    let gate = "-m @q2 -r ref.gz --no-sidecar -q --fail-if";
    session.ok(&format!("{gate} 'identical_output.n_answers < 5'"));
    let share = "identical_output.same_to_the_end";
    session.fails(&format!("{gate} '{share} >= 0'"), 3, &[share]);
}
