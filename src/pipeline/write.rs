//! Writes rows into a reference, a model's or another file's: encoded in place, compressed on all cores, appended in
//! order.

use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kl_formats::{RowForms, WindowSpec, Writer};

use super::device_clock::DeviceClock;
use super::in_turn::{Progress, Sources, in_turn};
use super::parallel_writer::{OpenOutput, ParallelWriter};
use super::{Error, Step, Timing, locked};
use crate::engine::LogitSource;

/// A reference that was written.
#[derive(Debug)]
pub struct Written<W> {
    /// The output that it was written to.
    pub output: W,
    /// Where the time went.
    pub timing: Timing,
    /// The forms in which its rows are stored.
    pub forms: RowForms,
}

/// Runs sources of one model over `windows` and writes the rows of their scored positions. The file is
/// the same with one source and with several.
///
/// `on_step` is called for every decode call and for each window.
///
/// # Errors
/// Those of the model, of the file and of `on_step`. The output is then incomplete.
pub fn write_reference<S: LogitSource, W: Write + Send + 'static>(
    sources: Sources<impl Fn() -> Result<S, Error> + Sync>,
    windows: &[WindowSpec],
    writer: Writer<W>,
    mut on_step: impl FnMut(Step<&WindowSpec>) -> Result<(), Error>,
) -> Result<Written<W>, Error>
where
    Error: From<S::Error>,
{
    let writer = ParallelWriter::start(writer, sources.n, sources.n_windows.max(1));
    let device = sources.device.clone();
    let mut forms = RowForms::default();
    let left = Mutex::new(windows.iter());
    let next = || {
        let next = locked(&left).next();
        let begun = next.map(|window| Ok((window, writer.begin(window)?)));
        begun.transpose()
    };
    let done = in_turn(
        sources,
        next,
        |source: &mut S, begun, progress| write_windows(source, begun, progress),
        |step| match step {
            Step::Rows(n) => on_step(Step::Rows(n)),
            Step::Window((window, of_window)) => {
                forms += of_window;
                on_step(Step::Window(window))
            }
        },
    );
    // The file ends also where its rows have failed: the windows that are whole are worth keeping.
    let finishing = Instant::now();
    let (timing, output) = match (done, writer.finish()) {
        // Rows had nowhere to go, because writing had failed.
        (Err(Error::WorkerLost), Err(cause)) => return Err(cause),
        (done, output) => (done?, output?),
    };
    let timing = Timing {
        device: device.and_then(|device| device.time((timing.score, timing.write))),
        write: timing.write + finishing.elapsed(),
        ..timing
    };
    Ok(Written {
        output,
        timing,
        forms,
    })
}

fn write_windows<'w, S: LogitSource>(
    source: &mut S,
    begun: Vec<(&'w WindowSpec, OpenOutput)>,
    progress: &mut Progress<'_>,
) -> Result<Vec<(&'w WindowSpec, RowForms)>, Error>
where
    Error: From<S::Error>,
{
    let (windows, outputs): (Vec<&WindowSpec>, Vec<OpenOutput>) = begun.into_iter().unzip();
    let times = |output: &OpenOutput| (output.encoding, output.waited);
    let waited_before: Duration = outputs.iter().map(|output| output.waited).sum();
    let mut outputs = outputs.into_iter();
    let mut open = outputs.next();
    let (mut encoding, mut waited) = (Duration::ZERO, Duration::ZERO);
    let mut forms = Vec::with_capacity(windows.len());
    // The lane of a window holds only so many pieces: it ends before the next window's begins.
    let mut finish = |open: &mut Option<OpenOutput>| {
        if let Some(output) = std::mem::replace(open, outputs.next()) {
            let (of_encoding, of_waiting) = times(&output);
            (encoding, waited) = (encoding + of_encoding, waited + of_waiting);
            forms.push(output.finish()?);
        }
        Ok::<(), Error>(())
    };
    let started = Instant::now();
    let device = progress.device;
    let mut call = device.map(DeviceClock::begin);
    let mut current = 0;
    source.decode_all(&windows, |i, rows| {
        call = None;
        while current < i {
            finish(&mut open)?;
            current += 1;
        }
        if let Some(output) = &mut open {
            output.push(rows)?;
        }
        (progress.on_rows)(rows.len())?;
        call = device.map(DeviceClock::begin);
        Ok::<(), Error>(())
    })?;
    drop(call);
    while open.is_some() {
        finish(&mut open)?;
    }
    let timing = &mut progress.timing;
    let not_decoding = (encoding + waited).saturating_sub(waited_before);
    timing.decode += started.elapsed().saturating_sub(not_decoding);
    timing.score += encoding;
    timing.write += waited;
    Ok(windows.into_iter().zip(forms).collect())
}
