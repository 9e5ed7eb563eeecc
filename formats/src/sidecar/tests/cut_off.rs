//! Sidecars that a run which was killed has left.

use super::*;

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
