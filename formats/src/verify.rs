//! What a whole, undamaged file holds.

/// What was read, and found to be as its checksums say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Windows in the file; in a sidecar, different windows among its records.
    pub n_windows: u32,
    /// Rows in the file; in a sidecar, records.
    pub n_rows: u64,
    /// Bytes of the file, each of which was read.
    pub file_bytes: u64,
}
