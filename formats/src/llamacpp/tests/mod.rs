mod damage;
mod rows;

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::testing::*;
use crate::{Error, KlPyHeader, Result, RowBlock, WindowEncoder, WindowHead};

/// Odd, so that rows are padded.
const N_VOCAB: u32 = 5;

/// Two rows in a window: those of positions 3 and 4.
const N_CTX: u32 = 6;

/// Each window's head, and the bits of its decoded rows.
type Contents = Vec<(WindowHead, Vec<u32>)>;

/// A file whose rows hold `logits`.
fn write(n_ctx: u32, n_vocab: u32, tokens: &[u32], logits: &[f32], at_once: usize) -> Vec<u8> {
    let mut writer =
        LlamaCppWriter::create(Vec::new(), Path::new("out"), n_ctx, n_vocab, tokens).unwrap();
    let n_vocab = n_vocab as usize;
    for rows in logits.chunks(at_once * n_vocab) {
        let encoded: Vec<u8> = rows.chunks(n_vocab).flat_map(encoded).collect();
        writer.append(&encoded).unwrap();
    }
    let expected = writer.header().file_bytes();
    let bytes = writer.finish().unwrap();
    assert_eq!(expected, Some(bytes.len() as u64));
    bytes
}

fn encoded(row: &[f32]) -> Vec<u8> {
    // What is there is overwritten.
    let mut bytes = vec![0x55; row_bytes(row.len()).unwrap()];
    encode_row(row, &mut bytes);
    bytes
}

/// Everything a file holds, `at_once` rows at a time.
fn read(path: &Path, at_once: u32) -> Result<Contents> {
    let reader = LlamaCppReader::open(path)?;
    let n_rows = reader.header().rows_per_window();
    let mut reuse: Option<RowBlock> = None;
    (0..reader.n_windows())
        .map(|i| {
            let head = reader.head(i, None)?;
            assert_eq!((head.window as usize, head.n_rows), (i, n_rows));
            let mut rows = Vec::new();
            for first in (0..n_rows).step_by(at_once as usize) {
                let block = reader.block(i, first, at_once.min(n_rows - first), reuse.take())?;
                assert_eq!((block.window as usize, block.first_row), (i, first));
                rows.extend(bits(&block));
                reuse = Some(block);
            }
            Ok((head, rows))
        })
        .collect()
}

/// Three windows.
fn sample() -> Vec<u8> {
    let tokens: Vec<u32> = (0..3 * N_CTX).map(|i| i * 7 % N_VOCAB).collect();
    let logits: Vec<f32> = (0..6 * N_VOCAB)
        .map(|i| (i * 37 % 101) as f32 / 3.0)
        .collect();
    write(N_CTX, N_VOCAB, &tokens, &logits, 4)
}

#[test]
fn pieces_give_the_same_bytes() {
    let logits: Vec<f32> = (0..4 * N_VOCAB).map(|i| (i * 37 % 101) as f32).collect();
    let tokens: Vec<u32> = (0..2 * N_CTX).map(|i| i * 7 % N_VOCAB).collect();
    let path = Path::new("out");
    let mut writer = LlamaCppWriter::create(Vec::new(), path, N_CTX, N_VOCAB, &tokens).unwrap();
    let header = *writer.header();
    let mut rows = logits.chunks(N_VOCAB as usize);
    for (window, tokens) in (0..).zip(tokens.chunks(N_CTX as usize)) {
        let head = WindowHead {
            window,
            tokens: tokens.to_vec(),
            first_scored: 3,
            n_rows: 2,
        };
        let (mut encoder, piece) = WindowEncoder::llama_cpp(&header, &head).unwrap();
        assert!(writer.append_member(piece.compress()).unwrap().is_none());
        let mut memory = None;
        while encoder.rows_left() > 0 {
            let (bytes, n) = encoder.reserve_rows(1, || memory.take());
            assert_eq!(n, 1);
            encode_row(rows.next().unwrap(), bytes);
            if let Some(piece) = encoder.commit() {
                memory = writer.append_member(piece.compress()).unwrap();
            }
        }
        encoder.finish().unwrap();
        let shorter = WindowHead { n_rows: 1, ..head };
        assert!(WindowEncoder::llama_cpp(&header, &shorter).is_err());
    }
    let expected = write(N_CTX, N_VOCAB, &tokens, &logits, 1);
    assert_eq!(writer.finish().unwrap(), expected);

    let kl_py = KlPyHeader {
        n_ctx: N_CTX,
        n_vocab: N_VOCAB,
        ..Default::default()
    };
    let sample = window(0, N_CTX, 0, N_VOCAB);
    let (_, other) = WindowEncoder::kl_py(&kl_py, &sample.head).unwrap();
    let mut writer = LlamaCppWriter::create(Vec::new(), path, N_CTX, N_VOCAB, &tokens).unwrap();
    assert!(writer.append_member(other.compress()).is_err());
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
    let reader = LlamaCppReader::open(scratch.file(&bytes)).unwrap();
    let expected = WindowHead {
        window: 0,
        tokens: vec![2, 0, 1, 2],
        first_scored: 2,
        n_rows: 1,
    };
    assert_eq!(reader.head(0, None).unwrap(), expected);
    let tokens = reader.head(0, Some(1)).unwrap().tokens;
    assert_eq!(tokens, [1, 0, 1, 2], "BOS in the first token's place");
    let error = reader.head(0, Some(3)).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let block = reader.block(0, 0, 1, None).unwrap();
    assert_eq!((block.n_rows(), block.n_vocab()), (1, 3));
    assert_eq!(block.row(0).get(1).to_bits(), 0xc180_00b0, "-16.000336");
}

#[test]
fn windows_of_one_or_two_tokens_have_no_rows() {
    for n_ctx in [1, 2] {
        let bytes = write(n_ctx, N_VOCAB, &[3; 4], &[], 1);
        let found = read(Scratch::new().file(&bytes), 1).unwrap();
        assert_eq!(found.len(), 4 / n_ctx as usize);
        assert!(found.iter().all(|(_, rows)| rows.is_empty()));
    }
    let bytes = write(N_CTX, N_VOCAB, &[], &[], 1);
    assert!(read(Scratch::new().file(&bytes), 1).unwrap().is_empty());
}

#[test]
fn threads_share_a_reader() {
    let scratch = Scratch::new();
    let path = scratch.file(&sample());
    let expected = read(path, 2).unwrap();
    let reader = LlamaCppReader::open(path).unwrap();
    std::thread::scope(|scope| {
        for (i, (head, rows)) in expected.iter().enumerate() {
            let reader = &reader;
            scope.spawn(move || {
                assert_eq!(reader.head(i, None).unwrap(), *head);
                let block = reader.block(i, 0, 2, None).unwrap();
                assert_eq!(bits(&block), *rows);
            });
        }
    });
}

#[test]
fn llama_perplexitys_own_file() {
    let reader = LlamaCppReader::open(&fixture("llama-perplexity-f16-c128.kld")).unwrap();
    let header = LlamaCppHeader {
        n_ctx: 128,
        n_vocab: 1024,
        n_windows: 2,
    };
    assert_eq!(*reader.header(), header);
    assert_eq!((header.rows_per_window(), header.n_rows()), (63, 126));
    let (mut nll, mut row) = (0.0, vec![0.0; 1024]);
    for i in 0..2 {
        let head = reader.head(i, Some(1)).unwrap();
        let block = reader.block(i, 0, 63, None).unwrap();
        for (view, position) in block.rows().zip(head.first_scored as usize..) {
            view.decode_into(&mut row);
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            // Each entry that was raised adds at most e^-16.
            assert!(
                (1.0 - 1e-4..1.0 + 1024.0 * 1.2e-7 + 1e-4).contains(&sum),
                "{sum}"
            );
            nll -= f64::from(row[head.tokens[position + 1] as usize]);
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
    let create = |n_ctx, n_vocab, tokens: &[u32]| {
        LlamaCppWriter::create(Vec::new(), Path::new("out"), n_ctx, n_vocab, tokens)
    };
    for (n_ctx, n_vocab, tokens) in [
        (0, 5, &[][..]),
        (u32::MAX, 5, &[]),
        (4, 0, &[]),
        (4, u32::MAX, &[]),
        (4, 5, &[0; 5]),
        (4, 5, &[5; 4]),
    ] {
        let error = create(n_ctx, n_vocab, tokens).unwrap_err();
        assert!(matches!(error, Error::Unwritable { .. }), "{error}");
    }
    let row = encoded(&[1.0; 5]);
    let mut writer = create(N_CTX, N_VOCAB, &[0; N_CTX as usize]).unwrap();
    assert!(writer.append(&row[1..]).is_err(), "a part of a row");
    writer.append(&row).unwrap();
    assert!(
        writer.append(&[&row[..], &row].concat()).is_err(),
        "a third row"
    );
    let error = writer.finish().unwrap_err();
    assert!(
        error.to_string().contains("1 of 2 rows are missing"),
        "{error}"
    );
}

fn any_file() -> impl Strategy<Value = (u32, u32, Vec<u32>, Vec<f32>)> {
    (1u32..9, 1u32..9, 0u32..4).prop_flat_map(|(n_ctx, n_vocab, n_windows)| {
        let header = LlamaCppHeader {
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
        (n_ctx, n_vocab, tokens, logits) in any_file(), at_once in 1usize..9, rows_at_once in 1u32..9
    ) {
        let bytes = write(n_ctx, n_vocab, &tokens, &logits, at_once);
        prop_assert_eq!(&bytes, &write(n_ctx, n_vocab, &tokens, &logits, 1));
        let found = read(Scratch::new().file(&bytes), rows_at_once).unwrap();
        let found_tokens: Vec<u32> = found.iter().flat_map(|(head, _)| head.tokens.clone()).collect();
        prop_assert_eq!(found_tokens, tokens);
        let found_rows: Vec<u32> = found.into_iter().flat_map(|(_, rows)| rows).collect();
        let expected: Vec<u32> = logits.chunks(n_vocab as usize).flat_map(rows::decoded).map(f32::to_bits).collect();
        prop_assert_eq!(found_rows, expected);
    }
}
