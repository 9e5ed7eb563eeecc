//! A gzip member with the extra field of `LOGITS.md`: how long it is and what it holds, and
//! checksums over each of its bytes.

use byteorder::{LittleEndian, ReadBytesExt};

use crate::checksum;
use crate::deflate::{self, deflate};
use crate::gzip::{TRAILER_BYTES, is_trailer, trailer};

/// Bytes before the body, in every member but the end.
pub(super) const HEAD_BYTES: usize = 44;

/// Bytes of the whole end member.
pub(super) const END_BYTES: usize = END_HEAD_BYTES + deflate::EMPTY_BODY.len() + TRAILER_BYTES;

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
    pub(super) const HEADER: Tag = Tag {
        kind: 0,
        window: 0,
        piece: 0,
    };
    /// The index.
    pub(super) const INDEX: Tag = Tag {
        kind: 3,
        window: 0,
        piece: 0,
    };
    /// Nothing: the file's end.
    pub(super) const END: Tag = Tag {
        kind: 4,
        window: 0,
        piece: 0,
    };

    /// A piece of the head of hidden states.
    pub(super) fn of_head(piece: u32) -> Tag {
        Tag {
            kind: 5,
            window: 0,
            piece,
        }
    }

    /// A row to check the head with.
    pub(super) fn check_row(piece: u32) -> Tag {
        Tag {
            kind: 6,
            window: 0,
            piece,
        }
    }

    /// A window's counts and tokens.
    pub(super) fn head(window: u32) -> Tag {
        Tag {
            kind: 1,
            window,
            piece: 0,
        }
    }

    /// Some of a window's rows.
    pub(super) fn rows(window: u32, piece: u32) -> Tag {
        Tag {
            kind: 2,
            window,
            piece,
        }
    }

    pub(super) fn is_head(self) -> bool {
        self.kind == 1
    }

    pub(super) fn is_of_head(self) -> bool {
        self.kind == 5
    }

    pub(super) fn is_rows(self) -> bool {
        self.kind == 2
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

/// The end member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) index_offset: u64,
    pub(super) file_bytes: u64,
}

/// Bytes of a member that stores `plain` bytes.
pub(super) fn stored_bytes(plain: u64) -> u64 {
    deflate::stored_bytes(plain).saturating_add((HEAD_BYTES + TRAILER_BYTES) as u64)
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
    let packed_crc = crc32fast::hash(&bytes[HEAD_BYTES..]);
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(&GZIP);
    head.extend_from_slice(&EXTRA);
    put_u32s(
        &mut head,
        &[
            bytes.len() as u32,
            plain.len() as u32,
            tag.kind,
            tag.window,
            tag.piece,
        ],
    );
    seal(&mut head, packed_crc);
    bytes[..HEAD_BYTES].copy_from_slice(&head);
}

/// The end member's bytes.
pub(super) fn build_end(end: End) -> Vec<u8> {
    let mut packed = deflate::EMPTY_BODY.to_vec();
    packed.extend_from_slice(&trailer(&[]));
    let mut bytes = Vec::with_capacity(END_BYTES);
    bytes.extend_from_slice(&GZIP);
    bytes.extend_from_slice(&END_EXTRA);
    put_u32s(&mut bytes, &[END_BYTES as u32, 0, Tag::END.kind, 0, 0]);
    bytes.extend_from_slice(&end.index_offset.to_le_bytes());
    bytes.extend_from_slice(&end.file_bytes.to_le_bytes());
    seal(&mut bytes, crc32fast::hash(&packed));
    bytes.extend_from_slice(&packed);
    bytes
}

fn put_u32s(bytes: &mut Vec<u8>, values: &[u32]) {
    values
        .iter()
        .for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
}

/// Puts the two checksums after a header.
fn seal(head: &mut Vec<u8>, packed_crc: u32) {
    put_u32s(head, &[packed_crc]);
    let header_crc = crc32fast::hash(head);
    put_u32s(head, &[header_crc]);
}

/// Reads a member's header; `None` if it is not one, or damaged.
pub(super) fn read_head(bytes: &[u8; HEAD_BYTES]) -> Option<MemberHead> {
    let fields = bytes.strip_prefix(&GZIP)?.strip_prefix(&EXTRA)?;
    let [member_bytes, plain_bytes, kind, window, piece, packed_crc] = read_u32s(bytes, fields)?;
    let tag = Tag {
        kind,
        window,
        piece,
    };
    (u64::from(member_bytes) >= MIN_BYTES).then_some(MemberHead {
        member_bytes,
        plain_bytes,
        tag,
        packed_crc,
    })
}

/// Reads the end member; `None` if it is not one, or damaged.
pub(super) fn read_end(bytes: &[u8; END_BYTES]) -> Option<End> {
    let mut fields = bytes
        .strip_prefix(&GZIP)?
        .strip_prefix(&END_EXTRA)?
        .get(20..)?;
    let end = End {
        index_offset: fields.read_u64::<LittleEndian>().ok()?,
        file_bytes: fields.read_u64::<LittleEndian>().ok()?,
    };
    // Each byte can have only one value.
    (cfg!(fuzzing) || build_end(end) == bytes).then_some(end)
}

/// The six numbers of an ordinary subfield, if the checksum after them matches.
fn read_u32s(head: &[u8; HEAD_BYTES], mut fields: &[u8]) -> Option<[u32; 6]> {
    let mut values = [0; 6];
    fields.read_u32_into::<LittleEndian>(&mut values).ok()?;
    let crc = fields.read_u32::<LittleEndian>().ok()?;
    checksum::matches(crc32fast::hash(head.get(..HEAD_BYTES - 4)?), crc).then_some(values)
}

impl MemberHead {
    /// Returns true if the packed bytes can hold as much as the header states. Ask before
    /// allocating memory.
    pub(super) fn is_plausible(&self) -> bool {
        u64::from(self.plain_bytes) <= deflate::most_plain_bytes(self.member_bytes as usize)
    }

    /// Returns true if these bytes are what follows the header.
    pub(super) fn matches(&self, packed: &[u8]) -> bool {
        checksum::matches(crc32fast::hash(packed), self.packed_crc)
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
                && checksum::matches(crc32fast::hash(packed), head.packed_crc)
        });
        let plain = plain_bytes as usize; // less than the member's bytes
        is_whole
            && deflate::unstore(member, HEAD_BYTES, plain)
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
        if !deflate::inflate(body, plain) {
            return Err("a member does not inflate to the length it states");
        }
        match is_trailer(end, plain) {
            true => Ok(()),
            false => Err("a member's checksum does not match what it inflates to"),
        }
    }
}
