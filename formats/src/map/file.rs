//! Reads a map, whole or cut off; writes one, or continues it. Each line passes the same checks when it
//! is read and when it is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use super::{Cell, EndLine, ErrorsLine, MAGIC, MAX_LINE_BYTES, MapHeader, Mixture, SensitivityMap};
use crate::checked_line::{LineChecksum, with_checksum};
use crate::error::{Error, Fault, Named, Result};
use crate::kinds::Found;
use crate::numbers::GgmlType;
use crate::provenance::OwnHeader as _;
use crate::sidecar::{MOST_NATS, ROUNDING};
use crate::source::OpenFile;

/// A map whose writing was cut off, to be continued by [`MapWriter::resume`].
#[derive(Debug)]
pub struct CutOffMap {
    map: SensitivityMap,
    /// The index of each tensor, by its name.
    tensors: BTreeMap<String, usize>,
    /// The index of each cell, by what it exchanges.
    cells: BTreeMap<Mixture, usize>,
    n_bytes: u64,
    n_lines: u64,
    crc: Hasher,
    /// True if the header has a checksum, and so every line; false in a map of kl 0.1.0.
    has_checksums: bool,
}

impl SensitivityMap {
    /// Reads a map. One that was not finished or was cut off gives all its whole lines:
    /// [`SensitivityMap::is_cut_off`]. It is held in memory, at most some hundred times the file's
    /// bytes.
    ///
    /// # Errors
    /// [`Fault::NotAMap`], [`Fault::Header`], [`Fault::Unsupported`], [`Fault::Io`];
    /// [`Fault::Truncated`] without a whole header; [`Fault::TooLarge`] for a line of more than
    /// [`MAX_LINE_BYTES`]; [`Fault::Corrupt`] with the number of a line that is damaged or contradicts
    /// those before it.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self::read_cut_off(path)?.map)
    }

    /// Reads a map to continue it.
    ///
    /// # Errors
    /// Those of [`SensitivityMap::read`].
    pub fn read_cut_off(path: &Path) -> Result<CutOffMap> {
        let OpenFile { file, name, len } = OpenFile::open(path, "a map")?;
        let mut file = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        let is_whole = next_line(&mut file, &mut line, &name)?;
        if !line.starts_with(MAGIC.as_bytes()) {
            return Err(name.error(Fault::NotAMap(Found::look(path))));
        }
        if !is_whole {
            return Err(name.truncated(None, len, "the file ends within its header"));
        }
        let checksum = LineChecksum::of(&line);
        if checksum == LineChecksum::Differs {
            return Err(name.corrupt(None, 0, format!("line 1: {WRONG_CHECKSUM}")));
        }
        let mut read = CutOffMap::new(MapHeader::from_json(&line, &name)?);
        read.has_checksums = checksum == LineChecksum::Matches;
        read.count(&line);
        while next_line(&mut file, &mut line, &name)? {
            let end = read
                .add(&line)
                .map_err(|fault| read.corrupt(&name, &fault))?;
            if let Some(end) = end {
                read.check_end(end, &mut file, &name)?;
                break;
            }
            read.count(&line);
        }
        Ok(read)
    }
}

/// The fault of a line that has changed since it was written.
const WRONG_CHECKSUM: &str = "its checksum does not match";

/// Reads the next line into `line`; returns false if the file ends before its line feed.
fn next_line(file: &mut BufReader<File>, line: &mut Vec<u8>, name: &Named) -> Result<bool> {
    line.clear();
    let mut limited = file.take(MAX_LINE_BYTES as u64);
    let read = limited.read_until(b'\n', line);
    let n = read.map_err(|cause| name.io("read", cause))?;
    let is_whole = line.ends_with(b"\n");
    if !is_whole && n == MAX_LINE_BYTES {
        return Err(name.too_large("a line of more than 64 MiB"));
    }
    Ok(is_whole)
}

impl CutOffMap {
    /// A map without lines after the header.
    fn new(header: MapHeader) -> Self {
        let names = header.tensors.iter().map(|tensor| tensor.name.clone());
        Self {
            tensors: names.zip(0..).collect(),
            cells: BTreeMap::new(),
            map: SensitivityMap {
                header,
                errors: BTreeMap::new(),
                cells: Vec::new(),
                is_cut_off: true,
            },
            n_bytes: 0,
            n_lines: 0,
            crc: Hasher::new(),
            has_checksums: true,
        }
    }

    /// The whole lines.
    pub fn map(&self) -> &SensitivityMap {
        &self.map
    }

    /// True if each line has a checksum; kl 0.1.0 wrote none.
    pub fn has_checksums(&self) -> bool {
        self.has_checksums
    }

    /// Bytes of the whole lines, without the end line.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn count(&mut self, line: &[u8]) {
        self.crc.update(line);
        self.n_bytes += line.len() as u64;
        self.n_lines += 1;
    }

    /// Adds a line; returns an end line. The first key distinguishes the kinds of lines.
    fn add(&mut self, line: &[u8]) -> Result<Option<EndLine>, String> {
        if line.starts_with(b"{\"exchanged\":") {
            self.check_checksum(line)?;
            self.add_cell(parse(line)?)?;
        } else if line.starts_with(b"{\"tensor\":") {
            self.check_checksum(line)?;
            self.add_errors(parse(line)?)?;
        } else if line.starts_with(b"{\"n_lines\":") {
            return Ok(Some(parse(line)?));
        } else {
            return Err("neither a cell nor weight errors nor the end".to_owned());
        }
        Ok(None)
    }

    fn check_checksum(&self, line: &[u8]) -> Result<(), String> {
        match LineChecksum::of(line) {
            LineChecksum::Differs => Err(WRONG_CHECKSUM.to_owned()),
            LineChecksum::Missing if self.has_checksums => Err("it has no checksum".to_owned()),
            LineChecksum::Matches | LineChecksum::Missing => Ok(()),
        }
    }

    /// Adds the weight errors of a tensor.
    fn add_errors(&mut self, line: ErrorsLine) -> Result<(), String> {
        let ErrorsLine { tensor, errors } = line;
        let known = self.map.errors.get(&tensor);
        for (&kind, error) in &errors {
            self.check_type(&tensor, kind)?;
            let of = || format!("the weight error of {} at {kind}", tensor.escape_debug());
            if !error.is_finite() || *error < 0.0 {
                return Err(format!("{} is {error:?}", of()));
            }
            if known.is_some_and(|known| known.contains_key(&kind)) {
                return Err(format!("{} is stated twice", of()));
            }
        }
        if errors.is_empty() {
            return Err(format!("no weight errors of {}", tensor.escape_debug()));
        }
        self.map.errors.entry(tensor).or_default().extend(errors);
        Ok(())
    }

    /// Adds a cell, or continues one.
    fn add_cell(&mut self, cell: Cell) -> Result<(), String> {
        for (tensor, kind) in &cell.exchanged {
            self.check_type(tensor, *kind)?;
        }
        let fault = |what: String| {
            let of = match (cell.exchanged.first_key_value(), cell.exchanged.len()) {
                (None, _) => "without an exchanged tensor".to_owned(),
                (Some((name, kind)), 1) => format!("of {} at {kind}", name.escape_debug()),
                (Some((name, kind)), n) => {
                    format!("of {n} tensors from {} at {kind} on", name.escape_debug())
                }
            };
            Err(format!("the cell {of} {what}"))
        };
        let (n, n_counts) = (cell.klds.len(), cell.n_tokens.len());
        if n == 0 || n_counts != n {
            return fault(format!("has {n} sums and {n_counts} counts"));
        }
        let windows = self.map.header.windows.get(cell.from..).unwrap_or_default();
        if n > windows.len() {
            return fault("has more windows than the header".to_owned());
        }
        for ((of, kld), &n_tokens) in windows.iter().zip(&cell.klds).zip(&cell.n_tokens) {
            let most = f64::from(n_tokens);
            let possible = -ROUNDING * most..=MOST_NATS * most;
            if n_tokens > of.n_rows || !possible.contains(kld) {
                let (window, n_rows) = (of.window, of.n_rows);
                return fault(format!(
                    "has {n_tokens} tokens with a KLD of {kld:?} in window {window}, which has \
                     {n_rows} rows"
                ));
            }
        }
        let index = self.cells.get(&cell.exchanged).copied();
        let known = index.and_then(|index| self.map.cells.get_mut(index));
        let n_known = known.as_ref().map_or(0, |known| known.klds.len());
        if cell.from != n_known {
            let from = cell.from;
            return fault(format!("starts at window {from}, and {n_known} are there"));
        }
        if let Some(known) = known {
            known.klds.extend(cell.klds);
            known.n_tokens.extend(cell.n_tokens);
        } else {
            let index = self.map.cells.len();
            self.cells.insert(cell.exchanged.clone(), index);
            self.map.cells.push(cell);
        }
        Ok(())
    }

    /// Checks that a tensor may have a type.
    fn check_type(&self, tensor: &str, kind: GgmlType) -> Result<(), String> {
        let index = self.tensors.get(tensor);
        let known = index.and_then(|&index| self.map.header.tensors.get(index));
        let name = tensor.escape_debug();
        let Some(known) = known else {
            return Err(format!("no tensor {name} in the header"));
        };
        if !known.is_quantizable {
            Err(format!("tensor {name} is never quantized"))
        } else if !kind.is_for_weights || !known.has_rows_of(kind) {
            Err(format!("tensor {name} cannot be {kind}"))
        } else {
            Ok(())
        }
    }

    fn end(&self) -> EndLine {
        EndLine {
            n_lines: self.n_lines,
            crc32: self.crc.clone().finalize(),
        }
    }

    /// Checks the lines before the end line against it, and that nothing follows it.
    fn check_end(&mut self, end: EndLine, file: &mut BufReader<File>, name: &Named) -> Result<()> {
        let there = self.end();
        if end.n_lines != there.n_lines {
            let what = format!("{} lines, and there are {}", end.n_lines, there.n_lines);
            return Err(self.corrupt(name, &what));
        }
        if end.crc32 != there.crc32 {
            return Err(self.corrupt(name, "the checksum of the lines before it does not match"));
        }
        let rest = file.fill_buf().map_err(|cause| name.io("read", cause))?;
        if !rest.is_empty() {
            return Err(self.corrupt(name, "more bytes follow the end"));
        }
        self.map.is_cut_off = false;
        Ok(())
    }

    /// The error for the line that follows those that were counted.
    fn corrupt(&self, name: &Named, what: &str) -> Error {
        let what = format!("line {}: {what}", self.n_lines + 1);
        name.corrupt(None, self.n_bytes, what)
    }
}

/// Parses a line; an error gives the column.
fn parse<'l, T: Deserialize<'l>>(line: &'l [u8]) -> Result<T, String> {
    let parsed = serde_json::from_slice(line.trim_ascii_end());
    parsed.map_err(|error| error.to_string().replace("at line 1 column", "in column"))
}

/// Reads the whole file and checks each byte: header, lines and end. Returns the number of lines
/// before the end.
///
/// # Errors
/// Those of [`SensitivityMap::read`], and [`Fault::Truncated`] without an end line.
pub fn verify(path: &Path) -> Result<u64> {
    let read = SensitivityMap::read_cut_off(path)?;
    let n_lines = read.n_lines;
    if read.map.is_cut_off {
        let what = format!("the map ends after {n_lines} whole lines");
        Err(Named::new(path).truncated(None, read.n_bytes, what))
    } else {
        Ok(n_lines)
    }
}

/// Writes a map to anything that accepts bytes, line by line; each line is flushed, so that a writer
/// that is cut off loses one line at most. [`MapWriter::map`] is what was written so far.
///
/// Until [`MapWriter::finish`] the map is one that was cut off, which can be resumed.
#[derive(Debug)]
pub struct MapWriter<W: Write> {
    out: W,
    name: Named,
    written: CutOffMap,
}

impl<W: Write> MapWriter<W> {
    /// Writes the header. `path` is only used in messages.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if the header is not valid, [`crate::Fault::Io`].
    pub fn create(out: W, path: &Path, header: MapHeader) -> Result<Self> {
        let name = Named::new(path);
        let json = header.to_lines(&name)?;
        let line = line_of(json.trim_ascii_end()).map_err(|what| name.unwritable(what))?;
        let written = CutOffMap::new(header);
        let mut writer = Self { out, name, written };
        writer.put(&line)?;
        Ok(writer)
    }

    /// Continues a map after its whole lines; `seek` moves `out` to the byte that follows them, and
    /// drops what is there.
    ///
    /// # Errors
    /// [`crate::Fault::Io`] with what `seek` returns.
    pub fn resume(
        mut out: W,
        path: &Path,
        mut written: CutOffMap,
        seek: impl FnOnce(&mut W, u64) -> io::Result<()>,
    ) -> Result<Self> {
        let name = Named::new(path);
        seek(&mut out, written.n_bytes).map_err(|cause| name.io("write", cause))?;
        written.map.is_cut_off = true;
        Ok(Self { out, name, written })
    }

    /// The map so far.
    pub fn map(&self) -> &SensitivityMap {
        &self.written.map
    }

    /// Writes weight errors of a tensor, at types that it has none of yet.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if a reader would refuse the line, [`crate::Fault::Io`].
    pub fn write_errors(&mut self, tensor: &str, errors: &BTreeMap<GgmlType, f64>) -> Result<()> {
        self.write(&ErrorsLine {
            tensor: tensor.to_owned(),
            errors: errors.clone(),
        })
    }

    /// Writes a cell, or continues one: [`Cell::from`] is then the number of its windows so far.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if a reader would refuse the line, [`crate::Fault::Io`].
    pub fn write_cell(&mut self, cell: &Cell) -> Result<()> {
        self.write(cell)
    }

    /// Writes the end line, and returns the output and the map.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    pub fn finish(mut self) -> Result<(W, SensitivityMap)> {
        let end = self.json(&self.written.end())?;
        self.put(&[&end[..], b"\n"].concat())?;
        self.written.map.is_cut_off = false;
        Ok((self.out, self.written.map))
    }

    /// Writes a line that a reader accepts.
    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let unwritable = |what| self.name.unwritable(what);
        let line = line_of(&self.json(line)?).map_err(unwritable)?;
        self.written.add(&line).map_err(unwritable)?;
        self.put(&line)
    }

    fn json(&self, line: &impl Serialize) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(line);
        json.map_err(|error| self.name.unwritable(format!("a line as JSON: {error}")))
    }

    fn put(&mut self, line: &[u8]) -> Result<()> {
        let written = self.out.write_all(line).and_then(|()| self.out.flush());
        written.map_err(|cause| self.name.io("write", cause))?;
        self.written.count(line);
        Ok(())
    }
}

/// The line of a JSON object, with its checksum.
fn line_of(json: &[u8]) -> Result<Vec<u8>, String> {
    let line = with_checksum(json).ok_or("a line that is not an object")?;
    if line.len() > MAX_LINE_BYTES {
        return Err("a line of more than 64 MiB".to_owned());
    }
    Ok(line)
}
