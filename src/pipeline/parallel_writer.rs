//! Writes a reference with many threads: rows are encoded and pieces compressed on all cores, and
//! appended in order while the model continues.

use std::io::Write;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kl_formats::{
    Member, Piece, PieceMemory, RowForms, RowLayout, WindowEncoder, WindowFormat, WindowSpec,
    Writer,
};
use rayon::prelude::*;

use super::ordered::{Closed, Submitter, ordered};
use super::spare::Spare;
use super::{Error, depth};

/// Rows are handed to threads in groups of about this many bytes, since a row of a small
/// vocabulary is encoded faster than a thread is woken.
const BYTES_PER_TASK: usize = 1 << 17;

/// Where a window's rows go, several at a time, in order.
pub(super) type Sink<'s> = &'s mut dyn FnMut(&[&[f32]]) -> Result<(), Error>;

/// Writes windows in order.
pub(super) struct ParallelWriter<W: Write> {
    format: WindowFormat,
    /// `None` once nothing more will come.
    submitter: Option<Submitter<Member>>,
    /// `None` once someone has learned how it ended.
    thread: Option<JoinHandle<Result<W, kl_formats::Error>>>,
    waited: Duration,
    encoding: Duration,
    forms: RowForms,
    memory: Spare<PieceMemory>,
}

impl<W: Write + Send + 'static> ParallelWriter<W> {
    /// Starts a thread that appends to `writer`.
    pub(super) fn start(mut writer: Writer<W>) -> Self {
        let format = writer.window_format();
        let (submitter, members) = ordered(depth());
        let memory = Spare::default();
        let written = memory.clone();
        let thread = std::thread::spawn(move || {
            for member in members {
                if let Some(memory) = writer.append(member)? {
                    written.give(memory);
                }
            }
            writer.finish()
        });
        Self {
            format,
            submitter: Some(submitter),
            thread: Some(thread),
            waited: Duration::ZERO,
            encoding: Duration::ZERO,
            forms: RowForms::default(),
            memory,
        }
    }

    /// Writes a window. `rows` hands its rows to the sink, which returns once they are encoded;
    /// they are compressed and written later.
    pub(super) fn write_window(
        &mut self,
        window: &WindowSpec,
        rows: impl FnOnce(Sink<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut encoder, head) = self.format.encode(window)?;
        self.send(head)?;
        rows(&mut |rows| {
            let started = Instant::now();
            let waited = self.waited;
            self.encode(&mut encoder, rows)?;
            self.encoding += started.elapsed().saturating_sub(self.waited - waited);
            Ok(())
        })?;
        self.forms += encoder.finish()?;
        Ok(())
    }

    /// How long writing has kept its caller waiting.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// How long encoding rows has taken.
    pub(super) fn encoding(&self) -> Duration {
        self.encoding
    }

    /// How the rows so far are stored.
    pub(super) fn forms(&self) -> RowForms {
        self.forms
    }

    /// Waits until everything is written.
    pub(super) fn finish(mut self) -> Result<W, Error> {
        self.submitter = None;
        join(self.thread.take())
    }

    fn encode(&mut self, window: &mut WindowEncoder, mut rows: &[&[f32]]) -> Result<(), Error> {
        let layout = self.format.row_layout();
        while !rows.is_empty() {
            let (bytes, n) = window.reserve_rows(rows.len(), || self.memory.take());
            if n == 0 {
                return Err(Error::Inconsistent {
                    found: "more rows than a window has".to_owned(),
                });
            }
            encode_rows(layout, &rows[..n], bytes);
            let piece = window.commit(|i| rows[i]);
            rows = &rows[n..];
            if let Some(piece) = piece {
                self.send(piece)?;
            }
        }
        Ok(())
    }

    /// Sends a piece to be compressed and appended.
    fn send(&mut self, piece: Piece) -> Result<(), Error> {
        let started = Instant::now();
        let sent = match &self.submitter {
            Some(submitter) => submitter.submit(move || piece.compress()),
            None => Err(Closed),
        };
        self.waited += started.elapsed();
        sent.map_err(|Closed| match join(self.thread.take()) {
            Ok(_) => Error::WorkerLost,
            Err(error) => error,
        })
    }
}

/// A run that is cut off waits too: what was sent is worth keeping.
impl<W: Write> Drop for ParallelWriter<W> {
    fn drop(&mut self) {
        self.submitter = None;
        // It ends with an error, since windows are missing.
        let _ = join(self.thread.take());
    }
}

fn join<W>(thread: Option<JoinHandle<Result<W, kl_formats::Error>>>) -> Result<W, Error> {
    match thread.map(JoinHandle::join) {
        Some(Ok(result)) => Ok(result?),
        Some(Err(_)) | None => Err(Error::WorkerLost),
    }
}

fn encode_rows(layout: RowLayout, rows: &[&[f32]], bytes: &mut [u8]) {
    let row_bytes = bytes.len() / rows.len().max(1);
    if row_bytes > 0 {
        bytes
            .par_chunks_exact_mut(row_bytes)
            .zip(rows)
            .with_min_len(BYTES_PER_TASK.div_ceil(row_bytes))
            .for_each(|(bytes, row)| layout.encode(row, bytes));
    }
}
