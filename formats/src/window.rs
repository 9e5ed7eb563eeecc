//! Windows without their rows: with tokens, as an entry of a list, and with offsets in a file; and the
//! groups that they are of, such as one for each kind of text.

use std::collections::BTreeSet;

use bytemuck::{Pod, Zeroable};
use indexmap::IndexSet;

/// Most vocabulary entries a row may have. The widest vocabulary published by 2026 holds 262,144.
pub const MAX_N_VOCAB: u32 = 1 << 24;

/// Most tokens a window may hold. The longest context published by 2026 is 10 million tokens.
pub const MAX_N_CTX: u32 = 1 << 26;

/// The first item that comes twice.
pub(crate) fn twice<T: Ord + Copy>(items: impl IntoIterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    items.into_iter().find(|item| !seen.insert(*item))
}

/// Finds a fault in the sizes of windows and rows that a header states.
pub(crate) fn size_fault(n_ctx: u32, n_vocab: u32) -> Option<String> {
    if !(1..=MAX_N_VOCAB).contains(&n_vocab) {
        Some(format!("n_vocab {n_vocab}, not 1 to {MAX_N_VOCAB}"))
    } else if !(1..=MAX_N_CTX).contains(&n_ctx) {
        Some(format!("n_ctx {n_ctx}, not 1 to {MAX_N_CTX}"))
    } else {
        None
    }
}

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

/// A window as a file lists it, without its tokens. In memory the fields are as in the index of
/// `kl`'s own file.
#[derive(Pod, Zeroable, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
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
        let (n_tokens, first) = (self.tokens.len(), self.first_scored);
        if n_tokens > MAX_N_CTX as usize {
            return Some(format!("{n_tokens} tokens in a window"));
        }
        if self.n_decoded() > n_tokens as u64 {
            let n_rows = self.n_rows;
            return Some(format!(
                "{n_rows} rows from position {first} on do not fit in {n_tokens} tokens"
            ));
        }
        let position = self.tokens.iter().position(|&token| token >= n_vocab)?;
        let token = self.tokens.get(position)?;
        Some(format!(
            "token {token} at position {position} is outside the vocabulary of {n_vocab}"
        ))
    }
}

/// Tokens of the longest of these windows.
pub fn longest_window(windows: &[WindowSpec]) -> u32 {
    let longest = windows.iter().map(|window| window.tokens.len()).max();
    u32::try_from(longest.unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Rows of all of these windows.
pub fn n_rows(windows: &[WindowSpec]) -> u64 {
    windows.iter().map(|window| u64::from(window.n_rows)).sum()
}

/// The groups of a reference's windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    names: Vec<String>,
    /// Each run's group and number of windows: [`Groups::window_groups`].
    runs: Vec<(u32, u32)>,
    /// The window that follows each run.
    ends: Vec<u32>,
}

impl Groups {
    /// Groups with these names. `runs` are those of [`Groups::window_groups`].
    ///
    /// # Errors
    /// A phrase that states what is wrong: a name that is empty or that two groups have, a run of a
    /// group without a name or of no windows, or more windows than can be numbered.
    pub fn new(names: Vec<String>, runs: Vec<(u32, u32)>) -> Result<Self, String> {
        let n_windows: u64 = runs.iter().map(|(_, n)| u64::from(*n)).sum();
        let nameless = runs.iter().find(|run| run.0 as usize >= names.len());
        Err(if let Some(name) = twice(&names) {
            format!("groups: two are named {name:?}")
        } else if names.is_empty() || names.iter().any(String::is_empty) {
            "groups: one has no name".to_owned()
        } else if let Some((group, _)) = nameless {
            format!("window_groups: group {group} of {}", names.len())
        } else if runs.iter().any(|(_, n_windows)| *n_windows == 0) {
            "window_groups: a run of no windows".to_owned()
        } else if n_windows > u32::MAX.into() {
            "window_groups: more than 2^32 windows".to_owned()
        } else {
            return Ok(Self::with_ends(names, runs));
        })
    }

    fn with_ends(names: Vec<String>, runs: Vec<(u32, u32)>) -> Self {
        let sums = runs.iter().scan(0, |end, (_, n_windows)| {
            *end += n_windows;
            Some(*end)
        });
        let ends = sums.collect();
        Self { names, runs, ends }
    }

    /// The groups of windows whose groups' names are given, in the order of the windows. Groups are
    /// numbered in the order of their first windows.
    pub fn of_each<'n>(names_of_windows: impl IntoIterator<Item = &'n str>) -> Self {
        let mut names = IndexSet::new();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for name in names_of_windows {
            let group = names.insert_full(name).0 as u32;
            match runs.last_mut() {
                Some((last, n_windows)) if *last == group => *n_windows += 1,
                _ => runs.push((group, 1)),
            }
        }
        Self::with_ends(names.into_iter().map(str::to_owned).collect(), runs)
    }

    /// The groups' names, in the order of their indices.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The runs from window 0 on: each a group, as an index into the names, and a number of windows.
    pub fn window_groups(&self) -> &[(u32, u32)] {
        &self.runs
    }

    /// The group of the window with this number; 0 beyond the last run.
    pub fn of_window(&self, window: u32) -> u32 {
        let run = self.ends.partition_point(|&end| end <= window);
        self.runs.get(run).map_or(0, |&(group, _)| group)
    }

    /// Windows that have a group.
    pub fn n_windows(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }
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

#[cfg(test)]
mod group_tests {
    use super::*;

    #[test]
    fn windows_in_sequence_share_a_run() {
        let groups = Groups::of_each(["wiki", "wiki", "code", "wiki", "chat"]);
        assert_eq!(groups.names(), ["wiki", "code", "chat"]);
        assert_eq!(groups.window_groups(), [(0, 2), (1, 1), (0, 1), (2, 1)]);
        let of_windows: Vec<u32> = (0..6).map(|window| groups.of_window(window)).collect();
        assert_eq!(of_windows, [0, 0, 1, 0, 2, 0]);
        assert_eq!(groups.n_windows(), 5);
        let again = Groups::new(groups.names().to_vec(), groups.window_groups().to_vec());
        assert_eq!(again, Ok(groups));
    }
}
