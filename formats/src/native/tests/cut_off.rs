//! A write that was cut off at any byte resumes to the same file.

use super::*;

/// Resumes what is left of a file, and returns the file.
fn resume(scratch: &Scratch, left: &[u8], windows: &[SampleWindow]) -> Vec<u8> {
    let cut_off = NativeReader::open_cut_off(scratch.file(left)).unwrap();
    let kept = &left[..cut_off.windows_end() as usize];
    let n_whole = cut_off.windows().len();
    for (i, window) in windows[..n_whole].iter().enumerate() {
        assert_eq!(cut_off.window(i).unwrap(), window.spec);
    }
    let writer = Writer::resume(kept.to_vec(), Path::new("out"), &cut_off).unwrap();
    written(writer, &windows[n_whole..], 9)
}

#[test]
fn every_length_resumes_to_the_same_bytes() {
    let (header, windows) = sample();
    let whole = write(&header, &windows, 9);
    let scratch = Scratch::new();
    let start = header_bytes(&header);
    for length in 0..start {
        let error = NativeReader::open_cut_off(scratch.file(&whole[..length])).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{length}: {error}");
    }
    let mut seen = Vec::new();
    for length in start..=whole.len() {
        assert_eq!(
            resume(&scratch, &whole[..length], &windows),
            whole,
            "{length}"
        );
        seen.push(
            NativeReader::open_cut_off(&scratch.path)
                .unwrap()
                .windows()
                .len(),
        );
    }
    seen.dedup();
    assert_eq!(seen, [0, 1, 2, 3], "windows are whole one after the other");
}

#[test]
fn what_follows_a_damaged_byte_is_written_again() {
    let (header, windows) = sample();
    let whole = write(&header, &windows, 9);
    let scratch = Scratch::new();
    for i in header_bytes(&header)..whole.len() {
        let mut damaged = whole.clone();
        damaged[i] ^= 0x10;
        assert_eq!(resume(&scratch, &damaged, &windows), whole, "byte {i}");
    }
    // Pages that were never written come back as zeros.
    for i in header_bytes(&header)..whole.len() {
        let mut torn = whole.clone();
        torn[i..].fill(0);
        assert_eq!(resume(&scratch, &torn, &windows), whole, "byte {i}");
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
    other.extend_from_slice(&whole[header_bytes(&header)..]);
    let scratch = Scratch::new();
    let cut_off = NativeReader::open_cut_off(scratch.file(&other)).unwrap();
    assert_eq!(cut_off.windows().len(), 1);
}
