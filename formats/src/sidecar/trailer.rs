//! The end of the file: it holds the number of records, and shows that none is missing.

use crate::checksum;

/// Bytes of the trailer: the end mark, the number of records, a checksum.
pub const TRAILER_BYTES: usize = END_MARK.len() + 8 + 4;

/// How the trailer starts. A record would have to belong to window 1,600,351,339 to start so.
const END_MARK: &[u8; 8] = b"kls_end\n";

/// The trailer of a file of `n_records` records.
pub(super) fn to_bytes(n_records: u64, header_crc: u32) -> [u8; TRAILER_BYTES] {
    let mut bytes = [0; TRAILER_BYTES];
    let fields = END_MARK.iter().copied().chain(n_records.to_le_bytes());
    let crc = crc_of(n_records, header_crc).to_le_bytes();
    let all = fields.chain(crc);
    bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
    bytes
}

/// What the last bytes of a file are.
pub(super) enum Ending {
    /// A trailer, for this number of records.
    Whole(u64),
    /// A trailer with a wrong checksum.
    Damaged,
    /// No trailer: the file was cut off.
    None,
}

/// Reads the last bytes of a file.
pub(super) fn from_bytes(bytes: &[u8; TRAILER_BYTES], header_crc: u32) -> Ending {
    let fields = bytes.strip_prefix(END_MARK).unwrap_or_default();
    let Some((n_records, crc)) = fields.split_first_chunk::<8>() else {
        return Ending::None;
    };
    let n_records = u64::from_le_bytes(*n_records);
    let stated = crc.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc));
    match checksum::matches(crc_of(n_records, header_crc), stated) {
        true => Ending::Whole(n_records),
        false => Ending::Damaged,
    }
}

/// CRC-32 of the header's checksum, the end mark and the number of records.
fn crc_of(n_records: u64, header_crc: u32) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header_crc.to_le_bytes());
    crc.update(END_MARK);
    crc.update(&n_records.to_le_bytes());
    crc.finalize()
}
