//! Whole files, and files without their end.

use super::*;

#[test]
fn a_whole_file_is_verified() {
    let (header, windows) = sample();
    for encoding in [Encoding::U16, Encoding::F32] {
        let header = Header {
            encoding,
            ..header.clone()
        };
        let bytes = write(&header, &windows, 3);
        let scratch = Scratch::new();
        let path = scratch.file(&bytes);
        verify(path).unwrap();
        // Opening the file reads everything outside the windows.
        let reader = NativeReader::open(path).unwrap();
        assert_eq!(reader.file_bytes(), bytes.len() as u64);
        let start = header_bytes(&header) as u64;
        let ends = [0, 1, 2].map(|i| reader.window_end(i));
        let starts = reader.placed().iter().map(|entry| entry.offset());
        assert!(starts.eq([start, ends[0], ends[1]]));
        let index = member::read_end(bytes.last_chunk().unwrap(), bytes.len() as u64);
        assert_eq!(Some(ends[2]), index);
    }
}

#[test]
fn a_truncated_file_states_what_is_whole() {
    let (header, windows) = sample();
    let bytes = write(&header, &windows, 3);
    let scratch = Scratch::new();
    let reader = NativeReader::open(scratch.file(&bytes)).unwrap();
    let offsets: Vec<_> = reader
        .placed()
        .iter()
        .map(|entry| entry.offset() as usize)
        .collect();
    let message = |n: usize| read(scratch.file(&bytes[..n])).unwrap_err().to_string();
    for (n, whole, rest) in [
        (offsets[1] - 1, 0, offsets[0]),
        (offsets[1], 1, offsets[1]),
        (offsets[2] - 1, 1, offsets[1]),
        (offsets[2] + 1, 2, offsets[2]),
    ] {
        let what = format!("{whole} of 3 windows whole (the rest should begin at byte {rest})");
        assert!(message(n).contains(&what), "{} / {what}", message(n));
    }
}
