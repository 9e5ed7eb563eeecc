//! Reads all that a file holds, whatever it holds: what the fuzz targets do with each input, and
//! `formats/tests/corpus.rs` with each file of the corpus.

use std::hint::black_box;
use std::path::Path;

use kl_formats::*;

use super::framing;
use super::given::Given;

/// A reader of everything.
pub type ReadAll = fn(&Path) -> Result<()>;

/// What is tried.
pub struct Target {
    /// The target's name, and its corpus folder's.
    pub name: &'static str,
    /// Reads everything. An error is fine, a panic is not.
    pub read: ReadAll,
    /// Bytes of memory that any file may take, however short.
    pub constant: usize,
    /// And those that each of its bytes may take besides.
    pub factor: usize,
    /// Makes the file of an input, or the folder.
    pub frame: fn(&[u8]) -> Given,
}

impl Target {
    /// Bytes of memory that so many bytes of files may take.
    pub fn memory(&self, file_bytes: usize) -> usize {
        self.constant + self.factor * file_bytes
    }
}

/// Deflate packs 1032 bytes into one. A row takes its packed bytes, its plain ones, and as f32 twice
/// as many as that: 1 / 1032 + 1 + 2. Tokens are held three times.
const INFLATED: usize = 4 * 1032;

/// What readers read into, and tables.
const BUFFERS: usize = 4 << 20;

/// kl.py's header line or an npz array's, 64 KiB at most, as a tree of its values: 18 MiB were seen.
const LITERAL: usize = 32 << 20;

/// All of them.
pub const TARGETS: [Target; 8] = [
    NATIVE,
    KL_PY,
    LLAMA_CPP,
    SAFETENSORS,
    NPZ,
    SIDECAR,
    GGUF,
    REFERENCE,
];

pub const NATIVE: Target = Target {
    name: "native",
    read: native,
    constant: BUFFERS,
    factor: INFLATED,
    frame: framing::members,
};

pub const KL_PY: Target = Target {
    name: "kl_py",
    read: kl_py,
    constant: LITERAL,
    factor: INFLATED,
    frame: framing::gzip,
};

/// Rows are read some at a time, tokens whole; a row becomes f32.
pub const LLAMA_CPP: Target = Target {
    name: "llama_cpp",
    read: llama_cpp,
    constant: BUFFERS,
    factor: 4,
    frame: framing::none,
};

/// The header is held, its names twice, a size of 2 bytes as one of 8; a row becomes f32.
pub const SAFETENSORS: Target = Target {
    name: "safetensors",
    read: safetensors,
    constant: BUFFERS,
    factor: 32,
    frame: framing::safetensors,
};

/// A token id of meta_json has 2 bytes, and takes 4, in a list that doubles.
pub const NPZ: Target = Target {
    name: "npz",
    read: npz,
    constant: LITERAL,
    factor: 2 * INFLATED,
    frame: framing::npz,
};

/// Records are small and read one after the other; the header's strings are held once more.
pub const SIDECAR: Target = Target {
    name: "sidecar",
    read: sidecar,
    constant: BUFFERS,
    factor: 8,
    frame: framing::none,
};

/// All keys are held, to find those that come twice: the shortest takes 13 bytes of the file.
pub const GGUF: Target = Target {
    name: "gguf",
    read: gguf,
    constant: BUFFERS,
    factor: 32,
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
    let whole = native::verify(path);
    let found = read_native(&NativeReader::open(path)?);
    assert!(
        found.is_ok() || whole.is_err(),
        "verify takes a file for whole that cannot be read"
    );
    found
}

/// What is called whole of a file that was cut off can be read, and gone on behind.
fn cut_off(path: &Path) {
    if let Ok(reader) = NativeReader::open_cut_off(path) {
        assert!(reader.windows_end() <= reader.file_bytes());
        assert!(native::count_windows(path).is_ok_and(|n| n >= reader.windows().len()));
        read_native(&reader).expect("whole windows");
        black_box(NativeWriter::resume(std::io::sink(), path, &reader).file_bytes());
    }
}

fn read_native(reader: &NativeReader) -> Result<()> {
    black_box((reader.path(), reader.file_bytes(), reader.header()));
    let prompts = reader.header().prompts.iter().flatten();
    prompts.for_each(|prompt| drop(black_box(prompt.content.label())));
    let mut reuse = None;
    for (i, entry) in reader.windows().iter().enumerate() {
        let head = reader.head(i)?;
        assert_eq!(
            (head.window, head.tokens.len()),
            (entry.window, entry.n_tokens as usize)
        );
        black_box(entry.offset());
        let mut n_rows = 0;
        for p in 0..reader.n_pieces(i) {
            reader.prefetch_piece(i, p);
            let block = reader.piece(i, p, reuse.take())?;
            assert_eq!(block.first_row, n_rows);
            n_rows += block.n_rows() as u32;
            decode(&block);
            reuse = Some(block);
        }
        assert_eq!(n_rows, head.n_rows);
    }
    Ok(())
}

fn kl_py(path: &Path) -> Result<()> {
    read_kl_py(KlPyReader::open(path)?)
}

fn read_kl_py(mut reader: KlPyReader) -> Result<()> {
    black_box((reader.path(), reader.header()));
    while let Some(head) = reader.next_window()? {
        // Of every third window the rows are passed over.
        if head.window % 3 != 2 {
            while let Some(block) = reader.next_rows(5)? {
                decode(&block);
            }
        }
    }
    Ok(())
}

fn llama_cpp(path: &Path) -> Result<()> {
    read_llama_cpp(&LlamaCppReader::open(path)?)
}

fn read_llama_cpp(reader: &LlamaCppReader) -> Result<()> {
    let header = reader.header();
    black_box((reader.path(), header.n_rows()));
    let rows_per_block = rows_per_piece(Encoding::U16, header.n_vocab);
    let mut reuse = None;
    for i in 0..reader.n_windows() {
        for bos in [None, Some(0), Some(header.n_vocab - 1)] {
            let head = reader.head(i, bos)?;
            assert_eq!(bos.or(head.tokens.first().copied()), Some(head.tokens[0]));
        }
        assert!(reader.head(i, Some(header.n_vocab)).is_err());
        let mut first_row = 0;
        while first_row < header.rows_per_window() {
            let n = rows_per_block.min(header.rows_per_window() - first_row);
            reader.prefetch(i, first_row, n);
            let block = reader.block(i, first_row, n, reuse.take())?;
            decode(&block);
            reuse = Some(block);
            first_row += n;
        }
    }
    Ok(())
}

fn sidecar(path: &Path) -> Result<()> {
    black_box(SidecarReader::open_cut_off(path).ok());
    let is_sidecar = is_sidecar(path);
    let whole = kl_formats::sidecar::verify(path);
    let reader = SidecarReader::open(path)?;
    assert!(is_sidecar, "what does not start as a sidecar is opened");
    black_box((reader.path(), reader.file_bytes()));
    let n_records = reader.header().n_records;
    let records = reader.read_all()?;
    assert_eq!(records.len() as u64, n_records);
    assert_eq!(whole?.n_rows, n_records);
    for record in records {
        black_box((record.is_excluded(), record.next_token()));
    }
    Ok(())
}

fn gguf(path: &Path) -> Result<()> {
    gguf::read(path).map(|summary| _ = black_box(summary))
}

fn reference(path: &Path) -> Result<()> {
    let kind = sniff(path)?;
    let reference = Reference::open(path)?;
    assert_eq!(reference.kind(), kind);
    black_box((reference.path(), reference.n_ctx(), reference.n_vocab()));
    black_box((reference.n_windows(), reference.n_rows()));
    match reference {
        Reference::Native(reader) => read_native(&reader),
        Reference::KlPy(reader) => read_kl_py(reader),
        Reference::LlamaCpp(reader) => read_llama_cpp(&reader),
        Reference::Safetensors(reader) => read_safetensors(&reader),
        Reference::Npz(reader) => read_npz(reader),
    }
}

fn safetensors(path: &Path) -> Result<()> {
    read_safetensors(&SafetensorsReader::open(path)?)
}

fn read_safetensors(reader: &SafetensorsReader) -> Result<()> {
    black_box((reader.path(), reader.file_bytes(), reader.float()));
    black_box(reader.log_probabilities());
    let mut reuse = None;
    for (i, rows) in reader.rows_per_window().enumerate() {
        let head = reader.head(i);
        assert_eq!((head.window, head.n_rows), (i as u32, rows));
        assert_eq!(head.tokens.is_empty(), !reader.holds_tokens());
        let mut n_rows = 0;
        for number in 0..reader.n_blocks(i) {
            let block = reader.block(i, number, reuse.take())?;
            assert_eq!(block.first_row, n_rows);
            n_rows += block.n_rows() as u32;
            decode(&block);
            reuse = Some(block);
        }
        assert_eq!(n_rows, rows);
    }
    Ok(())
}

fn npz(path: &Path) -> Result<()> {
    read_npz(NpzReader::open(path)?)
}

fn read_npz(mut reader: NpzReader) -> Result<()> {
    black_box((reader.path(), reader.file_bytes(), reader.float()));
    black_box((reader.log_probabilities(), reader.model()));
    for i in 0..reader.n_windows() {
        let head = reader.head(i);
        assert_eq!(reader.next_window()?, Some(head.clone()));
        assert_eq!(head.tokens.is_empty(), !reader.holds_tokens());
        // Of every third window the rows are passed over.
        let mut n_rows = 0;
        while i % 3 != 2 && n_rows < head.n_rows {
            let block = reader.next_rows(5)?.expect("the head's rows");
            assert_eq!(block.first_row, n_rows);
            n_rows += block.n_rows() as u32;
            decode(&block);
        }
    }
    assert_eq!(reader.next_window()?, None);
    Ok(())
}

/// Looks at every row; the first and the last are decoded whole.
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
