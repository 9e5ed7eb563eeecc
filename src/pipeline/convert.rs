//! Writes a reference's rows into a reference of another kind, a few at a time.

use std::io::Write;

use kl_formats::{WindowSpec, Writer};

use super::decoded::decoded_rows;
use super::parallel_writer::Sink;
use super::reference_rows::ReferenceRows;
use super::spare::Spare;
use super::write::{Written, write_rows};
use super::{Error, Step};

/// Writes the rows of `windows`, which it reads from `rows`.
///
/// The windows come in the order of the old file, each with all or some of its rows there.
///
/// `on_step` is called for rows and for each window.
///
/// # Errors
/// Those of either file and of `on_step`. The output is then incomplete.
pub fn convert_reference<W: Write + Send + 'static>(
    rows: &ReferenceRows<'_>,
    windows: &[WindowSpec],
    writer: Writer<W>,
    on_step: impl FnMut(Step<&WindowSpec>) -> Result<(), Error>,
) -> Result<Written<W>, Error> {
    let spare = Spare::default();
    let rows_of = |wanted: &WindowSpec, sink: Sink<'_>| decoded_rows(rows, wanted, &spare, sink);
    write_rows(rows_of, windows, writer, on_step)
}
