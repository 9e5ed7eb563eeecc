//! A gzip member with the extra field of `LOGITS.md`, which states its length and its contents, with
//! checksums over each of its bytes; and members as they are read from a file.

use byteorder::{LittleEndian, ReadBytesExt};

use super::{Header, MAX_HEADER_BYTES_WITH_PROMPTS};
use crate::gzip::{self, TRAILER_BYTES, checksum_matches, deflate, is_trailer, trailer};
use crate::source::Source;

/// Bytes before the body, in every member but the end.
pub(super) const HEAD_BYTES: usize = 44;

/// Bytes of the whole end member.
pub(super) const END_BYTES: usize = END_HEAD_BYTES + gzip::EMPTY_BODY.len() + TRAILER_BYTES;

/// The fault of a member whose bytes have changed.
pub(super) const WRONG_CHECKSUM: &str = "a member's checksum does not match its bytes";

/// Bytes of the shortest member there can be: header, empty body, trailer.
pub(super) const MIN_BYTES: u64 = (HEAD_BYTES + 2 + TRAILER_BYTES) as u64;

const END_HEAD_BYTES: usize = HEAD_BYTES + 16;

/// Deflate, with an extra field, no time, no level, unknown system (RFC 1952, 2.3.1).
const GZIP: [u8; 10] = [0x1f, 0x8b, 0x08, 0x04, 0, 0, 0, 0, 0, 0xff];

/// XLEN, the subfield's id `KL` and its length, for the two lengths there are.
const EXTRA: [u8; 6] = [32, 0, b'K', b'L', 28, 0];
const END_EXTRA: [u8; 6] = [48, 0, b'K', b'L', 44, 0];

/// The contents of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) kind: u32,
    pub(super) window: u32,
    pub(super) piece: u32,
}

impl Tag {
    /// The two lines.
    pub(super) const HEADER: Tag = Tag::new(0, 0, 0);
    /// The index.
    pub(super) const INDEX: Tag = Tag::new(3, 0, 0);
    /// Nothing: the file's end.
    const END: Tag = Tag::new(4, 0, 0);

    const fn new(kind: u32, window: u32, piece: u32) -> Tag {
        Tag {
            kind,
            window,
            piece,
        }
    }

    /// A window's counts and tokens.
    pub(super) fn window(window: u32) -> Tag {
        Tag::new(1, window, 0)
    }

    /// Some of a window's rows.
    pub(super) fn rows(window: u32, piece: u32) -> Tag {
        Tag::new(2, window, piece)
    }

    /// A piece of the head of hidden states.
    pub(super) fn head_piece(piece: u32) -> Tag {
        Tag::new(5, 0, piece)
    }

    /// A row to check the head with.
    pub(super) fn check_row(piece: u32) -> Tag {
        Tag::new(6, 0, piece)
    }

    pub(super) fn is_window(self) -> bool {
        self.kind == 1
    }

    pub(super) fn is_rows(self) -> bool {
        self.kind == 2
    }

    pub(super) fn is_head_piece(self) -> bool {
        self.kind == 5
    }
}

/// A member's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberHead {
    /// Bytes of the whole member.
    pub(super) member_bytes: u32,
    /// Bytes it inflates to.
    pub(super) plain_bytes: u32,
    pub(super) tag: Tag,
    /// CRC-32 of body and trailer.
    packed_crc: u32,
}

/// Bytes of a member that stores `plain` bytes.
pub(super) fn stored_bytes(plain: u64) -> u64 {
    gzip::stored_bytes(plain).saturating_add((HEAD_BYTES + TRAILER_BYTES) as u64)
}

/// The member that holds `plain`, which is shorter than 4 GiB: pieces are bounded.
pub(super) fn build(tag: Tag, plain: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    build_in(&mut bytes, tag, plain);
    bytes
}

/// [`build`] in the memory of `bytes`.
#[expect(
    clippy::indexing_slicing,
    reason = "the header's room is made in the second line"
)]
pub(super) fn build_in(bytes: &mut Vec<u8>, tag: Tag, plain: &[u8]) {
    bytes.clear();
    bytes.resize(HEAD_BYTES, 0);
    deflate(plain, bytes);
    bytes.extend_from_slice(&trailer(plain));
    let lengths = [bytes.len() as u32, plain.len() as u32];
    let head = head(EXTRA, lengths, tag, &[], &bytes[HEAD_BYTES..]);
    bytes[..HEAD_BYTES].copy_from_slice(&head);
}

/// The bytes of the end member, of a file of `file_bytes` whose index starts at `index_offset`.
pub(super) fn build_end(index_offset: u64, file_bytes: u64) -> Vec<u8> {
    let mut packed = gzip::EMPTY_BODY.to_vec();
    packed.extend_from_slice(&trailer(&[]));
    let lengths = [END_BYTES as u32, 0];
    let offsets = [index_offset, file_bytes];
    let mut bytes = head(END_EXTRA, lengths, Tag::END, &offsets, &packed);
    bytes.extend_from_slice(&packed);
    bytes
}

/// A member's header, with the CRC-32 of what follows it and its own.
fn head(extra: [u8; 6], lengths: [u32; 2], tag: Tag, offsets: &[u64], packed: &[u8]) -> Vec<u8> {
    let mut head = [&GZIP[..], &extra].concat();
    let [member_bytes, plain_bytes] = lengths;
    let numbers = [member_bytes, plain_bytes, tag.kind, tag.window, tag.piece];
    head.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    head.extend(offsets.iter().flat_map(|n| n.to_le_bytes()));
    head.extend(crc32fast::hash(packed).to_le_bytes());
    head.extend(crc32fast::hash(&head).to_le_bytes());
    head
}

/// Reads a member's header; `None` if it is not one, or damaged.
pub(super) fn read_head(bytes: &[u8; HEAD_BYTES]) -> Option<MemberHead> {
    let mut fields = bytes.strip_prefix(&GZIP)?.strip_prefix(&EXTRA)?;
    let mut numbers = [0; 6];
    fields.read_u32_into::<LittleEndian>(&mut numbers).ok()?;
    let [member_bytes, plain_bytes, kind, window, piece, packed_crc] = numbers;
    let crc = fields.read_u32::<LittleEndian>().ok()?;
    if !checksum_matches(crc32fast::hash(bytes.get(..HEAD_BYTES - 4)?), crc) {
        return None;
    }
    (u64::from(member_bytes) >= MIN_BYTES).then_some(MemberHead {
        member_bytes,
        plain_bytes,
        tag: Tag::new(kind, window, piece),
        packed_crc,
    })
}

/// Where the index starts, by the end member of a file of `file_bytes`; `None` if it is not that, or
/// damaged.
pub(super) fn read_end(bytes: &[u8; END_BYTES], file_bytes: u64) -> Option<u64> {
    let mut offsets = bytes.get(GZIP.len() + END_EXTRA.len() + 20..)?;
    let index_offset = offsets.read_u64::<LittleEndian>().ok()?;
    // Each byte can have only one value.
    (cfg!(fuzzing) || build_end(index_offset, file_bytes) == bytes).then_some(index_offset)
}

impl MemberHead {
    /// Returns true if the packed bytes can hold as much as the header states. Ask before
    /// allocating memory.
    pub(super) fn is_plausible(&self) -> bool {
        u64::from(self.plain_bytes) <= gzip::most_plain_bytes(self.member_bytes as usize)
    }

    /// Returns true if these bytes are what follows the header.
    pub(super) fn matches(&self, packed: &[u8]) -> bool {
        checksum_matches(crc32fast::hash(packed), self.packed_crc)
    }

    /// Unpacks, in place, a member whose rows are stored, as they nearly always are: moves its
    /// contents to the front of its bytes. Returns `false` for any other member, and for a damaged
    /// one.
    pub(super) fn unpack_stored(member: &mut [u8], tag: Tag, plain_bytes: u64) -> bool {
        let Some((head, packed)) = member.split_first_chunk::<HEAD_BYTES>() else {
            return false;
        };
        let is_whole = read_head(head).is_some_and(|head| {
            head.tag == tag
                && u64::from(head.plain_bytes) == plain_bytes
                && head.member_bytes as usize == member.len()
                && checksum_matches(crc32fast::hash(packed), head.packed_crc)
        });
        let plain = plain_bytes as usize; // less than the member's bytes
        is_whole
            && gzip::unstore(member, HEAD_BYTES, plain)
            && member
                .get(..plain)
                .zip(member.last_chunk())
                .is_some_and(|(plain, end)| is_trailer(end, plain))
    }

    /// Inflates what follows the header into `plain`, of `plain_bytes` bytes.
    ///
    /// # Errors
    /// A phrase that states which length or checksum does not match.
    pub(super) fn unpack(&self, packed: &[u8], plain: &mut [u8]) -> Result<(), &'static str> {
        if !self.matches(packed) {
            return Err(WRONG_CHECKSUM);
        }
        let (body, end) = packed
            .split_last_chunk::<TRAILER_BYTES>()
            .ok_or("a member too short")?;
        if !gzip::inflate(body, plain) {
            return Err("a member does not inflate to the length it states");
        }
        match is_trailer(end, plain) {
            true => Ok(()),
            false => Err("a member's checksum does not match what it inflates to"),
        }
    }
}

/// The header, and where it ends.
pub(super) fn open_header(source: &Source) -> crate::Result<(Header, u64)> {
    let name = &source.name;
    match source.array_at::<3>(0)? {
        None => return Err(name.not_a_reference(format!("it has {} bytes", source.len))),
        Some([0x1f, 0x8b, 0x08]) => {}
        Some(_) => return Err(name.not_a_reference("it is not gzip")),
    }
    let Some(bytes) = source.array_at::<HEAD_BYTES>(0)? else {
        return Err(name.truncated(None, source.len, "the file ends within its header"));
    };
    let Some(head) = read_head(&bytes).filter(|head| head.tag == Tag::HEADER) else {
        return Err(name.corrupt(
            None,
            0,
            "the first gzip member carries no intact kl field (kl's file, compressed again by \
             another program, would look so)",
        ));
    };
    if u64::from(head.member_bytes) > source.len {
        return Err(name.truncated(None, source.len, "the file ends within its header"));
    }
    if head.plain_bytes as usize > MAX_HEADER_BYTES_WITH_PROMPTS {
        return Err(name.too_large("a header of more than 64 MiB"));
    }
    let lines = unpack_at(source, 0, &head)?;
    Ok((Header::from_lines(&lines, name)?, head.member_bytes.into()))
}

/// The header of the member at `offset`, which must be whole and state `tag`.
pub(super) fn member_at(source: &Source, offset: u64, tag: Tag) -> crate::Result<MemberHead> {
    let corrupt = |what| source.name.corrupt(None, offset, what);
    let bytes = source
        .array_at(offset)?
        .ok_or_else(|| corrupt("no member fits here"))?;
    let head = read_head(&bytes)
        .ok_or_else(|| corrupt("no gzip member with an intact kl field starts here"))?;
    if head.tag != tag {
        return Err(corrupt("a member does not hold what the index states"));
    }
    if offset
        .checked_add(head.member_bytes.into())
        .is_none_or(|end| end > source.len)
    {
        return Err(corrupt("a member reaches past the file's end"));
    }
    if !head.is_plausible() {
        return Err(corrupt("a member states more than its bytes can hold"));
    }
    Ok(head)
}

/// The plain bytes of the member at `offset`, whose header has been read.
pub(super) fn unpack_at(source: &Source, offset: u64, head: &MemberHead) -> crate::Result<Vec<u8>> {
    let corrupt = |what| source.name.corrupt(None, offset, what);
    if u64::from(head.member_bytes) < MIN_BYTES || !head.is_plausible() {
        return Err(corrupt("a member states more than its bytes can hold"));
    }
    let mut packed = vec![0; head.member_bytes as usize - HEAD_BYTES];
    source.read_exact_at(&mut packed, offset + HEAD_BYTES as u64)?;
    let mut plain = vec![0; head.plain_bytes as usize];
    head.unpack(&packed, &mut plain).map_err(corrupt)?;
    Ok(plain)
}

/// The plain bytes of the member at `offset`, which must be whole and state `tag`.
pub(super) fn plain_at(source: &Source, offset: u64, tag: Tag) -> crate::Result<Vec<u8>> {
    let head = member_at(source, offset, tag)?;
    unpack_at(source, offset, &head)
}
