use std::path::Path;

use proptest::prelude::*;

use super::trailer::Trailer;
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
        label: Some("m, q8 cache".into()),
        groups: vec!["wiki".into(), "code".into()],
        ..SidecarHeader::new(reference, 8, 5, Some(n_records))
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
        ref_top_p: 0.5,
        eval_top_p: 0.25,
        ref_unknown_p: 0.0,
        group: 1,
    }
}

fn texts() -> TokenTexts {
    [(2, &b" two"[..]), (4, b""), (5, b"\xc3")]
        .into_iter()
        .collect()
}

/// The bytes of a file's end: the texts and the trailer.
const END_BYTES: usize = 23 + TRAILER_BYTES;

/// The bytes of [`texts`] and of a trailer for this number of records.
fn end(n_records: u64, header_crc: u32) -> Vec<u8> {
    let section = texts().to_bytes();
    let trailer = Trailer::new(n_records, &section);
    [section, trailer::to_bytes(&trailer, header_crc)].concat()
}

fn write(records: &[TokenRecord]) -> Vec<u8> {
    let header = header(records.len() as u64);
    let mut writer = SidecarWriter::create(Vec::new(), Path::new("out"), &header).unwrap();
    records
        .iter()
        .for_each(|record| writer.push(record).unwrap());
    writer.finish(&texts()).unwrap()
}

fn read(path: &Path) -> Result<(SidecarHeader, Vec<TokenRecord>)> {
    let mut reader = SidecarReader::open(path)?;
    let expected = match reader.header().version {
        SIDECAR_VERSION => texts(),
        _ => TokenTexts::default(),
    };
    assert_eq!(reader.texts()?, expected);
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
        0, 0, 0, 0, 0, 0, 0xe0, 0x3f, // ref_top_p
        0, 0, 0, 0, 0, 0, 0xd0, 0x3f, // eval_top_p
        0, 0, 0, 0, 0, 0, 0, 0, // ref_unknown_p
        1, 0, 0, 0, // group
    ];
    let end = bytes.len() - END_BYTES;
    let start = end - RECORD_BYTES;
    assert_eq!(bytes[start..start + 100], expected);
    let header_crc = bytes[start - 4..start].to_vec();
    assert_eq!(
        header_crc,
        crc32fast::hash(&bytes[..start - 4]).to_le_bytes()
    );
    let mut covered = header_crc.clone();
    covered.extend(0u64.to_le_bytes());
    covered.extend(expected);
    let crc = crc32fast::hash(&covered).to_le_bytes();
    assert_eq!(bytes[start + 100..end], crc);
    #[rustfmt::skip]
    let section = [
        2, 0, 0, 0, 4, 0, b' ', b't', b'w', b'o', // id, length, text
        4, 0, 0, 0, 0, 0,
        5, 0, 0, 0, 1, 0, 0xc3,
    ];
    assert_eq!(bytes[end..end + 23], section);
    let end = end + 23;
    #[rustfmt::skip]
    let trailer = [
        b'k', b'l', b's', b'_', b'e', b'n', b'd', b'\n',
        1, 0, 0, 0, 0, 0, 0, 0, // records
        23, 0, 0, 0, 0, 0, 0, 0, // bytes of the texts
    ];
    assert_eq!(bytes[end..end + 24], trailer);
    let texts_crc = crc32fast::hash(&section).to_le_bytes();
    assert_eq!(bytes[end + 24..end + 28], texts_crc);
    let covered = [&header_crc[..], &trailer, &texts_crc].concat();
    let crc = crc32fast::hash(&covered).to_le_bytes();
    assert_eq!(bytes[end + 28..], crc);
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
    let special = TokenRecord {
        flags: TokenRecord::NEXT_IS_SPECIAL,
        ..record(0)
    };
    assert!(special.is_special() && !special.is_excluded());
    assert!(!record(0).is_special());
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
        check_message(&error, path);
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
    let end = bytes.len() - END_BYTES;
    bytes[end - 2 * RECORD_BYTES..end].rotate_left(RECORD_BYTES);
    let error = read(Scratch::new().file(&bytes)).unwrap_err();
    assert!(error.to_string().contains("record 0"), "{error}");
}

/// The first part of a file, with any JSON line and a right checksum, which is returned too.
fn with_lines(magic: &str, json: &str) -> (Vec<u8>, u32) {
    let mut bytes = format!("{magic}{json}\n").into_bytes();
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    (bytes, crc)
}

/// A file with any JSON line and no records.
fn with_json(json: &str) -> Vec<u8> {
    let (mut bytes, crc) = with_lines(MAGIC_LINE, json);
    bytes.extend(end(0, crc));
    bytes
}

/// A file of an earlier version, as `kl` wrote it: records without the last fields, and of version 1
/// no trailer.
fn earlier(version: u32, n_records: u64, records: &[TokenRecord]) -> Vec<u8> {
    let mut json = serde_json::to_value(header(n_records)).unwrap();
    json["version"] = version.into();
    for key in ["label", "groups"] {
        json.as_object_mut().unwrap().remove(key);
    }
    let (magic, n_bytes) = [(MAGIC_LINE_V1, 72), (MAGIC_LINE_V2, 96)][version as usize - 1];
    let (mut bytes, header_crc) = with_lines(magic, &json.to_string());
    let with_crc = |covered: &[u8]| {
        let crc = crc32fast::hash(&[&header_crc.to_le_bytes()[..], covered].concat());
        crc.to_le_bytes()
    };
    for (i, record) in records.iter().enumerate() {
        let fields = &record.to_bytes(0, 0).unwrap()[..n_bytes];
        bytes.extend(fields);
        bytes.extend(with_crc(&[&(i as u64).to_le_bytes(), fields].concat()));
    }
    if version == 2 {
        let trailer = [b"kls_end\n", &(records.len() as u64).to_le_bytes()[..]].concat();
        bytes.extend(&trailer);
        bytes.extend(with_crc(&trailer));
    }
    bytes
}

#[test]
fn earlier_versions_are_read() {
    let scratch = Scratch::new();
    for (version, record_bytes) in [(1, 76), (2, 100)] {
        let whole = earlier(version, 2, &[record(0), record(1)]);
        let path = scratch.file(&whole);
        assert!(is_sidecar(path));
        let (found_header, found) = read(path).unwrap();
        assert_eq!(found_header.version, version);
        assert_eq!(found_header.n_records, Some(2));
        for (i, found) in (0..).zip(&found) {
            let mut known = TokenRecord { group: 1, ..*found };
            if version == 1 {
                assert!(found.ref_top_p.is_nan() && found.eval_top_p.is_nan());
                (known.ref_top_p, known.eval_top_p) = (0.5, 0.25);
            }
            assert_eq!((known, found.group), (record(i), 0));
        }
        assert_eq!(verify(path).unwrap().n_records, 2);
        let trailer_bytes = trailer::trailer_bytes(version);
        let start = whole.len() - trailer_bytes - 2 * record_bytes;
        for length in start..whole.len() {
            let path = scratch.file(&whole[..length]);
            assert!(matches!(read(path), Err(Error::Truncated { .. })));
            let cut_off = SidecarReader::open_cut_off(path).unwrap();
            assert_eq!(cut_off.records.len(), (length - start) / record_bytes);
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(read(scratch.file(&longer)).is_err());
        // A version under the other version's first line.
        let json = serde_json::to_string(&header(0)).unwrap();
        let (mixed, _) = with_lines([MAGIC_LINE_V1, MAGIC_LINE_V2][version as usize - 1], &json);
        assert!(matches!(
            SidecarReader::open_cut_off(scratch.file(&mixed)),
            Err(Error::Header { .. })
        ));
    }
}

/// A file of one record whose texts are these bytes, with every checksum right.
fn with_texts(section: &[u8], stated_bytes: u64) -> Vec<u8> {
    let json = serde_json::to_string(&header(1)).unwrap();
    let (mut bytes, crc) = with_lines(MAGIC_LINE, &json);
    bytes.extend(record(0).to_bytes(0, crc).unwrap());
    bytes.extend(section);
    let trailer = Trailer {
        texts_bytes: stated_bytes,
        ..Trailer::new(1, section)
    };
    bytes.extend(trailer::to_bytes(&trailer, crc));
    bytes
}

#[test]
fn hostile_texts_are_refused() {
    let scratch = Scratch::new();
    let good = texts().to_bytes();
    let n = good.len() as u64;
    assert!(read(scratch.file(&with_texts(&good, n))).is_ok());
    // Sizes of which only one can be right: none is believed before the file's length is compared.
    for stated in [0, n - 1, n + 1, u64::MAX - 1, u64::MAX] {
        let error = SidecarReader::open(scratch.file(&with_texts(&good, stated))).unwrap_err();
        check_message(&error, &scratch.path);
    }
    // Sections with a right checksum: one that ends within a text, and ids that do not ascend.
    let second_again = [&good[..], &good[10..16]].concat();
    for section in [&good[..9], &good[..12], &second_again] {
        let path = scratch.file(&with_texts(section, section.len() as u64));
        let mut reader = SidecarReader::open(path).unwrap();
        let error = reader.texts().unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        check_message(&error, path);
        assert!(verify(path).is_err());
        // The records are as good as before.
        assert_eq!(reader.read_all().unwrap(), [record(0)]);
    }
}

#[test]
fn texts_are_read_at_any_time() {
    let scratch = Scratch::new();
    let records = [record(0), record(1), record(2)];
    let mut reader = SidecarReader::open(scratch.file(&write(&records))).unwrap();
    for record in &records {
        assert_eq!(reader.texts().unwrap(), texts());
        assert_eq!(reader.next().unwrap().unwrap(), *record);
    }
    assert!(reader.next().is_none());
    assert_eq!(reader.texts().unwrap(), texts());
}

#[test]
fn a_group_without_a_name_is_refused() {
    let mut writer = SidecarWriter::create(Vec::new(), Path::new("out"), &header(1)).unwrap();
    let nameless = TokenRecord {
        group: 2,
        ..record(0)
    };
    assert!(writer.push(&nameless).is_err());
    let json = serde_json::to_string(&header(1)).unwrap();
    let (mut bytes, crc) = with_lines(MAGIC_LINE, &json);
    bytes.extend(nameless.to_bytes(0, crc).unwrap());
    bytes.extend(end(1, crc));
    let error = read(Scratch::new().file(&bytes)).unwrap_err();
    assert!(error.to_string().contains("group"), "{error}");
}

#[test]
fn the_trailer_counts_the_records() {
    let scratch = Scratch::new();
    let written = |n_records, n: u32| {
        let header = SidecarHeader {
            n_records,
            until: Some(0.05),
            ..header(0)
        };
        let mut writer = SidecarWriter::create(Vec::new(), Path::new("out"), &header).unwrap();
        (0..n).for_each(|i| writer.push(&record(i)).unwrap());
        (header, writer.finish(&texts()).unwrap())
    };
    // A stream, and a run that stopped before its end.
    for n_records in [None, Some(9)] {
        let (header, bytes) = written(n_records, 3);
        let path = scratch.file(&bytes);
        assert_eq!(SidecarReader::open(path).unwrap().n_records(), 3);
        assert_eq!(read(path).unwrap(), (header, (0..3).map(record).collect()));
    }
    // Trailers for more records than the file has, than the header allows, and than can be.
    let (_, bytes) = written(Some(3), 3);
    let after = bytes.len() - END_BYTES;
    let start = after - 3 * RECORD_BYTES;
    let crc = u32::from_le_bytes(*bytes[start - 4..].first_chunk().unwrap());
    for n in [0, 2, 4, u64::MAX / 99, u64::MAX] {
        let changed = [&bytes[..after], &end(n, crc)].concat();
        let error = read(scratch.file(&changed)).unwrap_err();
        check_message(&error, &scratch.path);
    }
    let more = record(3).to_bytes(3, crc).unwrap();
    let changed = [&bytes[..after], &more, &end(4, crc)].concat();
    assert!(matches!(
        read(scratch.file(&changed)),
        Err(Error::Corrupt { .. })
    ));
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
        ("version", 0),
        ("version", 1),
        ("version", 2),
        ("version", 4),
        ("model", 5),
        ("label", 5),
        ("groups", 5),
        ("shard", 5),
    ] {
        let mut json = good.clone();
        json[key] = value.into();
        assert!(
            read(scratch.file(&with_json(&json.to_string()))).is_err(),
            "{key} {value}"
        );
    }
    for (index, count) in [(0, 0), (1, 1), (u32::MAX, 7)] {
        let mut json = good.clone();
        json["shard"] =
            serde_json::json!({"index": index, "count": count, "n_windows": 7, "n_rows": 70});
        let error = read(scratch.file(&with_json(&json.to_string()))).unwrap_err();
        assert!(error.to_string().contains("shard"), "{error}");
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
fn writers_refuse_more_records_than_the_header_states() {
    let mut writer = SidecarWriter::create(Vec::new(), Path::new("out"), &header(1)).unwrap();
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
    (any::<[u32; 8]>(), any::<[f64; 8]>(), 0..2u32).prop_map(|(n, x, group)| TokenRecord {
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
        ref_top_p: x[5],
        eval_top_p: x[6],
        ref_unknown_p: x[7],
        group,
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
        let start = bytes.len() - 3 * RECORD_BYTES - END_BYTES;
        let json = serde_json::to_string(&header(order.len() as u64)).unwrap();
        let (mut changed, crc) = with_lines(MAGIC_LINE, &json);
        for &i in &order {
            let at = start + i * RECORD_BYTES;
            changed.extend(&bytes[at..at + RECORD_BYTES]);
        }
        changed.extend(end(order.len() as u64, crc));
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
        writer.finish(&texts()).unwrap()
    };
    let whole = write(
        SidecarWriter::create(Vec::new(), Path::new("out"), &header).unwrap(),
        0..5,
    );
    let start = whole.len() - 5 * RECORD_BYTES - END_BYTES;
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
        let n_whole = ((length - start) / RECORD_BYTES).min(5);
        let writer = resume(&whole[..length], n_whole);
        assert_eq!(write(writer, n_whole as u32 / 2 * 2..5), whole, "{length}");
    }
    for index in start..whole.len() {
        let mut damaged = whole.clone();
        damaged[index] ^= 1;
        let n_whole = ((index - start) / RECORD_BYTES).min(5);
        let writer = resume(&damaged, n_whole);
        assert_eq!(write(writer, n_whole as u32 / 2 * 2..5), whole, "{index}");
    }
}
