//! One sidecar of those of all parts.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::SidecarWriter;

use crate::commands::observer::Watch;
use crate::commands::parts::StoredEvaluation;

/// Windows take turns, and each record's checksum is of its new position. Returns how many records
/// there are. `path` is only used in messages.
pub fn merge<W: Write>(
    parts: &[PathBuf],
    out: W,
    path: &Path,
    watch: &Watch<'_>,
) -> Result<(u64, W)> {
    let evaluation = StoredEvaluation::of_parts(parts)?;
    for warning in evaluation.warnings() {
        watch.warn(warning.clone());
    }
    let n_records = evaluation.n_records();
    let phase = watch.begin("merging", None, Some(n_records));
    let mut writer = SidecarWriter::create(out, path, evaluation.header())?;
    let mut window = None;
    for record in evaluation.records()? {
        let record = record?;
        writer.push(&record)?;
        phase.rows(1);
        if window.replace(record.window) != Some(record.window) {
            phase.window(None);
            watch.check()?;
        }
    }
    let n_written = writer.n_records();
    if n_written != n_records {
        bail!(
            "the parts' windows do not take turns: {n_written} of {n_records} records could be joined: verify each part with kl info --verify"
        );
    }
    Ok((n_records, writer.finish(&evaluation.texts()?)?))
}
