mod damage;
mod large;
mod logits2;
mod rows;

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::ReadBlocks;
use crate::testing::*;
use crate::{About, Error, Fault, Kind, Result, Target, WindowSpec, Writer};

/// Odd, so that rows are padded.
const N_VOCAB: u32 = 5;

/// Two rows in a window: those of positions 3 and 4.
const N_CTX: u32 = 6;

/// Each window, and the bits of its decoded rows.
type Contents = Vec<(WindowSpec, Vec<u32>)>;

/// The windows of a file of these tokens, and their rows.
fn windows(n_ctx: u32, n_vocab: u32, tokens: &[u32], logits: &[f32]) -> Vec<SampleWindow> {
    let header = LlamaCppHeader {
        n_ctx,
        ..LlamaCppHeader::default()
    };
    let n_rows = header.rows_per_window();
    let mut logits = logits.chunks(n_rows.saturating_mul(n_vocab).max(1) as usize);
    (0..)
        .zip(tokens.chunks(n_ctx.max(1) as usize))
        .map(|(window, tokens)| SampleWindow {
            spec: WindowSpec {
                window,
                tokens: tokens.to_vec(),
                first_scored: header.first_scored(),
                n_rows,
            },
            rows: logits.next().unwrap_or_default().to_vec(),
        })
        .collect()
}

fn writer(n_ctx: u32, n_vocab: u32, tokens: &[u32]) -> Result<Writer<Vec<u8>>> {
    let target = Target::new(Kind::LlamaCpp, None).unwrap();
    let about = About::new(Kind::LlamaCpp, "", n_ctx, n_vocab);
    let windows = specs(&windows(n_ctx, n_vocab, tokens, &[]));
    Writer::create(Vec::new(), Path::new("out"), target, &about, &windows)
}

/// A file whose rows hold `logits`.
fn write(n_ctx: u32, n_vocab: u32, tokens: &[u32], logits: &[f32], at_once: usize) -> Vec<u8> {
    let windows = windows(n_ctx, n_vocab, tokens, logits);
    let writer = writer(n_ctx, n_vocab, tokens).unwrap();
    let bytes = written(writer, &windows, at_once);
    let specs = specs(&windows);
    let about = About::new(Kind::LlamaCpp, "", n_ctx, n_vocab);
    let expected = Target::new(Kind::LlamaCpp, None)
        .unwrap()
        .projected_bytes(&about, &specs);
    assert!(specs.is_empty() || expected == bytes.len() as u64);
    bytes
}

fn encoded(row: &[f32]) -> Vec<u8> {
    // Old contents are overwritten.
    let mut bytes = vec![0x55; row_bytes(row.len())];
    encode_row(row, &mut bytes);
    bytes
}

/// Everything a file holds.
fn read(path: &Path) -> Result<Contents> {
    let of_windows = read_rows(Reference::open(path)?)?.into_iter();
    Ok(of_windows
        .map(|(spec, blocks)| (spec, blocks.iter().flat_map(bits).collect()))
        .collect())
}

/// Three windows.
fn sample() -> Vec<u8> {
    let tokens: Vec<u32> = (0..3 * N_CTX).map(|i| i * 7 % N_VOCAB).collect();
    let logits: Vec<f32> = (0..6 * N_VOCAB)
        .map(|i| (i * 37 % 101) as f32 / 3.0)
        .collect();
    write(N_CTX, N_VOCAB, &tokens, &logits, 4)
}

/// llama-perplexity's file of the test model over `short.txt`, 128 tokens a window.
fn fixture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/peers");
    root.join(name)
}

#[test]
fn a_file_spelled_out() {
    let bytes = write(4, 3, &[2, 0, 1, 2], &[0.0, -100.0, -8.0], 1);
    #[rustfmt::skip]
    let expected = [
        b'_', b'l', b'o', b'g', b'i', b't', b's', b'_',
        4, 0, 0, 0, // n_ctx
        3, 0, 0, 0, // n_vocab
        1, 0, 0, 0, // n_chunk
        2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, // tokens
        0x80, 0x00, 0x80, 0x39, // scale: 16/65535
        0xb0, 0x00, 0x80, 0xc1, // min_log_prob: -16 - ln(1 + e^-8 + e^-100)
        0xff, 0xff, // the largest logit
        0x00, 0x00, // -100, raised to -16
        0x00, 0x80, // -8
        0x00, 0x00, // padding
    ];
    assert_eq!(bytes, expected);
    let scratch = Scratch::new();
    let mut reader = LlamaCppReader::open(scratch.file(&bytes)).unwrap();
    let expected = WindowSpec {
        window: 0,
        tokens: vec![2, 0, 1, 2],
        first_scored: 2,
        n_rows: 1,
    };
    assert_eq!(reader.window(0).unwrap(), expected);
    reader.set_bos(Some(1));
    let tokens = reader.window(0).unwrap().tokens;
    assert_eq!(tokens, [1, 0, 1, 2], "BOS instead of the first token");
    reader.set_bos(Some(3));
    let error = reader.window(0).unwrap_err();
    assert_fault(&error, "Unsupported");
    let block = reader.block(0, 0, None).unwrap();
    assert_eq!((block.n_rows(), block.n_vocab()), (1, 3));
    assert_eq!(block.row(0).get(1).to_bits(), 0xc180_00b0, "-16.000336");
}

#[test]
fn windows_of_one_or_two_tokens_have_no_rows() {
    for n_ctx in [1, 2] {
        let bytes = write(n_ctx, N_VOCAB, &[3; 4], &[], 1);
        let found = read(Scratch::new().file(&bytes)).unwrap();
        assert_eq!(found.len(), 4 / n_ctx as usize);
        assert!(found.iter().all(|(_, rows)| rows.is_empty()));
    }
    let bytes = write(N_CTX, N_VOCAB, &[], &[], 1);
    assert!(read(Scratch::new().file(&bytes)).unwrap().is_empty());
}

#[test]
fn llama_perplexitys_own_file_gives_its_perplexity() {
    let mut reader = LlamaCppReader::open(&fixture("llama-perplexity-f16-c128.kld")).unwrap();
    reader.set_bos(Some(1));
    let header = LlamaCppHeader {
        is_floored: true,
        n_ctx: 128,
        n_vocab: 1024,
        n_windows: 2,
    };
    assert_eq!(reader.header, header);
    assert_eq!((header.rows_per_window(), header.n_rows()), (63, 126));
    let (mut nll, mut row) = (0.0, vec![0.0; 1024]);
    for i in 0..2 {
        let window = reader.window(i).unwrap();
        let block = reader.block(i, 0, None).unwrap();
        for (view, position) in block.rows().zip(window.first_scored as usize..) {
            view.decode_into(&mut row);
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            // Each entry that was raised adds at most e^-16.
            assert!(
                (1.0 - 1e-4..1.0 + 1024.0 * 1.2e-7 + 1e-4).contains(&sum),
                "{sum}"
            );
            nll -= f64::from(row[window.tokens[position + 1] as usize]);
        }
    }
    // The perplexity that llama-perplexity printed for this file.
    let printed = std::fs::read_to_string(fixture("llama-perplexity-kld-f16.txt")).unwrap();
    let line = printed.lines().find(|line| line.contains("Mean PPL(base)"));
    let number = line.and_then(|line| line.split(':').nth(1)?.split_whitespace().next());
    let expected: f64 = number.unwrap().parse().unwrap();
    let ppl = (nll / 126.0).exp();
    assert!((ppl - expected).abs() < 2e-6, "{ppl}, printed {expected}");
}

#[test]
fn writers_refuse_what_the_file_cannot_hold() {
    for (n_ctx, n_vocab, tokens) in [
        (0, 5, &[][..]),
        (u32::MAX, 5, &[]),
        (4, 0, &[]),
        (4, u32::MAX, &[]),
        (4, 5, &[0; 5]),
        (4, 5, &[5; 4]),
    ] {
        let error = writer(n_ctx, n_vocab, tokens).unwrap_err();
        assert_fault(&error, "Unwritable");
    }
    let tokens = [0; N_CTX as usize];
    let window = &windows(N_CTX, N_VOCAB, &tokens, &[])[0].spec;
    let new_writer = || writer(N_CTX, N_VOCAB, &tokens).unwrap();
    for (rows, what) in [
        (vec![vec![1.0; 4]], "rows that are not 2 of 5 entries"),
        (vec![vec![1.0; 5]; 3], "rows that are not 2 of 5 entries"),
        (vec![vec![1.0; 5]], "window 0 lacks 1 of its rows"),
    ] {
        let error = new_writer().write_window(window, rows).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    let error = new_writer().finish().unwrap_err().to_string();
    assert!(error.contains("the header states 1 with 2"), "{error}");
}

fn any_file() -> impl Strategy<Value = (u32, u32, Vec<u32>, Vec<f32>)> {
    (1u32..9, 1u32..9, 0u32..4).prop_flat_map(|(n_ctx, n_vocab, n_windows)| {
        let header = LlamaCppHeader {
            is_floored: true,
            n_ctx,
            n_vocab,
            n_windows,
        };
        let n_logits = header.n_rows() as usize * n_vocab as usize;
        (
            Just(n_ctx),
            Just(n_vocab),
            prop::collection::vec(0..n_vocab, (n_ctx * n_windows) as usize),
            prop::collection::vec(any::<f32>(), n_logits),
        )
    })
}

proptest! {
    #[test]
    fn round_trip(
        (n_ctx, n_vocab, tokens, logits) in any_file(), at_once in 1usize..9
    ) {
        let bytes = write(n_ctx, n_vocab, &tokens, &logits, at_once);
        prop_assert_eq!(&bytes, &write(n_ctx, n_vocab, &tokens, &logits, 1));
        let found = read(Scratch::new().file(&bytes)).unwrap();
        let found_tokens: Vec<u32> = found.iter().flat_map(|(spec, _)| spec.tokens.clone()).collect();
        prop_assert_eq!(found_tokens, tokens);
        let found_rows: Vec<u32> = found.into_iter().flat_map(|(_, rows)| rows).collect();
        let expected: Vec<u32> = logits.chunks(n_vocab as usize).flat_map(rows::decoded).map(f32::to_bits).collect();
        prop_assert_eq!(found_rows, expected);
    }
}
