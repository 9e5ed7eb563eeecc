//! The map's file, which grows with each cell.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kl_formats::{
    Aspect, BackendIdentity, CutOffMap, Fault, MapHeader, MapWriter, RunKey, SensitivityMap,
    Setting,
};
use kl_measure::commands::output::{Existing, PartialFile, follow_links, partial_path};
use kl_measure::commands::resume;

use crate::settings::SensitivitySettings;

/// The output, opened before the model is loaded: a bad path fails at once, not hours later.
pub struct Output {
    file: PartialFile,
    path: PathBuf,
    /// A map that is whole already, with `--resume`.
    whole: Option<SensitivityMap>,
    /// A map that was cut off, with `--resume`.
    cut_off: Option<CutOffMap>,
}

impl Output {
    /// Creates the file, or opens what an earlier run left.
    ///
    /// # Errors
    /// A file that cannot be created, exists, is damaged, or is not a map.
    pub fn create(settings: &SensitivitySettings) -> Result<Self> {
        let path = settings.output.clone();
        let is_resumed = settings.existing == Existing::Resume;
        let mut whole = None;
        if is_resumed && path.is_file() && !partial_path(&path).exists() {
            whole = whole_or_continued(&path)?;
        }
        let may_replace = settings.existing == Existing::Replace || whole.is_some();
        let file = PartialFile::create(&path, may_replace, settings.existing)?;
        let cut_off = resume::cut_off(&file, SensitivityMap::read_cut_off)?;
        if cut_off.as_ref().is_some_and(|map| !map.has_checksums()) {
            bail!(
                "{}: an earlier version of kl began it, whose lines have no checksums: finish it with that one, or start over with --force",
                file.path().display()
            );
        }
        Ok(Self {
            file,
            path,
            whole,
            cut_off,
        })
    }

    /// The set-up of the map that is continued, and the number of its windows: both depend on the free
    /// memory, which may have changed since.
    pub fn begun(&self) -> Option<(&BackendIdentity, usize)> {
        let (_, SensitivityMap { header, .. }) = self.begun_map()?;
        Some((header.backend.as_ref()?, header.windows.len()))
    }

    /// Returns the header of the map that this run finishes: its own, or that of the map that is continued, where
    /// that has as many windows or more.
    ///
    /// # Errors
    /// If the map that is there belongs to another run.
    pub fn agreed(&self, header: MapHeader) -> Result<MapHeader> {
        let Some((path, begun)) = self.begun_map() else {
            return Ok(header);
        };
        check_header(path, begun, &header)?;
        if begun.header.windows.len() < header.windows.len() {
            return Ok(header);
        }
        Ok(begun.header.clone())
    }

    /// Returns the whole map if an earlier run finished it, over all windows of this header.
    pub fn finished(&mut self, header: &MapHeader) -> Option<SensitivityMap> {
        let is_finished = |whole: &mut SensitivityMap| whole.header == *header;
        self.whole.take_if(is_finished)
    }

    /// Begins to write the map, or continues it. A map of fewer windows keeps its cells, to which those of the other
    /// windows are added.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(mut self, header: MapHeader) -> Result<(PartialFile, MapWriter<File>)> {
        let shorter = self.begun_map().map(|(_, begun)| begun);
        let shorter = shorter.filter(|begun| begun.header.windows.len() < header.windows.len());
        if let Some(shorter) = shorter {
            self.file
                .replace(&with_header(header.clone(), shorter, self.file.path())?)?;
            self.cut_off = Some(SensitivityMap::read_cut_off(self.file.path())?);
        }
        let mut file = self.file;
        let (out, path) = (file.file()?, file.path());
        let writer = match self.cut_off {
            Some(cut_off) => MapWriter::resume(out, path, cut_off, |out, n| {
                out.set_len(n)?;
                out.seek(SeekFrom::Start(n)).map(drop)
            })?,
            None => {
                let cannot = || format!("{}: cannot be written", path.display());
                out.set_len(0).with_context(cannot)?;
                MapWriter::create(out, path, header)?
            }
        };
        file.keep_if_cut_off();
        Ok((file, writer))
    }

    /// The map that an earlier run wrote or began, and its path.
    fn begun_map(&self) -> Option<(&Path, &SensitivityMap)> {
        let cut_off = self.cut_off.as_ref().map(CutOffMap::map);
        let cut_off = cut_off.map(|map| (self.file.path(), map));
        cut_off.or(self.whole.as_ref().map(|map| (&*self.path, map)))
    }
}

/// The lines of a map that is not finished, with another header.
fn with_header(header: MapHeader, map: &SensitivityMap, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut writer = MapWriter::create(&mut bytes, path, header)?;
    for (tensor, errors) in &map.errors {
        writer.write_errors(tensor, errors)?;
    }
    for cell in &map.cells {
        writer.write_cell(cell)?;
    }
    drop(writer);
    Ok(bytes)
}

/// Reads the map at `path`. An unfinished one, such as a copy of a file that was being written, gets a partial
/// file's name, to be continued. Returns `None` for that, and for a file that is not a map.
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

/// What follows from the number of a map's windows.
const OF_WINDOWS: [Aspect; 5] = [
    Aspect::Key("windows"),
    Aspect::Key("shard.n_windows"),
    Aspect::Key("shard.n_rows"),
    Aspect::Key("n_windows"),
    Aspect::Key("n_rows"),
];

/// Refuses a map that was begun with another header than this run's, except in keys that do not change results, and
/// in the number of windows: those of a smaller `-n` are the first of a larger one's.
fn check_header(path: &Path, begun: &SensitivityMap, header: &MapHeader) -> Result<()> {
    let [here, there] = [header, &begun.header].map(RunKey::from);
    let mut differences = here.diff(&there);
    differences.retain(|difference| difference.what != Aspect::SetUp(Setting::Threads));
    let mut windows = header.windows.iter().zip(&begun.header.windows);
    if windows.all(|(here, there)| here == there) {
        differences.retain(|difference| !OF_WINDOWS.contains(&difference.what));
    }
    // Other windows are told last: they follow from another text.
    differences.sort_by_key(|difference| OF_WINDOWS.contains(&difference.what));
    match differences.first() {
        None => Ok(()),
        Some(difference) if OF_WINDOWS.contains(&difference.what) => bail!(
            "{}: belongs to another run, over other windows: use the same text and the same -c, or start over with --force",
            path.display()
        ),
        Some(difference) => resume::refuse(path, difference, "text"),
    }
}
