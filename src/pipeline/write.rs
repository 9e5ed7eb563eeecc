//! A model's rows into a reference: encoded in place, compressed on all cores, appended in order.

use std::io::Write;
use std::time::{Duration, Instant};

use kl_formats::{
    Encoding, Header, KlPyHeader, KlPyWriter, LlamaCppHeader, LlamaCppWriter, NativeWriter, Piece,
    WindowEncoder, WindowHead, llamacpp,
};
use rayon::prelude::*;

use super::write_behind::{WriteBehind, Writer};
use super::{Error, Step, Timing};
use crate::engine::LogitSource;

/// Which kind of reference to write, and to where.
#[allow(clippy::large_enum_variant)] // one per run
pub enum Target<W: Write> {
    /// The native kind.
    Native(NativeWriter<W>, Header),
    /// kl.py's.
    KlPy(KlPyWriter<W>, KlPyHeader),
    /// llama.cpp's base file.
    LlamaCpp(LlamaCppWriter<W>),
}

/// Runs `source` over `windows` and writes the rows of their scored positions.
///
/// `on_step` is told of every decode call and of each window.
///
/// # Errors
/// What the model, the file or `on_step` says. The output is then incomplete.
pub fn write_reference<S: LogitSource, W: Write + Send + 'static>(
    source: &mut S,
    windows: &[WindowHead],
    target: Target<W>,
    on_step: impl FnMut(Step<&WindowHead>) -> Result<(), Error>,
) -> Result<(W, Timing), Error>
where
    Error: From<S::Error>,
{
    write_rows(
        |head, sink| source.decode(head, |rows| sink(rows)),
        windows,
        target,
        on_step,
    )
}

/// Where a window's rows go, several at a time, in order.
pub(super) type Sink<'s> = &'s mut dyn FnMut(&[&[f32]]) -> Result<(), Error>;

/// [`write_reference`] of rows from anywhere: `rows_of` hands those of a window to the sink.
pub(super) fn write_rows<W: Write + Send + 'static>(
    mut rows_of: impl FnMut(&WindowHead, Sink<'_>) -> Result<(), Error>,
    windows: &[WindowHead],
    target: Target<W>,
    mut on_step: impl FnMut(Step<&WindowHead>) -> Result<(), Error>,
) -> Result<(W, Timing), Error> {
    let (layout, writer) = match target {
        Target::Native(writer, header) => (Layout::Native(header), Writer::Native(writer)),
        Target::KlPy(writer, header) => (Layout::KlPy(header), Writer::KlPy(writer)),
        Target::LlamaCpp(writer) => (Layout::LlamaCpp(*writer.header()), Writer::LlamaCpp(writer)),
    };
    let mut behind = WriteBehind::start(writer);
    let mut timing = Timing::default();
    for head in windows {
        let started = Instant::now();
        let mut in_sink = Duration::ZERO;
        let waited_before = behind.waited();
        let (mut window, piece) = layout.encoder(head)?;
        behind.send(piece)?;
        rows_of(head, &mut |mut rows| {
            let n_rows = rows.len();
            let sink_started = Instant::now();
            while !rows.is_empty() {
                let (bytes, n) = window.reserve_rows(rows.len(), || behind.memory());
                encode_rows(|row, bytes| layout.encode(row, bytes), &rows[..n], bytes);
                rows = &rows[n..];
                if let Some(piece) = window.commit() {
                    behind.send(piece)?;
                }
            }
            in_sink += sink_started.elapsed();
            on_step(Step::Rows(n_rows))
        })?;
        window.finish()?;
        let waited = behind.waited() - waited_before;
        timing.decode += started.elapsed().saturating_sub(in_sink);
        timing.score += in_sink.saturating_sub(waited);
        on_step(Step::Window(head))?;
    }
    let waited = behind.waited();
    let finishing = Instant::now();
    let output = behind.finish()?;
    timing.write = waited + finishing.elapsed();
    Ok((output, timing))
}

fn encode_rows(encode: impl Fn(&[f32], &mut [u8]) + Sync, rows: &[&[f32]], bytes: &mut [u8]) {
    let row_bytes = bytes.len() / rows.len().max(1);
    if row_bytes > 0 {
        bytes
            .par_chunks_exact_mut(row_bytes)
            .zip(rows)
            .with_min_len(BYTES_PER_TASK.div_ceil(row_bytes))
            .for_each(|(bytes, row)| encode(row, bytes));
    }
}

/// Rows are handed to threads in groups of about this many bytes, since a row of a small
/// vocabulary is encoded faster than a thread is woken.
const BYTES_PER_TASK: usize = 1 << 17;

/// How windows become pieces.
#[allow(clippy::large_enum_variant)] // one per run
enum Layout {
    Native(Header),
    KlPy(KlPyHeader),
    LlamaCpp(LlamaCppHeader),
}

impl Layout {
    fn encode(&self, row: &[f32], bytes: &mut [u8]) {
        match self {
            Self::Native(header) => header.encoding.encode(row, bytes),
            Self::KlPy(_) => Encoding::F32.encode(row, bytes),
            Self::LlamaCpp(_) => llamacpp::encode_row(row, bytes),
        }
    }

    fn encoder(&self, head: &WindowHead) -> Result<(WindowEncoder, Piece), kl_formats::Error> {
        match self {
            Self::Native(header) => WindowEncoder::new(header, head),
            Self::KlPy(header) => WindowEncoder::kl_py(header, head),
            Self::LlamaCpp(header) => WindowEncoder::llama_cpp(header, head),
        }
    }
}
