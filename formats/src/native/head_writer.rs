//! Writing the head of hidden states, before the first window.

use std::io::{Read, Write};

use super::head::{OTHER_HASH, TensorHash, members};
use super::member;
use crate::States;
use crate::error::Result;
use crate::writing::Writer;

impl<W: Write> Writer<W> {
    /// Writes what a file of hidden states has before its first window: `head`, the bytes of the
    /// head's tensor and the values of the steps that follow, f32; and the model's own rows of the
    /// positions in [`crate::HeadCheck::rows`], in that order.
    ///
    /// # Errors
    /// [`crate::Error::Unwritable`] if they are not what the header states, or not what comes next;
    /// [`crate::Error::Io`], also where `head` cannot be read.
    pub fn write_head(&mut self, mut head: impl Read, check_rows: &[Vec<f32>]) -> Result<()> {
        let (states, n_vocab) = self.due_head()?;
        let n_rows = states.check.rows.len();
        if check_rows.len() != n_rows || check_rows.iter().any(|row| row.len() != n_vocab as usize)
        {
            let what = format!("check rows that are not {n_rows} of {n_vocab} entries");
            return Err(self.name().unwritable(what));
        }
        let mut hash = TensorHash::new(&states);
        let mut bytes = Vec::new();
        let mut rows = check_rows.iter();
        for (tag, n) in members(&states, n_vocab) {
            if tag.is_of_head() {
                let mut plain = Vec::with_capacity(n as usize); // at most PIECE_BYTES
                let read = head.by_ref().take(n).read_to_end(&mut plain);
                read.map_err(|cause| self.name().io("read the head for it", cause))?;
                if plain.len() as u64 != n {
                    return Err(self
                        .name()
                        .unwritable("a head shorter than its header states"));
                }
                hash.update(&plain);
                member::build_in(&mut bytes, tag, &plain);
            } else {
                let row = rows.next().map(Vec::as_slice).unwrap_or_default();
                member::build_in(&mut bytes, tag, bytemuck::cast_slice(row));
            }
            self.put(&bytes)?;
        }
        let after = head.read(&mut [0]);
        match after.map_err(|cause| self.name().io("read the head for it", cause))? {
            0 if hash.matches(&states) => {
                self.end_head();
                Ok(())
            }
            0 => Err(self.name().unwritable(OTHER_HASH)),
            _ => Err(self
                .name()
                .unwritable("a head longer than its header states")),
        }
    }

    fn due_head(&self) -> Result<(States, u32)> {
        match self.states() {
            Some((states, true)) => Ok((states.clone(), self.format().n_vocab)),
            _ => Err(self.name().unwritable("a head where none comes next")),
        }
    }
}
