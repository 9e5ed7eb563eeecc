//! A model's per-token file.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kl_formats::sidecar::TokenRecord;
use kl_formats::{SidecarHeader, SidecarWriter, is_sidecar};

use super::output::{Existing, PartialFile, flushed};
use super::paths::sidecar_path;
use super::settings::ResultSettings;

/// A sidecar, created before its model is loaded.
pub struct SidecarFile {
    output: PartialFile,
    path: PathBuf,
}

impl SidecarFile {
    /// Creates it where the settings say. A sidecar of an earlier run is replaced; any other file
    /// is refused unless `--force`.
    pub fn create(settings: &ResultSettings, model: &Path) -> Result<Option<Self>> {
        let Some(path) = sidecar_path(settings, model) else {
            return Ok(None);
        };
        let existing = Existing {
            replace_target: settings.force || is_sidecar(&path),
            replace_partial: true,
        };
        Ok(Some(Self {
            output: PartialFile::create(&path, existing)?,
            path,
        }))
    }

    /// Writes it whole; its path.
    pub fn write(self, header: &SidecarHeader, records: &[TokenRecord]) -> Result<PathBuf> {
        let file = BufWriter::new(self.output.file()?);
        let mut writer = SidecarWriter::create(file, self.output.path(), header)?;
        for record in records {
            writer.push(record)?;
        }
        flushed(writer.finish()?, &self.path)?;
        self.output.commit()?;
        Ok(self.path)
    }
}
