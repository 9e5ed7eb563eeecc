//! The end of the file: it holds the number of records and of bytes after them, and shows that
//! nothing is missing.

use crate::checksum;

/// Bytes of the trailer: the end mark, the number of records, the bytes of the texts and their
/// checksum, the trailer's checksum.
pub const TRAILER_BYTES: usize = END_MARK.len() + 8 + 8 + 4 + 4;

/// How the trailer starts. A record would have to belong to window 1,600,351,339 to start so.
const END_MARK: &[u8; 8] = b"kls_end\n";

/// What a trailer states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trailer {
    /// Records in the file.
    pub n_records: u64,
    /// Bytes of the section of texts.
    pub texts_bytes: u64,
    /// CRC-32 of these bytes.
    pub texts_crc: u32,
}

/// What the last bytes of a file are.
pub(super) enum Ending {
    Whole(Trailer),
    /// A trailer with a wrong checksum.
    Damaged,
    /// No trailer: the file was cut off.
    None,
}

impl Trailer {
    /// The trailer of a file of `n_records` records, and this section of texts.
    pub fn new(n_records: u64, texts: &[u8]) -> Self {
        Self {
            n_records,
            texts_bytes: texts.len() as u64,
            texts_crc: crc32fast::hash(texts),
        }
    }
}

/// The bytes of a trailer.
pub(super) fn to_bytes(trailer: &Trailer, header_crc: u32) -> Vec<u8> {
    let mut bytes = END_MARK.to_vec();
    bytes.extend(trailer.n_records.to_le_bytes());
    bytes.extend(trailer.texts_bytes.to_le_bytes());
    bytes.extend(trailer.texts_crc.to_le_bytes());
    bytes.extend(crc_of(&bytes, header_crc).to_le_bytes());
    bytes
}

/// Reads the last bytes of a file.
pub(super) fn from_bytes(bytes: &[u8; TRAILER_BYTES], header_crc: u32) -> Ending {
    let is_trailer = bytes.starts_with(END_MARK);
    let Some((fields, stated)) = bytes.split_last_chunk().filter(|_| is_trailer) else {
        return Ending::None;
    };
    if !checksum::matches(crc_of(fields, header_crc), u32::from_le_bytes(*stated)) {
        return Ending::Damaged;
    }
    match parse(fields) {
        Some(trailer) => Ending::Whole(trailer),
        None => Ending::Damaged,
    }
}

/// Reads the fields, whose checksum matches.
fn parse(fields: &[u8]) -> Option<Trailer> {
    let (n_records, rest) = fields.strip_prefix(END_MARK)?.split_first_chunk()?;
    let (texts_bytes, texts_crc) = rest.split_first_chunk()?;
    Some(Trailer {
        n_records: u64::from_le_bytes(*n_records),
        texts_bytes: u64::from_le_bytes(*texts_bytes),
        texts_crc: u32::from_le_bytes(*texts_crc.first_chunk()?),
    })
}

/// CRC-32 of the header's checksum and the trailer's fields.
fn crc_of(fields: &[u8], header_crc: u32) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header_crc.to_le_bytes());
    crc.update(fields);
    crc.finalize()
}
