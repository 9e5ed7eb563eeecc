//! A write that was cut off at any byte, or whose bytes were damaged, resumes to the same file: one of
//! rows, and one of hidden states.

use super::*;
use crate::{Fault, Float};

/// Whole files, and their windows.
fn samples() -> [(Vec<u8>, Vec<SampleWindow>); 2] {
    let (header, windows) = sample();
    let hidden = states::sample(Float::F16);
    [
        (write(&header, &windows, 9), windows),
        (hidden.bytes(), hidden.windows),
    ]
}

/// Where the first window of a file starts.
fn start(whole: &[u8]) -> usize {
    let scratch = Scratch::new();
    let reader = NativeReader::open(scratch.file(whole)).unwrap();
    reader.placed[0].offset() as usize
}

/// Resumes what is left of a file. Returns the file, and how many windows were whole.
fn resume(scratch: &Scratch, left: &[u8], windows: &[SampleWindow]) -> (Vec<u8>, usize) {
    let cut_off = NativeReader::open_cut_off(scratch.file(left)).unwrap();
    let kept = &left[..cut_off.windows_end as usize];
    let n_whole = cut_off.windows().len();
    for (i, window) in windows[..n_whole].iter().enumerate() {
        assert_eq!(cut_off.window(i).unwrap(), window.spec);
    }
    assert!(count_windows(&scratch.path).unwrap() >= n_whole);
    let mut writer = Writer::resume(kept.to_vec(), Path::new("out"), &cut_off).unwrap();
    assert!(
        writer.write_head(&[][..], &[]).is_err(),
        "the head is there"
    );
    (written(writer, &windows[n_whole..], 9), n_whole)
}

#[test]
fn every_length_resumes_to_the_same_bytes() {
    let scratch = Scratch::new();
    for (whole, windows) in samples() {
        let start = start(&whole);
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
            let (resumed, n_whole) = resume(&scratch, &whole[..length], &windows);
            assert!(resumed == whole, "{length}");
            seen.push(n_whole);
        }
        seen.dedup();
        assert_eq!(seen, [0, 1, 2, 3], "windows are whole one after the other");
    }
}

#[test]
fn what_follows_a_damaged_byte_is_written_again_and_a_damaged_head_is_an_error() {
    let scratch = Scratch::new();
    for (whole, windows) in samples() {
        let start = start(&whole);
        for i in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[i] ^= 0x10;
            if i < start {
                let error = NativeReader::open_cut_off(scratch.file(&damaged)).unwrap_err();
                check_message(&error, &scratch.path);
                continue;
            }
            assert!(resume(&scratch, &damaged, &windows).0 == whole, "byte {i}");
            // Pages that were never written come back as zeros.
            damaged[i..].fill(0);
            assert!(resume(&scratch, &damaged, &windows).0 == whole, "byte {i}");
        }
    }
}

#[test]
fn a_window_that_the_header_does_not_count_is_not_kept() {
    let (header, windows) = sample();
    let fewer = Header {
        n_windows: 1,
        n_rows: 5,
        ..header.clone()
    };
    let whole = write(&header, &windows, 9);
    let mut other = member::build(
        member::HEADER,
        &fewer.to_lines(&Default::default()).unwrap(),
    );
    other.extend_from_slice(&whole[start(&whole)..]);
    let scratch = Scratch::new();
    let cut_off = NativeReader::open_cut_off(scratch.file(&other)).unwrap();
    assert_eq!(cut_off.windows().len(), 1);
}

#[test]
fn a_truncated_file_states_what_is_whole() {
    let (header, windows) = sample();
    let bytes = write(&header, &windows, 3);
    let scratch = Scratch::new();
    let reader = NativeReader::open(scratch.file(&bytes)).unwrap();
    let offsets: Vec<_> = reader
        .placed
        .iter()
        .map(|entry| entry.offset() as usize)
        .collect();
    for (n, whole, rest) in [
        (offsets[1] - 1, 0, offsets[0]),
        (offsets[1], 1, offsets[1]),
        (offsets[2] - 1, 1, offsets[1]),
        (offsets[2] + 1, 2, offsets[2]),
    ] {
        let what = format!("{whole} of 3 windows whole (the rest should begin at byte {rest})");
        let message = read(scratch.file(&bytes[..n])).unwrap_err().to_string();
        assert!(message.contains(&what), "{message} / {what}");
    }
}
