//! References of more than 2^32 bytes and 2^31 logits a window.

use kl_formats::Reference;

use super::*;
use crate::pipeline::choose_windows;
use crate::sparse::sparse;

#[test]
fn the_last_rows_of_a_large_window_are_those_of_their_positions() {
    /// Even, so that rows are not padded.
    const N_VOCAB: u64 = 1 << 17;
    const N_CTX: u64 = 1 << 15;
    const N_ROWS: u64 = N_CTX - 1 - N_CTX / 2;
    const ROW_BYTES: u64 = 8 + 2 * N_VOCAB;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("base");
    let counts = [N_CTX, N_VOCAB, 2].map(|n| (n as u32).to_le_bytes());
    let header = [&b"_logits_"[..], &counts.concat()].concat();
    let start = 20 + 4 * N_CTX * 2;
    // The two last rows of the second window: a scale of 1, a minimum, and a code of 1.
    let row = |min: f32| {
        let numbers = [1f32, min].map(f32::to_le_bytes).concat();
        [&numbers[..], &[1, 0]].concat()
    };
    let row_at = |row: u64| start + (N_ROWS + row) * ROW_BYTES;
    let rows = [row(-7.0), row(-8.0)];
    sparse(
        &path,
        row_at(N_ROWS),
        &[
            (0, &header),
            (row_at(N_ROWS - 2), &rows[0]),
            (row_at(N_ROWS - 1), &rows[1]),
        ],
    );
    const { assert!(N_ROWS * ROW_BYTES > (1 << 32) - (1 << 20) && N_CTX * N_VOCAB > 1 << 31) };
    let reference = Reference::open(&path).unwrap();
    assert_eq!(to_share(&reference, None), Some((2, 2 * N_ROWS)));
    let rows = open(&path).with_order(vec![1]);
    let mut window = rows.next_window().unwrap().unwrap();
    assert_eq!(window.spec.tokens.len() as u64, N_CTX);
    window.rows.skip(N_ROWS as usize - 2);
    let first_logit = |_, row: Row<'_>| row.get(0);
    assert_eq!(window.map(2, first_logit).unwrap(), [-6.0, -7.0]);
    assert!(window.map(1, first_logit).is_err());
}

#[test]
fn more_than_2_to_the_32_rows_are_counted_and_chosen() {
    let rows = [u32::MAX; 5];
    let all = 5 * u64::from(u32::MAX);
    assert_eq!(choose_windows(&rows, true, u64::MAX), [0, 1, 2, 3, 4]);
    assert_eq!(choose_windows(&rows, true, all), [0, 1, 2, 3, 4]);
    assert_eq!(choose_windows(&rows, true, 3 << 32), [0, 1, 2, 3]);
    assert_eq!(choose_windows(&rows, false, 1 << 32).len(), 2);
}
