//! A reference's rows into a reference of another kind, a few at a time.

use std::io::Write;

use kl_formats::WindowHead;

use super::decoded::decoded_rows;
use super::reference_rows::ReferenceRows;
use super::spare::Spare;
use super::write::{Sink, Target, write_rows};
use super::{Error, Step};

/// Writes `windows` of `rows`: those that the target is to have, in the file's own order, each with
/// all or some of the rows that the file has of it.
///
/// `on_step` is told of rows and of each window.
///
/// # Errors
/// What either file or `on_step` says. The output is then incomplete.
pub fn convert_reference<W: Write + Send + 'static>(
    rows: &ReferenceRows,
    windows: &[WindowHead],
    target: Target<W>,
    on_step: impl FnMut(Step<&WindowHead>) -> Result<(), Error>,
) -> Result<W, Error> {
    let spare = Spare::default();
    let rows_of = |wanted: &WindowHead, sink: Sink<'_>| decoded_rows(rows, wanted, &spare, sink);
    let (output, _) = write_rows(rows_of, windows, target, on_step)?;
    Ok(output)
}
