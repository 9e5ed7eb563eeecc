//! Importance matrices, as llama.cpp's `llama-imatrix` writes them, and as its quantizer reads them
//! (`common/imatrix-loader.cpp`, and `load_imatrix` in `tools/quantize/quantize.cpp`).
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kl_formats::{Found, ImatrixIdentity, MapTensor};

use super::EngineError;
use super::gguf::{self, Cursor, Gguf, ModelError, Tensor, open, sha256_of};

/// The largest mean square that is believed: activations are at most 65,504 in f16, and ggml ends the
/// process where its sums overflow.
const MAX_VALUE: f32 = 1e15;

/// The mean squares of the activations that each column of a matrix is multiplied with.
#[derive(Clone, Debug)]
pub struct Imatrix {
    /// The file, as it was given.
    pub path: PathBuf,
    pub identity: ImatrixIdentity,
    /// The names of the texts that it was made of; empty if unknown.
    pub datasets: Vec<String>,
    /// The number of chunks of text that it was made of; `None` if unknown.
    pub n_chunks: Option<u32>,
    /// For each tensor, a value for each column, of one expert after the other.
    values: HashMap<String, Vec<f32>>,
}

impl Imatrix {
    /// Reads a GGUF or the older `.dat`.
    ///
    /// # Errors
    /// A file that cannot be read, is neither, is damaged, or holds a number that no activations have.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        let (file, _) = open(path)?;
        let sha256 = sha256_of(file)
            .map_err(|cause| ModelError::new(path, format!("cannot read: {cause}")))?;
        let file_name = path.file_name().unwrap_or(path.as_os_str());
        let mut imatrix = Self {
            path: path.to_owned(),
            identity: ImatrixIdentity {
                file_name: file_name.to_string_lossy().into_owned(),
                sha256,
            },
            datasets: Vec::new(),
            n_chunks: None,
            values: HashMap::new(),
        };
        if Found::look(path) == Found::Model {
            imatrix.read_gguf()?;
        } else {
            imatrix.read_dat()?;
        }
        let is_sound = |value: &f32| (0.0..=MAX_VALUE).contains(value);
        let mut entries = imatrix.values.iter();
        if let Some((name, _)) = entries.find(|(_, values)| !values.iter().all(is_sound)) {
            let what = format!(
                "the values of {name:?} are not means of squares (negative, too large or not a number): make it again"
            );
            return Err(EngineError::model(path, what));
        }
        Ok(imatrix)
    }

    /// The values of a tensor, n_columns x n_experts; `None` if there are none.
    pub fn values(&self, tensor: &str) -> Option<&[f32]> {
        self.values.get(tensor).map(Vec::as_slice)
    }

    /// The [`values`](Self::values) of a tensor of this shape.
    ///
    /// # Errors
    /// If there is another number of them.
    pub(super) fn values_for(
        &self,
        tensor: &str,
        shape: &[u64],
    ) -> Result<Option<&[f32]>, EngineError> {
        let Some(values) = self.values(tensor) else {
            return Ok(None);
        };
        let dimension = |i: usize| shape.get(i).copied().unwrap_or(1);
        let (n, n_columns, n_experts) = (values.len(), dimension(0), dimension(2));
        if n_columns.checked_mul(n_experts) == Some(n as u64) {
            return Ok(Some(values));
        }
        Err(self.of_another_model(&format!(
            "it has {n} values for {tensor}, which has {n_columns} columns of {n_experts} experts"
        )))
    }

    fn of_another_model(&self, what: &str) -> EngineError {
        let what = format!("{what}: it was made with another model; give this one's");
        EngineError::model(&self.path, what)
    }

    /// All entries: the names of tensors, and their values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &[f32])> {
        let entries = self.values.iter();
        entries.map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// The pairs that llama-quantize adds to the metadata of a file that was made with the matrix.
    pub(super) fn pairs(&self) -> Vec<(&'static str, PairValue)> {
        let text = |text: &str| PairValue::Text(cut(text).to_vec());
        let mut pairs = vec![("quantize.imatrix.file", text(&self.path.to_string_lossy()))];
        if let Some(dataset) = self.datasets.first() {
            pairs.push(("quantize.imatrix.dataset", text(dataset)));
        }
        let n_entries = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        let mut count = |key, n| pairs.push((key, PairValue::Number(n)));
        count("quantize.imatrix.entries_count", n_entries);
        self.n_chunks
            .inspect(|&n| count("quantize.imatrix.chunks_count", n));
        pairs
    }

    /// Refuses the matrix of another model.
    ///
    /// # Errors
    /// If it has values for none of the tensors, or another number of them than a tensor has columns.
    pub fn check(&self, tensors: &[MapTensor]) -> Result<(), EngineError> {
        let mut is_known = false;
        for tensor in tensors {
            is_known |= self.values_for(&tensor.name, &tensor.shape)?.is_some();
        }
        if is_known {
            return Ok(());
        }
        Err(self.of_another_model("it has values for none of the model's tensors"))
    }

    /// Reads the GGUF: for each matrix `NAME`, the tensors `NAME.in_sum2`, sums of squares of each column,
    /// and `NAME.counts`, how many were added, one for each expert.
    fn read_gguf(&mut self) -> Result<(), ModelError> {
        let header = gguf::read(&self.path)?;
        let fault = |what: String| ModelError::new(&self.path, what);
        let named = |suffix: &str| -> HashMap<&str, &Tensor> {
            let tensors = header.tensors.iter();
            tensors
                .filter_map(|tensor| Some((tensor.name.strip_suffix(suffix)?, tensor)))
                .collect()
        };
        let (sums, counts) = (named(".in_sum2"), named(".counts"));
        if sums.is_empty() {
            let what = match header.text("general.type") {
                Some("imatrix") => "it holds no sums",
                _ => "it is a model",
            };
            return Err(not_an_imatrix(&self.path, what));
        }
        let has = |key: &str| header.pair_bytes().any(|(found, _)| found == key);
        if let Some(key) = KEYS.into_iter().find(|key| !has(key)) {
            let what = format!("lacks {key}, so that llama-quantize refuses it: make it again");
            return Err(fault(what));
        }
        let stored: u64 = header.tensors.iter().map(|tensor| tensor.bytes).sum();
        if stored > header.file_bytes {
            let what = "corrupt: its tensors overlap; download or make it again";
            return Err(fault(what.to_owned()));
        }
        for (name, sums) in sums {
            let counts = counts.get(name).map(|counts| numbers(&header, counts));
            let (sums, counts) = (numbers(&header, sums)?, counts.unwrap_or(Ok(Vec::new()))?);
            let means = means(&sums, &counts).ok_or_else(|| {
                let (n_sums, n_counts) = (sums.len(), counts.len());
                fault(format!(
                    "{name:?} has {n_sums} sums and {n_counts} counts: make it again"
                ))
            })?;
            self.values.insert(name.to_owned(), means);
        }
        self.set_n_chunks(header.number("imatrix.chunk_count"));
        self.datasets = header.datasets;
        Ok(())
    }

    /// Reads the format from before GGUF: the number of entries, the entries, then the number of chunks and
    /// the text that the matrix was made of. All numbers are 32 bits, little-endian, and a text follows its
    /// length.
    fn read_dat(&mut self) -> Result<(), ModelError> {
        let mut cursor = Cursor::open(&self.path, "make")?;
        // Anything may look like a number of entries, but not like an entry too.
        let explain = |error| match Found::look(&self.path) {
            Found::Imatrix => error,
            found => not_an_imatrix(&self.path, &found.to_string()),
        };
        let n_entries = number(&mut cursor).map_err(explain)?;
        for i in 0..n_entries {
            let read = entry(&mut cursor);
            let (name, means) =
                read.map_err(|error| if i == 0 { explain(error) } else { error })?;
            self.values.insert(name, means);
        }
        if self.values.is_empty() {
            return Err(explain(cursor.corrupt("it has no entries")));
        }
        // Early files end here.
        if cursor.left() > 0 {
            self.set_n_chunks(Some(number(&mut cursor)?.into()));
            let bytes = length(&mut cursor, "the name of a text")?;
            let text = cursor.bytes(bytes, "the name of a text")?;
            if !text.is_empty() {
                self.datasets = vec![String::from_utf8_lossy(&text).into_owned()];
            }
        }
        Ok(())
    }

    /// Notes a number of chunks, if it is one: a signed number of 32 bits.
    fn set_n_chunks(&mut self, given: Option<i128>) {
        let n_chunks = given.and_then(|n| i32::try_from(n).ok());
        self.n_chunks = n_chunks.filter(|&n| n > 0).map(i32::cast_unsigned);
    }
}

/// The keys without which llama-quantize refuses the file.
const KEYS: [&str; 3] = [
    "imatrix.datasets",
    "imatrix.chunk_count",
    "imatrix.chunk_size",
];

/// Divides the sums by the count of their expert; `None` unless each has as many. Experts that no text has
/// reached have ones.
fn means(sums: &[f32], counts: &[f32]) -> Option<Vec<f32>> {
    let n_columns = sums.len().checked_div(counts.len()).filter(|&n| n > 0)?;
    if n_columns.checked_mul(counts.len()) != Some(sums.len()) {
        return None;
    }
    let experts = sums.chunks(n_columns).zip(counts);
    let means = experts.flat_map(|(sums, count)| {
        let count = count.round();
        let mean = move |sum: &f32| if count > 0.0 { sum / count } else { 1.0 };
        sums.iter().map(mean)
    });
    Some(means.collect())
}

/// Reads a tensor of f32.
fn numbers(header: &Gguf, tensor: &Tensor) -> Result<Vec<f32>, ModelError> {
    if tensor.kind.name != "f32" {
        let what = format!("{:?} is not f32: make it again", tensor.name);
        return Err(ModelError::new(header.path(), what));
    }
    Ok(floats(&header.read_tensor(tensor)?))
}

/// Longest name that is believed.
const MAX_NAME_BYTES: u64 = 1 << 10;

/// Reads an entry of the old format: a name, the number of chunks that it was made of, and for each column
/// the mean square times that number.
fn entry(cursor: &mut Cursor) -> Result<(String, Vec<f32>), ModelError> {
    let bytes = length(cursor, "a name")?;
    if bytes > MAX_NAME_BYTES {
        return Err(cursor.corrupt(format!("a name of {bytes} bytes")));
    }
    let text = cursor.bytes(bytes, "a name")?;
    let name = String::from_utf8_lossy(&text).into_owned();
    let n_calls = number(cursor)?;
    let n_values = length(cursor, "a number of columns")?;
    if n_values == 0 {
        return Err(cursor.corrupt(format!("{name:?} has no columns")));
    }
    let mut means = floats(&cursor.bytes(4 * n_values, "an entry")?);
    if n_calls > 0 {
        means.iter_mut().for_each(|mean| *mean /= n_calls as f32);
    }
    Ok((name, means))
}

fn number(cursor: &mut Cursor) -> Result<i32, ModelError> {
    Ok(cursor.u32()?.cast_signed())
}

fn length(cursor: &mut Cursor, what: &str) -> Result<u64, ModelError> {
    let n = number(cursor)?;
    u64::try_from(n).map_err(|_| cursor.corrupt(format!("{what} of length {n}")))
}

/// The numbers that are stored in these bytes, f32.
fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// The error for a file that holds something else.
fn not_an_imatrix(path: &Path, what: &str) -> ModelError {
    let what = format!("not an importance matrix: {what}; give a file that llama-imatrix wrote");
    ModelError::new(path, what)
}

/// The value of a pair in a model's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PairValue {
    Text(Vec<u8>),
    Number(u32),
}

impl PairValue {
    /// Its bytes in a file.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) => 8 + text.len() as u64,
            Self::Number(_) => 4,
        }
    }
}

/// The part of a text that llama-quantize keeps: up to a zero byte, and at most 127 bytes.
fn cut(text: &str) -> &[u8] {
    let text = text.as_bytes();
    let zero = text.iter().position(|&byte| byte == 0);
    let end = zero.unwrap_or(text.len()).min(127);
    text.get(..end).unwrap_or_default()
}
