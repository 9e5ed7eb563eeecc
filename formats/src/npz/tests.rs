//! Zips that are right, and zips that are not.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use rawzip::{CompressionMethod, ZipArchiveWriter};

use super::NpzReader;
use crate::Fault;
use crate::testing::{Scratch, assert_fault};
use crate::{ReadStream, Reference, Values};

/// A zip of members, as numpy writes it: `savez`, or deflated as by `savez_compressed`.
fn zip(members: &[(&str, Vec<u8>)], deflated: bool) -> Vec<u8> {
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for (name, bytes) in members {
        let method = if deflated {
            CompressionMethod::DEFLATE
        } else {
            CompressionMethod::STORE
        };
        let file = archive.new_file(*name).compression_method(method);
        let (mut entry, config) = file.start().unwrap();
        let descriptor = if deflated {
            let encoder = DeflateEncoder::new(&mut entry, Compression::fast());
            let mut writer = config.wrap(encoder);
            writer.write_all(bytes).unwrap();
            let (encoder, descriptor) = writer.finish().unwrap();
            encoder.finish().unwrap();
            descriptor
        } else {
            let mut writer = config.wrap(&mut entry);
            writer.write_all(bytes).unwrap();
            writer.finish().unwrap().1
        };
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap()
}

/// An array of numpy.
fn npy(descr: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let dict =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}          \n");
    let length = (dict.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], dict.as_bytes(), bytes].concat()
}

fn logits(n: usize) -> Vec<f32> {
    (0..n * 5)
        .map(|i| (i * 37 % 101) as f32 / 8.0 - 6.0)
        .collect()
}

/// An array of `n` rows of 5.
fn rows(n: usize) -> Vec<u8> {
    npy(
        "<f4",
        &format!("({n}, 5)"),
        bytemuck::cast_slice(&logits(n)),
    )
}

fn ids(ids: &[i64]) -> Vec<u8> {
    npy(
        "<i8",
        &format!("({},)", ids.len()),
        bytemuck::cast_slice(ids),
    )
}

fn meta(json: &serde_json::Value) -> Vec<u8> {
    let json = json.to_string();
    npy("|u1", &format!("({},)", json.len()), json.as_bytes())
}

/// Windows with their rows, two at a time.
fn read(reader: &mut NpzReader) -> crate::Result<Vec<(Vec<u32>, Vec<f32>)>> {
    let mut windows = Vec::new();
    while let Some(spec) = reader.next_window()? {
        let mut all = Vec::new();
        while let Some(block) = reader.next_rows(2)? {
            for row in block.rows() {
                all.extend((0..row.len()).map(|i| row.get(i)));
            }
        }
        assert_eq!(all.len(), 5 * spec.n_rows as usize);
        windows.push((spec.tokens, all));
    }
    Ok(windows)
}

/// A whole file, with token ids and mlx-kld's `meta_json`.
pub(crate) fn sample(deflated: bool) -> Vec<u8> {
    let prompts = serde_json::json!({"prompts": [{"token_ids": [1, 2]}]});
    let members = [
        ("meta_json.npy", meta(&prompts)),
        ("logprobs_0.npy", rows(2)),
        ("token_ids_0.npy", ids(&[1, 2])),
    ];
    zip(&members, deflated)
}

#[test]
fn windows_come_in_the_order_of_their_numbers() {
    let scratch = Scratch::new();
    for deflated in [false, true] {
        let members: Vec<(String, Vec<u8>)> = (3..15)
            .rev()
            .map(|n| (format!("logits_{n}.npy"), rows(n)))
            .collect();
        let members: Vec<(&str, Vec<u8>)> = members
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.clone()))
            .collect();
        let mut reader = NpzReader::open(scratch.file(&zip(&members, deflated))).unwrap();
        let expected: Vec<_> = (3..15).map(|n| (vec![], logits(n))).collect();
        assert_eq!(read(&mut reader).unwrap(), expected);
        let reference = NpzReader::open(&scratch.path).unwrap().into_reference();
        let about = reference.unwrap().about().clone();
        assert_eq!((about.n_windows, about.n_vocab), (Some(12), 5));
        assert_eq!(
            (about.holds_tokens, &about.model_path),
            (Some(false), &None)
        );
        assert_eq!((about.values, about.encoding), (Values::Logits, "f32"));
    }
}

#[test]
fn rows_may_be_skipped() {
    let scratch = Scratch::new();
    let bytes = zip(&[("arr_0.npy", rows(3)), ("arr_1.npy", rows(2))], true);
    let mut reader = NpzReader::open(scratch.file(&bytes)).unwrap();
    reader.next_window().unwrap().unwrap();
    reader.next_rows(1).unwrap().unwrap();
    assert_eq!(reader.next_window().unwrap().unwrap().n_rows, 2);
    assert_eq!(reader.next_rows(9).unwrap().unwrap().n_rows(), 2);
    assert!(reader.next_rows(9).unwrap().is_none());
    assert!(reader.next_window().unwrap().is_none());
}

#[test]
fn token_ids_are_read_from_arrays_and_from_prompts() {
    let scratch = Scratch::new();
    let both = [
        ("logits_0.npy", rows(2)),
        ("logits_1.npy", rows(1)),
        ("token_ids_0.npy", ids(&[4, 0])),
        ("token_ids_1.npy", ids(&[1, 2])),
    ];
    let mut reader = NpzReader::open(scratch.file(&zip(&both, false))).unwrap();
    let tokens = |reader: &mut NpzReader| {
        let windows = read(reader).unwrap();
        windows
            .into_iter()
            .map(|(tokens, _)| tokens)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        tokens(&mut reader),
        [[4, 0], [1, 2]],
        "the last is one more than rows"
    );
    let prompts = serde_json::json!({
        "reference_model": "org/model",
        "prompts": [
            {"prompt": "a", "token_ids": [3, 1], "token_strings": ["a", "b"]},
            {"prompt": "b", "token_ids": [2], "token_strings": ["c"]},
        ],
    });
    let cache = [
        ("meta_json.npy", meta(&prompts)),
        ("logprobs_0.npy", rows(2)),
        ("logprobs_1.npy", rows(1)),
    ];
    let mut reader = NpzReader::open(scratch.file(&zip(&cache, true))).unwrap();
    assert_eq!(tokens(&mut reader), [vec![3, 1], vec![2]]);
    assert_eq!(reader.model.as_deref(), Some("org/model"));
}

/// What mlx-kld's `meta_json` may hold beside the rows of one token, and the error about each.
const METAS: &str = r#"
{"prompts": []} => read
{"prompts": [{}, {}, {}]} => read
{"prompts": [{"token_ids": [1]}]} => read
{"prompts": [{"token_ids": [9]}]} => position 0
{"prompts": [{"token_ids": [1]}, {}]} => 2 prompts
{"format": "sparse_topk", "prompts": []} => sparse
{"format": "other", "prompts": []} => "other"
"text" => meta_json
"#;

#[test]
fn an_error_states_why_a_file_is_refused() {
    let scratch = Scratch::new();
    let refused = |members: &[(&str, Vec<u8>)], what: &str| {
        for deflated in [false, true] {
            let error = NpzReader::open(scratch.file(&zip(members, deflated))).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(what) && !text.contains('\n'),
                "{what}: {text}"
            );
        }
    };
    let one = ("logits_0.npy", rows(1));
    let alone = |name, array, what| refused(&[(name, array)], what);
    let beside = |name, array, what| refused(&[one.clone(), (name, array)], what);
    refused(&[], "holds no rows");
    alone("weights.npy", rows(1), "holds no rows");
    beside("logits_2.npy", rows(1), "none of window 1");
    for name in ["logits_0.npy", "logprobs_0.npy", "logits_00.npy"] {
        beside(name, rows(1), "another array of its kind");
    }
    beside("logits_1.npy", npy("<f4", "(1, 6)", &[0; 24]), "rows of 6");
    for (descr, what) in [
        (">f4", "little-endian"),
        ("|O", "little-endian"),
        ("<i4", "rows must be"),
    ] {
        alone("logits_0.npy", npy(descr, "(1, 5)", &[0; 20]), what);
    }
    let vector = npy("<f4", "(5,)", &[0; 20]);
    alone("arr_0.npy", vector, "its shape is [5]");
    let junk = b"junk and more of it".to_vec();
    alone("arr_0.npy", junk, "not a numpy array");
    alone("arr_0.npy", Vec::new(), "arr_0.npy");
    let two = ("logits_1.npy", rows(2));
    let first_alone = [one.clone(), two, ("tokens_0.npy", ids(&[1]))];
    refused(&first_alone, "token ids of other windows");
    beside("tokens_5.npy", ids(&[1]), "token ids of other windows");
    let shape = "token ids of shape [3] for 1 rows";
    beside("tokens_0.npy", ids(&[1, 2, 3]), shape);
    beside("tokens_0.npy", ids(&[5]), "position 0");
    beside("tokens_0.npy", rows(1), "token ids must be");
    for case in METAS.trim().lines() {
        let (json, what) = case.split_once(" => ").unwrap();
        let json = serde_json::from_str(json).unwrap();
        let members = [("meta_json.npy", meta(&json)), one.clone()];
        if what == "read" {
            NpzReader::open(scratch.file(&zip(&members, true))).unwrap();
        } else {
            refused(&members, what);
        }
    }
    let deep = npy("|u1", "(1048576,)", "[".repeat(1 << 20).as_bytes());
    refused(&[("meta_json.npy", deep), one], "meta_json");
    let sparse = ["lp_0.npy", "idx_0.npy", "tail_0.npy"].map(|name| (name, rows(1)));
    refused(&sparse, "sparse kind");
}

/// Shapes of terabytes, in members that hold little, or many zeros.
#[test]
fn no_memory_is_allocated_for_a_shape() {
    let scratch = Scratch::new();
    let refused = |array: Vec<u8>| {
        for deflated in [false, true] {
            let bytes = zip(&[("arr_0.npy", array.clone())], deflated);
            let error = Reference::open(scratch.file(&bytes)).unwrap_err();
            assert!(!matches!(error.fault, Fault::Io { .. }), "{error}");
        }
    };
    refused(npy("<f4", "(67108864, 16777216)", &[0; 20]));
    refused(npy(
        "<f8",
        "(18446744073709551615, 18446744073709551615)",
        &[],
    ));
    refused(npy("<f8", "(4294967296, 536870912)", &[]));
    // A bomb: 16 MiB of zeros where the shape states 20 bytes.
    refused(npy("<f4", "(1, 5)", &vec![0; 16 << 20]));
    // And one whose stated size is that of its shape, in the directory and after its bytes.
    let lie = |length: usize, stated: u32| {
        let whole = npy("<f4", "(1, 5)", &vec![0; length]);
        let mut bytes = zip(&[("arr_0.npy", whole.clone())], true);
        let size = (whole.len() as u32).to_le_bytes();
        let at = bytes.windows(4).rposition(|bytes| bytes == size).unwrap();
        bytes[at..at + 4].copy_from_slice(&stated.to_le_bytes());
        bytes
    };
    let header = npy("<f4", "(1, 5)", &[]).len() as u32;
    let mut reader = NpzReader::open(scratch.file(&lie(20, header + 20))).unwrap();
    assert!(read(&mut reader).is_ok());
    let error = Reference::open(scratch.file(&lie(1 << 20, header + 20))).unwrap_err();
    assert!(
        error.to_string().contains("more than its shape states"),
        "{error}"
    );
    let error = Reference::open(scratch.file(&lie(16, header + 20))).unwrap_err();
    assert_fault(&error, "Truncated");
}

/// Two entries of the directory for one array, whose bytes would be held twice.
#[test]
fn members_that_share_bytes_are_refused() {
    let scratch = Scratch::new();
    let mut bytes = zip(&[("arr_0.npy", rows(1)), ("arr_1.npy", rows(1))], false);
    let mut entries = bytes.windows(4).enumerate();
    let entries = [(); 2].map(|()| entries.find(|(_, four)| *four == b"PK\x01\x02").unwrap().0);
    // Where an entry holds the offset of its member.
    let [first, second] = entries.map(|at| at + 42..at + 46);
    bytes.copy_within(first, second.start);
    let error = NpzReader::open(scratch.file(&bytes)).unwrap_err();
    assert_fault(&error, "Corrupt");
    assert!(
        error.to_string().contains("arr_1.npy shares bytes"),
        "{error}"
    );
}

#[test]
fn a_changed_byte_of_a_row_is_noticed() {
    let scratch = Scratch::new();
    let mut bytes = zip(&[("logits_0.npy", rows(3))], false);
    let entry = logits(3)[7].to_le_bytes();
    let at = bytes.windows(4).position(|bytes| bytes == entry).unwrap();
    bytes[at] ^= 1;
    let mut reader = NpzReader::open(scratch.file(&bytes)).unwrap();
    let error = read(&mut reader).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    assert_fault(&error, "Corrupt(Position { window: Some(0)");
}
