//! Makes one file of parts that were computed one by one: byte for byte the file that one run writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Take, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kl_formats::{
    Cell, Found, GgmlType, MapHeader, MapWriter, Mixture, NativeReader, SensitivityMap,
    SidecarWriter, Writer,
};

use super::observer::{Observer, Watch};
use super::output::{
    ANOTHER_DISK, Existing, NewFile, PartialFile, check_free_space, follow_links, partial_path,
};
use super::parts::{PartFile, StoredEvaluation, in_order, warnings};
use super::settings::MergeSettings;

const NO_PARTS: &str = "no parts were given";

/// Joins all parts of a reference, a sidecar or a map in one file. With [`Existing::Resume`], an output that is
/// that file already is a success.
///
/// # Errors
/// If a part is missing, occurs twice or belongs to another whole, if a file is not a part, or if the
/// output cannot be written.
pub fn merge(settings: &MergeSettings, observer: &dyn Observer) -> Result<NewFile> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let was_whole = settings.existing == Existing::Resume && settings.output.is_file();
    let (n_rows, file_bytes) = if was_whole {
        compare(settings, watch)?
    } else {
        write(settings, watch)?
    };
    Ok(NewFile {
        path: settings.output.display().to_string(),
        is_map: Found::look(&settings.output) == Found::Map,
        was_whole,
        file_bytes,
        n_rows,
        wall_s: started.elapsed().as_secs_f64(),
    })
}

/// Writes the output. Returns the numbers of its rows and of its bytes.
fn write(settings: &MergeSettings, watch: &Watch<'_>) -> Result<(u64, u64)> {
    let begun = match settings.existing {
        Existing::Resume if is_of_this_merge(settings) => Existing::Replace,
        Existing::Resume => Existing::Refuse(
            "it is not of this merge: finish that run, or use --force instead of --resume",
        ),
        existing => existing,
    };
    let may_replace = settings.existing == Existing::Replace;
    let output = PartialFile::create(&settings.output, may_replace, begun)?;
    let parts = &settings.parts;
    let size = parts
        .iter()
        .filter_map(|part| fs::metadata(part).ok())
        .map(|metadata| metadata.len())
        .sum();
    check_free_space(output.path(), &settings.output, size, |_| {
        ANOTHER_DISK.to_owned()
    })?;
    let mut file = output.writer(0)?;
    let n_rows = join(parts, &mut file, output.path(), watch)?;
    Ok((n_rows, output.commit_writer(file)?))
}

/// True unless a partial file exists that is not the start of the file that the parts make: this merge
/// writes all that such a start holds.
fn is_of_this_merge(settings: &MergeSettings) -> bool {
    /// Enough for the header: files with one header are of one whole.
    const START_BYTES: u64 = 1 << 20;
    let path = &*partial_path(&follow_links(&settings.output));
    // Errors of a file or a part are reported when the merge writes; opening a pipe would wait.
    let Some(file) = path.is_file().then(|| File::open(path).ok()).flatten() else {
        return true;
    };
    let mut start = SameBytes::new(file.take(START_BYTES));
    let _ = join(&settings.parts, &mut start, path, &Watch::new(&()));
    !start.differs
}

/// Checks that the existing output is, byte for byte, the file that the parts make. Returns the numbers of
/// its rows and of its bytes.
fn compare(settings: &MergeSettings, watch: &Watch<'_>) -> Result<(u64, u64)> {
    let path = &*settings.output;
    let unreadable = || format!("{}: cannot be read", path.display());
    let existing = File::open(path).with_context(unreadable)?;
    let file_bytes = existing.metadata().with_context(unreadable)?.len();
    let mut file = SameBytes::new(existing.take(u64::MAX));
    let joined = join(&settings.parts, &mut file, path, watch);
    let is_longer = joined.is_ok() && file.n_compared < file_bytes;
    if file.differs || file.is_short || is_longer {
        bail!(
            "{}: exists, and is not what these parts make: name another file, or replace it with \
             --force instead of --resume",
            path.display()
        );
    }
    Ok((joined?, file_bytes))
}

/// Joins parts that are all of one kind, and writes the whole to `out`, whose `path` is only used in messages.
/// Returns the number of its rows, or of a map's cells.
fn join(parts: &[PathBuf], out: &mut impl Write, path: &Path, watch: &Watch<'_>) -> Result<u64> {
    if let Some(folder) = parts.iter().find(|path| path.is_dir()) {
        bail!(
            "{}: is a folder: name the parts in it, as in {}",
            folder.display(),
            folder.join("ref.*.gz").display()
        );
    }
    let kind = |path: &PathBuf| match Found::look(path) {
        Found::Sidecar => "a sidecar",
        Found::Map => "a map",
        _ => "a reference",
    };
    if let [first, others @ ..] = parts
        && let Some(other) = others.iter().find(|other| kind(other) != kind(first))
    {
        bail!(
            "{} is {} and {} is {}: merge each kind by itself",
            first.display(),
            kind(first),
            other.display(),
            kind(other)
        );
    }
    let part_files = parts
        .iter()
        .map(|path| PartFile::open(path))
        .collect::<Result<_>>()?;
    let parts = &in_order(part_files)?;
    watch.warn_all(warnings(parts));
    match parts.first().map(|part| Found::look(&part.path)) {
        Some(Found::Sidecar) => join_sidecars(parts, out, path, watch),
        Some(Found::Map) => join_maps(parts, out, path),
        _ => join_references(parts, out, path, watch),
    }
}

/// Copies the members' bytes as they are, and writes a header and an index of the whole.
fn join_references(
    parts: &[PartFile],
    out: &mut impl Write,
    path: &Path,
    watch: &Watch<'_>,
) -> Result<u64> {
    let readers: Vec<NativeReader> = parts
        .iter()
        .map(|part| NativeReader::open(&part.path))
        .collect::<Result<_, _>>()?;
    let mut header = readers.first().context(NO_PARTS)?.header.of_whole();
    if header.generated.is_some() {
        header.n_rows = parts.iter().map(|part| part.n_rows).sum();
    }
    // Only the part that has a prompt's window records the answer.
    for (part, window) in readers
        .iter()
        .flat_map(|part| part.windows().map(move |window| (part, window)))
    {
        let index = window.window as usize;
        let prompts_of_part = part.header.prompts.as_ref();
        let prompt_in_part = prompts_of_part.and_then(|prompts| prompts.get(index));
        let prompt = header
            .prompts
            .as_mut()
            .and_then(|prompts| prompts.get_mut(index));
        if let (Some(prompt_in_part), Some(prompt)) = (prompt_in_part, prompt) {
            prompt.clone_from(prompt_in_part);
        }
    }
    let mut writer = Writer::native(out, path, &header)?;
    let n_windows = header.n_windows;
    let phase = watch.begin("merging", Some(n_windows.into()), Some(header.n_rows));
    for (window, part) in (0..n_windows as usize).zip(readers.iter().cycle()) {
        // No part lacks a window: its header counts its own, and `shard` those of the whole.
        let index = window / readers.len();
        writer.copy_window(part, index)?;
        let n_rows = part.windows().nth(index).map_or(0, |window| window.n_rows);
        phase.rows(n_rows as usize);
        phase.window(None);
        watch.check()?;
    }
    writer.finish()?;
    Ok(header.n_rows)
}

/// Writes each record with the checksum of its new position.
fn join_sidecars(
    parts: &[PartFile],
    out: &mut impl Write,
    path: &Path,
    watch: &Watch<'_>,
) -> Result<u64> {
    let evaluation = StoredEvaluation::of_files(parts)?;
    let n_records = evaluation.n_records;
    let phase = watch.begin("merging", None, Some(n_records));
    let mut writer = SidecarWriter::create(out, path, &evaluation.header)?;
    let texts = evaluation.read(|window| {
        for record in window {
            writer.push(record)?;
        }
        phase.rows(window.len());
        phase.window(None);
        Ok(watch.check()?)
    })?;
    let n_written = writer.n_records();
    if n_written != n_records {
        bail!(
            "the parts' windows do not take turns: {n_written} of {n_records} records could be joined: verify each part with kl info --verify"
        );
    }
    writer.finish(&texts)?;
    Ok(n_records)
}

/// Writes all cells of the parts, byte for byte as one run writes them.
fn join_maps(parts: &[PartFile], out: &mut impl Write, path: &Path) -> Result<u64> {
    let maps: Vec<SensitivityMap> = parts
        .iter()
        .map(|part| SensitivityMap::read(&part.path))
        .collect::<Result<_, _>>()?;
    let header = maps.first().context(NO_PARTS)?.header.of_whole();
    let map = write_in_order(header, &Vec::from_iter(&maps), out, path)?;
    Ok(map.cells.len() as u64)
}

/// Writes one map of all that these hold, in an order that does not depend on how it was measured: first
/// the weight errors in the order of the tensors, then the cells by the number of tensors that they exchange,
/// and equal numbers by the tensors' order.
pub fn write_in_order(
    header: MapHeader,
    maps: &[&SensitivityMap],
    out: &mut impl Write,
    path: &Path,
) -> Result<SensitivityMap> {
    let mut writer = MapWriter::create(out, path, header.clone())?;
    for tensor in &header.tensors {
        // If several parts state an error, the first one's is used.
        let errors: BTreeMap<GgmlType, f64> = maps
            .iter()
            .rev()
            .filter_map(|map| map.errors.get(&tensor.name))
            .flatten()
            .map(|(&kind, &error)| (kind, error))
            .collect();
        if !errors.is_empty() {
            writer.write_errors(&tensor.name, &errors)?;
        }
    }
    for cell in cells(&header, maps) {
        writer.write_cell(cell)?;
    }
    Ok(writer.finish()?.1)
}

/// The cells of all parts in their order. If several parts hold a cell, as they do the control, the one
/// with the most windows is used, and the first among equals.
fn cells<'m>(header: &MapHeader, maps: &[&'m SensitivityMap]) -> Vec<&'m Cell> {
    let mut cells_by_mixture: BTreeMap<&Mixture, &Cell> = BTreeMap::new();
    for cell in maps.iter().flat_map(|map| &map.cells) {
        let longest = cells_by_mixture.entry(&cell.exchanged).or_insert(cell);
        if cell.klds.len() > longest.klds.len() {
            *longest = cell;
        }
    }
    let names = header.tensors.iter().map(|tensor| tensor.name.as_str());
    let indices: BTreeMap<&str, usize> = names.zip(0..).collect();
    let index = |name: &String| indices.get(name.as_str()).copied();
    let mut cells: Vec<&Cell> = cells_by_mixture.into_values().collect();
    cells.sort_by_cached_key(|cell| {
        let mut exchanged: Vec<_> = cell
            .exchanged
            .iter()
            .map(|(name, &kind)| (index(name), kind))
            .collect();
        exchanged.sort();
        (exchanged.len(), exchanged)
    });
    cells
}

/// A writer that writes nothing: it reads a file, which must hold the bytes that it is given. Where the
/// file ends, writing stops with an error.
struct SameBytes {
    file: BufReader<Take<File>>,
    /// Bytes that were compared so far.
    n_compared: u64,
    /// True once the file was found to hold other bytes.
    differs: bool,
    /// True once the file was found to end before what is written.
    is_short: bool,
}

impl SameBytes {
    fn new(file: Take<File>) -> Self {
        Self {
            file: BufReader::with_capacity(1 << 20, file),
            n_compared: 0,
            differs: false,
            is_short: false,
        }
    }
}

impl Write for SameBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file_bytes = self.file.fill_buf()?;
        let n = file_bytes.len().min(bytes.len());
        self.is_short = n == 0 && !bytes.is_empty();
        self.differs = file_bytes.get(..n) != bytes.get(..n);
        self.file.consume(n);
        self.n_compared += n as u64;
        if self.is_short || self.differs {
            return Err(io::Error::other("does not hold these bytes"));
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
