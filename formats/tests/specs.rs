//! The readers printed in the specs read what this crate writes. Needs python3 with numpy, and is
//! skipped where there is none.

mod common;
#[path = "specs/hidden.rs"]
mod hidden;

use std::path::Path;
use std::process::Command;

use kl_formats::*;

/// The Python in a spec.
fn reader_of(spec: &str) -> &str {
    let (_, script) = spec.split_once("```python\n").unwrap();
    script.split_once("```").unwrap().0
}

/// Runs `script` on `path` and returns what it prints; `None` where there is no Python to run it.
fn python(script: &str, path: &Path) -> Option<String> {
    let has_numpy = Command::new("python3")
        .args(["-c", "import numpy"])
        .output();
    if !has_numpy.is_ok_and(|out| out.status.success()) {
        eprintln!("no python3 with numpy here: not checked");
        return None;
    }
    let mut run = Command::new("python3");
    let out = run.arg("-c").arg(script).arg(path).output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}");
    Some(String::from_utf8(out.stdout).unwrap())
}

fn windows() -> [WindowSpec; 3] {
    [
        (1, vec![1, 2, 0], 1, 2),
        (0, vec![4], 1, 0),
        (2, vec![3, 3, 3], 0, 3),
    ]
    .map(|(window, tokens, first_scored, n_rows)| WindowSpec {
        window,
        tokens,
        first_scored,
        n_rows,
    })
}

/// Five logits. The members of rows are stored and the header's is compressed, so both are read. A
/// u16 row of window 2 is linear, masked or exact.
fn row(window: u32, i: u32) -> [f32; 5] {
    let last = match (window, i) {
        (2, 1) => -1e4,
        (2, 2) => 1e4,
        _ => 65.0,
    };
    [-1.5, 0.25 * i as f32, window as f32, 7.125, last]
}

/// The rows of a window.
fn rows(window: &WindowSpec) -> impl Iterator<Item = [f32; 5]> {
    let number = window.window;
    (0..window.n_rows).map(move |i| row(number, i))
}

/// Writes windows and their rows.
fn write_all(mut writer: Writer<&tempfile::NamedTempFile>, windows: &[WindowSpec]) {
    for window in windows {
        writer.write_window(window, rows(window)).unwrap();
    }
    writer.finish().unwrap();
}

/// The text that both readers print for the windows.
fn expected(encoding: Encoding) -> String {
    expected_of(|window, i| {
        let layout = encoding.layout().unwrap();
        let mut words = vec![0u32; layout.row_bytes(5) / 4];
        let bytes = bytemuck::cast_slice_mut(&mut words);
        let row = row(window, i);
        layout.encode(&row, bytes);
        // A row that is exact is only marked.
        let view = layout.view(bytes, 5).unwrap_or(Row::F32(&row));
        (0..5).map(|t| view.get(t)).collect()
    })
}

/// The text that a reader prints for the windows, whose rows `row` gives, by window and index.
fn expected_of(row: impl Fn(u32, u32) -> Vec<f32>) -> String {
    let mut lines = String::new();
    for window in windows() {
        let rows = (0..window.n_rows).flat_map(|i| row(window.window, i));
        let sum: f64 = rows.map(f64::from).sum();
        let mean = match window.n_rows {
            0 => "None".into(),
            n => format!("{:.9}", sum / f64::from(n * 5)),
        };
        lines += &format!(
            "{} {:?} ({}, 5) {mean}\n",
            window.window, window.tokens, window.n_rows
        );
    }
    lines
}

/// The reader in LOGITS.md, printing means to 9 decimals.
fn logits_md() -> String {
    reader_of(include_str!("../LOGITS.md")).replace(
        "logits.mean(dtype=\"f8\")",
        "f'{logits.mean(dtype=\"f8\"):.9f}'",
    )
}

#[test]
fn the_reader_in_logits_md_reads_native_files() {
    let script = logits_md();
    for encoding in [Encoding::U16, Encoding::F32] {
        let about = common::about(Kind::Kl, 3, 5);
        let mut header = Header::new(&about, encoding, &windows());
        header.rows_per_piece = 2;
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = Writer::native(&file, file.path(), &header).unwrap();
        write_all(writer, &windows());
        if let Some(printed) = python(&script, file.path()) {
            assert_eq!(printed, expected(encoding));
        }
        let gunzip = Command::new("gzip").arg("-dc").arg(file.path()).output();
        if let Ok(out) = gunzip {
            assert!(out.status.success());
            assert!(out.stdout.starts_with(native::MAGIC_LINE.as_bytes()));
        }
    }
}

#[test]
fn kl_pys_own_calls_read_its_kind_of_file() {
    let script = r#"
import ast, gzip, struct, sys
import numpy as np
with gzip.open(sys.argv[1], "rb") as f:
    assert f.readline() == b"llama_kl_divergence_v1\n"
    header = ast.literal_eval(f.readline().decode("utf-8"))
    assert header["n_ctx"] == 3 and header["n_batch"] == 512 and "caf\u00e9" in header["model"]
    windows = 0
    while counts := f.read(12):
        n_tokens, n_logits, n_vocab = struct.unpack("<3I", counts)
        tokens = np.frombuffer(f.read(4 * n_tokens), "<u4")
        rows = np.frombuffer(f.read(4 * n_logits * n_vocab), "<f4").reshape(n_logits, n_vocab)
        mean = f"{rows.mean(dtype='f8'):.9f}" if n_logits else None
        print([1, 0, 2][windows], tokens.tolist(), rows.shape, mean)
        windows += 1
"#;
    // The only rows the file can hold are those from the first position on.
    let windows = windows().map(|window| WindowSpec {
        first_scored: 0,
        ..window
    });
    let mut about = common::about(Kind::KlPy, 3, 5);
    about.values = Values::FlooredLogProbabilities;
    let target = Target::new(Kind::KlPy, None).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = Writer::create(&file, file.path(), target, &about, &windows).unwrap();
    write_all(writer, &windows);
    let read = Reference::open(file.path()).unwrap();
    assert_eq!(read.about().values, about.values);
    if let Some(printed) = python(script, file.path()) {
        assert_eq!(printed, expected(Encoding::F32));
    }
}

/// llama-perplexity's own file, one of an odd vocabulary written here, and the same bytes with the
/// other meaning of their codes.
#[test]
fn the_reader_in_llamacpp_md_reads_base_files() {
    let windows =
        [(0, [0, 4, 2, 3, 1, 1]), (1, [0, 2, 3, 4, 0, 1])].map(|(window, tokens)| WindowSpec {
            window,
            tokens: tokens.to_vec(),
            first_scored: 3,
            n_rows: 2,
        });
    let about = common::about(Kind::LlamaCpp, 6, 5);
    let target = Target::new(Kind::LlamaCpp, None).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = Writer::create(&file, file.path(), target, &about, &windows).unwrap();
    write_all(writer, &windows);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/peers");
    let logits2 = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes[7] = b'2';
    std::fs::write(logits2.path(), bytes).unwrap();
    let fixture = root.join("llama-perplexity-f16-c128.kld");
    for path in [file.path(), logits2.path(), &fixture] {
        let mut expected = String::new();
        let reference = Reference::open(path).unwrap();
        let Rows::Blocks(file) = reference.rows() else {
            panic!("a base file without blocks");
        };
        for i in 0..reference.windows().unwrap().len() {
            let window = file.window(i).unwrap();
            let block = file.block(i, 0, None).unwrap();
            assert_eq!(block.n_rows(), window.n_rows as usize);
            let next = &window.tokens[window.first_scored as usize + 1..];
            let nll = next
                .iter()
                .zip(block.rows())
                .map(|(&token, row)| -f64::from(row.get(token as usize)));
            let mean = nll.sum::<f64>() / f64::from(window.n_rows);
            let (i, shape) = (window.window, (window.n_rows, block.n_vocab()));
            expected += &format!("{i} {shape:?} {mean:.9}\n");
        }
        if let Some(printed) = python(reader_of(include_str!("../LLAMACPP.md")), path) {
            assert_eq!(printed, expected);
        }
    }
}

#[test]
fn the_reader_in_sidecar_md_reads_sidecars() {
    let mut header = SidecarHeader::new(ReferenceSummary::default(), 3, 17, Some(4));
    header.model = Some(common::model());
    header.groups = vec!["wiki".into(), "code".into()];
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = SidecarWriter::create(&file, file.path(), &header).unwrap();
    for (kld, flags) in [
        (0.5, TokenRecord::NEXT_IS_SPECIAL),
        (100.0, TokenRecord::REF_NOT_FINITE),
        (0.25, 0),
    ] {
        let record = TokenRecord {
            window: 1,
            token: 4 * flags,
            flags,
            kld,
            ref_nll: f64::NAN,
            eval_nll: f64::NAN,
            group: 1,
            ..common::record()
        };
        writer.push(&record).unwrap();
    }
    let texts = [(0, "a"), (3, " longer"), (16, "<|end|>")];
    writer.finish(&texts.into_iter().collect()).unwrap();
    let script = reader_of(include_str!("../SIDECAR.md"));
    if let Some(printed) = python(script, file.path()) {
        assert_eq!(printed, "2 0.375\n<|end|>\n");
    }
}

#[test]
fn the_reader_in_map_md_reads_maps() {
    let header = r#"{"kl_map":1,"n_ctx":4,"n_vocab":9,"windows":[{"window":1,"n_rows":3},
        {"window":0,"n_rows":3}],"measured_type":"q8_0","types":["q8_0"],"metadata_bytes":64,
        "alignment":32,"tensors":[
        {"name":"a","shape":[32,2],"type":"f16","is_quantizable":true},
        {"name":"b","shape":[32,2],"type":"f16","is_quantizable":true}]}"#;
    let header: MapHeader = serde_json::from_str(header).unwrap();
    let q8_0: GgmlType = "q8_0".parse().unwrap();
    let cell = |tensors: &[&str], from, kld| Cell {
        exchanged: tensors
            .iter()
            .map(|&name| (name.to_owned(), q8_0))
            .collect(),
        from,
        klds: vec![kld],
        n_tokens: vec![3],
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = MapWriter::create(&file, file.path(), header).unwrap();
    writer.write_errors("a", &[(q8_0, 1e-5)].into()).unwrap();
    for cell in [
        cell(&[], 0, 0.0),
        cell(&["a"], 0, 0.75),
        cell(&["a", "b"], 0, 6.0),
        cell(&["a"], 1, 1.5),
        cell(&["b"], 0, 0.375),
    ] {
        writer.write_cell(&cell).unwrap();
    }
    writer.finish().unwrap();
    let script = reader_of(include_str!("../MAP.md"));
    let expected = "a q8_0 0.375 6\nb q8_0 0.125 3\n";
    if let Some(printed) = python(script, file.path()) {
        assert_eq!(printed, expected);
    }
    // The end line is cut off in its middle.
    let length = file.as_file().metadata().unwrap().len();
    file.as_file().set_len(length - 9).unwrap();
    if let Some(printed) = python(script, file.path()) {
        assert_eq!(printed, "the map was cut off\n".to_owned() + expected);
    }
}
