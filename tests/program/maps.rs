//! Maps of sensitivity as files: `kl merge` joins parts, `kl info` describes them, other commands name
//! them.

use kl_formats::{Cell, GgmlType, MapHeader, MapWriter, SensitivityMap};
use serde_json::json;

use crate::session::{Session, has};

const TENSORS: [&str; 7] = ["v", "a", "b", "c", "d", "e", "f"];

fn kind(name: &str) -> GgmlType {
    name.parse().unwrap()
}

/// The header of a map of some tensors, or of a part of it.
fn header(part: Option<(u32, u32)>) -> MapHeader {
    let tensor =
        |name| json!({"name": name, "shape": [256, 2], "type": "f16", "is_quantizable": true});
    let mut tensors: Vec<_> = TENSORS.iter().map(tensor).collect();
    tensors.push(json!({"name": "norm", "shape": [9], "type": "f32", "is_quantizable": false}));
    let shard =
        |(index, count)| json!({"index": index, "count": count, "n_windows": 2, "n_rows": 4});
    let header = json!({
        "kl_map": 1, "writer": "kl test", "n_ctx": 3, "n_vocab": 1024, "shard": part.map(shard),
        "model": {"file_name": "fp16.gguf", "metadata_sha256": "aa"},
        "windows": [{"window": 5, "n_rows": 2}, {"window": 0, "n_rows": 2}], "seed": 7,
        "text": {"name": "wiki.txt", "sha256": "bb"}, "measured_type": "q3_K",
        "types": ["q8_0", "q3_K"], "metadata_bytes": 64, "alignment": 32, "tensors": tensors,
    });
    serde_json::from_value(header).unwrap()
}

fn cell(tensors: &[&str], klds: &[f64]) -> Cell {
    let exchanged = tensors.iter().map(|&name| (name.to_owned(), kind("q3_K")));
    Cell {
        exchanged: exchanged.collect(),
        from: 0,
        klds: klds.to_vec(),
        n_tokens: vec![2; klds.len()],
    }
}

/// The cell of each tensor alone, in the order of the tensors; of some, over fewer windows.
fn singles() -> Vec<Cell> {
    let sums = (0..TENSORS.len()).map(|i| (0.1 / (i + 1) as f64, i % 2));
    let named = TENSORS.iter().zip(sums);
    let cells = named.map(|(name, (sum, more))| cell(&[name], &[sum, 0.5][..1 + more]));
    cells.collect()
}

/// Writes a map of these cells. Every part measures the control, and states weight errors of its
/// tensors and of the first.
fn write(session: &Session, name: &str, header: MapHeader, cells: &[Cell], is_finished: bool) {
    let path = session.path(name);
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = MapWriter::create(file, &path, header).unwrap();
    for (i, tensor) in TENSORS.iter().enumerate() {
        let mut exchanged = cells.iter().map(|cell| &cell.exchanged);
        if i == 0 || exchanged.any(|of| of.contains_key(*tensor)) {
            let errors = [(kind("q3_K"), 0.01 * i as f64), (kind("q8_0"), 1e-5)].into();
            writer.write_errors(tensor, &errors).unwrap();
        }
    }
    for cell in cells {
        writer.write_cell(cell).unwrap();
    }
    if is_finished {
        writer.finish().unwrap();
    }
}

/// Writes the parts of a map, each as one run would: its share of the cells, in an order of its own.
fn write_parts(session: &Session, count: usize) -> Vec<String> {
    let parts = (0..count).map(|part| {
        let mut cells: Vec<Cell> = singles().into_iter().skip(part).step_by(count).collect();
        cells.reverse();
        // The control of the last part is over the most windows.
        let n_windows = if part + 1 == count { 2 } else { 1 };
        cells.insert(cells.len() / 2, cell(&[], &[0.0; 2][..n_windows]));
        if part == 0 {
            cells.insert(0, cell(&TENSORS, &[3.0, 4.0]));
        }
        let name = format!("map.{part}.jsonl");
        let header = header(Some((part as u32, count as u32)));
        write(session, &name, header, &cells, true);
        name
    });
    parts.collect()
}

#[test]
fn parts_of_a_map_make_the_map_of_one_run() {
    let session = Session::new();
    let mut cells = vec![cell(&[], &[0.0, 0.0])];
    cells.extend(singles());
    cells.push(cell(&TENSORS, &[3.0, 4.0]));
    write(&session, "whole.jsonl", header(None), &cells, true);
    for count in [1, 2, 3, 7] {
        let mut parts = write_parts(&session, count);
        parts.reverse();
        let line = format!("merge --force joined.jsonl {}", parts.join(" "));
        let run = session.ok(&line);
        run.warns(&["wrote joined.jsonl", "9 cells"]);
        let is_whole = session.read("joined.jsonl") == session.read("whole.jsonl");
        assert!(is_whole, "{count}");
        session.ok(&line.replace("--force", "--resume"));
    }
}

#[test]
fn parts_that_make_no_whole_are_named() {
    let session = Session::new();
    write_parts(&session, 3);
    let second = header(Some((1, 3)));
    write(&session, "cut.jsonl", second.clone(), &singles(), false);
    write(&session, "whole.jsonl", header(None), &singles(), true);
    let mut other = second;
    other.windows.swap(0, 1);
    write(&session, "other.jsonl", other, &singles(), true);
    session.reference("");
    let cases = "
        map.1.jsonl => part 2 of 3 is missing beside map.0.jsonl and 1 more
        map.1.jsonl map.1.jsonl map.2.jsonl => both are part 1 of 3
        cut.jsonl map.2.jsonl => cut.jsonl: is not finished
        whole.jsonl => whole.jsonl: is whole, not a part
        other.jsonl map.2.jsonl => other.jsonl: is a part of another whole
        ref.gz => map.0.jsonl is a map and ref.gz is a reference";
    session.fails_each(1, "merge joined.jsonl map.0.jsonl", cases);
    assert!(!session.exists("joined.jsonl"));
}

/// llama-imatrix leaves out the embedding, so that it cannot have a type that needs its values.
#[test]
fn an_importance_matrix_opens_its_types_to_the_tensors_that_it_knows() {
    let session = Session::new();
    let line = "sensitivity -t @eval -n 128 --tensors 'blk.0.attn_k|token_embd' -w map.jsonl -q";
    let types = "--types q4_K,iq2_xxs";
    let imatrix = "--imatrix @imatrix/tiny.gguf";
    session.ok(&format!("{line} -m @f16 {types} {imatrix}"));
    let map = SensitivityMap::read(&session.path("map.jsonl")).unwrap();
    let of = map.header.imatrix.unwrap();
    assert_eq!(of.file_name, "tiny.gguf");
    let has = |tensor: &str| {
        let errors = &map.errors[tensor];
        ["q4_K", "iq2_xxs"].map(|name| errors.contains_key(&kind(name)))
    };
    assert_eq!(has("blk.0.attn_k.weight"), [true, true]);
    assert_eq!(has("token_embd.weight"), [true, false]);

    let cases = "
        -m @f16 --types q4_K,iq2_xxs => token_embd.weight: iq2_xxs needs an importance matrix
        -m @f16 --imatrix @imatrix/mixtral.gguf => imatrix/mixtral.gguf | made with another model
        -m @q4 --imatrix @imatrix/tiny.gguf => is quantized already";
    session.fails_each(1, &format!("{line} --force"), cases);
}

#[test]
fn a_map_is_described_checked_and_named_in_the_place_of_another_file() {
    let session = Session::new();
    write(&session, "map.jsonl", header(None), &singles(), true);
    let map = json!({"n_tensors": 8, "n_quantizable": 7, "n_measured": 7, "n_cells": 7,
        "n_tokens": 20, "is_complete": true});
    let expected = json!({"kind": "map", "model": {"file_name": "fp16.gguf"}, "n_windows": 2,
        "n_rows": 4, "verified": {"checks": "checksums"}, "map": map});
    has(&session.info("map.jsonl --verify"), &expected);
    let run = session.ok("info map.jsonl");
    run.prints(&["map of sensitivity", "7 measured alone", "q3_K"]);
    run.prints(&["7 cells, 20 tokens scored"]);

    write(&session, "cut.jsonl", header(None), &singles(), false);
    let run = session.ok("info cut.jsonl");
    run.prints(&["7 cells, 20 tokens scored; not finished"]);
    let whole = session.read_text("map.jsonl");
    session.write("bad.jsonl", whole.replacen("0.1]", "x]", 1));
    let cases = "
        info cut.jsonl --verify => cut.jsonl: incomplete | 15 whole lines
        info bad.jsonl => bad.jsonl: corrupt: line 9
        -m @q8 -r map.jsonl -q => -r map.jsonl | map of sensitivity | kl recipe
        -m map.jsonl -t @eval -w r.gz -q => map.jsonl | map of sensitivity
        -m @q8 -t map.jsonl -w r.gz -q => map.jsonl | map of sensitivity
        report map.jsonl => map.jsonl | map of sensitivity";
    session.fails_each(1, "", cases);
}
