//! References of hidden states: judges whether this run computes the rows that their model gave.

use std::io::Read;

use kl_formats::{Reference, States};

use super::observer::Watch;
use crate::engine::{EngineError, Head};
use crate::pipeline::{Error, ReferenceRows};
use crate::report::Warning;

/// The KLD, in nats, from which a row that was computed on another backend than its writer's is
/// doubtful. The kernels of backends round differently, up to products in half precision, which
/// moves a row by 1e-7 to 1e-4; what is measured of a quant is rarely below 1e-3.
const DOUBTFUL_KLD: f64 = 1e-3;

/// Opens the rows of a reference. Where it holds hidden states, `make` prepares its head.
///
/// # Errors
/// Those of `make` and of the file, and rows that are not those of the model that wrote it.
pub fn open_rows<'h, H: Head + 'h>(
    reference: Reference,
    make: impl FnOnce(&States, &mut dyn Read) -> Result<H, EngineError>,
    watch: &Watch<'_>,
) -> Result<ReferenceRows<'h>, Error> {
    let path = reference.path().display().to_string();
    let rows = ReferenceRows::open(reference, make)?;
    if let Some(here) = &rows.here
        && here.moved.max_kld >= DOUBTFUL_KLD
    {
        watch.warn(Warning::RowsMoved {
            path,
            device: here.device.clone(),
            mean_kld: here.moved.mean_kld(),
            max_kld: here.moved.max_kld,
        });
    }
    Ok(rows)
}
