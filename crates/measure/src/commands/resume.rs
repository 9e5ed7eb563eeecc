//! The remains of a run that was cut off, and the check that this run can continue it.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{Difference, Effect, Fault, NativeReader, ReadBlocks as _, RunKey};

use super::output::PartialFile;
use crate::input::Plan;

/// Opens what an earlier run has left in `output`; `None` if it left nothing, or not even a whole header.
///
/// # Errors
/// A file that `open` cannot read: no run of `kl` began it, or it is damaged before what can be kept.
pub fn cut_off<T>(
    output: &PartialFile,
    open: impl FnOnce(&Path) -> kl_formats::Result<T>,
) -> Result<Option<T>> {
    if !output.is_resumed {
        return Ok(None);
    }
    open(output.path())
        .map(Some)
        .or_else(|error| match error.fault {
            Fault::Truncated { .. } => Ok(None),
            Fault::NotAReference(_) | Fault::NotAMap(_) | Fault::NotASidecar(_) => bail!(
                "{}: holds nothing to resume: remove it, or start over with --force ({error})",
                output.path().display()
            ),
            Fault::Io { .. } => Err(error.into()),
            _ => bail!("{error}; --resume cannot continue it, start over with --force"),
        })
}

/// Refuses a reference whose windows have other tokens than this run's.
pub fn check_windows(begun: &NativeReader, plan: &Plan) -> Result<()> {
    for (index, planned) in plan.windows.iter().take(begun.windows().len()).enumerate() {
        if begun.window(index)? != *planned {
            bail!(
                "{}: window {} holds other tokens than this run's: start over with --force",
                begun.path().display(),
                planned.window
            );
        }
    }
    Ok(())
}

/// How many of the first `n_windows` windows fill whole decode calls of `n_seq` windows: the last bits of a window's
/// rows depend on the windows that are decoded beside it.
pub fn windows_in_whole_calls(n_windows: usize, n_seq: u32) -> usize {
    n_windows - n_windows % n_seq.max(1) as usize
}

/// Refuses a file that was begun by another run than this one. `input` is what the run reads besides its model.
pub fn check_same_run(
    path: &Path,
    begun_run: impl Into<RunKey>,
    this_run: impl Into<RunKey>,
    input: &str,
) -> Result<()> {
    let differences = this_run.into().diff(&begun_run.into());
    differences
        .first()
        .map_or(Ok(()), |difference| refuse(path, difference, input))
}

/// Refuses a file that was begun by a run with this difference.
///
/// # Errors
/// Always.
pub fn refuse(path: &Path, difference: &Difference, input: &str) -> Result<()> {
    let path = path.display();
    match difference.effect {
        Effect::Program => bail!(
            "{path}: was begun by another version of kl ({difference}): finish it with that one, or start over with --force"
        ),
        _ => bail!(
            "{path}: belongs to another run ({difference}): use the same model, {input} and settings, or start over with --force"
        ),
    }
}
