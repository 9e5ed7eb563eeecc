//! Decodes a file's rows into logits, a few at a time.

use kl_formats::WindowSpec;

use super::Error;
use super::reference_rows::{OpenWindow, ReferenceRows};
use super::spare::Spare;

/// Hands `sink` the rows of `wanted`, decoded on all cores, a bounded number at a time.
///
/// They are all or some of the rows of the file's window with that number. Windows before it are
/// skipped.
///
/// # Errors
/// Those of the file and of `sink`.
pub(super) fn decoded_rows<E: From<Error>>(
    rows: &ReferenceRows,
    wanted: &WindowSpec,
    spare: &Spare<Vec<f32>>,
    mut sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
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
    window.in_parts(n_wanted, |window, n| {
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

/// Skips to the window with this number.
fn find(rows: &ReferenceRows, number: u32) -> Result<OpenWindow<'_>, Error> {
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
