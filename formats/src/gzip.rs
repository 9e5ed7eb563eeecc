//! Gzip members without any field (RFC 1952), and the trailer that every member ends with.

use crate::checksum;
use crate::deflate::deflate;

/// Bytes after the body: CRC-32 and length of the plain bytes.
pub(crate) const TRAILER_BYTES: usize = 8;

/// ID1 and ID2, the first bytes of every member (RFC 1952, 2.3.1).
pub(crate) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Deflate, no flags, no time, no level, unknown system (RFC 1952, 2.3.1).
const HEADER: [u8; 10] = [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 0xff];

/// `plain` as one member.
pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    gzip_in(&mut bytes, plain);
    bytes
}

/// [`gzip`] in the memory of `bytes`.
pub(crate) fn gzip_in(bytes: &mut Vec<u8>, plain: &[u8]) {
    bytes.clear();
    bytes.extend_from_slice(&HEADER);
    deflate(plain, bytes);
    bytes.extend_from_slice(&trailer(plain));
}

/// Returns true if a member's last bytes are those of `plain`.
pub(crate) fn is_trailer(bytes: &[u8; TRAILER_BYTES], plain: &[u8]) -> bool {
    let [crc, length] = bytemuck::cast::<_, [u32; 2]>(*bytes);
    checksum::matches(crc32fast::hash(plain), crc) && length == plain.len() as u32
}

/// A member's last bytes.
pub(crate) fn trailer(plain: &[u8]) -> [u8; TRAILER_BYTES] {
    bytemuck::cast([crc32fast::hash(plain), plain.len() as u32])
}
