//! A write that was cut off at any byte goes on to the same file.

use super::*;

/// Goes on with what is left of a file, and gives the file.
fn resume(scratch: &Scratch, left: &[u8], windows: &[Window]) -> Vec<u8> {
    let cut_off = NativeReader::open_cut_off(scratch.file(left)).unwrap();
    let kept = &left[..cut_off.windows_end() as usize];
    let n_whole = cut_off.windows().len();
    for (i, window) in windows[..n_whole].iter().enumerate() {
        assert_eq!(cut_off.head(i).unwrap(), window.head);
    }
    let mut writer = NativeWriter::resume(kept.to_vec(), Path::new("out"), &cut_off);
    for w in &windows[n_whole..] {
        let encoder = WindowEncoder::new(cut_off.header(), &w.head).unwrap();
        for piece in encode(encoder, cut_off.header().encoding, N_VOCAB, &w.rows, 9) {
            writer.append(piece.compress()).unwrap();
        }
    }
    writer.finish().unwrap()
}

fn header_bytes(header: &Header) -> usize {
    member::build(Tag::HEADER, &header.to_lines(&Default::default()).unwrap()).len()
}

#[test]
fn every_length_goes_on_to_the_same_bytes() {
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
fn what_follows_a_damaged_byte_is_written_anew() {
    let (header, windows) = sample();
    let whole = write(&header, &windows, 9);
    let scratch = Scratch::new();
    for place in header_bytes(&header)..whole.len() {
        let mut damaged = whole.clone();
        damaged[place] ^= 0x10;
        assert_eq!(resume(&scratch, &damaged, &windows), whole, "byte {place}");
    }
    // Pages that were never written come back as zeros.
    for place in header_bytes(&header)..whole.len() {
        let mut torn = whole.clone();
        torn[place..].fill(0);
        assert_eq!(resume(&scratch, &torn, &windows), whole, "byte {place}");
    }
}

#[test]
fn a_window_that_the_header_does_not_know_is_not_kept() {
    let (header, windows) = sample();
    let fewer = Header {
        n_windows: 1,
        n_rows: 5,
        ..header.clone()
    };
    let whole = write(&header, &windows, 9);
    let mut other = member::build(Tag::HEADER, &fewer.to_lines(&Default::default()).unwrap());
    other.extend_from_slice(&whole[header_bytes(&header)..]);
    let scratch = Scratch::new();
    let cut_off = NativeReader::open_cut_off(scratch.file(&other)).unwrap();
    assert_eq!(cut_off.windows().len(), 1);
}
