//! Rows out of a file as logits, a few at a time.

use kl_formats::WindowHead;

use super::Error;
use super::reference_rows::{ReferenceRows, Window};
use super::spare::Spare;

/// Hands `sink` the rows of `wanted`, which are all or some of those of the file's window of that
/// number, decoded on all cores, a bounded number at a time. Windows before it are passed over.
///
/// # Errors
/// What the file or `sink` says.
pub(super) fn decoded_rows<E: From<Error>>(
    rows: &ReferenceRows,
    wanted: &WindowHead,
    spare: &Spare<Vec<f32>>,
    mut sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
) -> Result<(), E> {
    let mut window = find(rows, wanted.window)?;
    let fault = || Error::Inconsistent {
        found: format!("other rows of window {} than before", wanted.window),
    };
    let n_rows = window.head.n_rows as usize;
    let before = wanted.first_scored.checked_sub(window.head.first_scored);
    let before = before.ok_or_else(fault)? as usize;
    let taken = wanted.n_rows as usize;
    if before + taken > n_rows {
        return Err(fault().into());
    }
    window.skip(before)?;
    window.in_parts(taken, |window, n| {
        let decoded = window.map(n, |_, row| {
            let mut logits = spare.take().unwrap_or_default();
            logits.resize(row.len(), 0.0);
            row.decode_into(&mut logits);
            logits
        })?;
        let rows: Vec<&[f32]> = decoded.iter().map(Vec::as_slice).collect();
        sink(&rows)?;
        decoded.into_iter().for_each(|logits| spare.give(logits));
        Ok::<_, E>(())
    })?;
    Ok(window.skip_rest()?)
}

/// The window of this number, those before it being passed over.
fn find(rows: &ReferenceRows, number: u32) -> Result<Window<'_>, Error> {
    while let Some(mut window) = rows.next_window()? {
        if window.head.window == number {
            return Ok(window);
        }
        window.skip_rest()?;
    }
    Err(Error::Inconsistent {
        found: format!("no window {number}"),
    })
}
