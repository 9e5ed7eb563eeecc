//! Makes one file of parts that were computed one by one, byte for byte what one run writes.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kl_formats::{NativeReader, Reference, SidecarWriter, Writer, is_sidecar, native};

use super::observer::{Observer, Watch};
use super::output::{Existing, NewFile, PartialFile, check_free_space, follow_links, partial_path};
use super::parts::{Opened, StoredEvaluation, in_order, warnings};
use super::settings::MergeSettings;

/// Writes the whole of all its parts, references or sidecars. With [`Existing::Resume`], an output that is
/// already that whole is a success.
///
/// # Errors
/// If a part is missing, comes twice or belongs to another whole, if a file is not a part, or if the
/// output cannot be written.
pub fn merge(settings: &MergeSettings, observer: &dyn Observer) -> Result<NewFile> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let was_whole = settings.existing == Existing::Resume && settings.output.is_file();
    let (n_rows, file_bytes) = match was_whole {
        true => compare(settings, watch)?,
        false => write(settings, watch)?,
    };
    Ok(NewFile {
        path: settings.output.display().to_string(),
        was_whole,
        file_bytes,
        n_rows,
        wall_s: started.elapsed().as_secs_f64(),
        warnings: watch.warnings(),
    })
}

/// Writes the output. Returns how many rows it has, and how many bytes.
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
    let (parts, path) = (&settings.parts, output.path());
    let kind = Kind::of_all(parts)?;
    if kind == Kind::References {
        let lengths = parts.iter().filter_map(|part| fs::metadata(part).ok());
        let size = lengths.map(|about| about.len()).sum();
        check_free_space(path, &settings.output, size)?;
    }
    let (n_rows, file) = kind.merge(parts, output.direct_file(0)?, path, watch)?;
    Ok((n_rows, output.commit_direct(file)?))
}

/// True if the partial file that exists, if any, is the start of what the parts make: this merge
/// then writes all that it holds.
fn is_of_this_merge(settings: &MergeSettings) -> bool {
    /// It holds the header: files of one header are of one whole.
    const START_BYTES: u64 = 1 << 20;
    let path = &*partial_path(&follow_links(&settings.output));
    let differs = AtomicBool::new(false);
    // Errors of a file or a part are reported when the merge writes.
    if let Ok(start) = Compared::open(path, Some(START_BYTES), &differs)
        && let Ok(kind) = Kind::of_all(&settings.parts)
    {
        let _ = kind.merge(&settings.parts, start, path, &Watch::new(&()));
    }
    !differs.load(Ordering::Relaxed)
}

/// Checks that the output that exists is the one that the parts make, to the byte. Returns how many
/// rows it has, and how many bytes.
fn compare(settings: &MergeSettings, watch: &Watch<'_>) -> Result<(u64, u64)> {
    let (parts, path) = (&settings.parts, &*settings.output);
    let unreadable = || format!("{}: cannot be read", path.display());
    let differs = AtomicBool::new(false);
    let file = Compared::open(path, None, &differs).with_context(unreadable)?;
    let compared = Kind::of_all(parts)?.merge(parts, file, path, watch);
    let compared = compared.and_then(|(n_rows, file)| {
        file.finish().with_context(unreadable)?;
        Ok(n_rows)
    });
    if differs.load(Ordering::Relaxed) {
        bail!(
            "{}: exists, and is not what these parts make: name another file, or replace it with \
             --force instead of --resume",
            path.display()
        );
    }
    let about = fs::metadata(path).with_context(unreadable)?;
    Ok((compared?, about.len()))
}

/// The kind of file that all parts are parts of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sidecars,
    References,
}

impl Kind {
    /// Recognises the parts by their bytes.
    fn of_all(parts: &[PathBuf]) -> Result<Self> {
        if let Some(folder) = parts.iter().find(|path| path.is_dir()) {
            bail!(
                "{}: is a folder: name the parts in it, as in {}",
                folder.display(),
                folder.join("ref.*.gz").display()
            );
        }
        let (sidecars, others): (Vec<_>, Vec<_>) = parts.iter().partition(|path| is_sidecar(path));
        match (sidecars.first(), others.first()) {
            (Some(sidecar), Some(other)) => bail!(
                "{} is a sidecar and {} is not: merge sidecars and references one after the other",
                sidecar.display(),
                other.display()
            ),
            (Some(_), None) => Ok(Self::Sidecars),
            (None, _) => Ok(Self::References),
        }
    }

    /// Writes the whole to `out`, whose `path` is only used in messages. Windows take turns. Returns
    /// how many rows there are.
    fn merge<W: Write>(
        self,
        parts: &[PathBuf],
        out: W,
        path: &Path,
        watch: &Watch<'_>,
    ) -> Result<(u64, W)> {
        match self {
            Self::Sidecars => merge_sidecars(parts, out, path, watch),
            Self::References => merge_references(parts, out, path, watch),
        }
    }
}

/// Takes the members' bytes as they are, with a header and an index of the whole.
fn merge_references<W: Write>(
    parts: &[PathBuf],
    out: W,
    path: &Path,
    watch: &Watch<'_>,
) -> Result<(u64, W)> {
    let mut opened = Vec::new();
    for path in parts {
        let header = open_part(path)?.header().clone();
        let whole = header.of_whole();
        let part = Opened::new(path, header, &whole);
        part.shard()?;
        opened.push(part);
    }
    let parts = in_order(opened)?;
    for warning in warnings(&parts) {
        watch.warn(warning);
    }
    let Some(first) = parts.first() else {
        bail!("no parts were given");
    };
    let header = first.header.of_whole();
    let readers = parts.iter().map(|part| open_part(&part.path));
    let readers = readers.collect::<Result<Vec<_>>>()?;
    let mut writer = Writer::native(out, path, &header)?;
    let phase = watch.begin(
        "merging",
        Some(header.n_windows.into()),
        Some(header.n_rows),
    );
    for window in 0..header.n_windows as usize {
        let turn = window % readers.len();
        if let Some(part) = readers.get(turn) {
            let index = window / readers.len();
            // Every part has all of its windows: its header counts them, and `shard` those of all.
            writer.copy_window(part, index)?;
            let n_rows = part.windows().nth(index).map_or(0, |window| window.n_rows);
            phase.rows(n_rows as usize);
            phase.window(None);
        }
        watch.check()?;
    }
    Ok((header.n_rows, writer.finish()?))
}

/// Opens a part, which must be a file of kl's own.
fn open_part(path: &Path) -> Result<NativeReader> {
    let kind = Reference::open(path)?.kind();
    if kind != native::KIND {
        bail!(
            "{}: is a file of kind {kind}, which has no parts: leave it out",
            path.display()
        );
    }
    Ok(NativeReader::open(path)?)
}

/// Writes each record with the checksum of its new position.
fn merge_sidecars<W: Write>(
    parts: &[PathBuf],
    out: W,
    path: &Path,
    watch: &Watch<'_>,
) -> Result<(u64, W)> {
    let evaluation = StoredEvaluation::of_parts(parts)?;
    for warning in &evaluation.warnings {
        watch.warn(warning.clone());
    }
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
    Ok((n_records, writer.finish(&texts)?))
}

/// A writer that writes nothing: it reads a file, which must hold the bytes that it is given.
struct Compared<'d> {
    file: BufReader<Take<File>>,
    /// True if only the first bytes are compared: where they end, writing stops with an error.
    is_start: bool,
    /// Set where the file holds other bytes, as the error passes through other code.
    differs: &'d AtomicBool,
}

impl<'d> Compared<'d> {
    /// `n_first`: the first bytes that are compared; `None`: all.
    fn open(path: &Path, n_first: Option<u64>, differs: &'d AtomicBool) -> io::Result<Self> {
        let file = File::open(path)?.take(n_first.unwrap_or(u64::MAX));
        Ok(Self {
            file: BufReader::with_capacity(1 << 20, file),
            is_start: n_first.is_some(),
            differs,
        })
    }

    /// Checks that nothing follows in the file.
    fn finish(mut self) -> io::Result<()> {
        match self.file.fill_buf()?.is_empty() {
            true => Ok(()),
            false => Err(self.other()),
        }
    }

    fn other(&self) -> io::Error {
        self.differs.store(true, Ordering::Relaxed);
        io::Error::other("holds other bytes")
    }
}

impl Write for Compared<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let found = self.file.fill_buf()?;
        if self.is_start && found.is_empty() && !bytes.is_empty() {
            return Err(io::Error::other("ends here"));
        }
        let n = found.len().min(bytes.len());
        let is_same = found.get(..n) == bytes.get(..n) && (n > 0 || bytes.is_empty());
        self.file.consume(n);
        if is_same { Ok(n) } else { Err(self.other()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
