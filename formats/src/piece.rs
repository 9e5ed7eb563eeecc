//! A bounded part of a file: plain bytes, which any thread turns into what the file holds of them:
//! a gzip member (RFC 1952), or the bytes themselves.

use crate::checksum;
use crate::deflate::deflate;
use crate::native::member::{self, Tag};

/// A gzip header without any field: deflate, no flags, no time, no level, unknown system.
const PLAIN_GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 0xff];

/// Plain bytes that become one member, or a part of a file without members.
#[derive(Clone, Debug)]
pub struct Piece {
    pub(crate) plain: Vec<u8>,
    /// Where it is compressed to: memory alone.
    pub(crate) packed: Vec<u8>,
    pub(crate) part: Part,
    pub(crate) framing: Framing,
}

/// What a piece is of its window, so that a writer can check the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Counts and tokens; the counts once more, for the index.
    Head {
        window: u32,
        n_tokens: u32,
        n_rows: u32,
        first_scored: u32,
        n_pieces: u32,
    },
    /// Rows, in pieces numbered from 0.
    Rows { window: u32, piece: u32 },
}

/// Which file the piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Members that carry the extra field of `LOGITS.md`.
    Native,
    /// Members without any field.
    Gzip,
    /// The bytes themselves, as llama.cpp's base file has them.
    Bare,
}

/// A compressed piece.
#[derive(Clone, Debug)]
pub struct Member {
    pub(crate) bytes: Vec<u8>,
    /// The piece's memory.
    pub(crate) plain: Vec<u8>,
    pub(crate) part: Part,
    pub(crate) framing: Framing,
}

/// The memory of a piece that has been written, for a later one: taking fresh memory from the
/// system for every piece costs more than filling it.
#[derive(Debug, Default)]
pub struct PieceMemory {
    pub(crate) plain: Vec<u8>,
    pub(crate) packed: Vec<u8>,
}

impl Piece {
    /// The window this is a part of.
    pub fn window(&self) -> u32 {
        match self.part {
            Part::Head { window, .. } | Part::Rows { window, .. } => window,
        }
    }

    /// Its bytes before compression.
    pub fn plain_bytes(&self) -> usize {
        self.plain.len()
    }

    /// Compresses it, or stores it where compressing does not pay. Depends on nothing but the
    /// piece, so pieces may be compressed on any thread, in any order.
    pub fn compress(self) -> Member {
        let (mut bytes, mut plain) = (self.packed, self.plain);
        match self.framing {
            Framing::Native => {
                let tag = match self.part {
                    Part::Head { window, .. } => Tag::head(window),
                    Part::Rows { window, piece } => Tag::rows(window, piece),
                };
                member::build_in(&mut bytes, tag, &plain);
            }
            Framing::Gzip => gzip_in(&mut bytes, &plain),
            Framing::Bare => std::mem::swap(&mut bytes, &mut plain),
        }
        Member {
            bytes,
            plain,
            part: self.part,
            framing: self.framing,
        }
    }
}

impl Member {
    /// What is left of it once it is written, if that is worth keeping.
    pub(crate) fn into_memory(self) -> Option<PieceMemory> {
        let (plain, packed) = match self.framing {
            Framing::Bare => (self.bytes, self.plain),
            Framing::Native | Framing::Gzip => (self.plain, self.bytes),
        };
        matches!(self.part, Part::Rows { .. }).then_some(PieceMemory { plain, packed })
    }

    /// The bytes it takes in the file.
    pub fn file_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// `plain` as one gzip member without fields.
pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    gzip_in(&mut bytes, plain);
    bytes
}

/// [`gzip`] in the memory of `bytes`.
fn gzip_in(bytes: &mut Vec<u8>, plain: &[u8]) {
    bytes.clear();
    bytes.extend_from_slice(&PLAIN_GZIP_HEADER);
    deflate(plain, bytes);
    bytes.extend_from_slice(&trailer(plain));
}

/// Whether a member's last 8 bytes are those of `plain`.
pub(crate) fn is_trailer(bytes: &[u8; 8], plain: &[u8]) -> bool {
    let [crc, length] = bytemuck::cast::<_, [u32; 2]>(*bytes);
    checksum::matches(crc32fast::hash(plain), crc) && length == plain.len() as u32
}

/// A member's last 8 bytes: CRC-32 and length of the plain bytes.
pub(crate) fn trailer(plain: &[u8]) -> [u8; 8] {
    let mut trailer = [0; 8];
    trailer[..4].copy_from_slice(&crc32fast::hash(plain).to_le_bytes());
    trailer[4..].copy_from_slice(&(plain.len() as u32).to_le_bytes());
    trailer
}
