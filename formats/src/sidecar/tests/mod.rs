mod cut_off;
mod damage;
mod large;
mod possible;
mod texts;

use std::io::Write;
use std::path::Path;

use proptest::prelude::*;

use super::end::Trailer;
use super::*;
use crate::Result;
use crate::common::model;
use crate::kinds::Kind;
use crate::testing::*;

fn header(n_records: u64) -> SidecarHeader {
    let reference = ReferenceSummary {
        kind: Some(Kind::KlPy),
        ..Default::default()
    };
    let mut header = SidecarHeader {
        label: Some("m, q8 cache".into()),
        groups: vec!["wiki".into(), "code".into()],
        spans: vec!["prompt".into(), "answer".into()],
        stored: true,
        ..SidecarHeader::new(reference, 8, 5, Some(n_records))
    };
    header.writer = Some("kl test".into());
    header.model = Some(model());
    header.model_path = Some("a/m.gguf".into());
    header
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
        span: 1,
        acceptance: 0.75,
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
    let section = texts().to_section();
    let trailer = Trailer::new(n_records, &section, header_crc);
    [&section, bytemuck::bytes_of(&trailer)].concat()
}

fn write(records: &[TokenRecord]) -> Vec<u8> {
    write_to(Vec::new(), records).unwrap()
}

fn write_to<W: Write>(out: W, records: &[TokenRecord]) -> Result<W> {
    let header = header(records.len() as u64);
    let mut writer = SidecarWriter::create(out, Path::new("out"), &header)?;
    records.iter().try_for_each(|record| writer.push(record))?;
    writer.finish(&texts())
}

/// Writes a whole file.
pub(crate) fn sample<W: Write>(out: W) -> Result<W> {
    write_to(out, &[record(0), record(1), record(2)])
}

fn read(path: &Path) -> Result<(SidecarHeader, Vec<TokenRecord>)> {
    let reader = SidecarReader::open(path)?;
    assert_eq!(reader.texts()?, texts());
    Ok((reader.header.clone(), reader.read_all()?))
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
        1, 0, 0, 0, // span
        0, 0, 0, 0, 0, 0, 0xe8, 0x3f, // acceptance
    ];
    let end = bytes.len() - END_BYTES;
    let start = end - RECORD_BYTES;
    assert_eq!(bytes[start..start + 112], expected);
    let header_crc = bytes[start - 4..start].to_vec();
    assert_eq!(
        header_crc,
        crc32fast::hash(&bytes[..start - 4]).to_le_bytes()
    );
    let mut covered = header_crc.clone();
    covered.extend(0u64.to_le_bytes());
    covered.extend(expected);
    let crc = crc32fast::hash(&covered).to_le_bytes();
    assert_eq!(bytes[start + 112..end], crc);
    let section = texts().to_section();
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
fn a_record_of_version_1_lacks_what_came_later() {
    let json = serde_json::to_string(&SidecarHeader {
        version: 1,
        ..header(2)
    });
    let (mut bytes, crc) = with_lines(MAGIC_LINE, &json.unwrap());
    let mut records = [record(0), record(1)];
    for (i, record) in (0..2_u64).zip(&records) {
        let fields = record.to_bytes(i, crc).unwrap();
        let fields = &fields[..100];
        bytes.extend(fields);
        bytes.extend(crc_of(crc, &[&i.to_le_bytes(), fields]).to_le_bytes());
    }
    bytes.extend(end(2, crc));
    let (found_header, found) = read(Scratch::new().file(&bytes)).unwrap();
    assert_eq!(found_header.version, 1);
    for record in &mut records {
        (record.span, record.acceptance) = (0, f64::NAN);
    }
    // As text: NaN is not equal to itself.
    assert_eq!(format!("{found:?}"), format!("{records:?}"));
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
    assert_fault(&read(scratch.file(&changed)).unwrap_err(), "Corrupt");
}

/// Any bytes, of a group and a span that have names. The values of a record that is not excluded are
/// checked.
fn any_record() -> impl Strategy<Value = TokenRecord> {
    any::<[[u64; 7]; 2]>().prop_map(|bytes| {
        let record: TokenRecord = bytemuck::pod_read_unaligned(bytemuck::bytes_of(&bytes));
        TokenRecord {
            flags: record.flags | TokenRecord::REF_NOT_FINITE,
            group: record.group % 2,
            span: record.span % 2,
            ..record
        }
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
