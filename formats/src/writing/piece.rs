//! A bounded part of a file: plain bytes, which any thread can turn into bytes of the file.

use crate::WindowEntry;
use crate::reference::Kind;

/// Turns a piece's plain bytes (the last argument) into bytes of the file, in the first argument.
pub(crate) type Pack = fn(&mut Vec<u8>, Part, &[u8]);

/// Plain bytes that become one part of a file: a gzip member, or themselves.
#[derive(Clone, Debug)]
pub struct Piece {
    pub(crate) plain: Vec<u8>,
    /// Memory for the compressed bytes.
    pub(super) packed: Vec<u8>,
    pub(super) part: Part,
    /// Which kind of file it is for.
    pub(super) kind: Kind,
    /// How it becomes bytes of the file; `None`: unchanged.
    pub(super) pack: Option<Pack>,
}

/// Which part of its window a piece is, so that a writer can check the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Counts and tokens. Repeats the counts, and states how many pieces of rows follow.
    Head { window: WindowEntry, n_pieces: u32 },
    /// Rows, in pieces numbered from 0.
    Rows { window: u32, piece: u32 },
}

/// A piece as the file holds it.
#[derive(Clone, Debug)]
pub struct Member {
    pub(crate) bytes: Vec<u8>,
    /// The piece's memory.
    spare: Vec<u8>,
    pub(super) part: Part,
    pub(super) kind: Kind,
    is_packed: bool,
}

/// The memory of a piece that has been written, for a later one: taking fresh memory from the
/// system for every piece costs more than filling it.
#[derive(Debug, Default)]
pub struct PieceMemory {
    pub(super) plain: Vec<u8>,
    pub(super) packed: Vec<u8>,
}

impl Piece {
    /// The index of the window that this is a part of.
    pub fn window(&self) -> u32 {
        match self.part {
            Part::Head { window, .. } => window.window,
            Part::Rows { window, .. } => window,
        }
    }

    /// Its bytes before compression.
    pub fn plain_bytes(&self) -> usize {
        self.plain.len()
    }

    /// Compresses it, or stores it where compressing does not pay. Depends on nothing but the
    /// piece, so pieces may be compressed on any thread, in any order.
    pub fn compress(self) -> Member {
        let (mut bytes, mut spare) = (self.packed, self.plain);
        match self.pack {
            Some(pack) => pack(&mut bytes, self.part, &spare),
            None => std::mem::swap(&mut bytes, &mut spare),
        }
        Member {
            bytes,
            spare,
            part: self.part,
            kind: self.kind,
            is_packed: self.pack.is_some(),
        }
    }
}

impl Member {
    /// A member that another file of this kind holds, unchanged.
    pub(crate) fn copied(bytes: Vec<u8>, part: Part, kind: Kind) -> Self {
        Self {
            bytes,
            spare: Vec::new(),
            part,
            kind,
            is_packed: true,
        }
    }

    /// Its memory after it is written, if that is worth keeping.
    pub(super) fn into_memory(self) -> Option<PieceMemory> {
        let (plain, packed) = match self.is_packed {
            true => (self.spare, self.bytes),
            false => (self.bytes, self.spare),
        };
        matches!(self.part, Part::Rows { .. }).then_some(PieceMemory { plain, packed })
    }

    /// Its bytes in the file.
    pub fn file_bytes(&self) -> usize {
        self.bytes.len()
    }
}
