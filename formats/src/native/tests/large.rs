//! A window beyond 2^32 bytes of the file.

use super::*;
use crate::native::index;

#[test]
fn a_window_beyond_4_gib_is_read_where_it_is() {
    const GAP: u64 = (1 << 32) + 12_345;
    let windows = [window(0, 8, 1, N_VOCAB), window(1, 7, 1, N_VOCAB)];
    let header = header(Encoding::U16, N_VOCAB, &windows);
    let bytes = write(&header, &windows, 3);
    let near = Scratch::new();
    let near = NativeReader::open(near.file(&bytes)).unwrap();
    let mut entries = near.placed.clone();
    let (second, end) = (entries[1].offset(), near.windows_end);
    // A gap before the second window, which the index and the end count.
    entries[1].offsets.iter_mut().for_each(|at| *at += GAP);
    let index = member::build(member::INDEX, &index::encode(&entries));
    let (index_offset, index_bytes) = (end + GAP, index.len() as u64);
    let file_bytes = index_offset + index_bytes + member::END_BYTES as u64;
    let end_member = member::build_end(index_offset, file_bytes);
    let (first_part, second_part) = bytes[..end as usize].split_at(second as usize);
    let far = Scratch::new();
    sparse(
        &far.path,
        file_bytes,
        &[
            (0, first_part),
            (second + GAP, second_part),
            (index_offset, &index),
            (index_offset + index_bytes, &end_member),
        ],
    );

    let far = NativeReader::open(&far.path).unwrap();
    assert_eq!((far.file_bytes(), far.windows_end), (file_bytes, end + GAP));
    assert_eq!(far.window(1).unwrap(), windows[1].spec);
    far.verify_window(1).unwrap();
    for b in 0..far.n_blocks(1) {
        far.prefetch(1, b);
        let block = |reader: &NativeReader| bits(&reader.block(1, b, None).unwrap());
        assert_eq!(block(&far), block(&near));
    }
    // The window before the gap is whole but for its last piece, which the gap follows.
    let last = far.n_blocks(0) - 1;
    far.block(0, last - 1, None).unwrap();
    let error = far.block(0, last, None).unwrap_err();
    assert_fault(&error, "Corrupt");
}
