//! Reads all that a file holds, whatever it holds: what the fuzz targets do with each input, and
//! `formats/tests/corpus.rs` with each file of the corpus.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;

use kl_formats::*;

use super::framing;
use super::on_disk::OnDisk;

/// A reader to be fuzzed; `E` is its error.
pub struct Target<E = Error> {
    /// The target's name, and its corpus folder's.
    pub name: &'static str,
    /// Reads everything. An error is fine, a panic is not.
    pub read: fn(&Path) -> std::result::Result<(), E>,
    /// Bytes of memory that any file may use, however short.
    pub constant: usize,
    /// Bytes of memory that each byte of the file may use in addition.
    pub factor: usize,
    /// Makes the file of an input, or the folder.
    pub frame: fn(&[u8]) -> OnDisk,
}

impl<E> Target<E> {
    /// Bytes of memory that a file of `file_bytes` may use.
    pub fn memory(&self, file_bytes: usize) -> usize {
        self.constant + self.factor * file_bytes
    }
}

/// Deflate packs 1032 bytes into one. A row uses its packed bytes, its plain ones, where it ends, and
/// as f32 twice as many as that: 1 / 1032 + 1 + 1 / 2 + 2. Tokens are held three times.
const INFLATED: usize = 4 * 1032;

/// Buffers and tables of a reader.
const BUFFERS: usize = 4 << 20;

/// kl.py's header line or an npz array's, 64 KiB at most, as a tree of its values: 18 MiB were
/// seen.
const LITERAL: usize = 32 << 20;

/// The readers of kl-formats.
pub const TARGETS: [Target; 8] = [
    NATIVE,
    KL_PY,
    LLAMA_CPP,
    SAFETENSORS,
    NPZ,
    SIDECAR,
    MAP,
    REFERENCE,
];

/// Hidden states become f32 in a list that doubles.
pub const NATIVE: Target = Target {
    name: "native",
    read: native,
    constant: BUFFERS,
    factor: 2 * INFLATED,
    frame: framing::members,
};

pub const KL_PY: Target = Target {
    name: "kl_py",
    read: reference,
    constant: LITERAL,
    factor: INFLATED,
    frame: framing::gzip,
};

/// Rows are read some at a time, tokens whole; a row becomes f32.
pub const LLAMA_CPP: Target = Target {
    name: "llama_cpp",
    read: reference,
    constant: BUFFERS,
    factor: 4,
    frame: framing::none,
};

/// The header is held, its names twice, a size of 2 bytes as one of 8; a row becomes f32.
pub const SAFETENSORS: Target = Target {
    name: "safetensors",
    read: reference,
    constant: BUFFERS,
    factor: 32,
    frame: framing::safetensors,
};

/// A token id of meta_json has 2 bytes, and uses 4, in a list that doubles.
pub const NPZ: Target = Target {
    name: "npz",
    read: reference,
    constant: LITERAL,
    factor: 2 * INFLATED,
    frame: framing::npz,
};

/// Records are small and read one after the other. A group's name of 2 bytes uses 24, in a list that
/// doubles.
pub const SIDECAR: Target = Target {
    name: "sidecar",
    read: sidecar,
    constant: BUFFERS,
    factor: 32,
    frame: framing::none,
};

/// A sum has 2 bytes at least, and uses 8 in a list that doubles; the header is held twice, and what a
/// cell exchanges too.
pub const MAP: Target = Target {
    name: "map",
    read: map,
    constant: BUFFERS,
    factor: 64,
    frame: framing::none,
};

pub const REFERENCE: Target = Target {
    name: "reference",
    read: reference,
    constant: LITERAL,
    factor: 2 * INFLATED,
    frame: framing::none,
};

fn native(path: &Path) -> Result<()> {
    cut_off(path);
    let reader = NativeReader::open(path)?;
    let mut windows = 0..reader.windows().len();
    let whole = reader.verify_head();
    let whole = whole.and_then(|()| windows.try_for_each(|i| reader.verify_window(i)));
    let found = read_native(reader);
    assert!(
        found.is_ok() || whole.is_err(),
        "a file is verified that cannot be read"
    );
    found
}

/// Checks that the whole windows of a file that was cut off can be read and resumed.
fn cut_off(path: &Path) {
    if let Ok(reader) = NativeReader::open_cut_off(path) {
        assert!(reader.windows_end <= reader.file_bytes());
        assert!(native::count_windows(path).is_ok_and(|n| n >= reader.windows().len()));
        black_box(Writer::resume(std::io::sink(), path, &reader).map(|writer| writer.file_bytes()))
            .ok();
        read_native(reader).expect("whole windows");
    }
}

fn read_native(reader: NativeReader) -> Result<()> {
    black_box((reader.path(), reader.file_bytes(), &reader.header));
    let prompts = reader.header.prompts.iter().flatten();
    prompts.for_each(|prompt| drop(black_box(prompt.content.label())));
    let windows: Vec<WindowEntry> = reader.windows().copied().collect();
    match reader.into_reference().into_rows() {
        Rows::Blocks(blocks) => read_blocks(&*blocks, &windows),
        Rows::States(file, states) => read_states(&file, &states, &windows),
        Rows::Stream(_) | Rows::Model(_) => panic!("a native file without blocks"),
    }
}

/// Every window and every block.
fn read_blocks(reader: &dyn ReadBlocks, windows: &[WindowEntry]) -> Result<()> {
    let mut reuse = None;
    for (i, entry) in windows.iter().enumerate() {
        let window = reader.window(i)?;
        assert_eq!(window.entry(), *entry);
        let mut n_rows = 0;
        for b in 0..reader.n_blocks(i) {
            reader.prefetch(i, b);
            let block = reader.block(i, b, reuse.take())?;
            assert_eq!(block.first_row, n_rows);
            n_rows += block.n_rows() as u32;
            decode(&block);
            reuse = Some(block);
        }
        assert_eq!(n_rows, window.n_rows);
    }
    Ok(())
}

/// The head, the check rows, and every window's states, group by group; the first of each twice.
fn read_states(reader: &NativeReader, states: &States, windows: &[WindowEntry]) -> Result<()> {
    let mut head = Vec::new();
    if let Err(error) = reader.head().read_to_end(&mut head) {
        return Err(error.downcast::<Error>().expect("an error of this crate"));
    }
    assert_eq!(head.len() as u64, states.head_bytes());
    let rows = reader.check_rows()?;
    assert_eq!(rows.len(), states.check.rows.len());
    for (i, entry) in windows.iter().enumerate() {
        assert_eq!(reader.window(i)?.entry(), *entry);
        (0..reader.n_blocks(i)).for_each(|b| reader.prefetch(i, b));
        let mut last = None;
        let n_embd = states.n_embd as usize;
        let mut n_rows = 0;
        for rows in states.row_batches(entry) {
            assert_eq!(rows.start, n_rows);
            n_rows = rows.end;
            let group = reader.read_states(i, rows.clone(), &mut last)?;
            let first = reader.read_states(i, rows.start..rows.start + 1, &mut last)?;
            assert_eq!(group.len(), rows.len() * n_embd);
            let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            assert!(first.len() == n_embd && first.iter().zip(&group).all(is_same));
        }
        assert_eq!(n_rows, entry.n_rows);
    }
    Ok(())
}

/// Every window; of every third, rows are skipped.
fn read_stream(reader: &mut dyn ReadStream) -> Result<()> {
    let mut i = 0;
    while let Some(window) = reader.next_window()? {
        let mut n_rows = 0;
        while i % 3 != 2 && n_rows < window.n_rows {
            let block = reader.next_rows(5)?.expect("the window's rows");
            assert_eq!(block.first_row, n_rows);
            n_rows += block.n_rows() as u32;
            decode(&block);
        }
        i += 1;
    }
    Ok(())
}

fn sidecar(path: &Path) -> Result<()> {
    black_box(SidecarReader::open_cut_off(path).ok());
    let is_sidecar = Found::look(path) == Found::Sidecar;
    let whole = kl_formats::sidecar::verify(path);
    let reader = SidecarReader::open(path)?;
    assert!(
        is_sidecar,
        "a file that does not start like a sidecar is opened"
    );
    black_box((reader.path(), reader.file_bytes()));
    let n_records = reader.n_records();
    let texts = reader.texts()?;
    for (id, text) in texts.iter() {
        assert_eq!(texts.get(id), Some(text));
    }
    let records = reader.read_all()?;
    assert_eq!(records.len() as u64, n_records);
    assert!(whole? <= n_records);
    for record in records {
        black_box((record.is_excluded(), record.next_token()));
        black_box(texts.text(&[record.ref_top, record.eval_top]));
    }
    Ok(())
}

fn map(path: &Path) -> Result<()> {
    let whole = kl_formats::map::verify(path);
    let read = SensitivityMap::read_cut_off(path)?;
    let map = read.map();
    assert_eq!(whole.is_ok(), !map.is_cut_off);
    // What was read is written, and reads the same.
    let header = map.header.clone();
    let mut writer = MapWriter::create(std::io::sink(), path, header).expect("a header");
    for (tensor, errors) in &map.errors {
        writer.write_errors(tensor, errors).expect("errors");
    }
    for cell in &map.cells {
        writer.write_cell(cell).expect("a cell");
    }
    assert!(writer.map().cells == map.cells && writer.map().errors == map.errors);
    black_box(MapWriter::resume(std::io::sink(), path, read, |_, _| Ok(())).map(MapWriter::finish))
        .ok();
    whole.map(|_| ())
}

fn reference(path: &Path) -> Result<()> {
    let kind = sniff(path)?;
    if path.is_file() {
        let _ = File::open(path).map(|file| read_piped(path, file));
    }
    let mut reference = Reference::open(path)?;
    assert_eq!(reference.about().kind, kind);
    let about = reference.about().clone();
    assert_eq!(reference.fingerprint()?.is_some(), !path.is_dir());
    let listed = reference.windows().map(<[WindowEntry]>::to_vec);
    // A base file has the text's own token where the model decodes its BOS.
    for bos in [0, about.n_vocab - 1, about.n_vocab] {
        reference.set_bos(Some(bos));
        if about.hides_bos {
            for window in reference.read_windows()?.flatten() {
                assert!(window.tokens[0] == bos && bos < about.n_vocab);
            }
        }
    }
    reference.set_bos(None);
    match (reference.into_rows(), listed) {
        (Rows::Blocks(blocks), Some(windows)) => {
            read_blocks(&*blocks, &windows)?;
            (0..windows.len()).for_each(|i| _ = black_box(blocks.verify_window(i)));
            Ok(())
        }
        (Rows::States(file, states), Some(windows)) => read_states(&file, &states, &windows),
        (Rows::Model(_), _) => panic!("a file without rows"),
        (Rows::Blocks(_) | Rows::States(..), None) => panic!("no list of windows"),
        (Rows::Stream(mut stream), _) => read_stream(&mut *stream),
    }
}

/// Reads all that can be read of a file that comes through a pipe.
fn read_piped(path: &Path, file: File) -> Result<()> {
    let reference = Reference::read_once(path, file)?;
    assert!(reference.fingerprint()?.is_some());
    let windows = reference.windows().map(<[WindowEntry]>::len);
    let read: Option<Vec<_>> = reference.read_windows().ok().map(Iterator::collect);
    assert_eq!(windows, read.map(|read| read.len()));
    match reference.into_rows() {
        Rows::Stream(mut stream) => read_stream(&mut *stream),
        rows => panic!("a pipe that can be read twice: {rows:?}"),
    }
}

/// Looks at every row, and decodes the first and the last whole.
fn decode(block: &RowBlock) {
    for row in block.rows() {
        assert_eq!(row.len(), block.n_vocab());
        black_box((row.is_finite(), row.first(2).get(0)));
    }
    let last = block.n_rows().saturating_sub(1);
    let mut logits = vec![0.0; block.n_vocab()];
    for i in [0, last] {
        block.row(i).decode_into(&mut logits);
        let first = block.row(i).get(0);
        assert!(logits[0] == first || (first.is_nan() && logits[0].is_nan()));
    }
    black_box(logits);
}
