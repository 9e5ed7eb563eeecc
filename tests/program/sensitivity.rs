//! `kl sensitivity` on the fixtures' model.

use std::collections::BTreeMap;

use kl_formats::{Cell, SensitivityMap};
use serde_json::Value;

use crate::session::{Run, Session};

/// A map of few tokens and few tensors.
const FEW: &str = "sensitivity -m @f16 -t @eval -n 254 --tensors 'attn_v|ffn_down|embd' -w";

fn map(session: &Session, name: &str) -> SensitivityMap {
    SensitivityMap::read(&session.path(name)).unwrap()
}

/// What was measured, without where and when.
fn measured(session: &Session, name: &str) -> String {
    let map = map(session, name);
    assert!(!map.is_cut_off);
    format!("{:?} {:?}", map.errors, map.cells)
}

fn mean(cell: &Cell) -> f64 {
    cell.klds.iter().sum::<f64>() / f64::from(cell.n_tokens.iter().sum::<u32>())
}

#[test]
fn a_map_shows_which_tensors_hurt() {
    let session = Session::new();
    let outputs = "--json m.json --csv m.csv --html m.html";
    let run = session.ok(&format!(
        "sensitivity -m @f16 -t @eval -n 508 -w map {outputs}"
    ));
    run.prints(&["control       0", "token_embd", "kl recipe map"]);
    let map = map(&session, "map");
    let cells = || map.cells.iter();
    let of = |n: usize| cells().filter(move |cell| cell.exchanged.len() == n);
    let control = of(0).next().unwrap();
    assert!(control.klds.iter().all(|kld| *kld == 0.0), "{control:?}");
    let at_measured = |cell: &&Cell| {
        let mut types = cell.exchanged.values();
        types.all(|kind| *kind == map.header.measured_type)
    };
    let singles: Vec<&Cell> = of(1).filter(at_measured).collect();
    assert_eq!(singles.len(), 22);
    let sum: f64 = singles.iter().map(|cell| mean(cell)).sum();
    let whole = mean(of(22).find(at_measured).unwrap());
    assert!((0.7..1.5).contains(&(whole / sum)), "{whole} {sum}");

    let json = session.read_json("m.json");
    assert_eq!(json["by_role"][0]["role"], "token_embd");
    assert_eq!(json["control"], 0.0);
    assert!(session.read_text("m.csv").lines().count() > 22 * 13);
    assert!(session.read_text("m.html").contains("<html"));
    session.ok("info map --verify -q");
}

#[test]
fn a_map_is_the_same_on_one_thread_and_two_in_parts_and_against_exact_rows() {
    let session = Session::new();
    session.ok(&format!("{FEW} one -q --threads 1"));
    let one = measured(&session, "one");
    session.ok(&format!("{FEW} two -q --threads 2"));
    assert_eq!(measured(&session, "two"), one);

    // Each part has the text at another path, as on another machine.
    for index in 0..2 {
        session.write(&format!("text.{index}"), session.read("@eval"));
        let few = FEW.replace("@eval", &format!("text.{index}"));
        session.ok(&format!("{few} part.{index} -q --shard {index}/2"));
    }
    session.ok("merge whole part.0 part.1");
    assert_eq!(measured(&session, "whole"), one);

    for encoding in ["hidden", "f32"] {
        let write = format!("-m @f16 -t @eval -c 128 -w ref.gz --encoding {encoding}");
        session.ok(&format!("{write} -q --force"));
        let line = FEW.replace("-t @eval", "-r ref.gz");
        session.ok(&format!("{line} of_ref -q --force"));
        assert_eq!(measured(&session, "of_ref"), one, "{encoding}");
    }
}

/// Starts a run and sends it a signal once `map.partial` has this many lines.
fn cut_off(session: &Session, line: &str, signal: &str, n_lines: usize) -> Option<Run> {
    let lines_of = |map: Vec<u8>| map.into_iter().filter(|byte| *byte == b'\n').count();
    let begun = || std::fs::read(session.path("map.partial")).map_or(0, lines_of);
    session.cut_off(line, signal, || begun() >= n_lines)
}

#[test]
fn a_map_that_is_killed_again_and_again_is_the_same() {
    let session = Session::new();
    session.ok(&format!("{FEW} whole -q"));
    let line = format!("{FEW} map -q --resume");
    let kills = [2, 7, 13].map(|n_lines| cut_off(&session, &line, "-KILL", n_lines));
    assert!(kills.iter().any(Option::is_some));
    if let Some(run) = cut_off(&session, &line, "-TERM", 15) {
        let last = run.stderr.lines().last().unwrap();
        let is_said = last.contains("map.partial keeps ") && last.contains("--resume continues it");
        assert!(is_said, "{last}");
    }
    session.ok(&line);
    assert!(session.read("map") == session.read("whole"));
    session.ok(&line).warns(&["map: is already complete"]);
}

#[test]
fn what_cannot_be_measured_is_one_line() {
    let session = Session::new();
    session.write("notes", "not an importance matrix");
    session.ok("-m @f16 -t @eval -c 128 -w u16.gz -q");
    let cases = "
        -m @q4 -t @eval => is quantized already
        -m @f16 -r u16.gz => --encoding f32 or hidden
        -m @f16 -r @base => rounded rows
        -m @f16 -t @eval --types iq2_xs => iq2_xs needs an importance matrix
        -m @f16 -t @eval --type bf16 => bf16 is not a type
        -m @f16 -t @eval --tensors none => matches no tensor
        -m @f16 -t @eval --imatrix notes => notes
        -m @f16 -t @eval -c 8192 => at least two windows
        -m @f16 -t @eval -sm row => --split-mode
        -m @f16 -t @eval --shard 0/2 --csv - => exit 2 | --shard
        -m @f16 => exit 2 | --text-path
        -m @f16 -t @eval --types q4 => exit 2 | no type 'q4'
        -m @f16 -t @eval --tensors '(' => exit 2 | unclosed group
        -m @f16 -t @eval --json map => exit 2 | map";
    session.fails_each(1, "sensitivity -w map", cases);
    // An original in q8_0 is a warning.
    let line = "sensitivity -m @q8 -t @eval -n 254 --tensors attn_v -w map -q";
    session.ok(line).warns(&["-m ", "is quantized to q8_0"]);
}

/// The fixtures' model in groups: its map says of each tensor what the map of all tensors one by one says, and no check
/// is taken for a measurement.
#[test]
fn a_map_in_groups_has_the_costs_of_one_without() {
    let session = Session::new();
    let of = |name: &str, more: &str| {
        let json = format!("{name}.json");
        let call = "sensitivity -m @f16 -t @eval -q";
        session.ok(&format!("{call} -w {name} --json {json} {more}"));
        session.read_json(&json)
    };
    let (alone, grouped) = (of("alone", ""), of("grouped", "--max-tensors 10"));
    let tensors = |json: &Value| json["tensors"].as_array().unwrap().clone();
    let kld = |tensor: &Value, of: &str| tensor["kld"][of].as_f64().unwrap();
    let (mut n_inside, mut n_predicted) = (0, 0);
    for (alone, grouped) in tensors(&alone).iter().zip(&tensors(&grouped)) {
        assert_eq!(alone["name"], grouped["name"]);
        assert_eq!(
            (&alone["type"], &alone["is_measured"]),
            (&grouped["type"], &true.into())
        );
        let interval = kld(grouped, "lo")..=kld(grouped, "hi");
        n_inside += usize::from(interval.contains(&kld(alone, "value")));
        n_predicted += usize::from(grouped["is_measured"] == false);
    }
    // At a level of 95 %, one of 22 is outside.
    assert!(n_inside >= 20, "{n_inside}");
    assert!(n_predicted > 10, "{n_predicted}");
    let roles = |json: &Value| {
        let by_role = json["by_role"].as_array().unwrap();
        let role = |of: &Value| (of["role"].as_str().unwrap().to_owned(), kld(of, "value"));
        BTreeMap::from_iter(by_role.iter().map(role))
    };
    for (role, alone) in roles(&alone) {
        let ratio = roles(&grouped)[&role] / alone;
        assert!((0.7..1.4).contains(&ratio), "{role}: {ratio}");
    }
    // Each cell of one tensor at another type is listed: six checks, and roles of one tensor.
    let grouped_map = map(&session, "grouped");
    let is_check = |cell: &&Cell| {
        let mut types = cell.exchanged.values();
        cell.exchanged.len() == 1 && types.all(|kind| *kind != grouped_map.header.measured_type)
    };
    let n_checks = grouped_map.cells.iter().filter(is_check).count();
    assert_eq!(grouped["checks"].as_array().unwrap().len(), n_checks);
    assert!(n_checks >= 6, "{n_checks}");
}
