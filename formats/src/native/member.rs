//! A gzip member with the extra field of `LOGITS.md`, which states its length and its contents, with
//! checksums over each of its bytes: built in memory, and read from a file.

use std::ops::Range;

use crate::error::Result;
use crate::gzip::{self, TRAILER_BYTES, checksum_matches, deflate, is_trailer, trailer};
use crate::source::OpenFile;

/// Bytes of a member's header, which is longer in the end member.
pub(super) const HEADER_BYTES: usize = 44;

/// Bytes of the whole end member.
pub(super) const END_BYTES: usize = END_HEADER_BYTES + gzip::EMPTY_BODY.len() + TRAILER_BYTES;

/// Bytes of the shortest member there can be: header, empty body, trailer.
pub(super) const MIN_BYTES: u64 = (HEADER_BYTES + 2 + TRAILER_BYTES) as u64;

const END_HEADER_BYTES: usize = HEADER_BYTES + 16;

/// Deflate, with an extra field, no time, no level, unknown system (RFC 1952, 2.3.1).
const GZIP: [u8; 10] = [0x1f, 0x8b, 0x08, 0x04, 0, 0, 0, 0, 0, 0xff];

/// XLEN, the subfield's id `KL` and its length, for the two lengths there are.
const EXTRA: [u8; 6] = [32, 0, b'K', b'L', 28, 0];
const END_EXTRA: [u8; 6] = [48, 0, b'K', b'L', 44, 0];

/// The contents of a member, as its header states them: its kind, a window's number, and a piece's.
pub(super) type Tag = [u32; 3];

/// The kinds of members that a file may hold more than once.
pub(super) const WINDOW: u32 = 1;
pub(super) const ROWS: u32 = 2;
pub(super) const HEAD_PIECE: u32 = 5;
pub(super) const CHECK_ROW: u32 = 6;

/// The two lines.
pub(super) const HEADER: Tag = [0, 0, 0];

/// The index.
pub(super) const INDEX: Tag = [3, 0, 0];

/// Nothing: the file's end.
const END: Tag = [4, 0, 0];

/// A member's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberHeader {
    /// Bytes of the whole member.
    pub(super) member_bytes: u32,
    /// Bytes it inflates to.
    pub(super) plain_bytes: u32,
    pub(super) tag: Tag,
    /// CRC-32 of body and trailer.
    packed_crc: u32,
}

/// The member that holds `plain`, which is shorter than 4 GiB: pieces are bounded.
pub(super) fn build(tag: Tag, plain: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    build_in(&mut bytes, tag, plain);
    bytes
}

/// As [`build`], in the memory of `bytes`.
#[expect(
    clippy::indexing_slicing,
    reason = "the header's room is made in the second line"
)]
pub(super) fn build_in(bytes: &mut Vec<u8>, tag: Tag, plain: &[u8]) {
    bytes.clear();
    bytes.resize(HEADER_BYTES, 0);
    deflate(plain, bytes);
    bytes.extend_from_slice(&trailer(plain));
    let lengths = [bytes.len() as u32, plain.len() as u32];
    let built = header(EXTRA, lengths, tag, &[], &bytes[HEADER_BYTES..]);
    bytes[..HEADER_BYTES].copy_from_slice(&built);
}

/// The bytes of the end member, of a file of `file_bytes` whose index starts at `index_offset`.
pub(super) fn build_end(index_offset: u64, file_bytes: u64) -> Vec<u8> {
    let mut packed = gzip::EMPTY_BODY.to_vec();
    packed.extend_from_slice(&trailer(&[]));
    let lengths = [END_BYTES as u32, 0];
    let offsets = [index_offset, file_bytes];
    let mut bytes = header(END_EXTRA, lengths, END, &offsets, &packed);
    bytes.extend_from_slice(&packed);
    bytes
}

/// A member's header, with the CRC-32 of what follows it and its own.
fn header(extra: [u8; 6], lengths: [u32; 2], tag: Tag, offsets: &[u64], packed: &[u8]) -> Vec<u8> {
    let mut bytes = [&GZIP[..], &extra].concat();
    bytes.extend(lengths.iter().chain(&tag).flat_map(|n| n.to_le_bytes()));
    bytes.extend(offsets.iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(crc32fast::hash(packed).to_le_bytes());
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// Reads a member's header; `None` if it is not one, or damaged, or states more plain bytes than the
/// member's can hold: memory may be allocated for those.
pub(super) fn read_header(bytes: &[u8; HEADER_BYTES]) -> Option<MemberHeader> {
    let fields = bytes.strip_prefix(&GZIP)?.strip_prefix(&EXTRA)?;
    let (words, _) = fields.as_chunks::<4>();
    let mut numbers = words.iter().map(|n| u32::from_le_bytes(*n));
    let mut next = || numbers.next();
    let header = MemberHeader {
        member_bytes: next()?,
        plain_bytes: next()?,
        tag: [next()?, next()?, next()?],
        packed_crc: next()?,
    };
    let is_intact = checksum_matches(crc32fast::hash(bytes.get(..HEADER_BYTES - 4)?), next()?);
    let is_plausible = u64::from(header.member_bytes) >= MIN_BYTES
        && u64::from(header.plain_bytes) <= gzip::most_plain_bytes(header.member_bytes as usize);
    (is_intact && is_plausible).then_some(header)
}

/// Where the index starts, by the end member of a file of `file_bytes`; `None` if it is not that, or
/// damaged.
pub(super) fn read_end(bytes: &[u8; END_BYTES], file_bytes: u64) -> Option<u64> {
    let offsets = bytes.get(GZIP.len() + END_EXTRA.len() + 20..)?;
    let index_offset = u64::from_le_bytes(*offsets.first_chunk()?);
    // Each byte can have only one value.
    (cfg!(fuzzing) || build_end(index_offset, file_bytes) == bytes).then_some(index_offset)
}

/// The header of the whole member that starts at `offset`, and where that member is.
///
/// # Errors
/// [`crate::Fault::Truncated`] if the file ends within it, [`crate::Fault::Corrupt`] if its header is
/// damaged, [`crate::Fault::Io`].
pub(super) fn member_at(source: &OpenFile, offset: u64) -> Result<(MemberHeader, Range<u64>)> {
    let header = source.array_at(offset)?.as_ref().and_then(read_header);
    // If this is not the start of a member, it may be the file's end, cut short.
    let bytes = header.map_or(END_BYTES as u32, |header| header.member_bytes);
    let end = offset.saturating_add(bytes.into());
    match header {
        _ if end > source.len => {
            let what = "the file ends within a member";
            Err(source.name.truncated(None, offset, what))
        }
        Some(header) => Ok((header, offset..end)),
        None => {
            let what = "no gzip member with an intact kl field starts here (kl's file, compressed \
                        again by another program, would look so)";
            Err(source.name.corrupt(None, offset, what))
        }
    }
}

/// Reads a member into `bytes`, which must state `tag` and be as long as its place is. Checks its
/// checksum, and returns how many bytes it inflates to.
pub(super) fn read_at(
    source: &OpenFile,
    place: &Range<u64>,
    tag: Tag,
    bytes: &mut Vec<u8>,
) -> Result<usize> {
    let corrupt = |what| source.name.corrupt(None, place.start, what);
    let length = u32::try_from(place.end - place.start).unwrap_or(0);
    bytes.resize(length as usize, 0);
    source.read_exact_at(bytes, place.start)?;
    let header = bytes
        .first_chunk()
        .and_then(read_header)
        .filter(|header| (header.tag, header.member_bytes) == (tag, length))
        .ok_or_else(|| corrupt("no member of the kind and length that the file states"))?;
    let packed = bytes.get(HEADER_BYTES..).unwrap_or_default();
    if checksum_matches(crc32fast::hash(packed), header.packed_crc) {
        Ok(header.plain_bytes as usize)
    } else {
        Err(corrupt("a member's checksum does not match its bytes"))
    }
}

/// Inflates a member that [`read_at`] has read into `plain`, of as many bytes as it inflates to.
///
/// # Errors
/// A phrase that states which length or checksum does not match.
pub(super) fn inflate(member: &[u8], plain: &mut [u8]) -> Result<(), &'static str> {
    let packed = member.get(HEADER_BYTES..).unwrap_or_default();
    let (body, end) = packed
        .split_last_chunk::<TRAILER_BYTES>()
        .ok_or("a member too short")?;
    if !gzip::inflate(body, plain) {
        Err("a member does not inflate to the length it states")
    } else if is_trailer(end, plain) {
        Ok(())
    } else {
        Err("a member's checksum does not match what it inflates to")
    }
}

/// The plain bytes of a member, at most `most`: see [`read_at`].
pub(super) fn plain_at(
    source: &OpenFile,
    place: &Range<u64>,
    tag: Tag,
    most: u64,
) -> Result<Vec<u8>> {
    let corrupt = |what| source.name.corrupt(None, place.start, what);
    let mut member = Vec::new();
    let n = read_at(source, place, tag, &mut member)?;
    if n as u64 > most {
        return Err(corrupt("a member holds more than it should"));
    }
    let mut plain = vec![0; n];
    inflate(&member, &mut plain).map_err(corrupt)?;
    Ok(plain)
}
