//! Importance matrices of llama-imatrix, and ones made byte by byte: whole, cut off, and hostile.

use std::fs;

use kl_formats::hex;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;
use crate::gguf::change::any_change;
use crate::gguf::tests::made::{ARRAY, Model, STRING, U32, string, words};

fn fixture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../../fixtures/imatrix").join(name)
}

/// SHA-256 (hex) of all names and values, in the order of the names.
fn hash_of(imatrix: &Imatrix) -> String {
    let mut entries: Vec<_> = imatrix.entries().collect();
    entries.sort_by_key(|(name, _)| *name);
    let mut hash = Sha256::new();
    for (name, values) in entries {
        hash.update(name);
        values.iter().for_each(|x| hash.update(x.to_le_bytes()));
    }
    hex(&hash.finalize())
}

/// numpy computed the hashes, from what Python's gguf and struct read.
#[test]
fn both_formats_hold_what_numpy_finds_in_them() {
    const TINY: &str = "d7ab46aecc62bfd195dc6102389471643c23b422cc9a0f3bad6d0eb419ab1d7d";
    const MIXTRAL: &str = "c5af0c57937fcfd50968e677171c760ff4c7524d4ad440d8bac699fb3daf06ac";
    for (name, hash, n_entries, n_chunks) in [
        ("tiny.gguf", TINY, 21, 8),
        ("tiny.dat", TINY, 21, 8),
        ("mixtral.gguf", MIXTRAL, 8, 2),
    ] {
        let imatrix = Imatrix::read(&fixture(name)).unwrap();
        assert_eq!(hash_of(&imatrix), hash, "{name}");
        assert_eq!(imatrix.entries().count(), n_entries, "{name}");
        assert_eq!(imatrix.n_chunks, Some(n_chunks), "{name}");
        assert_eq!(imatrix.datasets, ["calibration.txt"], "{name}");
        let bytes = fs::read(fixture(name)).unwrap();
        let sha256 = hex(&Sha256::digest(bytes));
        assert_eq!(imatrix.identity.sha256, sha256);
        assert_eq!(imatrix.identity.file_name, name);
    }
}

fn floats_as_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The keys of llama-imatrix.
fn keys() -> Model {
    let texts = [
        &STRING.to_le_bytes()[..],
        &words(&[2]),
        &string("a.txt"),
        &string("b.txt"),
    ];
    let mut model = Model::default();
    model
        .pair("general.type", STRING, &string("imatrix"))
        .pair("imatrix.datasets", ARRAY, &texts.concat())
        .pair("imatrix.chunk_count", U32, &7u32.to_le_bytes())
        .pair("imatrix.chunk_size", U32, &512u32.to_le_bytes());
    model
}

/// A GGUF with these keys and the entry `a.weight`, of two columns and as many experts as there are counts.
fn gguf_of(mut model: Model, sums: &[f32], counts: &[f32]) -> Vec<u8> {
    let n_experts = counts.len() as u64;
    let counts_at = (4 * sums.len()).next_multiple_of(32);
    let n_columns = (sums.len() as u64).checked_div(n_experts).unwrap_or(0);
    model
        .tensor("a.weight.in_sum2", &[n_columns, n_experts], 0, 0)
        .tensor("a.weight.counts", &[1, n_experts], 0, counts_at as u64);
    let mut data = floats_as_bytes(sums);
    data.resize(counts_at, 0);
    data.extend(floats_as_bytes(counts));
    [model.bytes(), data].concat()
}

/// An older file of these entries, each a name, a number of calls and values.
fn dat_of(entries: &[(&str, i32, &[f32])]) -> Vec<u8> {
    let number = |n: usize| (n as i32).to_le_bytes().to_vec();
    let mut bytes = number(entries.len());
    for (name, n_calls, values) in entries {
        bytes.extend([number(name.len()), name.as_bytes().to_vec()].concat());
        bytes.extend([n_calls.to_le_bytes().to_vec(), number(values.len())].concat());
        bytes.extend(floats_as_bytes(values));
    }
    bytes
}

fn read_bytes(bytes: &[u8]) -> Result<Imatrix, EngineError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, bytes).unwrap();
    Imatrix::read(&path)
}

#[track_caller]
fn refused(bytes: &[u8], what: &str) {
    let message = read_bytes(bytes).unwrap_err().to_string();
    assert!(message.contains(what), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

/// As llama-quantize does: counts are rounded, and an expert that no text has reached has ones.
#[test]
fn sums_are_divided_by_the_counts_of_their_expert() {
    let sums = [6.0, 9.0, 4.0, 5.0, 0.0, 8.0];
    let imatrix = read_bytes(&gguf_of(keys(), &sums, &[2.6, 0.0, 0.4])).unwrap();
    let values = imatrix.values("a.weight").unwrap();
    assert_eq!(values, [2.0, 3.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!((imatrix.n_chunks, imatrix.datasets.len()), (Some(7), 2));
    assert_eq!(imatrix.values("b.weight"), None);
}

#[test]
fn an_older_file_may_say_nothing_of_its_text() {
    let bytes = dat_of(&[("a.weight", 2, &[6.0, 9.0]), ("b.weight", 0, &[6.0, 9.0])]);
    let imatrix = read_bytes(&bytes).unwrap();
    assert_eq!(imatrix.values("a.weight").unwrap(), [3.0, 4.5]);
    assert_eq!(imatrix.values("b.weight").unwrap(), [6.0, 9.0]);
    assert_eq!((imatrix.n_chunks, imatrix.datasets.len()), (None, 0));
}

#[test]
fn what_is_no_importance_matrix_is_refused() {
    let mut model = Model::default();
    model.pair("general.architecture", STRING, &string("llama"));
    for (bytes, what) in [
        (&b""[..], ""),
        (b"Once upon a time there was a fox.", ""),
        (&[0; 64], ""),
        (&model.bytes(), ": it is a model"),
        (&keys().bytes(), ": it holds no sums"),
    ] {
        refused(bytes, &format!("not an importance matrix{what}"));
    }
    let error = Imatrix::read(Path::new("/")).unwrap_err().to_string();
    assert_eq!(error, "/: is a folder: give a file");
}

#[test]
fn damaged_files_are_refused() {
    let whole = dat_of(&[("blk.0.w", 1, &[1.0; 4]), ("blk.1.w", 1, &[1.0; 4])]);
    for n in 12..whole.len() {
        refused(&whole[..n], "incomplete at byte ");
    }
    let cut = [&whole[..], b"\x07\0\0\0\x05\0\0\0a.t"].concat();
    refused(&cut, "incomplete");
    let whole = gguf_of(keys(), &[6.0, 9.0], &[1.0]);
    for n in 0..whole.len() {
        assert!(read_bytes(&whole[..n]).is_err(), "{n}");
    }
    for x in [f32::NAN, f32::INFINITY, -1.0, 1e16] {
        let what = "\"a.weight\" are not means of squares";
        refused(&dat_of(&[("a.weight", 1, &[1.0, x])]), what);
        refused(&gguf_of(keys(), &[x, 1.0], &[1.0]), what);
    }

    refused(&gguf_of(keys(), &[], &[1.0]), "0 sums and 1 counts");
    refused(&gguf_of(keys(), &[1.0, 1.0], &[]), "sums and 0 counts");
    let without = gguf_of(Model::default(), &[1.0], &[1.0]);
    refused(&without, "lacks imatrix.datasets");
}

#[test]
fn hostile_counts_take_no_memory() {
    let start = |n_entries: i32, name: i32| {
        [n_entries.to_le_bytes(), name.to_le_bytes(), *b"blk."].concat()
    };
    for (n, what) in [(i32::MAX, "2147483647 bytes"), (-1, "length -1")] {
        let what = format!("corrupt at byte 8: a name of {what}");
        refused(&start(i32::MAX, n), &what);
    }
    let mut bytes = dat_of(&[("a", 1, &[1.0]), ("b", 1, &[1.0])]);
    let at = bytes.len() - 8;
    bytes[at..at + 4].copy_from_slice(&i32::MAX.to_le_bytes());
    refused(&bytes, "an entry takes 8589934588 bytes");
    bytes[at..at + 4].copy_from_slice(&0_i32.to_le_bytes());
    refused(&bytes, "\"b\" has no columns");
    let mut bytes = dat_of(&[("a", 1, &[1.0])]);
    bytes[..4].copy_from_slice(&i32::MAX.to_le_bytes());
    refused(&bytes, "incomplete at byte ");

    // Many tensors that share their data.
    let mut model = keys();
    for i in 0..1000 {
        model.tensor(&format!("{i}.in_sum2"), &[1 << 16], 0, 0);
    }
    model.data_bytes = 4 << 16;
    refused(&model.bytes(), "its tensors overlap");
}

#[test]
fn the_matrix_of_another_model_is_refused() {
    let tensor = |name: &str, shape: &[u64]| MapTensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        kind: "f16".parse().unwrap(),
        is_quantizable: true,
        unmeasured: None,
    };
    let imatrix = read_bytes(&gguf_of(keys(), &[1.0; 6], &[1.0; 3])).unwrap();
    let check = |shape: &[u64]| {
        let tensors = [tensor("b.weight", &[9, 9]), tensor("a.weight", shape)];
        imatrix.check(&tensors).map_err(|error| error.to_string())
    };
    assert_eq!(check(&[2, 7, 3]), Ok(()));
    assert_eq!(check(&[6, 7]), Ok(()));
    let error = check(&[6, 7, 2]).unwrap_err();
    let what = "it has 6 values for a.weight, which has 6 columns of 2 experts: it was made with ";
    assert!(error.contains(what), "{error}");
    let error = imatrix.check(&[tensor("b.weight", &[2, 2])]).unwrap_err();
    assert!(error.to_string().contains("none of the model's tensors"));
}

#[test]
fn texts_are_cut_as_llama_quantize_cuts_them() {
    let mut imatrix = read_bytes(&dat_of(&[("a", 1, &[1.0])])).unwrap();
    imatrix.path = PathBuf::from("é".repeat(100));
    imatrix.datasets = vec!["a\0b".to_owned()];
    imatrix.n_chunks = Some(3);
    let pairs = imatrix.pairs().into_iter();
    let sizes: Vec<_> = pairs.map(|(key, value)| (key, value.bytes())).collect();
    let expected = [
        ("quantize.imatrix.file", 8 + 127),
        ("quantize.imatrix.dataset", 8 + 1),
        ("quantize.imatrix.entries_count", 4),
        ("quantize.imatrix.chunks_count", 4),
    ];
    assert_eq!(sizes, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn changed_files_never_panic(
        changes in prop::collection::vec(any_change(), 1..4),
        is_gguf in any::<bool>(),
    ) {
        let mut bytes = match is_gguf {
            true => gguf_of(keys(), &[1.0; 6], &[1.0; 3]),
            false => dat_of(&[("a.weight", 1, &[1.0; 4]), ("b.weight", 1, &[1.0; 4])]),
        };
        changes.iter().for_each(|change| change.apply(&mut bytes));
        if let Err(error) = read_bytes(&bytes) {
            let message = error.to_string();
            assert!(!message.contains('\n'), "{message:?}");
        }
    }
}
