//! Checks whether a file is whole: reads every byte and computes every checksum that it has.

use std::path::Path;

use anyhow::Result;
use kl_formats::{
    Checks, ReadBlocks as _, ReadStream, Reference, RowLayout, Rows, map, rows_per_piece, sidecar,
};
use rayon::prelude::*;

use super::observer::Watch;
use crate::report::{Info, Verified};

/// Reads a reference whole.
///
/// # Errors
/// The first fault, with its window and byte.
pub fn verify_reference(reference: Reference, watch: &Watch<'_>) -> Result<Verified> {
    let about = reference.about();
    let (file_bytes, checks) = (about.file_bytes, about.checks);
    let n_windows = about.n_windows.map(u64::from);
    let phase = watch.begin("verifying", n_windows, about.n_rows);
    let step = |n_rows: u32| -> Result<()> {
        phase.window(None);
        phase.rows(n_rows as usize);
        Ok(watch.check()?)
    };
    let n_vocab = about.n_vocab;
    let windows = reference.windows().unwrap_or_default().iter();
    let rows_per_window: Vec<u32> = windows.map(|window| window.n_rows).collect();
    let (n_windows, n_rows) = match reference.into_rows() {
        Rows::Blocks(rows) => verify_windows(|i| rows.verify_window(i), &rows_per_window, step)?,
        Rows::States(rows, _) => {
            rows.verify_head()?;
            verify_windows(|i| rows.verify_window(i), &rows_per_window, step)?
        }
        Rows::Stream(rows) => verify_stream(rows, n_vocab, step)?,
        Rows::Model(windows) => (windows.len() as u64, 0),
    };
    Ok(Verified {
        n_windows,
        n_rows,
        file_bytes,
        checks,
    })
}

/// Reads a sidecar or a map whole, which `info` describes.
///
/// # Errors
/// The first fault, with its byte.
pub fn verify_records(path: &Path, info: &Info) -> Result<Verified> {
    let n_windows = if info.map.is_some() {
        map::verify(path)?;
        info.n_windows.map_or(0, u64::from)
    } else {
        sidecar::verify(path)?
    };
    Ok(Verified {
        n_windows,
        n_rows: info.n_rows.unwrap_or(0),
        file_bytes: info.file_bytes,
        checks: Checks::Checksums,
    })
}

/// Reads all windows, on all cores, and returns how many windows and rows it read. Of several
/// faults it reports the first in the file.
fn verify_windows(
    verify: impl Fn(usize) -> kl_formats::Result<()> + Sync,
    rows_per_window: &[u32],
    step: impl Fn(u32) -> Result<()> + Sync,
) -> Result<(u64, u64)> {
    let fault = rows_per_window
        .par_iter()
        .enumerate()
        .with_max_len(1)
        .find_map_first(|(index, &n_rows)| {
            let read = verify(index).map_err(anyhow::Error::from);
            read.and_then(|()| step(n_rows)).err()
        });
    let n_rows = rows_per_window.iter().copied().map(u64::from).sum();
    fault.map_or(Ok((rows_per_window.len() as u64, n_rows)), Err)
}

/// Reads one window after another, and returns how many windows and rows it read.
fn verify_stream(
    mut rows: Box<dyn ReadStream>,
    n_vocab: u32,
    step: impl Fn(u32) -> Result<()>,
) -> Result<(u64, u64)> {
    let rows_at_once = rows_per_piece(RowLayout::F32, n_vocab) as usize;
    let (mut n_windows, mut n_rows) = (0, 0);
    while let Some(window) = rows.next_window()? {
        while rows.next_rows(rows_at_once)?.is_some() {}
        n_windows += 1;
        n_rows += u64::from(window.n_rows);
        step(window.n_rows)?;
    }
    Ok((n_windows, n_rows))
}
