//! Writes rows into a reference, a model's or another file's: encoded in place and compressed on all
//! cores, and appended in order while the model continues.
//!
//! Several windows can be under way at once. Each has a lane for its pieces, and the lanes are emptied
//! one after the other, in the order in which the windows began.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kl_formats::{Piece, RowForms, RowLayout, WindowEncoder, WindowFormat, WindowSpec, Writer};
use kl_stats::score::has_softmax;
use kl_system::threads;
use rayon::prelude::*;

use super::in_turn::{RowSink, Sources, in_turn};
use super::timing::Timing;
use super::{Error, NotFinite, Pool, Step, locked, max_pieces};

/// A reference that was written.
#[derive(Debug)]
pub struct FinishedOutput<W> {
    /// The output that it was written to.
    pub output: W,
    /// Where the time went.
    pub timing: Timing,
    /// The forms in which its rows are stored.
    pub forms: RowForms,
}

/// A window whose rows have been handed to the file, and those of them that are not finite.
pub type WrittenWindow<'w> = (&'w WindowSpec, NotFinite);

/// Runs sources of one model over `windows` and writes the rows of their scored positions. The file is
/// the same with one source and with several.
///
/// `on_step` is called for every decode call and for each window.
///
/// # Errors
/// Those of the model, of the file and of `on_step`. The output is then incomplete.
pub fn write_reference<W: Write + Send + 'static>(
    sources: Sources<'_>,
    windows: &[WindowSpec],
    writer: Writer<W>,
    mut on_step: impl FnMut(Step<WrittenWindow<'_>>) -> Result<(), Error>,
) -> Result<FinishedOutput<W>, Error> {
    let writer = ParallelWriter::start(writer, sources.n, sources.n_windows.max(1))?;
    let device = sources.device.clone();
    let mut forms = RowForms::default();
    let windows_left = Mutex::new(windows.iter());
    let next_output = || {
        let window = locked(&windows_left).next();
        window.map(|window| writer.begin(window)).transpose()
    };
    let timing = in_turn(sources, next_output, |step| match step {
        Step::Rows(n) => on_step(Step::Rows(n)),
        Step::Window((window, window_forms, not_finite)) => {
            forms += window_forms;
            on_step(Step::Window((window, not_finite)))
        }
    });
    // The file ends also where its rows have failed: the windows that are whole are worth keeping.
    let finishing = Instant::now();
    let (timing, output) = match (timing, writer.finish()) {
        // Rows had nowhere to go, because writing had failed.
        (Err(Error::WorkerLost), Err(cause)) => return Err(cause),
        (timing, output) => (timing?, output?),
    };
    // What outputs have waited for is not reading.
    let (write, read) = (timing.read, Duration::ZERO);
    let timing = Timing {
        device: device.and_then(|device| device.time(timing.score, write)),
        write: write + finishing.elapsed(),
        read,
        ..timing
    };
    Ok(FinishedOutput {
        output,
        timing,
        forms,
    })
}

/// Rows are handed to threads in groups of about this many bytes, since a row of a small
/// vocabulary is encoded faster than a thread is woken.
const BYTES_PER_TASK: usize = 1 << 17;

/// The bytes of pieces that may wait while another thread's windows are written: those of 512 rows
/// of 248,320 entries in f32. A thread that has more waits.
const BYTES_AHEAD: usize = 512 << 20;

/// The pieces of a window: each is compressed on any core, and waited for in order. There is room for a
/// bounded number of them.
type Lane = Receiver<Receiver<Piece>>;

/// Writes windows in order.
struct ParallelWriter<W> {
    format: WindowFormat,
    /// The pieces of windows, in their order.
    lanes: SyncSender<Lane>,
    /// Pieces that a window may have under way.
    lane_depth: usize,
    thread: JoinHandle<Result<W, kl_formats::Error>>,
    memory: Pool<Piece>,
}

/// A window that is being written.
struct OpenOutput<'w> {
    window: &'w WindowSpec,
    layout: RowLayout,
    encoder: WindowEncoder,
    /// Ends with the window's last row, so that the next window's lane is emptied.
    lane: Option<SyncSender<Receiver<Piece>>>,
    memory: Pool<Piece>,
    not_finite: NotFinite,
    /// The time for which writing has kept its caller waiting.
    waited: Duration,
}

impl<W: Write + Send + 'static> ParallelWriter<W> {
    /// Starts a thread that appends to `writer` the windows that `n_threads` threads encode, each with
    /// up to `n_windows` begun.
    ///
    /// # Errors
    /// If the system allows no thread.
    fn start(mut writer: Writer<W>, n_threads: usize, n_windows: usize) -> Result<Self, Error> {
        let format = writer.window_format();
        let (lanes, windows) = sync_channel::<Lane>(n_threads * n_windows);
        let memory = Pool::default();
        let memory_of_written = memory.clone();
        let thread = threads::spawn(move || {
            for piece in windows.into_iter().flatten() {
                // One that is lost ends the file: its job panicked, and has printed so.
                let Ok(piece) = piece.recv() else { break };
                if let Some(piece) = writer.append(piece)? {
                    locked(&memory_of_written).push(piece);
                }
            }
            writer.finish()
        })?;
        let lane_depth = match n_threads {
            0 | 1 => max_pieces(),
            _ => {
                let bytes = BYTES_AHEAD / n_windows.max(1);
                max_pieces().max(bytes / format.piece_bytes().max(1))
            }
        };
        Ok(Self {
            format,
            lanes,
            lane_depth,
            thread,
            memory,
        })
    }

    /// Begins the next window. Its rows are written once all windows before it are whole.
    fn begin<'w>(&self, window: &'w WindowSpec) -> Result<OpenOutput<'w>, Error> {
        let (encoder, first_piece) = self.format.begin(window)?;
        let (lane, pieces) = sync_channel(self.lane_depth);
        let started = Instant::now();
        // If writing has failed, `finish` returns the cause.
        self.lanes.send(pieces).map_err(|_| Error::WorkerLost)?;
        let mut output = OpenOutput {
            window,
            layout: self.format.row_layout(),
            encoder,
            lane: Some(lane),
            memory: self.memory.clone(),
            not_finite: NotFinite::default(),
            waited: started.elapsed(),
        };
        output.send(first_piece)?;
        Ok(output)
    }

    /// Waits until everything is written; a run that is cut off waits too, since what was sent is
    /// worth keeping.
    ///
    /// # Errors
    /// Why writing has failed, or that windows are missing.
    fn finish(self) -> Result<W, Error> {
        drop(self.lanes);
        Ok(self.thread.join().map_err(|_| Error::WorkerLost)??)
    }
}

impl<'w> RowSink for OpenOutput<'w> {
    type Done = (&'w WindowSpec, RowForms, NotFinite);

    fn window(&self) -> &WindowSpec {
        self.window
    }

    /// Encodes the next rows; they are compressed and written later.
    fn push(&mut self, mut rows: &[&[f32]]) -> Result<(), Error> {
        for is_finite in are_finite(self.layout, rows) {
            let position = self.window.first_scored + self.not_finite.n_rows as u32; // one of the window's
            self.not_finite
                .push(self.window.window, position, is_finite);
        }
        while !rows.is_empty() {
            let (bytes, n) = (self.encoder).reserve_rows(rows.len(), || locked(&self.memory).pop());
            if n == 0 {
                return Err(Error::inconsistent("more rows than a window has"));
            }
            encode_rows(self.layout, &rows[..n], bytes);
            let piece = self.encoder.commit(|i| rows[i]);
            rows = &rows[n..];
            piece.map_or(Ok(()), |piece| self.send(piece))?;
        }
        if self.encoder.rows_left() == 0 {
            self.lane = None;
        }
        Ok(())
    }

    fn waited(&self) -> Duration {
        self.waited
    }

    fn finish(self) -> Result<Self::Done, Error> {
        Ok((self.window, self.encoder.finish()?, self.not_finite))
    }
}

impl OpenOutput<'_> {
    /// Sends a piece to be compressed and appended.
    fn send(&mut self, piece: Piece) -> Result<(), Error> {
        let started = Instant::now();
        let (sender, compressed) = sync_channel(1);
        let sent = self.lane.as_ref().map(|lane| lane.send(compressed));
        self.waited += started.elapsed();
        // If writing has failed, `ParallelWriter::finish` returns the cause.
        sent.and_then(Result::ok).ok_or(Error::WorkerLost)?;
        rayon::spawn(move || {
            // A panic, which is printed, must not end the process. Nobody waits for a piece once
            // writing has stopped.
            if let Ok(compressed) = catch_unwind(AssertUnwindSafe(|| piece.compress())) {
                let _ = sender.send(compressed);
            }
        });
        Ok(())
    }
}

/// Whether each row is finite: it has a softmax or, if it is a hidden state, only finite numbers.
fn are_finite(layout: RowLayout, rows: &[&[f32]]) -> Vec<bool> {
    let row_bytes = rows.first().map_or(1, |row| size_of_val(*row).max(1));
    let is_finite = |row: &&[f32]| match layout {
        RowLayout::State(_) => row
            .iter()
            .fold(true, |all_are, number| all_are & number.is_finite()),
        _ => has_softmax(row),
    };
    rows.par_iter()
        .with_min_len(BYTES_PER_TASK.div_ceil(row_bytes))
        .map(is_finite)
        .collect()
}

/// Encodes rows into `bytes` on all cores.
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

#[cfg(test)]
mod tests;
