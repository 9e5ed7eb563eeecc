//! Whole files, and files without their end.

use super::*;

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
