//! A tensor longer than 2^32 bytes.

use super::*;
use crate::testing::sparse;

#[test]
fn rows_beyond_4_gib_are_read_where_they_are() {
    const N_ROWS: u64 = 9000;
    const N_VOCAB: u64 = 128_256;
    for (dtype, bytes) in [("F32", 4), ("F64", 8)] {
        let folder = Folder::new();
        let matrix_bytes = N_ROWS * N_VOCAB * bytes;
        assert!(matrix_bytes > 1 << 32);
        let ids: Vec<u8> = (0..N_ROWS).flat_map(u64::to_le_bytes).collect();
        let json = serde_json::json!({
            "log_probs": {"dtype": dtype, "shape": [N_ROWS, N_VOCAB], "data_offsets": [0, matrix_bytes]},
            "input_ids": {
                "dtype": "I64", "shape": [N_ROWS],
                "data_offsets": [matrix_bytes, matrix_bytes + ids.len() as u64],
            },
        });
        let start = with_header(&json.to_string(), &[]);
        let data = start.len() as u64;
        let last_row = data + (N_ROWS - 1) * N_VOCAB * bytes;
        let logits = match bytes {
            4 => [1.5f32, -2.5].map(f32::to_le_bytes).concat(),
            _ => [1.5f64, -2.5].map(f64::to_le_bytes).concat(),
        };
        sparse(
            &folder.0.path().join("1.safetensors"),
            data + matrix_bytes + ids.len() as u64,
            &[
                (0, &start),
                (last_row, &logits),
                (data + matrix_bytes, &ids),
            ],
        );
        let reader = folder.open().unwrap();
        let window = reader.window(0).unwrap();
        assert_eq!(window.tokens.last(), Some(&(N_ROWS as u32 - 1)));
        let block = reader.block(0, reader.n_blocks(0) - 1, None).unwrap();
        assert_eq!(block.first_row as u64 + block.n_rows() as u64, N_ROWS);
        let row = block.row(block.n_rows() - 1);
        assert_eq!([row.get(0), row.get(1), row.get(2)], [1.5, -2.5, 0.0]);
    }
}
