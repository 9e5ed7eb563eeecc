//! Files of hidden states with a flipped byte, or without their end.

use super::*;
use crate::Error;

/// A small file: every byte of it is tried.
fn small() -> Hidden {
    sample(Float::F16)
}

/// Where its first window starts.
fn head_end(bytes: &[u8]) -> usize {
    let scratch = Scratch::new();
    let reader = NativeReader::open(scratch.file(bytes)).unwrap();
    reader.entries()[0].offset() as usize
}

#[test]
fn every_flipped_byte_and_every_truncation_is_found() {
    let bytes = small().bytes();
    let scratch = Scratch::new();
    verify_states(scratch.file(&bytes)).unwrap();
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 1 << (i % 8);
        let path = scratch.file(&damaged);
        let error = read_states(path).expect_err(&format!("byte {i}"));
        check_message(&error, path);
        let found = verify_states(path).expect_err(&format!("byte {i}"));
        assert_eq!(found.to_string(), error.to_string());
    }
    for n in 0..bytes.len() {
        let error = read_states(scratch.file(&bytes[..n])).expect_err(&format!("{n} bytes"));
        match error {
            Error::NotAReference { .. } if n < 3 => {}
            Error::Truncated { offset, .. } if offset <= n as u64 => {}
            error => panic!("{n} of {} bytes: {error}", bytes.len()),
        }
    }
}

#[test]
fn every_length_resumes_to_the_same_bytes() {
    let hidden = small();
    let whole = hidden.bytes();
    let scratch = Scratch::new();
    let start = head_end(&whole);
    for length in 0..start {
        let error = NativeReader::open_cut_off(scratch.file(&whole[..length])).unwrap_err();
        check_message(&error, &scratch.path);
        let is_cut = matches!(error, Error::Truncated { .. } | Error::NotAReference { .. });
        assert!(is_cut, "{length}: {error}");
        assert!(count_windows(&scratch.path).is_err());
    }
    let mut seen = Vec::new();
    for length in start..=whole.len() {
        let left = &whole[..length];
        let (resumed, n_whole) = resume(&scratch, left, &hidden);
        assert!(resumed == whole, "{length}");
        assert!(count_windows(scratch.file(left)).unwrap() >= n_whole);
        seen.push(n_whole);
    }
    seen.dedup();
    assert_eq!(seen, [0, 1, 2, 3], "windows are whole one after the other");
}

/// Resumes what is left of a file. Returns the file, and how many windows were whole.
fn resume(scratch: &Scratch, left: &[u8], hidden: &Hidden) -> (Vec<u8>, usize) {
    let cut_off = NativeReader::open_cut_off(scratch.file(left)).unwrap();
    let kept = &left[..cut_off.windows_end() as usize];
    let n_whole = cut_off.windows().len();
    let mut writer = Writer::resume(kept.to_vec(), Path::new("out"), &cut_off).unwrap();
    let head = writer.write_head(&hidden.head[..], &hidden.check_rows);
    assert!(head.is_err(), "the head is there");
    (written(writer, &hidden.windows[n_whole..], 9), n_whole)
}

#[test]
fn what_follows_a_damaged_byte_is_written_again_and_a_damaged_head_is_an_error() {
    let hidden = small();
    let whole = hidden.bytes();
    let scratch = Scratch::new();
    let start = head_end(&whole);
    for i in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[i] ^= 0x10;
        if i < start {
            let error = NativeReader::open_cut_off(scratch.file(&damaged)).unwrap_err();
            check_message(&error, &scratch.path);
        } else {
            assert!(resume(&scratch, &damaged, &hidden).0 == whole, "byte {i}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn changed_files_give_errors_or_the_same(changes in prop::collection::vec(any_change(), 1..4)) {
        let bytes = small().bytes();
        let mut changed = bytes.clone();
        changes.iter().for_each(|change| change.apply(&mut changed));
        let scratch = Scratch::new();
        let path = scratch.file(&changed);
        match read_states(path) {
            Ok(found) => prop_assert_eq!(found, read_states(scratch.file(&bytes)).unwrap()),
            Err(error) => check_message(&error, path),
        }
    }
}
