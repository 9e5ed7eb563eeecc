//! Files that were whole once: a flipped byte, a missing end, anything moved.

use proptest::prelude::*;

use super::*;
use crate::{Error, VerifyReport};

#[test]
fn every_flipped_byte_and_every_truncation_is_found() {
    let (header, windows) = sample();
    let bytes = write(&header, &windows, 3);
    let scratch = Scratch::new();
    assert!(read(scratch.file(&bytes)).is_ok());
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
        match error {
            Error::NotAReference { .. } if n < 3 => {}
            Error::Truncated { offset, .. } if offset <= n as u64 => {}
            error => panic!("{n} of {} bytes: {error}", bytes.len()),
        }
    }
}

#[test]
fn a_whole_file_is_counted() {
    let (header, windows) = sample();
    for encoding in [Encoding::U16, Encoding::F32] {
        let header = Header {
            encoding,
            ..header.clone()
        };
        let bytes = write(&header, &windows, 3);
        let scratch = Scratch::new();
        let path = scratch.file(&bytes);
        let expected = VerifyReport {
            n_windows: 3,
            n_rows: 7,
            file_bytes: bytes.len() as u64,
        };
        assert_eq!(verify(path).unwrap(), expected);
        // Each window by itself, on any thread: all of the file but what opening it reads.
        let reader = NativeReader::open(path).unwrap();
        let in_windows: u64 = (0..3).map(|i| reader.verify_window(i).unwrap()).sum();
        let start = reader.windows()[0].offset();
        let end = member::read_end(bytes.last_chunk().unwrap()).unwrap();
        assert_eq!(start + in_windows, end.index_offset);
    }
}

#[test]
fn a_truncated_file_says_what_is_whole() {
    let (header, windows) = sample();
    let bytes = write(&header, &windows, 3);
    let scratch = Scratch::new();
    let reader = NativeReader::open(scratch.file(&bytes)).unwrap();
    let offsets: Vec<_> = reader
        .windows()
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn changed_files_give_errors_or_the_same(changes in prop::collection::vec(any_change(), 1..4)) {
        let (header, windows) = sample();
        let bytes = write(&header, &windows, 3);
        let mut changed = bytes.clone();
        changes.iter().for_each(|change| change.apply(&mut changed));
        let scratch = Scratch::new();
        let path = scratch.file(&changed);
        match read(path) {
            Ok(found) => prop_assert_eq!(found, read(scratch.file(&bytes)).unwrap()),
            Err(error) => {
                check_message(&error, path);
                let is_placed = matches!(error, Error::Corrupt { window: Some(_), .. });
                prop_assert!(is_placed || NativeReader::open(path).is_err(), "{}", error);
            }
        }
    }
}
