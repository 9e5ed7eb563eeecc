//! Writes a model's rows into a reference: encoded in place, compressed on all cores, appended in
//! order.

use std::io::Write;
use std::time::Instant;

use kl_formats::{RowForms, WindowSpec, Writer};

use super::parallel_writer::{ParallelWriter, Sink};
use super::{Error, Step, Timing};
use crate::engine::LogitSource;

/// A reference that was written.
#[derive(Debug)]
pub struct Written<W> {
    /// What it was written to.
    pub output: W,
    /// Where the time went.
    pub timing: Timing,
    /// How its rows are stored.
    pub forms: RowForms,
}

/// Runs `source` over `windows` and writes the rows of their scored positions.
///
/// `on_step` is called for every decode call and for each window.
///
/// # Errors
/// Those of the model, of the file and of `on_step`. The output is then incomplete.
pub fn write_reference<S: LogitSource, W: Write + Send + 'static>(
    source: &mut S,
    windows: &[WindowSpec],
    writer: Writer<W>,
    on_step: impl FnMut(Step<&WindowSpec>) -> Result<(), Error>,
) -> Result<Written<W>, Error>
where
    Error: From<S::Error>,
{
    write_rows(
        |window, sink| source.decode(window, |rows| sink(rows)),
        windows,
        writer,
        on_step,
    )
}

/// Does the same as [`write_reference`] with rows from anywhere: `rows_of` hands those of a window
/// to the sink.
pub(super) fn write_rows<W: Write + Send + 'static>(
    mut rows_of: impl FnMut(&WindowSpec, Sink<'_>) -> Result<(), Error>,
    windows: &[WindowSpec],
    writer: Writer<W>,
    mut on_step: impl FnMut(Step<&WindowSpec>) -> Result<(), Error>,
) -> Result<Written<W>, Error> {
    let mut writer = ParallelWriter::start(writer);
    let mut timing = Timing::default();
    for window in windows {
        let started = Instant::now();
        let not_decoding = writer.encoding() + writer.waited();
        writer.write_window(window, |encode| {
            rows_of(window, &mut |rows| {
                encode(rows)?;
                on_step(Step::Rows(rows.len()))
            })
        })?;
        let not_decoding = writer.encoding() + writer.waited() - not_decoding;
        timing.decode += started.elapsed().saturating_sub(not_decoding);
        on_step(Step::Window(window))?;
    }
    (timing.score, timing.write) = (writer.encoding(), writer.waited());
    let finishing = Instant::now();
    let forms = writer.forms();
    let output = writer.finish()?;
    timing.write += finishing.elapsed();
    Ok(Written {
        output,
        timing,
        forms,
    })
}
