//! The members of a head of hidden states: its tensor and the values of the steps that follow, in
//! bounded pieces, then the check rows.

use std::io::{self, Cursor, Read, Write};

use sha2::{Digest, Sha256};

use super::NativeReader;
use super::member::{self, CHECK_ROW, HEAD_PIECE, Tag};
use crate::error::Result;
use crate::provenance::hex;
use crate::states::States;
use crate::writing::Writer;

/// Plain bytes of each piece of the head but the last.
pub(super) const HEAD_PIECE_BYTES: u64 = 16 << 20;

/// The members that a head has, in order: what each holds, and its plain bytes.
fn members(states: &States, n_vocab: u32) -> impl Iterator<Item = (Tag, u64)> + use<> {
    let bytes = states.head_bytes();
    let piece = move |i: u64| HEAD_PIECE_BYTES.min(bytes - i * HEAD_PIECE_BYTES);
    // A tensor of 2^24 x 2^20 f32 has 2^22 pieces.
    let pieces =
        (0..bytes.div_ceil(HEAD_PIECE_BYTES)).map(move |i| ([HEAD_PIECE, 0, i as u32], piece(i)));
    let n_rows = states.check.rows.len() as u32; // bounded by the header
    let rows = (0..n_rows).map(move |i| ([CHECK_ROW, 0, i], 4 * u64::from(n_vocab)));
    pieces.chain(rows)
}

impl NativeReader {
    /// Finds the head's members, by the lengths they state, from where the header ends. The first
    /// window starts where the last of them ends.
    ///
    /// # Errors
    /// [`crate::Fault::Truncated`] for a file that ends within them, [`crate::Fault::Corrupt`] for
    /// members that are not those of the header, [`crate::Fault::Io`].
    pub(super) fn find_head(&mut self) -> Result<()> {
        let states = self.header.states.iter();
        let source = &self.source;
        for (tag, plain_bytes) in states.flat_map(|states| members(states, self.header.n_vocab)) {
            let (header, place) = member::member_at(source, self.windows_end)?;
            if (header.tag, header.plain_bytes.into()) != (tag, plain_bytes) {
                let what = "a member is not what the header states of the head";
                return Err(source.name.corrupt(None, place.start, what));
            }
            self.windows_end = place.end;
            self.head.push((place, tag));
        }
        Ok(())
    }

    /// Reads the plain bytes of the head's members of a kind, in order, and checks each.
    fn head_plain(&self, kind: u32) -> impl Iterator<Item = Result<Vec<u8>>> + '_ {
        let members = self.head.iter().filter(move |(_, tag)| tag[0] == kind);
        members.map(|(place, tag)| member::plain_at(&self.source, place, *tag, u64::MAX))
    }

    /// The head of hidden states: the bytes of its tensor, then the values of the steps that follow,
    /// as f32. They are checked as they are read: an error of the stream is a [`crate::Error`].
    pub fn head(&self) -> Box<dyn Read + '_> {
        struct Pieces<I>(I, Cursor<Vec<u8>>);
        impl<I: Iterator<Item = Result<Vec<u8>>>> Read for Pieces<I> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let mut n = self.1.read(out)?;
                while n == 0 && !out.is_empty() {
                    let Some(piece) = self.0.next() else { break };
                    self.1 = Cursor::new(piece.map_err(io::Error::other)?);
                    n = self.1.read(out)?;
                }
                Ok(n)
            }
        }
        Box::new(Pieces(self.head_plain(HEAD_PIECE), Cursor::default()))
    }

    /// The model's own rows of the positions in [`crate::HeadCheck::rows`], in that order.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] with the position, [`crate::Fault::Io`].
    pub fn check_rows(&self) -> Result<Vec<Vec<f32>>> {
        let rows = self.head_plain(CHECK_ROW);
        rows.map(|row| Ok(bytemuck::pod_collect_to_vec(&row?)))
            .collect()
    }

    /// Reads the whole head of hidden states and checks it: every checksum, and the tensor's hash. A
    /// file of rows has none.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] with the position, [`crate::Fault::Io`].
    pub fn verify_head(&self) -> Result<()> {
        let Some(states) = &self.header.states else {
            return Ok(());
        };
        let mut hash = TensorHash::new(states);
        for piece in self.head_plain(HEAD_PIECE) {
            hash.update(&piece?);
        }
        if !hash.matches(states) {
            let start = self.head.first().map_or(0, |(place, _)| place.start);
            return Err(self.name().corrupt(None, start, WRONG_HASH));
        }
        self.check_rows().map(drop)
    }
}

/// The fault of a head whose tensor is not that of the header.
const WRONG_HASH: &str = "the head's tensor does not have the SHA-256 that the header states";

/// The SHA-256 of the head's first bytes, which are its tensor, and the number of bytes still to come.
struct TensorHash(Sha256, u64);

impl TensorHash {
    fn new(states: &States) -> Self {
        Self(Sha256::new(), states.head.bytes)
    }

    fn update(&mut self, plain: &[u8]) {
        let n = self.1.min(plain.len() as u64);
        self.1 -= n;
        self.0.update(plain.get(..n as usize).unwrap_or_default());
    }

    fn matches(self, states: &States) -> bool {
        cfg!(fuzzing) || hex(&self.0.finalize()) == states.head.sha256
    }
}

impl<W: Write> Writer<W> {
    /// Writes what a file of hidden states has before its first window: `head`, the bytes of the
    /// head's tensor and the values of the steps that follow, f32; and the model's own rows of the
    /// positions in [`crate::HeadCheck::rows`], in that order.
    ///
    /// # Errors
    /// [`crate::Fault::Unwritable`] if they are not what the header states, or not what comes next;
    /// [`crate::Fault::Io`], also where `head` cannot be read.
    pub fn write_head(&mut self, mut head: impl Read, check_rows: &[Vec<f32>]) -> Result<()> {
        let n_vocab = self.start.format.n_vocab;
        let Some(states) = self.start.states.clone() else {
            return Err(self.name().unwritable("a head where none comes next"));
        };
        let n_rows = states.check.rows.len();
        if check_rows.len() != n_rows || check_rows.iter().any(|row| row.len() != n_vocab as usize)
        {
            let what = format!("check rows that are not {n_rows} of {n_vocab} entries");
            return Err(self.name().unwritable(what));
        }
        let mut hash = TensorHash::new(&states);
        let (mut bytes, mut plain) = (Vec::new(), Vec::new());
        let mut rows = check_rows.iter();
        for (tag, n) in members(&states, n_vocab) {
            plain.clear();
            if tag[0] == HEAD_PIECE {
                let read = head.by_ref().take(n).read_to_end(&mut plain);
                read.map_err(|cause| self.name().io("read the head for it", cause))?;
                hash.update(&plain);
            } else if let Some(row) = rows.next() {
                plain.extend_from_slice(bytemuck::cast_slice(row));
            }
            if plain.len() as u64 != n {
                let what = "a head shorter than its header states";
                return Err(self.name().unwritable(what));
            }
            member::build_in(&mut bytes, tag, &plain);
            self.put(&bytes)?;
        }
        let after = head.read(&mut [0]);
        let what = match after.map_err(|cause| self.name().io("read the head for it", cause))? {
            0 if hash.matches(&states) => {
                self.start.states = None;
                return Ok(());
            }
            0 => WRONG_HASH,
            _ => "a head longer than its header states",
        };
        Err(self.name().unwritable(what))
    }
}
