//! Files that were whole once: a flipped byte, a missing end, anything moved.

use proptest::prelude::*;

use super::*;
use crate::Error;

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
        let starts = reader.entries().iter().map(|entry| entry.offset());
        assert!(starts.eq([start, ends[0], ends[1]]));
        let end = member::read_end(bytes.last_chunk().unwrap()).unwrap();
        assert_eq!(ends[2], end.index_offset);
    }
}

#[test]
fn a_truncated_file_states_what_is_whole() {
    let (header, windows) = sample();
    let bytes = write(&header, &windows, 3);
    let scratch = Scratch::new();
    let reader = NativeReader::open(scratch.file(&bytes)).unwrap();
    let offsets: Vec<_> = reader
        .entries()
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
                let is_located = matches!(error, Error::Corrupt { window: Some(_), .. });
                prop_assert!(is_located || NativeReader::open(path).is_err(), "{}", error);
            }
        }
    }
}
