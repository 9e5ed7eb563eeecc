//! Files of hidden states that are resumed after a flipped byte, or without their end.

use super::*;
use crate::Fault;

/// A small file: every byte of it is tried.
fn small() -> Hidden {
    sample(Float::F16)
}

/// Where its first window starts.
fn head_end(bytes: &[u8]) -> usize {
    let scratch = Scratch::new();
    let reader = NativeReader::open(scratch.file(bytes)).unwrap();
    reader.placed()[0].offset() as usize
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
        let is_cut = matches!(
            error.fault,
            Fault::Truncated { .. } | Fault::NotAReference(_)
        );
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
