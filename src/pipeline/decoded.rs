//! A file's rows as logits, a few at a time.

use kl_formats::WindowSpec;

use super::Error;
use super::open_window::OpenWindow;
use super::reference_rows::ReferenceRows;
use super::spare::Spare;

/// Hands `sink` the logits of `wanted`'s rows, a bounded number at a time.
///
/// They are all or some of the rows of the file's window with that number. Windows before it are
/// skipped.
///
/// # Errors
/// Those of the file and of `sink`.
pub(super) fn decoded_rows<E: From<Error>>(
    rows: &ReferenceRows<'_>,
    wanted: &WindowSpec,
    spare: &Spare<Vec<f32>>,
    sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
) -> Result<(), E> {
    let mut window = find(rows, wanted.window)?;
    let fault = || Error::Inconsistent {
        found: format!("different rows for window {} than before", wanted.window),
    };
    let n_rows = window.spec.n_rows as usize;
    let before = wanted.first_scored.checked_sub(window.spec.first_scored);
    let before = before.ok_or_else(fault)? as usize;
    let n_wanted = wanted.n_rows as usize;
    if before + n_wanted > n_rows {
        return Err(fault().into());
    }
    window.skip(before)?;
    window.logits(n_wanted, spare, sink)?;
    Ok(window.skip_rest()?)
}

/// Skips to the window with this number.
fn find<'r>(rows: &'r ReferenceRows<'_>, number: u32) -> Result<OpenWindow<'r>, Error> {
    while let Some(mut window) = rows.next_window()? {
        if window.spec.window == number {
            return Ok(window);
        }
        window.skip_rest()?;
    }
    Err(Error::Inconsistent {
        found: format!("no window {number}"),
    })
}
