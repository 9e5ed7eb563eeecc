//! Models longer than 2^32 bytes, in one file and in parts.

use std::path::{Path, PathBuf};

use super::*;
use crate::sparse::sparse;

const F16: u32 = 1;

/// Bytes of a tensor of 2^32 + 2^26 elements in F16, a multiple of the alignment.
const LARGE: u64 = 2 * ((1 << 32) + (1 << 26));

/// A model of a large tensor, and one of 64 elements after it, with this name.
fn model(name: &str, split: Option<(u16, u16)>) -> Vec<u8> {
    let mut model = sample();
    if let Some((number, count)) = split {
        model.pairs.retain(|pair| !pair[8..].starts_with(b"split."));
        model.pair("split.no", U16, &number.to_le_bytes()).pair(
            "split.count",
            U16,
            &count.to_le_bytes(),
        );
    } else {
        model.pairs.retain(|pair| !pair[8..].starts_with(b"split."));
    }
    model.infos.clear();
    model.data_bytes = 0;
    model
        .tensor("large", &[1 << 16, LARGE >> 17], F16, 0)
        .tensor(name, &[16, 4], F16, LARGE);
    model.bytes()
}

/// The bytes of the small tensor.
fn small(first: u8) -> Vec<u8> {
    (0..128).map(|i| first.wrapping_add(i)).collect()
}

/// Writes it, with these bytes in the small tensor.
fn write(path: &Path, model: &[u8], small: &[u8]) -> u64 {
    let at = model.len() as u64 + LARGE;
    let len = at + small.len() as u64;
    sparse(path, len, &[(0, model), (at, small)]);
    len
}

fn bytes_of<'h>(header: &'h Gguf, name: &str) -> (&'h Tensor, Vec<u8>) {
    let tensor = header.tensor(name).unwrap();
    (tensor, header.read_tensor(tensor).unwrap())
}

#[test]
fn a_tensor_beyond_4_gib_is_found_and_read_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let header = model("output.weight", None);
    let len = write(&path, &header, &small(1));
    let summary = read(&path).unwrap();
    assert_eq!(summary.file_bytes, len);
    let (tensor, bytes) = bytes_of(&summary, "output.weight");
    assert_eq!(bytes, small(1));
    assert_eq!(tensor.offset, header.len() as u64 + LARGE);
    assert_eq!((tensor.bytes, &tensor.shape[..]), (128, &[16, 4][..]));
    assert_eq!(summary.tensor("large").unwrap().bytes, LARGE);
    // The samples reach to the last byte.
    write(&path, &header, &small(2));
    let other = read(&path).unwrap();
    assert_eq!(other.metadata_sha256, summary.metadata_sha256);
    assert_ne!(other.sample_sha256, summary.sample_sha256);
    // A byte less, and the tensor is said to be cut off.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(len - 1).unwrap();
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains(": incomplete at byte "), "{error}");
}

#[test]
fn each_part_of_a_split_model_may_be_longer_than_4_gib() {
    let folder = tempfile::tempdir().unwrap();
    let part = |n: u16| -> PathBuf { folder.path().join(format!("m-0000{n}-of-00003.gguf")) };
    let mut len = 0;
    for n in 1..=3 {
        let name = format!("small{n}");
        let header = model(&name, Some((n - 1, 3)));
        len += write(&part(n), &header, &small(n as u8));
    }
    let summary = read(&part(1)).unwrap();
    assert!(len > 3 << 32);
    assert_eq!(summary.file_bytes, len);
    for n in 1..=3 {
        let (tensor, bytes) = bytes_of(&summary, &format!("small{n}"));
        assert_eq!(summary.files[tensor.file], part(n));
        assert_eq!(bytes, small(n as u8));
    }
    // Another last part, and it is another model.
    let header = model("small3", Some((2, 3)));
    write(&part(3), &header, &small(9));
    let other = read(&part(1)).unwrap();
    assert_ne!(other.sample_sha256, summary.sample_sha256);
}
