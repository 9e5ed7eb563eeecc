use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::common::model;
use crate::testing::*;
use crate::{Error, Result};

fn header(n_records: u64) -> SidecarHeader {
    let reference = ReferenceSummary {
        kind: Some("kl.py".into()),
        ..Default::default()
    };
    SidecarHeader {
        writer: "kl test".into(),
        model: Some(model()),
        model_path: "a/m.gguf".into(),
        ..SidecarHeader::new(reference, 8, 5, n_records)
    }
}

fn record(i: u32) -> TokenRecord {
    TokenRecord {
        window: i,
        position: 1,
        token: 2,
        flags: TokenRecord::EVAL_NOT_FINITE,
        ref_top: 4,
        eval_top: 5,
        ref_top_rank: 6,
        eval_top_rank: 7,
        kld: 0.5,
        reverse_kld: 0.25,
        ref_nll: 2.0,
        eval_nll: -2.0,
        ref_entropy: 1.0,
    }
}

fn write(records: &[TokenRecord]) -> Vec<u8> {
    let header = header(records.len() as u64);
    let mut writer = SidecarWriter::create(Vec::new(), Path::new("out"), &header).unwrap();
    records
        .iter()
        .for_each(|record| writer.push(record).unwrap());
    writer.finish().unwrap()
}

fn read(path: &Path) -> Result<(SidecarHeader, Vec<TokenRecord>)> {
    let reader = SidecarReader::open(path)?;
    Ok((reader.header().clone(), reader.read_all()?))
}

#[test]
fn a_record_spelled_out() {
    let bytes = write(&[record(3)]);
    #[rustfmt::skip]
    let expected = [
        3, 0, 0, 0, // window
        1, 0, 0, 0, // position
        2, 0, 0, 0, // token
        2, 0, 0, 0, // flags
        4, 0, 0, 0, // ref_top
        5, 0, 0, 0, // eval_top
        6, 0, 0, 0, // ref_top_rank
        7, 0, 0, 0, // eval_top_rank
        0, 0, 0, 0, 0, 0, 0xe0, 0x3f, // kld
        0, 0, 0, 0, 0, 0, 0xd0, 0x3f, // reverse_kld
        0, 0, 0, 0, 0, 0, 0x00, 0x40, // ref_nll
        0, 0, 0, 0, 0, 0, 0x00, 0xc0, // eval_nll
        0, 0, 0, 0, 0, 0, 0xf0, 0x3f, // ref_entropy
    ];
    let start = bytes.len() - RECORD_BYTES;
    assert_eq!(bytes[start..start + 72], expected);
    let mut seed = bytes[start - 4..start].to_vec(); // the header's checksum
    assert_eq!(seed, crc32fast::hash(&bytes[..start - 4]).to_le_bytes());
    seed.extend(0u64.to_le_bytes());
    seed.extend(expected);
    assert_eq!(bytes[start + 72..], crc32fast::hash(&seed).to_le_bytes());
}

#[test]
fn flags_exclude_a_record_and_a_token_may_be_missing() {
    assert!(record(0).is_excluded());
    assert!(
        !TokenRecord {
            flags: 0,
            ..record(0)
        }
        .is_excluded()
    );
    assert_eq!(record(0).next_token(), Some(2));
    assert_eq!(
        TokenRecord {
            token: u32::MAX,
            ..record(0)
        }
        .next_token(),
        None
    );
}

#[test]
fn every_flipped_byte_and_every_truncation_is_found() {
    let bytes = write(&[record(0), record(1), record(2)]);
    let scratch = Scratch::new();
    assert_eq!(read(scratch.file(&bytes)).unwrap().1.len(), 3);
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 1 << (i % 8);
        let path = scratch.file(&damaged);
        let error = read(path).expect_err(&format!("byte {i}"));
        assert!(!error.to_string().contains('\n'));
        let found = verify(path).expect_err(&format!("byte {i}"));
        assert_eq!(found.to_string(), error.to_string());
    }
    for n in 0..bytes.len() {
        let error = read(scratch.file(&bytes[..n])).expect_err(&format!("{n} bytes"));
        let is_magic = n >= MAGIC_LINE.len();
        assert!(
            matches!(error, Error::Truncated { .. } if is_magic)
                || matches!(error, Error::NotASidecar { .. } if !is_magic),
            "{n}: {error}"
        );
    }
}

#[test]
fn a_whole_file_is_counted() {
    let bytes = write(&[record(1), record(1), record(0), record(1)]);
    let expected = VerifyReport {
        n_windows: 2,
        n_records: 4,
        file_bytes: bytes.len() as u64,
    };
    assert_eq!(verify(Scratch::new().file(&bytes)).unwrap(), expected);
}

#[test]
fn records_cannot_be_swapped() {
    let mut bytes = write(&[record(0), record(1)]);
    let start = bytes.len() - 2 * RECORD_BYTES;
    bytes[start..].rotate_left(RECORD_BYTES);
    let error = read(Scratch::new().file(&bytes)).unwrap_err();
    assert!(error.to_string().contains("record 0"), "{error}");
}

/// A file with any JSON line and a right checksum.
fn with_json(json: &str) -> Vec<u8> {
    let mut bytes = format!("{MAGIC_LINE}{json}\n").into_bytes();
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

#[test]
fn hostile_headers_are_refused() {
    let scratch = Scratch::new();
    let good = serde_json::to_value(header(0)).unwrap();
    assert!(read(scratch.file(&with_json(&good.to_string()))).is_ok());
    for (key, value) in [
        ("n_vocab", 0u64),
        ("n_vocab", u32::MAX.into()),
        ("n_ctx", 0),
        ("n_ctx", u64::MAX),
        ("n_records", 1),
        ("n_records", u64::MAX),
        ("version", 2),
        ("model", 5),
    ] {
        let mut json = good.clone();
        json[key] = value.into();
        assert!(
            read(scratch.file(&with_json(&json.to_string()))).is_err(),
            "{key} {value}"
        );
    }
    let long = with_json(&" ".repeat(MAX_HEADER_BYTES));
    assert!(matches!(
        read(scratch.file(&long)),
        Err(Error::TooLarge { .. })
    ));
    let deep = with_json(&"[".repeat(MAX_HEADER_BYTES / 2));
    assert!(matches!(
        read(scratch.file(&deep)),
        Err(Error::Header { .. })
    ));
}

#[test]
fn writers_refuse_more_or_fewer_records_than_the_header_states() {
    let header = header(1);
    let create = || SidecarWriter::create(Vec::new(), Path::new("out"), &header).unwrap();
    assert!(create().finish().is_err());
    let mut writer = create();
    writer.push(&record(0)).unwrap();
    assert!(writer.push(&record(0)).is_err());
}

#[test]
fn a_sidecar_is_recognised_by_its_bytes() {
    let scratch = Scratch::new();
    assert!(is_sidecar(scratch.file(&write(&[]))));
    assert!(!is_sidecar(scratch.file(b"kl_sidecar_v")));
    assert!(!is_sidecar(Path::new("/no/such/file")));
}

fn any_record() -> impl Strategy<Value = TokenRecord> {
    (any::<[u32; 8]>(), any::<[f64; 5]>()).prop_map(|(n, x)| TokenRecord {
        window: n[0],
        position: n[1],
        token: n[2],
        flags: n[3],
        ref_top: n[4],
        eval_top: n[5],
        ref_top_rank: n[6],
        eval_top_rank: n[7],
        kld: x[0],
        reverse_kld: x[1],
        ref_nll: x[2],
        eval_nll: x[3],
        ref_entropy: x[4],
    })
}

proptest! {
    #[test]
    fn round_trip(records in prop::collection::vec(any_record(), 0..20)) {
        let bytes = write(&records);
        let (found_header, found) = read(Scratch::new().file(&bytes)).unwrap();
        prop_assert_eq!(found_header, header(records.len() as u64));
        // As text: NaN is not equal to itself.
        prop_assert_eq!(format!("{found:?}"), format!("{records:?}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn changed_files_give_errors_or_the_same(changes in prop::collection::vec(any_change(), 1..4)) {
        let bytes = write(&[record(0), record(1), record(2)]);
        let mut changed = bytes.clone();
        changes.iter().for_each(|change| change.apply(&mut changed));
        let scratch = Scratch::new();
        let path = scratch.file(&changed);
        match read(path) {
            Ok(found) => prop_assert_eq!(found, read(scratch.file(&bytes)).unwrap()),
            Err(error) => check_message(&error, path),
        }
    }

    /// Records dropped, doubled and moved, and the header's count and checksum made right.
    #[test]
    fn records_out_of_place_are_found(order in prop::collection::vec(0usize..3, 0..5)) {
        let records = [record(0), record(1), record(2)];
        let bytes = write(&records);
        let start = bytes.len() - 3 * RECORD_BYTES;
        let json = serde_json::to_string(&header(order.len() as u64)).unwrap();
        let mut changed = with_json(&json);
        for &i in &order {
            let at = start + i * RECORD_BYTES;
            changed.extend(&bytes[at..at + RECORD_BYTES]);
        }
        let scratch = Scratch::new();
        let path = scratch.file(&changed);
        match read(path) {
            // With another count the header's checksum is another, which each record's covers.
            Ok((_, found)) => {
                prop_assert!(order.is_empty() || order == [0, 1, 2]);
                prop_assert_eq!(found, &records[..order.len()]);
            }
            Err(error) => check_message(&error, path),
        }
    }
}

#[test]
fn a_sidecar_that_was_cut_off_at_any_byte_resumes_to_the_same_bytes() {
    let header = header(5);
    let write = |mut writer: SidecarWriter<Vec<u8>>, records: std::ops::Range<u32>| {
        for i in records {
            writer.push(&record(i)).unwrap();
        }
        writer.finish().unwrap()
    };
    let whole = write(
        SidecarWriter::create(Vec::new(), Path::new("out"), &header).unwrap(),
        0..5,
    );
    let start = whole.len() - 5 * RECORD_BYTES;
    let scratch = Scratch::new();
    for length in 0..start {
        let error = SidecarReader::open_cut_off(scratch.file(&whole[..length])).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{length}: {error}");
    }
    let resume = |left: &[u8], n_whole: usize| {
        let cut_off = SidecarReader::open_cut_off(scratch.file(left)).unwrap();
        assert_eq!(cut_off.records.len(), n_whole);
        // A window begins with every second record: what is kept may be less than what is whole.
        let n = cut_off.records.len() as u64 / 2 * 2;
        let seek = |out: &mut Vec<u8>, offset: u64| {
            out.truncate(offset as usize);
            Ok(())
        };
        let path = Path::new("out");
        SidecarWriter::resume(left.to_vec(), path, &cut_off.header, n, seek).unwrap()
    };
    for length in start..=whole.len() {
        let n_whole = (length - start) / RECORD_BYTES;
        let writer = resume(&whole[..length], n_whole);
        assert_eq!(write(writer, n_whole as u32 / 2 * 2..5), whole, "{length}");
    }
    for index in start..whole.len() {
        let mut damaged = whole.clone();
        damaged[index] ^= 1;
        let n_whole = (index - start) / RECORD_BYTES;
        let writer = resume(&damaged, n_whole);
        assert_eq!(write(writer, n_whole as u32 / 2 * 2..5), whole, "{index}");
    }
}
