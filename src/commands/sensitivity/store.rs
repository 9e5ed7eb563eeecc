//! The map's file, which grows with each cell.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use kl_formats::{
    BackendIdentity, Cell, CutOffMap, Fault, MapHeader, MapWriter, Mixture, SensitivityMap,
};

use crate::commands::merge::write_in_order;
use crate::commands::output::{Existing, PartialFile, follow_links, partial_path, with_kept};
use crate::commands::resume::{self, check_same_run};
use crate::commands::settings::SensitivitySettings;
use crate::report::number::count_of;

/// The output, before the model is loaded: a bad path fails now, not hours later.
pub struct Output {
    file: PartialFile,
    path: PathBuf,
    /// A map that is whole already, with `--resume`.
    whole: Option<SensitivityMap>,
    /// A map that was cut off, with `--resume`.
    cut_off: Option<CutOffMap>,
}

/// A map that is being measured.
pub struct Store {
    file: PartialFile,
    pub writer: MapWriter<File>,
}

impl Output {
    /// Creates the file, or opens what an earlier run left.
    ///
    /// # Errors
    /// A file that cannot be created, exists, is damaged, or is no map.
    pub fn create(settings: &SensitivitySettings) -> Result<Self> {
        let path = settings.output.clone();
        let is_resumed = settings.existing() == Existing::Resume;
        let whole = match is_resumed && path.is_file() && !partial_path(&path).exists() {
            true => whole_or_continued(&path)?,
            false => None,
        };
        let may_replace = settings.existing() == Existing::Replace || whole.is_some();
        let file = PartialFile::create(&path, may_replace, settings.existing())?;
        let cut_off = resume::cut_off(&file, SensitivityMap::read_cut_off)?;
        Ok(Self {
            file,
            path,
            whole,
            cut_off,
        })
    }

    /// The set-up of the map that is continued, and the number of its windows: both depend on the
    /// memory that is free, which may have changed since.
    pub fn begun(&self) -> Option<(&BackendIdentity, usize)> {
        let header = &self.earlier()?.header;
        Some((header.backend.as_ref()?, header.windows.len()))
    }

    fn earlier(&self) -> Option<&SensitivityMap> {
        let cut_off = self.cut_off.as_ref().map(CutOffMap::map);
        cut_off.or(self.whole.as_ref())
    }

    /// Returns the whole map if an earlier run finished it.
    ///
    /// # Errors
    /// If it belongs to another run.
    pub fn finished(&mut self, header: &MapHeader) -> Result<Option<SensitivityMap>> {
        let Some(whole) = self.whole.take() else {
            return Ok(None);
        };
        check_header(&self.path, &whole, header)?;
        Ok(Some(whole))
    }

    /// Begins to write, or continues.
    ///
    /// # Errors
    /// If the map that is there belongs to another run, or the file cannot be written.
    pub fn begin(self, header: MapHeader) -> Result<Store> {
        let Self {
            mut file, cut_off, ..
        } = self;
        let out = file.file()?;
        let path = file.path().to_owned();
        let writer = match cut_off {
            Some(cut_off) => {
                check_header(&path, cut_off.map(), &header)?;
                MapWriter::resume(out, &path, cut_off, |out, n| {
                    out.set_len(n)?;
                    out.seek(SeekFrom::Start(n)).map(drop)
                })?
            }
            None => {
                let cannot = || format!("{}: cannot be written", path.display());
                out.set_len(0).with_context(cannot)?;
                MapWriter::create(out, &path, header)?
            }
        };
        file.keep_if_cut_off();
        Ok(Store { file, writer })
    }
}

/// Reads a map that has its name. One that is not finished, as a copy of a file that was being written
/// is, gets the name of such a file and is continued: then, and if it is no map, there is `None`.
///
/// # Errors
/// A damaged map, or one that cannot be renamed.
fn whole_or_continued(path: &Path) -> Result<Option<SensitivityMap>> {
    match SensitivityMap::read(path) {
        Ok(map) if !map.is_cut_off => Ok(Some(map)),
        Ok(_) => {
            let partial = partial_path(path);
            let renamed = std::fs::rename(follow_links(path), &partial);
            let cannot = || {
                let (path, partial) = (path.display(), partial.display());
                format!("{path}: is not finished, and cannot be renamed to {partial}")
            };
            renamed.with_context(cannot)?;
            Ok(None)
        }
        Err(error) => match error.fault {
            Fault::NotAMap(_) => Ok(None),
            _ => bail!("{error}; --resume cannot continue it, start over with --force"),
        },
    }
}

/// Refuses a map that was begun with another header than this run's.
fn check_header(path: &Path, begun: &SensitivityMap, header: &MapHeader) -> Result<()> {
    let mut here = as_begun(header, begun);
    let there = &begun.header;
    let windows = std::mem::replace(&mut here.windows, there.windows.clone());
    check_same_run(path, there, &here, "text")?;
    if windows == there.windows {
        return Ok(());
    }
    bail!(
        "{}: belongs to another run ({} there, {} here): use the same -n and -c, or start over with --force",
        path.display(),
        count_of(there.windows.len() as u64, "window"),
        count_of(windows.len() as u64, "window")
    )
}

/// The header with what does not change results as the earlier run had it.
fn as_begun(header: &MapHeader, begun: &SensitivityMap) -> MapHeader {
    let (mut header, begun) = (header.clone(), &begun.header);
    header.model_path.clone_from(&begun.model_path);
    header.text_path.clone_from(&begun.text_path);
    if let (Some(here), Some(there)) = (&mut header.backend, &begun.backend) {
        here.threads = there.threads;
    }
    header
}

impl Store {
    /// The map so far.
    pub fn map(&self) -> &SensitivityMap {
        self.writer.map()
    }

    /// The cell of these exchanged tensors, as far as it is measured.
    pub fn cell(&self, exchanged: &Mixture) -> Option<&Cell> {
        let mut cells = self.map().cells.iter();
        cells.find(|cell| cell.exchanged == *exchanged)
    }

    /// Puts the lines in the order that all maps of these cells have, and gives the file its name.
    pub fn finish(mut self) -> Result<SensitivityMap> {
        let (mut bytes, measured) = (Vec::new(), self.map());
        let header = measured.header.clone();
        let map = write_in_order(header, &[measured], &mut bytes, self.file.path())?;
        self.file.replace(&bytes)?;
        self.file.commit()?;
        Ok(map)
    }

    /// Keeps what was measured, and adds that to the error that ended the run.
    pub fn keep_after(self, error: Error) -> Error {
        let n = self.map().cells.len() as u64;
        with_kept(error, self.file.keep(n, &count_of(n, "cell")))
    }
}
