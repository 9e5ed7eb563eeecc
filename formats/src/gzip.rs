//! Gzip (RFC 1952) and raw deflate (RFC 1951) of bytes held in memory; and the comparison of
//! checksums, for every kind of file.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Bytes after the body: CRC-32 and length of the plain bytes.
pub(crate) const TRAILER_BYTES: usize = 8;

/// ID1 and ID2, the first bytes of every member (RFC 1952, 2.3.1).
pub(crate) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Deflate, no flags, no time, no level, unknown system (RFC 1952, 2.3.1).
const HEADER: [u8; 10] = [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 0xff];

/// Appends `plain` as one gzip member, without optional fields.
pub(crate) fn gzip(bytes: &mut Vec<u8>, plain: &[u8]) {
    bytes.extend_from_slice(&HEADER);
    deflate(plain, bytes);
    bytes.extend_from_slice(&trailer(plain));
}

/// True if a member's last bytes are those of `plain`.
pub(crate) fn is_trailer(bytes: &[u8; TRAILER_BYTES], plain: &[u8]) -> bool {
    let [crc, length] = bytemuck::cast::<_, [u32; 2]>(*bytes);
    checksum_matches(crc32fast::hash(plain), crc) && length == plain.len() as u32
}

/// The last bytes of a member that holds `plain`.
pub(crate) fn trailer(plain: &[u8]) -> [u8; TRAILER_BYTES] {
    bytemuck::cast([crc32fast::hash(plain), plain.len() as u32])
}

/// True if a checksum is as stated. Always true for a fuzzer (`cfg(fuzzing)`): it cannot
/// guess a checksum, and would never reach the code that follows.
pub(crate) fn checksum_matches(computed: u32, stated: u32) -> bool {
    cfg!(fuzzing) || computed == stated
}

/// The first bytes of a piece, which are compressed to see whether compressing it pays.
const SAMPLE_BYTES: usize = 16 << 10;

/// A piece is compressed if its sample shrinks to less than this share, else stored. Measured:
/// see "Compression" in LOGITS.md.
const WORTHWHILE_PERCENT: usize = 90;

/// Most bytes that a stored block holds.
const STORED_BLOCK: usize = u16::MAX as usize;

/// The body of an empty member: one final block of fixed codes, empty.
pub(crate) const EMPTY_BODY: [u8; 2] = [0x03, 0x00];

/// Most plain bytes that a body of `packed` bytes can hold: deflate's limit is 258 bytes in 2
/// bits, 1032 to 1.
pub(crate) fn most_plain_bytes(packed: usize) -> u64 {
    (packed as u64).saturating_mul(1032)
}

/// Appends `plain` to `out`, compressed at level 1 or stored, whichever pays on a sample of it.
/// Equal inputs give equal outputs.
pub(crate) fn deflate(plain: &[u8], out: &mut Vec<u8>) {
    if plain.is_empty() {
        out.extend_from_slice(&EMPTY_BODY);
        return;
    }
    let start = out.len();
    let sample = plain.get(..SAMPLE_BYTES).unwrap_or(plain);
    let limit = sample.len() * WORTHWHILE_PERCENT / 100; // a sample is short
    let worthwhile = compress(sample, out) && out.len() - start < limit;
    if worthwhile && sample.len() == plain.len() {
        return;
    }
    out.truncate(start);
    if worthwhile && compress(plain, out) && out.len() - start < plain.len() {
        return;
    }
    out.truncate(start);
    store(plain, out);
}

/// Appends `plain` compressed at level 1; returns `false` if that failed, or grew too much to be of
/// use.
fn compress(plain: &[u8], out: &mut Vec<u8>) -> bool {
    let mut deflater = Compress::new(Compression::new(1), false);
    out.reserve(plain.len() + 64);
    let done = deflater.compress_vec(plain, out, FlushCompress::Finish);
    matches!(done, Ok(Status::StreamEnd))
}

/// Appends `plain` as stored blocks (RFC 1951, 3.2.4).
fn store(plain: &[u8], out: &mut Vec<u8>) {
    out.reserve(plain.len() + (plain.len() / STORED_BLOCK + 1) * 5);
    let mut blocks = plain.chunks(STORED_BLOCK).peekable();
    while let Some(block) = blocks.next() {
        let length = block.len() as u16; // at most STORED_BLOCK
        out.push(u8::from(blocks.peek().is_none()));
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(block);
    }
}

/// Bytes that [`store`] makes of `plain` bytes.
fn stored_bytes(plain: u64) -> u64 {
    plain.saturating_add(5 * plain.div_ceil(STORED_BLOCK as u64))
}

/// Copies the contents of stored blocks into `plain`. Returns `false` unless `body` is exactly what
/// [`store`] makes of that many bytes.
fn unstore(mut body: &[u8], plain: &mut [u8]) -> bool {
    if body.len() as u64 != stored_bytes(plain.len() as u64) {
        return false;
    }
    let mut blocks = plain.chunks_mut(STORED_BLOCK).peekable();
    while let Some(block) = blocks.next() {
        let [low, high] = (block.len() as u16).to_le_bytes(); // at most STORED_BLOCK
        let head = [u8::from(blocks.peek().is_none()), low, high, !low, !high];
        let Some((content, rest)) = body
            .strip_prefix(&head)
            .and_then(|rest| rest.split_at_checked(block.len()))
        else {
            return false;
        };
        block.copy_from_slice(content);
        body = rest;
    }
    true
}

/// Inflates `body` into the whole of `plain`; returns `false` unless it is one stream of exactly
/// that length, with nothing after it. Nothing is written past `plain`, whatever `body` holds.
/// Stored blocks, as rows nearly always are, are only copied.
pub(crate) fn inflate(body: &[u8], plain: &mut [u8]) -> bool {
    if unstore(body, plain) {
        return true;
    }
    let mut inflater = Decompress::new(false);
    let status = inflater.decompress(body, plain, FlushDecompress::Finish);
    matches!(status, Ok(Status::StreamEnd))
        && inflater.total_in() == body.len() as u64
        && inflater.total_out() == plain.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_shrink_is_stored() {
        let mut out = Vec::new();
        deflate(&[7, 8], &mut out);
        assert_eq!(
            out,
            [
                0x01, // final block, stored
                0x02, 0x00, // two bytes
                0xfd, 0xff, // their complement
                7, 8,
            ]
        );
        out.clear();
        store(&vec![9; STORED_BLOCK + 1], &mut out);
        assert_eq!(out.len(), STORED_BLOCK + 1 + 10);
        assert_eq!(out[..5], [0x00, 0xff, 0xff, 0x00, 0x00]);
    }

    #[test]
    fn stored_blocks_are_undone() {
        for n in [1, 7, STORED_BLOCK, STORED_BLOCK + 1, 3 * STORED_BLOCK] {
            let plain: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
            let mut body = Vec::new();
            store(&plain, &mut body);
            assert_eq!(stored_bytes(n as u64), body.len() as u64);
            let mut back = vec![0; n];
            assert!(unstore(&body, &mut back) && back == plain);
            assert!(inflate(&body, &mut back));
            for other in [n - 1, n + 1] {
                assert!(!inflate(&body, &mut vec![0; other]));
            }
            assert!(!inflate(&body[..body.len() - 1], &mut back));
            body[0] ^= 1;
            assert!(!unstore(&body, &mut back));
        }
    }

    #[test]
    fn a_bomb_stops_at_the_buffer() {
        let mut out = Vec::new();
        deflate(&vec![0; 1 << 20], &mut out);
        assert!(!inflate(&out, &mut [0; 100]));
        assert!(!inflate(&out, &mut vec![0; (1 << 20) + 1]));
        out.push(0);
        assert!(!inflate(&out, &mut vec![0; 1 << 20]));
    }

    proptest! {
        #[test]
        fn round_trip(
            plain in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..3000)
        ) {
            let mut out = vec![1, 2, 3];
            deflate(&plain, &mut out);
            let mut back = vec![0; plain.len()];
            prop_assert!(inflate(&out[3..], &mut back));
            prop_assert_eq!(back, plain);
        }

        #[test]
        fn inflate_never_panics(
            body in prop::collection::vec(any::<u8>(), 0..200), n in 0usize..300
        ) {
            inflate(&body, &mut vec![0; n]);
        }
    }
}
