use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;
use crate::ReadStream;
use crate::testing::*;
use crate::{Result, Target, Writer};

const N_VOCAB: u32 = 5;
const LINES: &str = "llama_kl_divergence_v1\n{'n_ctx': 8, 'n_vocab': 5, 'read_path': None}\n";

/// The window with the same rows, those of its first positions: the only ones a file can hold.
fn rows_from_the_start(mut window: SampleWindow) -> SampleWindow {
    window.spec.first_scored = 0;
    window
}

fn writer(windows: &[WindowSpec]) -> Writer<Vec<u8>> {
    let (target, about) = (
        Target::new(Kind::KlPy, None).unwrap(),
        About::new(Kind::KlPy, "", 8, N_VOCAB),
    );
    Writer::create(Vec::new(), Path::new("out"), target, &about, windows).unwrap()
}

fn write(windows: &[SampleWindow], at_once: usize) -> Vec<u8> {
    written(writer(&specs(windows)), windows, at_once)
}

fn read(path: &Path, at_once: usize) -> Result<Vec<(WindowSpec, Vec<u32>)>> {
    let mut reader = KlPyReader::open(path)?;
    let mut windows = Vec::new();
    while let Some(spec) = reader.next_window()? {
        let mut rows = Vec::new();
        while let Some(block) = reader.next_rows(at_once)? {
            assert_eq!(block.window, spec.window);
            assert_eq!(block.first_row as usize * N_VOCAB as usize, rows.len());
            rows.extend(bits(&block));
        }
        windows.push((spec, rows));
    }
    Ok(windows)
}

/// One gzip member around `plain`, as kl.py writes it.
fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// A stream: the lines, then numbers.
fn stream(numbers: &[u32]) -> Vec<u8> {
    [LINES.as_bytes(), bytemuck::cast_slice(numbers)].concat()
}

#[test]
fn a_window_spelled_out() {
    #[rustfmt::skip]
    let plain = stream(&[
        2, 1, 5, // n_tokens, n_logits, n_vocab
        3, 4, // tokens
        0x3f80_0000, 0, 0, 0, 0xbf80_0000, // 1, 0, 0, 0, -1
    ]);
    let windows = read(Scratch::new().file(&gzip(&plain)), 9).unwrap();
    let spec = WindowSpec {
        window: 0,
        tokens: vec![3, 4],
        first_scored: 0,
        n_rows: 1,
    };
    assert_eq!(windows, [(spec, vec![0x3f80_0000, 0, 0, 0, 0xbf80_0000])]);
}

#[test]
fn hostile_counts_are_refused() {
    let scratch = Scratch::new();
    let max = u32::MAX;
    for (numbers, what) in [
        (vec![2, 3, 5, 3, 4], "3 rows from position 0"),
        (vec![2, max, 5, 3, 4], "do not fit in 2 tokens"),
        (
            vec![9, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            "a window of 9 tokens, the header states n_ctx 8",
        ),
        (vec![max, max, 5], "a window of 4294967295 tokens"),
        (
            vec![2, 1, 6, 3, 4],
            "rows of 6 entries, the header states 5",
        ),
        (vec![2, 1, 0, 3, 4], "rows of 0 entries"),
        (vec![2, 1, 5, 3, 5], "token 5 at position 1 is outside"),
    ] {
        let error = read(scratch.file(&gzip(&stream(&numbers))), 9).unwrap_err();
        let text = error.to_string();
        assert_fault(&error, "Corrupt(Position { window: Some(0)");
        let at = format!("byte {}", LINES.len());
        assert!(text.contains(what) && text.contains(&at), "{text}");
    }
    for numbers in [
        vec![2],
        vec![2, 1, 5, 3],
        vec![8, 0, 5],
        vec![2, 1, 5, 3, 4, 0, 0],
    ] {
        let error = read(scratch.file(&gzip(&stream(&numbers))), usize::MAX).unwrap_err();
        assert_fault(&error, "Truncated(Position { window: Some(0)");
    }
    let many = "{'n_ctx': 67108864, 'n_vocab': 16777216}\n";
    let tokens = 1u32 << 20;
    let mut plain = [MAGIC_LINE.as_bytes(), many.as_bytes()].concat();
    plain.extend_from_slice(bytemuck::cast_slice(&[tokens, tokens, 1 << 24]));
    plain.resize(plain.len() + (4 << 20), 0);
    let path = scratch.file(&gzip(&plain));
    let mut reader = KlPyReader::open(path).unwrap();
    assert_eq!(reader.next_window().unwrap().unwrap().n_rows, tokens);
    assert_fault(&reader.next_rows(usize::MAX).unwrap_err(), "Truncated");
}

#[test]
fn hostile_lines_are_refused() {
    let scratch = Scratch::new();
    let open = |plain: &[u8]| KlPyReader::open(scratch.file(&gzip(plain))).unwrap_err();
    assert_fault(&open(b"another file\n"), "NotAReference");
    let magic = MAGIC_LINE.as_bytes();
    assert_fault(&open(&[magic, &[b'x'; 100_000]].concat()), "Header");
    assert_fault(&open(&[magic, &b"{'n_ctx'"[..]].concat()), "Truncated");
    assert!(KlPyReader::open(scratch.file(b"GGUF")).is_err());
    assert!(KlPyReader::open(scratch.file(b"")).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trip(windows in any_windows(N_VOCAB), at_once in 1usize..9) {
        let windows: Vec<_> = windows.into_iter().map(rows_from_the_start).collect();
        let bytes = write(&windows, at_once);
        let found = read(Scratch::new().file(&bytes), 10 - at_once).unwrap();
        let expected: Vec<_> = windows
            .into_iter()
            .map(|w| (w.spec, w.rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>()))
            .collect();
        prop_assert_eq!(found, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The plain stream is changed: gzip's checksum does not help.
    #[test]
    fn changed_streams_never_panic(changes in prop::collection::vec(any_change(), 1..4)) {
        let mut plain = stream(&[2, 1, 5, 3, 4, 1, 2, 3, 4, 5, 1, 0, 5, 3]);
        changes.iter().for_each(|change| change.apply(&mut plain));
        let scratch = Scratch::new();
        let path = scratch.file(&gzip(&plain));
        read(path, 3).err().iter().for_each(|error| check_message(error, path));
    }

    #[test]
    fn any_header_line_never_panics(line in "[\\{\\}\\[\\]()'\":, a-c0-9\\\\N+-]{0,60}") {
        let plain = [MAGIC_LINE.as_bytes(), line.as_bytes(), b"\n"].concat();
        let _ = KlPyReader::open(Scratch::new().file(&gzip(&plain)));
    }
}

/// Many megabytes of tokens or rows in a small gzip file: reading stops at the first impossible
/// one, and a header line of that length is refused after 64 KiB.
#[test]
fn bombs_end_early() {
    let scratch = Scratch::new();
    let bomb = |lines: &str, counts: [u32; 3]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(lines.as_bytes()).unwrap();
        encoder.write_all(bytemuck::cast_slice(&counts)).unwrap();
        let zeros = vec![0xff; 1 << 20];
        (0..40).for_each(|_| encoder.write_all(&zeros).unwrap());
        encoder.finish().unwrap()
    };
    let wide = format!("{MAGIC_LINE}{{'n_ctx': 67108864, 'n_vocab': 16777216}}\n");
    let tokens = read(scratch.file(&bomb(&wide, [1 << 20, 0, 1 << 24])), 9).unwrap_err();
    assert!(tokens.to_string().contains("token 4294967295"), "{tokens}");
    let rows = bomb(&wide, [0, 0, 1 << 24]);
    let rows = read(scratch.file(&rows), 9).unwrap_err();
    assert!(rows.to_string().contains("entries"), "{rows}");
    let line = read(scratch.file(&bomb(MAGIC_LINE, [0; 3])), 9).unwrap_err();
    assert_fault(&line, "Header");
    // A million windows without tokens or rows, in some kilobytes.
    let empty = [MAGIC_LINE, "{'n_ctx': 67108864, 'n_vocab': 1}\n"].concat();
    let windows = bytemuck::cast_slice(&[0u32, 0, 1]).repeat(1 << 20);
    let path = scratch.file(&gzip(&[empty.as_bytes(), &windows].concat()));
    let many = read(path, 9).unwrap_err();
    assert!(
        many.to_string()
            .contains("more windows than a file of its length can hold"),
        "{many}"
    );
    // A context is as large as the longest window, whatever n_ctx is.
    let mut one = empty.into_bytes();
    one.extend_from_slice(bytemuck::cast_slice(&[3u32, 1, 1, 0, 0, 0, 0]));
    let path = scratch.file(&gzip(&one));
    let reference = KlPyReader::open(path).unwrap().into_reference();
    assert_eq!(reference.longest_window(), Some(3));
}

mod header {
    use super::super::*;

    fn parse(line: &str) -> Result<About, String> {
        super::super::parse(line.as_bytes(), Path::new(""))
    }

    #[test]
    fn a_line_of_kl_py_is_parsed() {
        let header = parse(
            "{'model': '../models/s.gguf', 'text_path': \"it's.txt\", 'n_ctx': 256, \
             'n_batch': 256, 'read_path': None, 'n_tokens': -1, 'verbose': False, 'n_vocab': 512}",
        )
        .unwrap();
        assert_eq!(
            (header.n_ctx, header.n_vocab, header.n_windows),
            (256, 512, None)
        );
        assert_eq!(header.model_path.as_deref(), Some("../models/s.gguf"));
        assert_eq!(header.text_path.as_deref(), Some("it's.txt"));
        let others: Vec<_> = header
            .others
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let expected = [
            ("n_batch", "256"),
            ("read_path", "None"),
            ("n_tokens", "-1"),
            ("verbose", "False"),
        ];
        assert_eq!(others, expected);
    }

    #[test]
    fn hostile_lines_are_refused_at_once() {
        let nested = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
        let hidden = "{'a': ".repeat(30) + "'}'";
        for line in [
            "",
            "[]",
            "{",
            "{'n_ctx': 256}",
            "{'n_ctx': 256, 'n_vocab': 0}",
            "{'n_ctx': 256, 'n_vocab': -1}",
            "{'n_ctx': 4294967296, 'n_vocab': 5}",
            "{'n_ctx': '256', 'n_vocab': 5}",
            "{'n_ctx': 256, 'n_vocab': 16777217}",
            "{'n_ctx': 256, 'n_vocab': 5, 'kl_values': 'logits'}",
            "{'n_ctx': 256, 'n_vocab': 5, 'kl_values': 1}",
            "{5: 6, 'n_ctx': 256, 'n_vocab': 5}",
            "{'n_ctx': 256, 'n_vocab': 5, 'a': '\\N{ ' }'}",
            nested.as_str(),
            hidden.as_str(),
        ] {
            let fault = parse(line).unwrap_err();
            assert!(!fault.contains('\n'), "{line:.60}");
        }
        assert!(super::super::parse(b"{'\xff': 1}", Path::new("")).is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        let mut about = About {
            values: Values::FlooredLogProbabilities,
            others: [
                ("n_batch", "512"),
                ("n_tokens", "-1"),
                ("zip", "007"),
                ("read_path", "None"),
            ]
            .map(|(key, value)| (key.into(), value.into()))
            .into(),
            ..About::new(Kind::KlPy, "", 256, 512)
        };
        about.model_path = Some("it's \"quoted\" \\ caf\u{e9}\n\u{7}.gguf".into());
        let lines = to_lines(&about, 256, 0).unwrap();
        let line = lines
            .strip_prefix(MAGIC_LINE.as_bytes())
            .unwrap()
            .strip_suffix(b"\n")
            .unwrap();
        let found = super::super::parse(line, Path::new("")).unwrap();
        assert_eq!((found.n_ctx, found.n_vocab), (256, 512));
        assert_eq!((found.n_windows, &found.text_path), (Some(0), &None));
        assert_eq!((found.values, &found.others), (about.values, &about.others));
        assert_eq!(found.model_path, about.model_path);
        assert!(serde_json::from_slice::<serde_json::Value>(line).is_ok());
    }
}
