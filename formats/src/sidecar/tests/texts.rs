//! The tokens' texts: read at any time, and never believed before they are checked.

use super::*;

/// A file of one record whose texts are these bytes, with every checksum right.
fn with_texts(section: &[u8], stated_bytes: u64) -> Vec<u8> {
    let json = serde_json::to_string(&header(1)).unwrap();
    let (mut bytes, crc) = with_lines(MAGIC_LINE, &json);
    bytes.extend(record(0).to_bytes(0, crc).unwrap());
    bytes.extend(section);
    let mut trailer = Trailer::new(1, section, crc);
    trailer.texts_bytes = stated_bytes;
    trailer.crc = trailer.computed_crc(crc);
    bytes.extend(bytemuck::bytes_of(&trailer));
    bytes
}

#[test]
fn hostile_texts_are_refused() {
    let scratch = Scratch::new();
    let good = texts().to_section();
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
        let reader = SidecarReader::open(path).unwrap();
        let error = reader.texts().unwrap_err();
        assert_fault(&error, "Corrupt");
        check_message(&error, path);
        assert!(verify(path).is_err());
        // The records are as good as before.
        assert_eq!(reader.read_all().unwrap(), [record(0)]);
    }
}
