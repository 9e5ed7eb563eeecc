//! A reference's rows into a reference of another kind, a few at a time.

use std::io::Write;

use kl_formats::WindowHead;

use super::reference_rows::{ReferenceRows, Window};
use super::spare::Spare;
use super::write::{Sink, Target, write_rows};
use super::{Error, Step};

/// Bytes of decoded rows held at once, one row always being allowed.
const BYTES_AT_ONCE: usize = 16 << 20;

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
    let rows_of = |wanted: &WindowHead, sink: Sink<'_>| {
        let mut window = find(rows, wanted.window)?;
        let fault = || Error::Inconsistent {
            found: format!("other rows of window {} than before", wanted.window),
        };
        let n_rows = window.head.n_rows as usize;
        let before = wanted.first_scored.checked_sub(window.head.first_scored);
        let before = before.ok_or_else(fault)? as usize;
        let taken = wanted.n_rows as usize;
        let behind = n_rows.checked_sub(before + taken).ok_or_else(fault)?;
        skip(&mut window, before)?;
        take(&mut window, taken, &spare, sink)?;
        skip(&mut window, behind)
    };
    let (output, _) = write_rows(rows_of, windows, target, on_step)?;
    Ok(output)
}

/// The window of this number, those before it being passed over.
fn find(rows: &ReferenceRows, number: u32) -> Result<Window<'_>, Error> {
    while let Some(mut window) = rows.next_window()? {
        if window.head.window == number {
            return Ok(window);
        }
        let n_rows = window.head.n_rows as usize;
        skip(&mut window, n_rows)?;
    }
    Err(Error::Inconsistent {
        found: format!("no window {number}"),
    })
}

/// Passes over rows: a stream has no other way to what comes behind them.
fn skip(window: &mut Window<'_>, n: usize) -> Result<(), Error> {
    each_part(window, n, |window, n| window.map(n, |_, _| ()).map(drop))
}

fn take(
    window: &mut Window<'_>,
    n: usize,
    spare: &Spare<Vec<f32>>,
    sink: Sink<'_>,
) -> Result<(), Error> {
    each_part(window, n, |window, n| {
        let decoded = window.map(n, |_, row| {
            let mut logits = spare.take().unwrap_or_default();
            logits.resize(row.len(), 0.0);
            row.decode_into(&mut logits);
            logits
        })?;
        let rows: Vec<&[f32]> = decoded.iter().map(Vec::as_slice).collect();
        sink(&rows)?;
        decoded.into_iter().for_each(|logits| spare.give(logits));
        Ok(())
    })
}

/// `n` rows in parts of bounded size.
fn each_part(
    window: &mut Window<'_>,
    n: usize,
    mut of_part: impl FnMut(&mut Window<'_>, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let at_once = (BYTES_AT_ONCE / (4 * window.n_vocab).max(1)).max(1);
    let mut left = n;
    while left > 0 {
        let part = left.min(at_once);
        of_part(window, part)?;
        left -= part;
    }
    Ok(())
}
