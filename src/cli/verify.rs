//! Whether a file is whole: every byte read, every checksum that there is computed.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use kl_formats::{
    Encoding, KlPyReader, LlamaCppReader, NativeReader, NpzReader, Reference, Row,
    SafetensorsReader, VerifyReport, rows_per_piece, sidecar,
};
use rayon::prelude::*;
use serde::Serialize;

use super::progress::Progress;
use super::stop;

/// What was read, and found to be whole.
#[derive(Serialize, Debug, Clone, Copy)]
pub struct Verified {
    /// Windows read; of a sidecar, those that its records are of.
    pub n_windows: u64,
    /// Rows read; of a sidecar, records.
    pub n_rows: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// What was compared with the bytes.
    pub checks: Checks,
}

/// What a format lets be checked.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Checks {
    /// A checksum over every byte.
    Checksums,
    /// gzip's own checksums, and the counts.
    Gzip,
    /// zip's own checksums of the arrays of rows, and the counts.
    Zip,
    /// The lengths of the files and their tokens: a changed logit is not noticed.
    Lengths,
    /// The file's length and its tokens, and that rows are distributions: a changed logit is not
    /// noticed.
    LengthAndTokens,
}

/// Reads a reference whole.
///
/// # Errors
/// The first fault, with its window and byte.
pub fn verify_reference(reference: Reference, file_bytes: u64, quiet: bool) -> Result<Verified> {
    let n_windows = reference.n_windows().map(u64::from);
    let progress = Progress::new("verifying", n_windows, reference.n_rows(), quiet);
    let progress = Mutex::new(progress);
    let step = |rows: usize| -> Result<()> {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.window(None);
        progress.rows(rows);
        Ok(stop::check()?)
    };
    let verified = match reference {
        Reference::Native(reader) => native(&reader, step),
        Reference::KlPy(reader) => kl_py(reader, step),
        Reference::LlamaCpp(reader) => llama_cpp(&reader, step),
        Reference::Safetensors(reader) => safetensors(&reader, step),
        Reference::Npz(reader) => npz(reader, step),
    };
    let progress = progress.into_inner();
    progress.unwrap_or_else(PoisonError::into_inner).finish();
    let (n_windows, n_rows, checks) = verified?;
    Ok(Verified {
        n_windows,
        n_rows,
        file_bytes,
        checks,
    })
}

/// Reads a sidecar whole.
///
/// # Errors
/// The first fault, with its byte.
pub fn verify_sidecar(path: &Path) -> Result<Verified> {
    let VerifyReport {
        n_windows,
        n_rows,
        file_bytes,
    } = sidecar::verify(path)?;
    Ok(Verified {
        n_windows: n_windows.into(),
        n_rows,
        file_bytes,
        checks: Checks::Checksums,
    })
}

type Counts = (u64, u64, Checks);

fn native(reader: &NativeReader, step: impl Fn(usize) -> Result<()> + Sync) -> Result<Counts> {
    let windows = reader.windows();
    first_fault(windows.len(), |place| {
        reader.verify_window(place)?;
        step(
            windows
                .get(place)
                .map_or(0, |window| window.n_rows as usize),
        )
    })?;
    let header = reader.header();
    Ok((header.n_windows.into(), header.n_rows, Checks::Checksums))
}

/// A stream: one window after the other.
fn kl_py(mut reader: KlPyReader, step: impl Fn(usize) -> Result<()>) -> Result<Counts> {
    let (mut n_windows, mut n_rows) = (0, 0);
    while let Some(head) = reader.next_window()? {
        n_windows += 1;
        n_rows += u64::from(head.n_rows);
        step(head.n_rows as usize)?;
    }
    Ok((n_windows, n_rows, Checks::Gzip))
}

/// Its length was compared with its header when it was opened.
fn llama_cpp(reader: &LlamaCppReader, step: impl Fn(usize) -> Result<()> + Sync) -> Result<Counts> {
    let header = reader.header();
    let n_rows = header.rows_per_window();
    let per_block = rows_per_piece(Encoding::U16, header.n_vocab);
    first_fault(reader.n_windows(), |place| {
        reader.head(place, None)?;
        let mut block = None;
        for first in (0..n_rows).step_by(per_block as usize) {
            let n = per_block.min(n_rows - first);
            let rows = reader.block(place, first, n, block)?;
            for (row, number) in rows.rows().zip(first..) {
                check_sum(reader.path(), place, number, row)?;
            }
            block = Some(rows);
        }
        step(n_rows as usize)
    })?;
    let n_windows = header.n_windows.into();
    Ok((n_windows, header.n_rows(), Checks::LengthAndTokens))
}

/// The probabilities of a base file's row add up to 1, but for what its 16 bits and its floor, 16
/// below the greatest, do to them: 3 % with 262,144 entries. A row that is lost, as a page of zeros,
/// shows so. One of a row that was not finite is no number, and is left out of what is evaluated.
fn check_sum(path: &Path, place: usize, number: u32, row: Row<'_>) -> Result<()> {
    const TOLERANCE: f64 = 0.1;
    let sum: f64 = (0..row.len()).map(|i| f64::from(row.get(i)).exp()).sum();
    if (sum - 1.0).abs() > TOLERANCE {
        bail!(
            "{}: damaged: the probabilities of row {number} of window {place} add up to {sum:.3}, not to 1; write it anew",
            path.display()
        );
    }
    Ok(())
}

/// The lengths of its files were compared with their headers when it was opened.
fn safetensors(
    reader: &SafetensorsReader,
    step: impl Fn(usize) -> Result<()> + Sync,
) -> Result<Counts> {
    first_fault(reader.n_windows(), |place| {
        let mut block = None;
        for number in 0..reader.n_blocks(place) {
            block = Some(reader.block(place, number, block)?);
        }
        step(reader.head(place).n_rows as usize)
    })?;
    let n_rows = reader.rows_per_window().map(u64::from).sum();
    Ok((reader.n_windows() as u64, n_rows, Checks::Lengths))
}

/// A stream: one window after the other.
fn npz(mut reader: NpzReader, step: impl Fn(usize) -> Result<()>) -> Result<Counts> {
    let rows_at_once = rows_per_piece(Encoding::F32, reader.n_vocab()) as usize;
    let (mut n_windows, mut n_rows) = (0, 0);
    while let Some(head) = reader.next_window()? {
        while reader.next_rows(rows_at_once)?.is_some() {}
        n_windows += 1;
        n_rows += u64::from(head.n_rows);
        step(head.n_rows as usize)?;
    }
    Ok((n_windows, n_rows, Checks::Zip))
}

/// Looks at `n` windows on all cores. Of several faults the first in the order of the file.
fn first_fault(n: usize, look: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let fault = (0..n)
        .into_par_iter()
        .with_max_len(1)
        .find_map_first(|place| look(place).err());
    fault.map_or(Ok(()), Err)
}
