//! The GGUF: for each matrix `NAME`, the tensors `NAME.in_sum2`, sums of squares of each column, and
//! `NAME.counts`, how many were added, one for each expert.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;

use kl_formats::GgmlType;

use super::{Contents, floats, not_an_imatrix};
use crate::engine::EngineError;
use crate::engine::gguf::{self, Gguf, ModelError, Tensor};

/// The keys without which llama-quantize refuses the file.
const KEYS: [&str; 3] = [
    "imatrix.datasets",
    "imatrix.chunk_count",
    "imatrix.chunk_size",
];

pub(super) fn read(path: &Path) -> Result<Contents, EngineError> {
    let header = gguf::read(path)?;
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
        return Err(not_an_imatrix(path, what).into());
    }
    let has = |key: &str| header.pair_bytes().any(|(found, _)| found == key);
    if let Some(key) = KEYS.into_iter().find(|key| !has(key)) {
        let what = format!("lacks {key}, so that llama-quantize refuses it: make it again");
        return Err(EngineError::model(path, what));
    }
    let stored: u64 = header.tensors.iter().map(|tensor| tensor.bytes).sum();
    if stored > header.file_bytes {
        let what = "corrupt: its tensors overlap; download or make it again";
        return Err(EngineError::model(path, what));
    }
    let mut values = HashMap::new();
    for (name, sums) in sums {
        let counts = counts.get(name).copied();
        let counts = counts.map_or(Ok(Vec::new()), |counts| numbers(path, &header, counts))?;
        let sums = numbers(path, &header, sums)?;
        let means = means(&sums, &counts).ok_or_else(|| {
            let what = format!(
                "{name:?} has {} sums and {} counts: make it again",
                sums.len(),
                counts.len()
            );
            EngineError::model(path, what)
        })?;
        values.insert(name.to_owned(), means);
    }
    Ok(Contents {
        n_chunks: header.number("imatrix.chunk_count").unwrap_or(0),
        datasets: header.datasets,
        values,
    })
}

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
        sums.iter().map(move |sum| match count > 0.0 {
            true => sum / count,
            false => 1.0,
        })
    });
    Some(means.collect())
}

/// Reads a tensor of f32.
fn numbers(path: &Path, header: &Gguf, tensor: &Tensor) -> Result<Vec<f32>, EngineError> {
    if GgmlType::of(tensor.type_id).is_none_or(|kind| kind.name != "f32") {
        let what = format!("{:?} is not f32: make it again", tensor.name);
        return Err(EngineError::model(path, what));
    }
    let mut bytes = Vec::new();
    let read = header.open(tensor)?.read_to_end(&mut bytes);
    read.map_err(|cause| ModelError::new(path, format!("cannot read: {cause}")))?;
    Ok(floats(&bytes))
}
