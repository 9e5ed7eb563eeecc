//! Verification: reads every byte and checks every checksum.

use std::collections::HashSet;
use std::path::Path;

use super::SidecarReader;
use crate::error::Result;

/// What a whole sidecar holds, after every byte was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Different windows among the records.
    pub n_windows: u32,
    /// Records.
    pub n_records: u64,
    /// Bytes of the file, each of which was read.
    pub file_bytes: u64,
}

/// Reads the whole file and checks each byte: header, length, and every record's checksum,
/// and the texts.
///
/// # Errors
/// The first fault, with its byte: those of [`SidecarReader::open`], of its texts and its records.
pub fn verify(path: &Path) -> Result<VerifyReport> {
    let mut reader = SidecarReader::open(path)?;
    reader.texts()?;
    let mut report = VerifyReport {
        file_bytes: reader.file_bytes(),
        ..Default::default()
    };
    // Records of a window follow each other: one look-up a window, not a record.
    let (mut windows, mut last) = (HashSet::new(), None);
    for record in &mut reader {
        let window = record?.window;
        if last.replace(window) != Some(window) {
            windows.insert(window);
        }
        report.n_records += 1;
    }
    report.n_windows = u32::try_from(windows.len()).unwrap_or(u32::MAX);
    Ok(report)
}
