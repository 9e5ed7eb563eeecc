//! Folders that are right, and folders that are not.

mod large;

use std::fs;
use std::path::{Path, PathBuf};

use half::f16;

use super::SafetensorsReader;
use crate::Float;
use crate::ReadBlocks;
use crate::testing::bits;
use crate::{About, Reference};

const N_VOCAB: usize = 5;

/// A folder of files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn open(&self) -> crate::Result<SafetensorsReader> {
        SafetensorsReader::open(self.0.path())
    }

    /// The folder as a reference.
    fn about(&self) -> About {
        Reference::open(self.0.path()).unwrap().about().clone()
    }

    /// Opening it is an error of one line, which names this file and the fault.
    fn refused(&self, file: &str, what: &str) {
        let text = self.open().unwrap_err().to_string();
        let is_named = text.contains(file) && text.contains(what);
        assert!(is_named && !text.contains('\n'), "{what}: {text}");
    }
}

/// A tensor: name, type, shape, bytes.
type SampleTensor<'t> = (&'t str, &'t str, &'t [u64], Vec<u8>);

/// A file as the format's own library writes it.
fn file(tensors: &[SampleTensor<'_>]) -> Vec<u8> {
    let (mut json, mut data) = (serde_json::Map::new(), Vec::new());
    json.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let tensor = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        json.insert((*name).to_owned(), tensor);
        data.extend_from_slice(bytes);
    }
    with_header(&serde_json::Value::from(json).to_string(), &data)
}

fn with_header(json: &str, data: &[u8]) -> Vec<u8> {
    let length = (json.len() as u64).to_le_bytes();
    [&length, json.as_bytes(), data].concat()
}

/// `n` rows of logits.
fn rows(n: usize) -> Vec<f32> {
    (0..n * N_VOCAB)
        .map(|i| (i * 37 % 101) as f32 / 8.0 - 6.0)
        .collect()
}

fn f32s(rows: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(rows).to_vec()
}

/// A whole file of two rows, with token ids.
pub(crate) fn sample(logits: &[f32]) -> Vec<u8> {
    file(&[
        ("tokens", "I32", &[2], vec![0; 8]),
        ("log_probs", "F32", &[2, 5], f32s(logits)),
    ])
}

/// A window of `n` rows without token ids.
fn window(n: usize) -> Vec<u8> {
    file(&[("log_probs", "F32", &[n as u64, 5], f32s(&rows(n)))])
}

#[test]
fn windows_come_in_the_order_of_their_numbers() {
    let folder = Folder::new();
    for n in 1..=12 {
        folder.put(&format!("{}.safetensors", n + 8), &window(n));
    }
    folder.put("config.json", b"{}");
    let reader = folder.open().unwrap();
    let about = folder.about();
    assert_eq!((about.n_windows, about.n_vocab), (Some(12), 5));
    assert_eq!((about.n_ctx, about.n_rows), (12, Some(78)));
    assert_eq!(about.holds_tokens, Some(false));
    assert!(!about.holds_log_probabilities());
    for index in 0..12 {
        let spec = reader.window(index).unwrap();
        assert_eq!(
            spec.n_rows,
            index as u32 + 1,
            "9, 10, ... and not 10, 11, ..., 9"
        );
        assert_eq!(
            (spec.window, spec.tokens, spec.first_scored),
            (index as u32, vec![], 0)
        );
        let block = reader.block(index, 0, None).unwrap();
        let expected: Vec<u32> = rows(index + 1).iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits(&block), expected);
    }
}

#[test]
fn every_type_of_entry_and_of_id_is_read() {
    let logs: Vec<f32> = [0.5f32, 0.25, 0.125, 0.0625, 0.0625].map(f32::ln).into();
    let as_f16 = |x: &f32| f16::from_f32(*x).to_le_bytes();
    let as_bf16 = |x: &f32| half::bf16::from_f32(*x).to_le_bytes();
    let as_f64 = |x: &f32| f64::from(*x).to_le_bytes();
    let entries: [(&str, Vec<u8>, Float); 4] = [
        ("F16", logs.iter().flat_map(as_f16).collect(), Float::F16),
        ("BF16", logs.iter().flat_map(as_bf16).collect(), Float::Bf16),
        ("F32", f32s(&logs), Float::F32),
        ("F64", logs.iter().flat_map(as_f64).collect(), Float::F64),
    ];
    let ids: [(&str, &str, Vec<u8>); 3] = [
        (
            "input_ids",
            "I64",
            bytemuck::cast_slice(&[3i64, 4]).to_vec(),
        ),
        (
            "token_ids",
            "I32",
            bytemuck::cast_slice(&[3i32, 4]).to_vec(),
        ),
        ("tokens", "U32", bytemuck::cast_slice(&[3u32, 4]).to_vec()),
    ];
    for (dtype, bytes, float) in &entries {
        for (name, id_type, id_bytes) in &ids {
            let folder = Folder::new();
            let rows: SampleTensor<'_> = ("x", dtype, &[1, 1, 5], bytes.clone());
            let ids: SampleTensor<'_> = (name, id_type, &[2], id_bytes.clone());
            folder.put("0.safetensors", &file(&[ids, rows]));
            let reader = folder.open().unwrap();
            let about = folder.about();
            assert_eq!(about.encoding, float.name());
            assert!(about.holds_log_probabilities());
            let spec = reader.window(0).unwrap();
            assert_eq!((spec.tokens, spec.n_rows), (vec![3, 4], 1));
            let block = reader.block(0, 0, None).unwrap();
            for (i, expected) in logs.iter().enumerate() {
                assert!((block.row(0).get(i) - expected).abs() < 0.02, "{dtype}");
            }
        }
    }
}

#[test]
fn folders_without_proper_windows_are_refused() {
    let folder = Folder::new();
    folder.put("notes.txt", b"");
    folder.refused("", "without safetensors files");
    folder.put("0.safetensors", &window(1));
    folder.put("2.safetensors", &window(1));
    folder.refused("2.safetensors", "window 1");
    folder.put("1.safetensors", &window(1));
    folder.put("01.safetensors", &window(1));
    folder.refused("1.safetensors", "window 2");
    fs::remove_file(folder.0.path().join("01.safetensors")).unwrap();
    for name in [
        "model.safetensors",
        "+3.safetensors",
        ".safetensors.safetensors",
    ] {
        let path = folder.put(name, &window(1));
        folder.refused(name, "not a number");
        fs::remove_file(path).unwrap();
    }
    assert_eq!(folder.about().n_windows, Some(3));
    let wide = file(&[("logits", "F32", &[1, 6], f32s(&[0.0; 6]))]);
    folder.put("3.safetensors", &wide);
    folder.refused("3.safetensors", "rows of 6");
    let with_ids = file(&[
        ("logits", "F32", &[1, 5], f32s(&rows(1))),
        ("tokens", "I32", &[1], vec![0; 4]),
    ]);
    folder.put("3.safetensors", &with_ids);
    folder.refused("3.safetensors", "token ids");
    assert!(SafetensorsReader::open(Path::new("/no/such/folder")).is_err());
}

/// Tensors whose bytes are all 1, and what the error about each file states. The last two have ids of
/// all ones, and the largest there are.
const WRONG_TENSORS: &str = "
 => 0 could be
x F32 [10] => 0 could be
x F32 [2,5]; y F32 [2,5] => 2 could be
logits F32 [2,5]; logprobs F32 [2,5] => leave one
logits I64 [1,5] => type I64
logits F8_E4M3 [8,5] => type F8_E4M3
logits F32 [2,1,5] => its shape is [2, 1, 5]
logits F32 [0,5] => its shape is [0, 5]
logits F32 [1,0] => its shape is [1, 0]
x F32 [2,5]; tokens I32 [1] => for 2 rows
x F32 [2,5]; tokens I32 [4] => for 2 rows
x F32 [2,5]; tokens F32 [2] => token ids must be
x F32 [2,5]; tokens I32 [2] => position 0
x F32 [2,5]; tokens I64 [2] => position 0
";

#[test]
fn tensors_that_are_not_rows_or_ids_are_refused() {
    let folder = Folder::new();
    for case in WRONG_TENSORS.trim_matches('\n').lines() {
        let (tensors, what) = case.split_once(" => ").unwrap();
        let tensors = tensors.split_terminator("; ").map(|tensor| {
            let words: Vec<&str> = tensor.splitn(3, ' ').collect();
            let shape: Vec<u64> = serde_json::from_str(words[2]).unwrap();
            let entry = match words[1] {
                "I64" => 8,
                "F8_E4M3" => 1,
                _ => 4,
            };
            let n: u64 = shape.iter().product();
            (words[0], words[1], shape, vec![1; (n * entry) as usize])
        });
        let tensors: Vec<_> = tensors.collect();
        let tensors = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| (*name, *dtype, &shape[..], bytes.clone()));
        folder.put("0.safetensors", &file(&tensors.collect::<Vec<_>>()));
        folder.refused("0.safetensors", what);
    }
}

#[test]
fn hostile_headers_are_refused() {
    let folder = Folder::new();
    let refused = |bytes: &[u8], what: &str| {
        folder.put("0.safetensors", bytes);
        folder.refused("0.safetensors", what);
    };
    let header = |json: &str, what: &str| refused(&with_header(json, &[0; 40]), what);
    for length in [100_000_001, u64::MAX] {
        refused(&[&length.to_le_bytes()[..], b"{}"].concat(), "too large");
    }
    refused(
        &[&99u64.to_le_bytes()[..], b"{}"].concat(),
        "within its header",
    );
    header("", "JSON");
    header("[]", "JSON");
    header(&"[".repeat(1 << 20), "JSON");
    header(&format!("{{\"a\":{}", "{\"a\":".repeat(1 << 20)), "JSON");
    header(
        &format!("{{\"__metadata__\":{}", "[".repeat(1 << 20)),
        "JSON",
    );
    let tensor = |shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let one = |shape: &str, offsets: &str| format!(r#"{{"logits":{}}}"#, tensor(shape, offsets));
    header(&one("[2,5]", "[40,0]"), "at 40 to 0");
    header(&one("[2,5]", "[4,44]"), "at 4 to 44 of 40");
    header(
        &one("[2,5]", "[18446744073709551575,18446744073709551615]"),
        "at 18446744073709551575 to",
    );
    header(&one("[2,5]", "[0,39]"), "at 0 to 39");
    header(&one("[2,5]", "[-1,39]"), "JSON");
    header(&one("[2,5]", "[0,36893488147419103232]"), "JSON");
    // 2^62 entries of 4 bytes are 2^64, and 0 modulo that.
    header(&one("[2147483648,2147483648]", "[0,0]"), "at 0 to 0");
    header(
        &one("[4294967296,4294967296,4294967296]", "[0,40]"),
        "at 0 to 40",
    );
    let two = tensor("[1,5]", "[0,20]");
    // Of two entries with one name the last counts, as in Python.
    let last = format!(r#"{{"logits":7,"\u006cogits":{two}}}"#);
    folder.put("0.safetensors", &with_header(&last, &[0; 40]));
    assert_eq!(folder.open().unwrap().window(0).unwrap().n_rows, 1);
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let whole = sample(&rows(2));
    let folder = Folder::new();
    folder.put("0.safetensors", &whole);
    let reader = folder.open().unwrap();
    folder.put("0.safetensors", &whole[..whole.len() - 1]);
    let error = reader.block(0, 0, None).unwrap_err();
    assert!(error.to_string().contains("has changed"), "{error}");
}

#[test]
fn rows_that_are_not_finite_do_not_show_what_they_are() {
    let mut rows = vec![f32::NAN; 15];
    let fifth = 0.2f32.ln();
    rows[10..].fill(fifth);
    let folder = Folder::new();
    folder.put(
        "0.safetensors",
        &file(&[("x", "F32", &[3, 5], f32s(&rows))]),
    );
    assert!(folder.about().holds_log_probabilities());
    rows[10..].fill(f32::NEG_INFINITY);
    folder.put(
        "0.safetensors",
        &file(&[("x", "F32", &[3, 5], f32s(&rows))]),
    );
    assert!(!folder.about().holds_log_probabilities());
}
