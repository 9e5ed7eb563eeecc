//! Random changes to the bytes of a file. The tests of `kl` include this file too.

use proptest::prelude::*;

/// A change to a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Flip(usize, u8),
    Overwrite(usize, Vec<u8>),
    Insert(usize, Vec<u8>),
    Delete(usize, usize),
    Copy(usize, usize, usize),
    Duplicate(usize, usize, usize),
    Move(usize, usize, usize),
    Swap(usize, usize, usize),
    Truncate(usize),
}

pub(crate) fn any_change() -> impl Strategy<Value = Change> {
    let at = || any::<prop::sample::Index>().prop_map(|i| i.index(1 << 20));
    let bytes = || prop::collection::vec(any::<u8>(), 1..20);
    prop_oneof![
        (at(), 1u8..).prop_map(|(i, x)| Change::Flip(i, x)),
        (at(), bytes()).prop_map(|(i, b)| Change::Overwrite(i, b)),
        (at(), bytes()).prop_map(|(i, b)| Change::Insert(i, b)),
        (at(), 1usize..200).prop_map(|(i, n)| Change::Delete(i, n)),
        (at(), at(), 1usize..200).prop_map(|(i, j, n)| Change::Copy(i, j, n)),
        (at(), at(), 1usize..200).prop_map(|(i, j, n)| Change::Duplicate(i, j, n)),
        (at(), at(), 1usize..200).prop_map(|(i, j, n)| Change::Move(i, j, n)),
        (at(), at(), 1usize..200).prop_map(|(i, j, n)| Change::Swap(i, j, n)),
        at().prop_map(Change::Truncate),
    ]
}

impl Change {
    /// Changes `bytes`; positions are modulo the length.
    pub(crate) fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len().max(1);
        let range = |i: usize, n: usize| i % len..(i % len + n).min(len);
        if bytes.is_empty() {
            return;
        }
        match self {
            Change::Flip(i, x) => bytes[i % len] ^= x,
            Change::Overwrite(i, b) => {
                bytes.splice(range(*i, b.len()), b.iter().copied());
            }
            Change::Insert(i, b) => {
                bytes.splice(i % len..i % len, b.iter().copied());
            }
            Change::Delete(i, n) => {
                bytes.drain(range(*i, *n));
            }
            Change::Copy(from, to, n) => {
                let copy = bytes[range(*from, *n)].to_vec();
                bytes.splice(range(*to, *n), copy);
            }
            Change::Duplicate(from, to, n) => {
                let copy = bytes[range(*from, *n)].to_vec();
                bytes.splice(to % len..to % len, copy);
            }
            Change::Move(from, to, n) => {
                let moved: Vec<u8> = bytes.drain(range(*from, *n)).collect();
                let to = to % (bytes.len() + 1);
                bytes.splice(to..to, moved);
            }
            Change::Swap(i, j, n) => {
                let (i, j) = (range(*i, *n), range(*j, *n));
                i.zip(j).for_each(|(i, j)| bytes.swap(i, j));
            }
            Change::Truncate(n) => bytes.truncate(n % len),
        }
    }
}
