//! Versions 1 and 2, which are read too.

use super::*;

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
