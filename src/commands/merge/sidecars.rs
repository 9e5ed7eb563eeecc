//! One sidecar of those of all parts.

use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kl_formats::SidecarWriter;

use crate::commands::observer::Watch;
use crate::commands::output::{PartialFile, flushed};
use crate::commands::parts::StoredEvaluation;

/// Windows take turns, and each record's checksum is of its new position. Returns how many records
/// the file has, and how many bytes.
pub fn merge(parts: &[PathBuf], output: PartialFile, watch: &Watch<'_>) -> Result<(u64, u64)> {
    let evaluation = StoredEvaluation::of_parts(parts)?;
    for warning in evaluation.warnings() {
        watch.warn(warning.clone());
    }
    let n_records = evaluation.n_records();
    let phase = watch.begin("merging", None, Some(n_records));
    let file = BufWriter::new(output.file()?);
    let mut writer = SidecarWriter::create(file, output.path(), evaluation.header())?;
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
    let path = output.path().to_owned();
    let file = flushed(writer.finish(&evaluation.texts()?)?, &path)?;
    let metadata = file.metadata();
    let file_bytes = metadata.with_context(|| format!("{}: cannot be read", path.display()))?;
    output.commit()?;
    Ok((n_records, file_bytes.len()))
}
