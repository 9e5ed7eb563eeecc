//! Files that are too short, too long, changed, or lie about their size.

use super::*;

#[test]
fn bytes_after_the_last_row_are_refused() {
    let mut bytes = sample();
    let end = bytes.len() as u64;
    bytes.extend([0; 3]);
    match LlamaCppReader::open(Scratch::new().file(&bytes)) {
        Err(Error {
            fault: Fault::Corrupt(at, what),
            ..
        }) => assert_eq!((at.offset, &*what), (end, "3 bytes after the last row")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hostile_counts_are_refused() {
    let scratch = Scratch::new();
    let open = |counts: [u32; 3]| {
        let mut bytes = sample();
        bytes[8..20].copy_from_slice(bytemuck::cast_slice(&counts));
        LlamaCppReader::open(scratch.file(&bytes)).unwrap_err()
    };
    let max = u32::MAX;
    for (counts, what) in [
        ([0, 5, 3], "n_ctx 0,"),
        ([max, 5, 3], "n_ctx 4294967295,"),
        ([6, 0, 3], "n_vocab 0,"),
        ([6, max, 3], "n_vocab 4294967295,"),
        ([6, 1 << 31, 3], "n_vocab 2147483648,"),
        ([6, (1 << 24) + 1, 3], "n_vocab 16777217,"),
        ([6, 5, max], "n_chunk -1,"),
    ] {
        let error = open(counts);
        let is_right = matches!(error.fault, Fault::Header(_)) && error.to_string().contains(what);
        assert!(is_right, "{error}");
    }
    // No memory is allocated for them, and nothing overflows.
    for counts in [
        [1 << 26, 1 << 24, (1 << 31) - 1],
        [1 << 26, 1, (1 << 31) - 1],
        [6, 1 << 24, 3],
        [6, 5, 4],
        [7, 5, 3],
    ] {
        let error = open(counts);
        assert_fault(&error, "Truncated");
    }
    for counts in [[6, 5, 2], [6, 5, 0], [6, 3, 3], [1, 5, 3]] {
        let error = open(counts);
        assert_fault(&error, "Corrupt");
    }
}

#[test]
fn tokens_outside_the_vocabulary_are_located() {
    let scratch = Scratch::new();
    for token in [5u32, u32::MAX, 1 << 31] {
        let mut bytes = sample();
        let at = 20 + 4 * (N_CTX as usize + 2);
        bytes[at..at + 4].copy_from_slice(&token.to_le_bytes());
        let mut reader = LlamaCppReader::open(scratch.file(&bytes)).unwrap();
        assert!(reader.window(0).is_ok());
        reader.set_bos(Some(1));
        let error = reader.window(1).unwrap_err();
        let what = format!(
            "token {} at position 2 is outside the vocabulary of 5, at window 1, byte {at};",
            token.cast_signed()
        );
        assert!(error.to_string().contains(&what), "{error}");
    }
}

#[test]
fn rows_that_are_not_finite_are_found() {
    let scratch = Scratch::new();
    let rows_start = 20 + 3 * N_CTX as usize * 4;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        for at in [0, 4] {
            let mut bytes = sample();
            let at = rows_start + at;
            bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
            let reader = LlamaCppReader::open(scratch.file(&bytes)).unwrap();
            let block = reader.block(0, 0, None).unwrap();
            // The largest f32 is a possible min, if no row that a model gives.
            assert!(!block.row(0).is_finite() || (bad == f32::MAX && at > rows_start));
            assert!(block.row(1).is_finite());
        }
    }
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let scratch = Scratch::new();
    let bytes = sample();
    let reader = LlamaCppReader::open(scratch.file(&bytes)).unwrap();
    scratch.file(&bytes[..60]);
    for error in [
        reader.window(1).unwrap_err(),
        reader.block(1, 0, None).unwrap_err(),
    ] {
        let is_right = matches!(&error.fault, Fault::Truncated(at, _) if at.window == Some(1));
        assert!(is_right, "{error}");
    }
}
