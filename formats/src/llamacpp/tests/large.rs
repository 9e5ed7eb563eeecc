//! Files whose windows are longer than 2^32 bytes, and have more than 2^31 logits.

use super::*;

/// Odd, so that rows are padded by one code.
const N_VOCAB: u64 = 100_001;
const N_CTX: u64 = 43_000;
const N_WINDOWS: u64 = 3;

const ROW_BYTES: u64 = 8 + 2 * (N_VOCAB + 1);
const N_ROWS: u64 = N_CTX - 1 - N_CTX / 2;

/// Where a row starts.
fn offset(window: u64, row: u64) -> u64 {
    20 + 4 * N_CTX * N_WINDOWS + (window * N_ROWS + row) * ROW_BYTES
}

/// The start of a row: its scale, its least log-probability, and the first two codes.
fn start(scale: f32, min: f32, codes: [u16; 2]) -> Vec<u8> {
    let numbers = [scale, min].map(f32::to_le_bytes).concat();
    [numbers, codes.map(u16::to_le_bytes).concat()].concat()
}

#[test]
fn rows_beyond_4_gib_are_read_where_they_are() {
    const { assert!(N_ROWS * ROW_BYTES > 1 << 32 && N_CTX * N_VOCAB > 1 << 31) };
    let counts = [N_CTX, N_VOCAB, N_WINDOWS].map(|n| (n as u32).to_le_bytes());
    let header = [&b"_logits_"[..], &counts.concat()].concat();
    let last_tokens = [7u32, 100_000].map(u32::to_le_bytes).concat();
    let (first, middle, last) = (
        start(0.5, -3.0, [1, 2]),
        start(0.25, -4.0, [3, 4]),
        start(2.0, -9.0, [5, 6]),
    );
    let len = offset(N_WINDOWS, 0);
    let scratch = Scratch::new();
    sparse(
        &scratch.path,
        len,
        &[
            (0, &header),
            (20 + 4 * (N_WINDOWS * N_CTX - 2), &last_tokens),
            (offset(0, N_ROWS - 1), &first),
            (offset(1, 0), &middle),
            (offset(2, N_ROWS - 1), &last),
        ],
    );
    let reader = LlamaCppReader::open(&scratch.path).unwrap();
    assert_eq!(reader.header.n_rows(), N_WINDOWS * N_ROWS);
    let tokens = reader.window(2).unwrap().tokens;
    assert_eq!(tokens[N_CTX as usize - 2..], [7, 100_000]);
    assert_eq!(tokens[..N_CTX as usize - 2], vec![0; N_CTX as usize - 2]);
    let block_of = |window, row: u64| {
        let number = row as u32 / reader.rows_per_block();
        reader.prefetch(window, number);
        let block = reader.block(window, number, None).unwrap();
        assert_eq!(u64::from(block.first_row) + block.n_rows() as u64 - 1, row);
        let row = block.row(block.n_rows() - 1);
        [row.get(0), row.get(1)]
    };
    assert_eq!(block_of(0, N_ROWS - 1), [0.5 - 3.0, 1.0 - 3.0]);
    assert_eq!(block_of(2, N_ROWS - 1), [10.0 - 9.0, 12.0 - 9.0]);
    let block = reader.block(1, 0, None).unwrap();
    let row = block.row(0);
    assert_eq!([row.get(0), row.get(1)], [0.75 - 4.0, 1.0 - 4.0]);
    // A byte less, and the missing window is named.
    std::fs::File::options()
        .write(true)
        .open(&scratch.path)
        .unwrap()
        .set_len(len - 1)
        .unwrap();
    let error = LlamaCppReader::open(&scratch.path).unwrap_err();
    let expected = "2 of 3 windows whole, 1 bytes are missing";
    assert!(error.to_string().contains(expected), "{error}");
}
