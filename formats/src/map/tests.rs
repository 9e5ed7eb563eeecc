use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::checked_line::with_checksum;
use crate::common;
use crate::testing::{Scratch, assert_fault, check_message, sparse};
use crate::{Error, Fault, Found, Provenance, Shard};

fn kind(name: &str) -> GgmlType {
    name.parse().unwrap()
}

fn tensor(name: &str, shape: &[u64], is_quantizable: bool) -> MapTensor {
    MapTensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        kind: kind(if is_quantizable { "f16" } else { "f32" }),
        is_quantizable,
        unmeasured: None,
    }
}

fn header() -> MapHeader {
    let window = |window, n_rows| MapWindow { window, n_rows };
    MapHeader {
        kl_map: MAP_VERSION,
        provenance: Provenance {
            n_ctx: 4,
            n_vocab: 9,
            ..Provenance::default()
        },
        reference: None,
        windows: vec![window(7, 3), window(2, 3), window(3, 1)],
        measured_type: kind("q3_K"),
        types: vec![kind("q8_0"), kind("q4_K")],
        imatrix: None,
        metadata_bytes: 64,
        alignment: 32,
        tensors: vec![
            tensor("a.weight", &[256, 2], true),
            tensor("norm", &[256], false),
            tensor("b.weight", &[32, 2, 2], true),
        ],
    }
}

fn mixture(of: &[(&str, &str)]) -> Mixture {
    let named = of.iter().map(|&(name, of)| (name.to_owned(), kind(of)));
    named.collect()
}

fn cell(exchanged: &[(&str, &str)], from: usize, sums: &[(f64, u32)]) -> Cell {
    Cell {
        exchanged: mixture(exchanged),
        from,
        klds: sums.iter().map(|sum| sum.0).collect(),
        n_tokens: sums.iter().map(|sum| sum.1).collect(),
    }
}

/// A line after the header.
enum Line {
    Errors(&'static str, BTreeMap<GgmlType, f64>),
    Cell(Cell),
}

impl Line {
    fn write(&self, writer: &mut MapWriter<impl Write>) -> crate::Result<()> {
        match self {
            Self::Errors(tensor, errors) => writer.write_errors(tensor, errors),
            Self::Cell(cell) => writer.write_cell(cell),
        }
    }
}

fn lines() -> Vec<Line> {
    let errors = |of: &[(&str, f64)]| of.iter().map(|&(of, error)| (kind(of), error)).collect();
    vec![
        Line::Errors("a.weight", errors(&[("q8_0", 1e-5), ("q3_K", 0.1 + 0.2)])),
        Line::Cell(cell(&[], 0, &[(0.0, 3), (0.0, 3)])),
        Line::Cell(cell(&[("a.weight", "q3_K")], 0, &[(0.25, 3)])),
        Line::Cell(cell(&[("b.weight", "q4_0")], 0, &[(5e-324, 2), (1.0, 1)])),
        Line::Errors("a.weight", errors(&[("q4_K", 0.0)])),
        Line::Cell(cell(&[("a.weight", "q3_K")], 1, &[(0.5, 2), (0.0, 0)])),
    ]
}

fn write(header: MapHeader, lines: &[Line]) -> crate::Result<Vec<u8>> {
    let mut writer = MapWriter::create(Vec::new(), Path::new("out"), header)?;
    lines.iter().try_for_each(|line| line.write(&mut writer))?;
    let so_far = writer.map().clone();
    let (bytes, map) = writer.finish()?;
    assert!(so_far.is_cut_off && !map.is_cut_off && so_far.cells == map.cells);
    assert_eq!(SensitivityMap::read(Scratch::new().file(&bytes))?, map);
    Ok(bytes)
}

/// A whole map with lines of all kinds.
pub(crate) fn sample() -> Vec<u8> {
    let mut header = header();
    header.model = Some(common::model());
    header.text = Some(common::text());
    header.backend = Some(common::backend());
    header.imatrix = Some(ImatrixIdentity {
        file_name: "i.gguf".to_owned(),
        sha256: "00".to_owned(),
    });
    write(header, &lines()).unwrap()
}

/// These lines, each with its checksum if it is an object; an end line has one already.
fn with_checksums(lines: &str) -> String {
    let line = |json: &str| match with_checksum(json.as_bytes()) {
        Some(line) if !json.starts_with("{\"n_lines") => String::from_utf8(line).unwrap(),
        _ => json.to_owned() + "\n",
    };
    lines.split_terminator('\n').map(line).collect()
}

#[test]
fn a_map_spelled_out() {
    let text = concat!(
        r#"{"kl_map":1,"n_ctx":4,"n_vocab":9,"#,
        r#""windows":[{"window":7,"n_rows":3},{"window":2,"n_rows":3},{"window":3,"n_rows":1}],"#,
        r#""measured_type":"q3_K","types":["q8_0","q4_K"],"metadata_bytes":64,"alignment":32,"#,
        r#""tensors":[{"name":"a.weight","shape":[256,2],"type":"f16","is_quantizable":true},"#,
        r#"{"name":"norm","shape":[256],"type":"f32","is_quantizable":false},"#,
        r#"{"name":"b.weight","shape":[32,2,2],"type":"f16","is_quantizable":true}]}"#,
        "\n",
        r#"{"tensor":"a.weight","errors":{"q8_0":0.00001,"q3_K":0.30000000000000004}}"#,
        "\n",
        r#"{"exchanged":{},"klds":[0.0,0.0],"n_tokens":[3,3]}"#,
        "\n",
        r#"{"exchanged":{"a.weight":"q3_K"},"klds":[0.25],"n_tokens":[3]}"#,
        "\n",
        r#"{"exchanged":{"b.weight":"q4_0"},"klds":[5e-324,1.0],"n_tokens":[2,1]}"#,
        "\n",
        r#"{"tensor":"a.weight","errors":{"q4_K":0.0}}"#,
        "\n",
        r#"{"exchanged":{"a.weight":"q3_K"},"from":1,"klds":[0.5,0.0],"n_tokens":[2,0]}"#,
        "\n",
    );
    let text = with_checksums(text);
    let end = format!(
        "{{\"n_lines\":7,\"crc32\":{}}}\n",
        crc32fast::hash(text.as_bytes())
    );
    let bytes = write(header(), &lines()).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), text.clone() + &end);

    let scratch = Scratch::new();
    let map = SensitivityMap::read(scratch.file(text.as_bytes())).unwrap();
    assert!(map.is_cut_off);
    assert_eq!(map.header, header());
    let joined = cell(&[("a.weight", "q3_K")], 0, &[(0.25, 3), (0.5, 2), (0.0, 0)]);
    assert_eq!(map.cells[1], joined);
    assert_eq!(map.cells.len(), 3);
    assert_eq!(map.errors["a.weight"].len(), 3);
    assert_eq!(map.errors["a.weight"][&kind("q3_K")], 0.1 + 0.2);
}

/// Version 0.1.0 wrote lines without checksums. They are read; a line that has a checksum is held to it.
#[test]
fn a_map_of_lines_without_checksums_is_read() {
    let cut = |line: &str| {
        line.rfind(",\"crc32\"")
            .map(|at| line[..at].to_owned() + "}\n")
    };
    let whole = String::from_utf8(sample()).unwrap();
    let earlier: String = whole.split_inclusive('\n').filter_map(cut).collect();
    let (lines, _) = earlier.split_once("{\"n_lines").unwrap();
    let scratch = Scratch::new();
    let read = SensitivityMap::read_cut_off(scratch.file(lines.as_bytes())).unwrap();
    assert!(!read.has_checksums());
    assert_eq!(read.map().cells, read_text(&whole).cells);
    let end = format!(
        "{{\"n_lines\":7,\"crc32\":{}}}\n",
        crc32fast::hash(lines.as_bytes())
    );
    let path = scratch.file(format!("{lines}{end}").as_bytes());
    assert!(!SensitivityMap::read(path).unwrap().is_cut_off);
    let mixed = lines.to_owned()
        + &with_checksums(r#"{"exchanged":{},"from":2,"klds":[0.0],"n_tokens":[1]}"#);
    assert!(SensitivityMap::read(scratch.file(mixed.as_bytes())).is_ok());
    let error =
        SensitivityMap::read(scratch.file(mixed.replace("\"from\":2", "\"from\":3").as_bytes()));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("line 8: its checksum")
    );
}

/// No byte of a map that was cut off can change what is read of it: what is left is an error, or the lines
/// before the last.
#[test]
fn no_changed_byte_of_a_map_that_was_cut_off_changes_a_number() {
    let whole = sample();
    let end = whole.len()
        - 1
        - whole
            .iter()
            .rev()
            .skip(1)
            .position(|&byte| byte == b'\n')
            .unwrap();
    let cut_off = &whole[..end];
    let scratch = Scratch::new();
    let expected = read_text(std::str::from_utf8(cut_off).unwrap());
    for i in 0..cut_off.len() {
        for bit in 0..8 {
            let mut damaged = cut_off.to_vec();
            damaged[i] ^= 1 << bit;
            let path = scratch.file(&damaged);
            match SensitivityMap::read_cut_off(path) {
                Err(error) => check_message(&error, path),
                Ok(read) if i + 1 == cut_off.len() => {
                    assert!(read.has_checksums() && read.map().errors == expected.errors);
                    assert!(read.map().cells.len() == expected.cells.len());
                }
                Ok(read) => {
                    // Its header has lost its checksum and the lines have theirs: nothing is resumed.
                    assert!(
                        !read.has_checksums() && *read.map() == expected,
                        "byte {i}, bit {bit}"
                    );
                }
            }
        }
    }
}

fn read_text(text: &str) -> SensitivityMap {
    SensitivityMap::read(Scratch::new().file(text.as_bytes())).unwrap()
}

/// Wherever a writer was cut off, what it wrote is read, and continuing gives the same bytes.
#[test]
fn a_map_that_was_cut_off_anywhere_is_read_and_continued() {
    let whole = sample();
    let scratch = Scratch::new();
    let ends: Vec<usize> = (1..=whole.len())
        .filter(|&n| whole[n - 1] == b'\n')
        .collect();
    for n in 0..=whole.len() {
        let path = scratch.file(&whole[..n]);
        let n_whole = ends.iter().filter(|&&end| end <= n).count();
        let read = SensitivityMap::read_cut_off(path);
        if n_whole == 0 {
            check_message(&read.unwrap_err(), path);
            continue;
        }
        let read = read.unwrap();
        let n_written = n_whole.min(ends.len() - 1) - 1;
        assert_eq!(read.map().is_cut_off, n < whole.len(), "{n}");
        assert_eq!(read.n_bytes() as usize, ends[n_written], "{n}");
        assert_eq!(verify(path).is_ok(), n == whole.len(), "{n}");
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let seek = |file: &mut std::fs::File, to| {
            file.set_len(to)?;
            file.seek(SeekFrom::Start(to)).map(|_| ())
        };
        let mut writer = MapWriter::resume(file, path, read, seek).unwrap();
        assert!(writer.map().is_cut_off);
        for line in &lines()[n_written..] {
            line.write(&mut writer).unwrap();
        }
        writer.finish().unwrap();
        assert!(std::fs::read(path).unwrap() == whole, "{n}");
        assert_eq!(verify(path).unwrap(), 7);
    }
}

proptest! {
    #[test]
    fn sums_and_errors_keep_every_bit(bits in prop::collection::vec(any::<u64>(), 3)) {
        // Any positive finite number.
        let any = |i: usize| f64::from_bits(bits[i] % f64::INFINITY.to_bits());
        let sum = |i| any(i).min(1e39);
        let errors = [(kind("q8_0"), any(2))].into();
        let lines = [
            Line::Cell(cell(&[], 0, &[(sum(0), 3), (sum(1), 1)])),
            Line::Errors("b.weight", errors),
        ];
        let bytes = write(header(), &lines).unwrap();
        let map = SensitivityMap::read(Scratch::new().file(&bytes)).unwrap();
        let read = [map.cells[0].klds[0], map.cells[0].klds[1], map.errors["b.weight"][&kind("q8_0")]];
        prop_assert_eq!(read.map(f64::to_bits), [sum(0), sum(1), any(2)].map(f64::to_bits));
    }
}

/// The error for these lines after a header and a control cell.
fn error_of(lines: &str) -> Error {
    let scratch = Scratch::new();
    let start = write(header(), &control()).unwrap();
    let text = String::from_utf8(start).unwrap();
    let (before_end, _) = text.split_once("{\"n_lines").unwrap();
    let lines = with_checksums(&format!("{lines}\n"));
    let path = scratch.file(format!("{before_end}{lines}").as_bytes());
    let error = SensitivityMap::read(path).unwrap_err();
    check_message(&error, path);
    error
}

fn control() -> [Line; 1] {
    [Line::Cell(cell(&[], 0, &[(0.0, 3)]))]
}

/// Lines, and what the error about each states.
const WRONG_LINES: &str = r#"
{"klds":[0.0]} => line 3: neither a cell nor
{"exchanged":{},"klds":[0.0],"n_ => line 3: it has no checksum, at byte
{"exchanged":{},"klds":[0.0]} => missing field `n_tokens`
{"exchanged":{"a.weight":"q9"},"klds":[0.0],"n_tokens":[1]} => no type 'q9'
{"exchanged":{"c":"q8_0"},"klds":[0.0],"n_tokens":[1]} => line 3: no tensor c in
{"exchanged":{"norm":"q8_0"},"klds":[0.0],"n_tokens":[1]} => tensor norm is never quantized
{"exchanged":{"b.weight":"q4_K"},"klds":[0.0],"n_tokens":[1]} => tensor b.weight cannot be q4_K
{"exchanged":{"b.weight":"i8"},"klds":[0.0],"n_tokens":[1]} => tensor b.weight cannot be i8
{"exchanged":{"b.weight":"q8_0"},"klds":[],"n_tokens":[]} => the cell of b.weight at q8_0 has 0 sums and 0 counts
{"exchanged":{"b.weight":"q8_0"},"klds":[0.0],"n_tokens":[1,1]} => has 1 sums and 2 counts
{"exchanged":{"a.weight":"q8_0","b.weight":"q8_0"},"klds":[0,0,0,0],"n_tokens":[0,0,0,0]} => the cell of 2 tensors from a.weight at q8_0 on has more windows
{"exchanged":{"b.weight":"q8_0"},"klds":[0.5],"n_tokens":[4]} => has 4 tokens with a KLD of 0.5 in window 7, which has 3 rows
{"exchanged":{"b.weight":"q8_0"},"klds":[-0.1],"n_tokens":[3]} => KLD of -0.1
{"exchanged":{"b.weight":"q8_0"},"klds":[0.1],"n_tokens":[0]} => 0 tokens with a KLD of 0.1
{"exchanged":{"b.weight":"q8_0"},"klds":[1e999],"n_tokens":[1]} => number out of range
{"exchanged":{"b.weight":"q8_0"},"klds":[1e300],"n_tokens":[1]} => KLD of 1e300
{"exchanged":{"b.weight":"q8_0"},"from":1,"klds":[0.0],"n_tokens":[1]} => the cell of b.weight at q8_0 starts at window 1, and 0 are there
{"exchanged":{},"klds":[0.0],"n_tokens":[1]} => the cell without an exchanged tensor starts at window 0, and 1 are there
{"exchanged":{},"from":18446744073709551615,"klds":[0.0],"n_tokens":[1]} => more windows than the header
{"tensor":"c","errors":{"q8_0":0.1}} => no tensor c in
{"tensor":"a.weight","errors":{}} => no weight errors of a.weight
{"tensor":"a.weight","errors":{"q8_0":-0.1}} => the weight error of a.weight at q8_0 is -0.1
{"n_lines":3,"crc32":0} => line 3: 3 lines, and there are 2
{"n_lines":2,"crc32":0} => line 3: the checksum
"#;

#[test]
fn a_line_that_contradicts_the_header_or_other_lines_is_named() {
    let once = r#"{"tensor":"a.weight","errors":{"q8_0":1}}"#;
    let twice = format!("{once}\n{once}");
    let cases = WRONG_LINES.trim().lines();
    let cases = cases.map(|case| case.split_once(" => ").unwrap());
    let more = [
        ("", "line 3: neither a cell nor"),
        (
            &twice,
            "line 4: the weight error of a.weight at q8_0 is stated twice",
        ),
    ];
    for (line, expected) in cases.chain(more) {
        let error = error_of(line);
        assert_fault(&error, "Corrupt");
        assert!(error.to_string().contains(expected), "{line}: {error}");
    }
    let scratch = Scratch::new();
    let mut bytes = sample();
    bytes.push(b'x');
    let error = SensitivityMap::read(scratch.file(&bytes)).unwrap_err();
    assert!(
        error.to_string().contains("line 8: more bytes follow"),
        "{error}"
    );
}

#[test]
fn a_writer_refuses_what_no_reader_takes() {
    let mut writer = MapWriter::create(Vec::new(), Path::new("out"), header()).unwrap();
    writer.write_cell(&cell(&[], 0, &[(0.0, 3)])).unwrap();
    let wrong = [
        Line::Cell(cell(&[], 0, &[(0.0, 3)])),
        Line::Cell(cell(&[("norm", "q8_0")], 0, &[(0.0, 3)])),
        Line::Cell(cell(&[("a.weight", "q8_0")], 0, &[(f64::NAN, 3)])),
        Line::Errors("a.weight", [(kind("q8_0"), f64::INFINITY)].into()),
    ];
    for line in wrong {
        let error = line.write(&mut writer).unwrap_err();
        assert_fault(&error, "Unwritable");
    }
    let (bytes, map) = writer.finish().unwrap();
    assert_eq!(
        SensitivityMap::read(Scratch::new().file(&bytes)).unwrap(),
        map
    );
    assert!(map.cells.len() == 1 && map.errors.is_empty());
}

#[test]
fn a_header_that_cannot_be_is_named() {
    type Edit = fn(&mut MapHeader);
    let cases: [(Edit, &str); 15] = [
        (|h| h.kl_map = 2, "kl_map 2"),
        (|h| h.n_ctx = 0, "n_ctx 0"),
        (|h| h.windows.clear(), "no windows"),
        (|h| h.windows[1].window = 7, "window 7 is listed twice"),
        (|h| h.windows[1].n_rows = 5, "window 2 of 5 rows"),
        (|h| h.measured_type = kind("q8_K"), "q8_K is not a type"),
        (|h| h.types.push(kind("i32")), "i32 is not a type"),
        (|h| h.types.push(kind("q8_0")), "type q8_0 is listed twice"),
        (|h| h.alignment = 24, "an alignment of 24 bytes"),
        (|h| h.metadata_bytes = u64::MAX, "bytes before the tensors"),
        (
            |h| h.tensors[1].name = "a.weight".into(),
            "\"a.weight\" is listed",
        ),
        (|h| h.tensors[0].shape.clear(), "of shape []"),
        (|h| h.tensors[0].shape[1] = 0, "of shape [256, 0]"),
        (|h| h.tensors[2].kind = kind("q4_K"), "and type q4_K"),
        (|h| h.tensors[0].shape = vec![1 << 40; 2], "parameters"),
    ];
    for (edit, expected) in cases {
        let mut header = header();
        edit(&mut header);
        let mut line = serde_json::to_vec(&header).unwrap();
        line.push(b'\n');
        let scratch = Scratch::new();
        let error = SensitivityMap::read(scratch.file(&line)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let error = MapWriter::create(Vec::new(), Path::new("out"), header).unwrap_err();
        assert_fault(&error, "Unwritable");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut part = header();
    let shard = |index| Shard {
        index,
        count: 2,
        n_windows: 3,
        n_rows: 7,
    };
    part.shard = Some(shard(2));
    assert!(MapWriter::create(Vec::new(), Path::new("out"), part.clone()).is_err());
    part.shard = Some(shard(1));
    let bytes = write(part, &[]).unwrap();
    let part = SensitivityMap::read(Scratch::new().file(&bytes)).unwrap();
    assert_eq!(part.header.shard, Some(shard(1)));
    assert_eq!(part.header.of_whole(), header());
}

#[test]
fn other_files_are_no_maps() {
    let scratch = Scratch::new();
    for (bytes, found) in [
        (&b""[..], Found::Other("it is empty")),
        (b"GGUF\x03\0\0\0", Found::Model),
        (b"kl_sidecar_v1\n{}", Found::Sidecar),
        (b"{\"kl_m", Found::Other("it is JSON")),
    ] {
        let error = SensitivityMap::read(scratch.file(bytes)).unwrap_err();
        assert!(matches!(error.fault, Fault::NotAMap(what) if what == found));
    }
}

#[test]
fn a_line_without_an_end_uses_no_memory_without_an_end() {
    let scratch = Scratch::new();
    sparse(&scratch.path, 1 << 40, &[(0, MAGIC.as_bytes())]);
    let error = SensitivityMap::read(&scratch.path).unwrap_err();
    assert_fault(&error, "TooLarge");
}
