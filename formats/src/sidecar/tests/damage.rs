//! Bytes that were changed, and headers that lie.

use super::*;

#[test]
fn a_group_or_a_span_without_a_name_is_refused() {
    for (group, span, what) in [(2, 1, "group"), (1, 2, "span")] {
        let nameless = TokenRecord {
            group,
            span,
            ..record(0)
        };
        let mut writer = SidecarWriter::create(Vec::new(), Path::new("out"), &header(1)).unwrap();
        assert!(writer.push(&nameless).is_err());
        let json = serde_json::to_string(&header(1)).unwrap();
        let (mut bytes, crc) = with_lines(MAGIC_LINE, &json);
        bytes.extend(nameless.to_bytes(0, crc).unwrap());
        bytes.extend(end(1, crc));
        let error = read(Scratch::new().file(&bytes)).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
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
        ("version", 3),
        ("model", 5),
        ("label", 5),
        ("groups", 5),
        ("spans", 5),
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
    assert_fault(&read(scratch.file(&long)).unwrap_err(), "TooLarge");
    let deep = with_json(&"[".repeat(MAX_HEADER_BYTES / 2));
    assert_fault(&read(scratch.file(&deep)).unwrap_err(), "Header");
}

proptest! {
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
