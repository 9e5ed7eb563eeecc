//! Windows without their rows: with tokens, as an entry of a list, and with offsets in a file.

use crate::MAX_N_CTX;

/// A window's tokens, and which of its rows are stored.
///
/// Rows are those of the positions `first_scored .. first_scored + n_rows`; the row of position
/// `i` predicts the token at `i + 1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSpec {
    /// Its index in the order of the text, from 0.
    pub window: u32,
    /// The tokens decoded, an inserted BOS included. Empty where a `safetensors` folder or an `npz`
    /// holds none; there may be one more than rows there, which follows the last row's.
    pub tokens: Vec<u32>,
    /// The position of the first row.
    pub first_scored: u32,
    /// Rows stored.
    pub n_rows: u32,
}

/// A window as a file lists it, without its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEntry {
    /// Its index in the order of the text, from 0.
    pub window: u32,
    /// Tokens decoded.
    pub n_tokens: u32,
    /// Rows stored.
    pub n_rows: u32,
    /// The position of the first row.
    pub first_scored: u32,
}

/// A window of a file, and where its pieces start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedWindow {
    pub(crate) entry: WindowEntry,
    /// The offsets of its pieces: the counts and tokens, then the rows'.
    pub(crate) offsets: Vec<u64>,
}

impl PlacedWindow {
    /// Where the window starts, in bytes of the file.
    pub(crate) fn offset(&self) -> u64 {
        self.offsets.first().copied().unwrap_or(0)
    }

    /// The number of pieces of rows that are there.
    pub(crate) fn n_pieces(&self) -> u32 {
        self.offsets.len().saturating_sub(1) as u32 // at most one for each row, a u32
    }
}

impl WindowSpec {
    /// The window's entry in a list of windows.
    pub fn entry(&self) -> WindowEntry {
        WindowEntry {
            window: self.window,
            n_tokens: u32::try_from(self.tokens.len()).unwrap_or(u32::MAX),
            n_rows: self.n_rows,
            first_scored: self.first_scored,
        }
    }

    /// The number of tokens that must be decoded: none after the last scored position can change a
    /// row.
    pub fn n_decoded(&self) -> u64 {
        u64::from(self.first_scored) + u64::from(self.n_rows)
    }

    /// Finds a fault in the counts and the tokens of this window.
    pub(crate) fn fault(&self, n_vocab: u32) -> Option<String> {
        let n_tokens = match u32::try_from(self.tokens.len()) {
            Ok(n) if n <= MAX_N_CTX => n,
            _ => return Some(format!("{} tokens in a window", self.tokens.len())),
        };
        if self
            .first_scored
            .checked_add(self.n_rows)
            .is_none_or(|end| end > n_tokens)
        {
            return Some(format!(
                "{} rows from position {} on do not fit in {n_tokens} tokens",
                self.n_rows, self.first_scored
            ));
        }
        let (position, token) = self
            .tokens
            .iter()
            .enumerate()
            .find(|&(_, &t)| t >= n_vocab)?;
        Some(format!(
            "token {token} at position {position} is outside the vocabulary of {n_vocab}"
        ))
    }
}

/// Tokens of the longest of these windows.
pub fn longest_window(windows: &[WindowSpec]) -> u32 {
    let lengths = windows.iter().map(|window| window.entry().n_tokens);
    lengths.max().unwrap_or(0)
}

/// Rows of all of these windows.
pub fn n_rows(windows: &[WindowSpec]) -> u64 {
    windows.iter().map(|window| u64::from(window.n_rows)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_tokens_are_checked() {
        let spec = |first_scored, n_rows| WindowSpec {
            window: 0,
            tokens: vec![1, 2, 3],
            first_scored,
            n_rows,
        };
        assert_eq!(spec(0, 3).fault(4), None);
        assert_eq!(spec(3, 0).fault(4), None);
        assert!(spec(1, 3).fault(4).is_some());
        assert!(spec(u32::MAX, 3).fault(4).is_some());
        assert!(
            spec(0, 3)
                .fault(3)
                .is_some_and(|what| what.contains("position 2"))
        );
    }
}
