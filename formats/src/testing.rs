//! What the tests of several formats share.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::*;

/// A folder that goes away, and a file in it to write again and again.
pub(crate) struct Scratch {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        Self {
            _folder: folder,
            path,
        }
    }

    /// The file, holding `bytes`.
    pub(crate) fn file(&self, bytes: &[u8]) -> &Path {
        std::fs::write(&self.path, bytes).unwrap();
        &self.path
    }
}

pub(crate) fn model() -> ModelIdentity {
    ModelIdentity {
        file_name: "m.gguf".into(),
        name: Some("M \"1\"\n\u{e9}".into()),
        architecture: Some("llama".into()),
        size_bytes: 1 << 40,
        n_params: 7_000_000_000,
        file_bytes: 5,
        metadata_sha256: "00ff".into(),
        sample_sha256: None,
    }
}

pub(crate) fn text() -> TextIdentity {
    TextIdentity {
        name: "-".into(),
        bytes: 9,
        sha256: "ab".into(),
        n_tokens: 3,
    }
}

pub(crate) fn header(encoding: Encoding, n_vocab: u32, windows: &[Window]) -> Header {
    Header {
        format_version: native::FORMAT_VERSION,
        writer: "kl test".into(),
        model: model(),
        tokenizer: None,
        n_ctx: 8,
        n_vocab,
        add_bos: true,
        first_scored: 1,
        n_windows: windows.len() as u32,
        n_rows: windows.iter().map(|w| u64::from(w.head.n_rows)).sum(),
        encoding,
        rows_per_piece: 2,
        text: text(),
        backend: BackendIdentity {
            llama_cpp: "b1".into(),
            devices: vec!["CPU".into()],
            n_gpu_layers: 0,
            n_batch: 8,
            n_ubatch: 8,
            threads: 1,
            flash_attn: "off".into(),
            type_k: "f16".into(),
            type_v: "f16".into(),
        },
        seed: Some(7),
        stride: None,
        log_probabilities: false,
        prompts: None,
        chat_template: None,
        generated: None,
    }
}

/// A window and its rows, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Window {
    pub(crate) head: WindowHead,
    pub(crate) rows: Vec<f32>,
}

/// A window of `n_tokens` tokens and rows from `first_scored` to its end.
pub(crate) fn window(window: u32, n_tokens: u32, first_scored: u32, n_vocab: u32) -> Window {
    let n_rows = n_tokens - first_scored;
    let head = WindowHead {
        window,
        tokens: (0..n_tokens).map(|i| (i * 7 + window) % n_vocab).collect(),
        first_scored,
        n_rows,
    };
    let rows = (0..n_rows * n_vocab).map(|i| ((i * 37 + window) % 101) as f32 / 8.0 - 6.0);
    Window {
        head,
        rows: rows.collect(),
    }
}

/// Any windows of a file with `n_vocab` entries a row, numbered as they come.
pub(crate) fn any_windows(n_vocab: u32) -> impl Strategy<Value = Vec<Window>> {
    let window = (0u32..=8, 0u32..=8).prop_flat_map(move |(n_tokens, first)| {
        let first_scored = first.min(n_tokens);
        let n_rows = n_tokens - first_scored;
        (
            prop::collection::vec(0..n_vocab, n_tokens as usize),
            prop::collection::vec(any::<f32>(), (n_rows * n_vocab) as usize),
        )
            .prop_map(move |(tokens, rows)| Window {
                head: WindowHead {
                    window: 0,
                    tokens,
                    first_scored,
                    n_rows,
                },
                rows,
            })
    });
    prop::collection::vec(window, 0..4).prop_map(|mut windows| {
        windows
            .iter_mut()
            .zip(0..)
            .for_each(|(w, i)| w.head.window = i);
        windows
    })
}

/// Feeds a window's rows, `at_once` at a time, and gives its pieces.
pub(crate) fn encode(
    (mut encoder, head): (WindowEncoder, Piece),
    encoding: Encoding,
    n_vocab: u32,
    rows: &[f32],
    at_once: usize,
) -> Vec<Piece> {
    let mut pieces = vec![head];
    let row_bytes = encoding.row_bytes(n_vocab as usize).unwrap();
    let mut rows = rows.chunks(n_vocab as usize);
    while encoder.rows_left() > 0 {
        let (bytes, n) = encoder.reserve_rows(at_once, || None);
        assert_eq!(bytes.len(), n * row_bytes);
        bytes
            .chunks_mut(row_bytes)
            .zip(&mut rows)
            .for_each(|(out, row)| encoding.encode(row, out));
        pieces.extend(encoder.commit());
    }
    encoder.finish().unwrap();
    pieces
}

/// The rows' bits, so that NaN equals itself.
pub(crate) fn bits(block: &RowBlock) -> Vec<u32> {
    let mut out = vec![0.0; block.n_vocab()];
    block
        .rows()
        .flat_map(|row| {
            row.decode_into(&mut out);
            out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        })
        .collect()
}

/// The bits of rows that were encoded and decoded again.
pub(crate) fn decoded_bits(encoding: Encoding, n_vocab: u32, rows: &[f32]) -> Vec<u32> {
    let n_vocab = n_vocab as usize;
    let row_bytes = encoding.row_bytes(n_vocab).unwrap();
    let mut words = vec![0u32; row_bytes.div_ceil(4)];
    let mut out = vec![0.0; n_vocab];
    let decode = |row: &[f32]| {
        let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..row_bytes];
        encoding.encode(row, bytes);
        encoding.view(bytes, n_vocab).unwrap().decode_into(&mut out);
        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    rows.chunks(n_vocab).flat_map(decode).collect()
}

/// A fault is said in one line that names the file.
pub(crate) fn check_message(error: &Error, path: &Path) {
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message:?}");
    assert!(message.contains(&*path.to_string_lossy()), "{message}");
}

/// A change to a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Flip(usize, u8),
    Overwrite(usize, Vec<u8>),
    Insert(usize, Vec<u8>),
    Delete(usize, usize),
    Copy(usize, usize, usize),
    Duplicate(usize, usize, usize),
    Move(usize, usize, usize),
    Swap(usize, usize, usize),
    Truncate(usize),
}

pub(crate) fn any_change() -> impl Strategy<Value = Change> {
    let at = || any::<prop::sample::Index>().prop_map(|i| i.index(1 << 20));
    let bytes = || prop::collection::vec(any::<u8>(), 1..20);
    prop_oneof![
        (at(), 1u8..).prop_map(|(i, x)| Change::Flip(i, x)),
        (at(), bytes()).prop_map(|(i, b)| Change::Overwrite(i, b)),
        (at(), bytes()).prop_map(|(i, b)| Change::Insert(i, b)),
        (at(), 1usize..200).prop_map(|(i, n)| Change::Delete(i, n)),
        (at(), at(), 1usize..200).prop_map(|(i, j, n)| Change::Copy(i, j, n)),
        (at(), at(), 1usize..200).prop_map(|(i, j, n)| Change::Duplicate(i, j, n)),
        (at(), at(), 1usize..200).prop_map(|(i, j, n)| Change::Move(i, j, n)),
        (at(), at(), 1usize..200).prop_map(|(i, j, n)| Change::Swap(i, j, n)),
        at().prop_map(Change::Truncate),
    ]
}

impl Change {
    /// Changes `bytes`; places are taken modulo the length.
    pub(crate) fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len().max(1);
        let range = |i: usize, n: usize| i % len..(i % len + n).min(len);
        if bytes.is_empty() {
            return;
        }
        match self {
            Change::Flip(i, x) => bytes[i % len] ^= x,
            Change::Overwrite(i, b) => {
                bytes.splice(range(*i, b.len()), b.iter().copied());
            }
            Change::Insert(i, b) => {
                bytes.splice(i % len..i % len, b.iter().copied());
            }
            Change::Delete(i, n) => {
                bytes.drain(range(*i, *n));
            }
            Change::Copy(from, to, n) => {
                let copy = bytes[range(*from, *n)].to_vec();
                bytes.splice(range(*to, *n), copy);
            }
            Change::Duplicate(from, to, n) => {
                let copy = bytes[range(*from, *n)].to_vec();
                bytes.splice(to % len..to % len, copy);
            }
            Change::Move(from, to, n) => {
                let moved: Vec<u8> = bytes.drain(range(*from, *n)).collect();
                let to = to % (bytes.len() + 1);
                bytes.splice(to..to, moved);
            }
            Change::Swap(i, j, n) => {
                let (i, j) = (range(*i, *n), range(*j, *n));
                i.zip(j).for_each(|(i, j)| bytes.swap(i, j));
            }
            Change::Truncate(n) => bytes.truncate(n % len),
        }
    }
}
