//! Records beyond 2^32 bytes.

use super::*;

#[test]
fn what_follows_4_gib_of_records_is_read_where_it_is() {
    let n_records = (1 << 32) / RECORD_BYTES as u64 + 10;
    let json = serde_json::to_string(&header(n_records)).unwrap();
    let (mut start, crc) = with_lines(MAGIC_LINE, &json);
    let records = start.len() as u64;
    start.extend(record(0).to_bytes(0, crc).unwrap());
    let end = end(n_records, crc);
    let records_end = records + n_records * RECORD_BYTES as u64;
    assert!(records_end > 1 << 32);
    let scratch = Scratch::new();
    let file_bytes = records_end + end.len() as u64;
    let parts: [(u64, &[u8]); 2] = [(0, &start), (records_end, &end)];
    sparse(&scratch.path, file_bytes, &parts);

    let reader = SidecarReader::open(&scratch.path).unwrap();
    assert_eq!(
        (reader.n_records(), reader.file_bytes()),
        (n_records, file_bytes)
    );
    assert_eq!(reader.texts().unwrap(), texts());
    let mut records = reader.records();
    assert_eq!(records.next().unwrap().unwrap(), record(0));
    // A hole in the file is not a record.
    let error = records.next().unwrap().unwrap_err();
    assert_fault(&error, "Corrupt");
    sparse(&scratch.path, file_bytes - 1, &[(0, &start)]);
    let error = SidecarReader::open(&scratch.path).unwrap_err();
    assert_fault(&error, "Truncated");
}
