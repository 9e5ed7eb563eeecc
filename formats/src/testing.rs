//! Helpers that the tests of several formats share.

mod change;
mod damage;
mod hidden;
mod sparse;

use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::common::about;
use crate::*;
pub(crate) use change::any_change;
pub(crate) use hidden::{Hidden, states};
pub(crate) use sparse::sparse;

/// A temporary folder, and a file in it to write again and again.
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

/// The header of a file of these windows.
pub(crate) fn header(encoding: Encoding, n_vocab: u32, windows: &[SampleWindow]) -> Header {
    let mut about = about(Kind::Kl, 8, n_vocab);
    about.first_scored = Some(1);
    about.seed = Some(7);
    Header {
        rows_per_piece: 2,
        ..Header::new(&about, encoding, &specs(windows))
    }
}

/// The windows without their rows.
pub(crate) fn specs(windows: &[SampleWindow]) -> Vec<WindowSpec> {
    windows.iter().map(|window| window.spec.clone()).collect()
}

/// A window and its rows, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleWindow {
    pub(crate) spec: WindowSpec,
    pub(crate) rows: Vec<f32>,
}

/// A window of `n_tokens` tokens and rows from `first_scored` to its end.
pub(crate) fn window(window: u32, n_tokens: u32, first_scored: u32, n_vocab: u32) -> SampleWindow {
    let n_rows = n_tokens - first_scored;
    let spec = WindowSpec {
        window,
        tokens: (0..n_tokens).map(|i| (i * 7 + window) % n_vocab).collect(),
        first_scored,
        n_rows,
    };
    let rows = (0..n_rows * n_vocab).map(|i| ((i * 37 + window) % 101) as f32 / 8.0 - 6.0);
    SampleWindow {
        spec,
        rows: rows.collect(),
    }
}

/// Any logit at all, an ordinary one, or a mask: rows of all forms.
fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        1 => any::<f32>(),
        20 => -20f32..20.0,
        2 => Just(f32::NEG_INFINITY),
        1 => Just(f32::MIN),
    ]
}

/// Any windows of a file with `n_vocab` entries a row, numbered in order.
pub(crate) fn any_windows(n_vocab: u32) -> impl Strategy<Value = Vec<SampleWindow>> {
    let window = (0u32..=8, 0u32..=8).prop_flat_map(move |(n_tokens, first)| {
        let first_scored = first.min(n_tokens);
        let n_rows = n_tokens - first_scored;
        (
            prop::collection::vec(0..n_vocab, n_tokens as usize),
            prop::collection::vec(any_logit(), (n_rows * n_vocab) as usize),
        )
            .prop_map(move |(tokens, rows)| SampleWindow {
                spec: WindowSpec {
                    window: 0,
                    tokens,
                    first_scored,
                    n_rows,
                },
                rows,
            })
    });
    prop::collection::vec(window, 0..4).prop_map(|mut windows| {
        let numbered = windows.iter_mut().zip(0..);
        numbered.for_each(|(window, number)| window.spec.window = number);
        windows
    })
}

/// Encodes a window, `at_once` rows at a time. Returns its pieces, and how its rows are stored.
pub(crate) fn encode(
    format: &WindowFormat,
    window: &SampleWindow,
    at_once: usize,
) -> (Vec<Piece>, RowForms) {
    let (mut encoder, first) = format.begin(&window.spec).unwrap();
    let mut pieces = vec![first];
    let row_len = format.row_len as usize;
    let layout = format.row_layout();
    let row_bytes = layout.row_bytes(row_len);
    let mut rows = window.rows.chunks(row_len);
    while encoder.rows_left() > 0 {
        let (bytes, n) = encoder.reserve_rows(at_once, || None);
        assert_eq!(bytes.len(), n * row_bytes);
        let reserved: Vec<&[f32]> = (&mut rows).take(n).collect();
        let room = bytes.chunks_mut(row_bytes).zip(&reserved);
        room.for_each(|(out, row)| layout.encode(row, out));
        pieces.extend(encoder.commit(|i| reserved[i]));
    }
    (pieces, encoder.finish().unwrap())
}

/// Writes these windows, `at_once` rows at a time, and returns the file.
pub(crate) fn written<W: Write + Debug>(
    writer: Writer<W>,
    windows: &[SampleWindow],
    at_once: usize,
) -> W {
    try_written(writer, windows, at_once).unwrap()
}

/// The same to an output that may refuse.
pub(crate) fn try_written<W: Write>(
    mut writer: Writer<W>,
    windows: &[SampleWindow],
    at_once: usize,
) -> crate::Result<W> {
    for window in windows {
        for piece in encode(&writer.window_format(), window, at_once).0 {
            writer.append(piece.compress())?;
        }
    }
    writer.finish()
}

/// Every window of a reference, with its rows in blocks.
pub(crate) fn read_rows(reference: Reference) -> crate::Result<Vec<(WindowSpec, Vec<RowBlock>)>> {
    let n_windows = reference.windows().map_or(0, <[WindowEntry]>::len);
    let mut windows = Vec::new();
    match reference.into_rows() {
        Rows::Blocks(file) => {
            for i in 0..n_windows {
                let window = file.window(i)?;
                let blocks = (0..file.n_blocks(i)).map(|b| file.block(i, b, None));
                windows.push((window, blocks.collect::<crate::Result<_>>()?));
            }
        }
        Rows::Stream(mut stream) => {
            while let Some(window) = stream.next_window()? {
                let blocks = std::iter::from_fn(|| stream.next_rows(2).transpose());
                windows.push((window, blocks.collect::<crate::Result<_>>()?));
            }
        }
        rows => panic!("no rows of logits: {rows:?}"),
    }
    Ok(windows)
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

/// The bits of rows that were encoded and decoded again; a row that is exact has its own.
pub(crate) fn decoded_bits(encoding: Encoding, n_vocab: u32, rows: &[f32]) -> Vec<u32> {
    let n_vocab = n_vocab as usize;
    let layout = encoding.layout().unwrap();
    let row_bytes = layout.row_bytes(n_vocab);
    let mut words = vec![0u32; row_bytes.div_ceil(4)];
    let mut out = vec![0.0; n_vocab];
    let decode = |row: &[f32]| {
        let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..row_bytes];
        layout.encode(row, bytes);
        match layout.form(bytes) {
            Some(row::U16Form::Exact) => out.copy_from_slice(row),
            _ => layout.view(bytes, n_vocab).unwrap().decode_into(&mut out),
        }
        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    rows.chunks(n_vocab).flat_map(decode).collect()
}

/// An error is one line that names the file.
pub(crate) fn check_message(error: &Error, path: &Path) {
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message:?}");
    assert!(message.contains(&*path.to_string_lossy()), "{message}");
}

/// Checks the kind of an error's fault, as its `Debug` starts.
#[track_caller]
pub(crate) fn assert_fault(error: &crate::Error, kind: &str) {
    let fault = format!("{:?}", error.fault);
    assert!(fault.starts_with(kind), "{error}: {fault}, not {kind}");
}
