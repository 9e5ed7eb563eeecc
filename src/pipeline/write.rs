//! Writes rows into a reference, a model's or another file's: encoded in place, compressed on all cores, appended in
//! order.

use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kl_formats::{RowForms, WindowSpec, Writer};

use super::in_turn::{LogitSource, Progress, Sources, in_turn};
use super::parallel_writer::{OpenOutput, ParallelWriter};
use super::{Error, Step, Timing, locked};

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
) -> Result<Written<W>, Error> {
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
) -> Result<Vec<(&'w WindowSpec, RowForms)>, Error> {
    let (windows, mut outputs): (Vec<&WindowSpec>, Vec<OpenOutput>) = begun.into_iter().unzip();
    let waited =
        |outputs: &[OpenOutput]| -> Duration { outputs.iter().map(|output| output.waited).sum() };
    let waited_before = waited(&outputs);
    let in_sink = progress.decode(source, &windows, |i, rows| outputs[i].push(rows))?;
    let waited = waited(&outputs);
    progress.timing.score += in_sink.saturating_sub(waited - waited_before);
    progress.timing.write += waited;
    let written = windows.into_iter().zip(outputs);
    written
        .map(|(window, output)| Ok((window, output.finish()?)))
        .collect()
}
