//! Finds which window of one file corresponds to which window of the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Error, Result, anyhow, bail};
use kl_formats::{Reference, Rows, WindowSpec};

use crate::commands::observer::Watch;
use crate::pipeline::choose_windows;
use crate::report::Warning;

/// One of the two files.
pub struct Side<'s> {
    path: &'s Path,
    windows: &'s [WindowSpec],
    has_tokens: bool,
    /// True if rows come in the order of the file only.
    is_stream: bool,
    /// True if the windows are in a random order already, or in one that cannot be changed.
    is_shuffled: bool,
    /// True if windows are numbered by their order in the text, not in the file.
    is_numbered: bool,
    /// True if a BOS may replace the first token of each window.
    hides_bos: bool,
}

impl<'s> Side<'s> {
    /// `windows`: all windows of the file.
    pub fn new(file: &'s Reference, windows: &'s [WindowSpec]) -> Self {
        let about = file.about();
        Self {
            path: &about.path,
            windows,
            has_tokens: windows.iter().any(|window| !window.tokens.is_empty()),
            is_stream: matches!(file.rows(), Rows::Stream(_)),
            is_shuffled: file.is_shuffled(),
            is_numbered: about.numbers_are_of_the_text,
            hides_bos: about.hides_bos,
        }
    }
}

/// A window of the reference, and the rows of the other file to compare with it.
#[derive(Clone)]
pub struct Pair {
    /// The index of the window in the reference.
    pub index: usize,
    /// The index of the window in the other file.
    pub other_index: usize,
    /// The reference's window, with tokens from whichever file has them.
    pub window: WindowSpec,
    /// The other file's window: its number, and which of its rows are compared.
    pub other: WindowSpec,
}

/// Finds for each window of the reference the other file's: by its tokens where both files hold
/// them, else by its number. Two streams can only be read side by side. The pairs come in the order
/// in which they are to be read.
///
/// With `max_rows`, windows that the other file lacks are left out, and of the rest only as many
/// are used as that number of rows needs.
///
/// # Errors
/// If the files do not hold rows of the same tokens, or the other file lacks rows of the reference.
pub fn pair(
    reference: &Side<'_>,
    other: &Side<'_>,
    max_rows: Option<u64>,
    watch: &Watch<'_>,
) -> Result<Vec<Pair>> {
    let by_tokens = reference.has_tokens && other.has_tokens;
    if !by_tokens {
        watch.warn(Warning::TokensUnchecked);
    }
    let mut finder = Finder::new(reference, other, by_tokens);
    let (mut pairs, mut missing, mut mismatch) = (Vec::new(), Vec::new(), None);
    for (index, window) in reference.windows.iter().enumerate() {
        match finder.find(index, window) {
            Found::At(other_index, theirs) => {
                let (window, other) = match by_tokens {
                    true => common_rows(reference, other, window, theirs)?,
                    false => same_rows(reference, other, window, theirs)?,
                };
                pairs.push(Pair {
                    index,
                    other_index,
                    window,
                    other,
                });
            }
            Found::OtherTokens(error) if reference.is_numbered && other.is_numbered => {
                return Err(error);
            }
            Found::OtherTokens(error) => {
                mismatch.get_or_insert(error);
                missing.push(window.window);
            }
            Found::Nothing => missing.push(window.window),
        }
    }
    if pairs.is_empty() {
        return Err(mismatch.unwrap_or_else(|| {
            anyhow!(
                "{}: has no window in common with {}: use files of the same text, cut into the same windows",
                other.path.display(),
                reference.path.display()
            )
        }));
    }
    if let Some(&window) = missing.first() {
        let (n, of) = (missing.len(), reference.windows.len());
        if max_rows.is_none() {
            bail!(
                "{}: lacks {n} of the {of} windows of {}, the first is window {window}: swap the two files, or use -n with a number of rows to compare what both have",
                other.path.display(),
                reference.path.display()
            );
        }
        watch.warn(Warning::MissingWindows { n, of });
    }
    let unused = other.windows.len() - pairs.len();
    if unused > 0 {
        let of = other.windows.len();
        watch.warn(Warning::UnusedWindows { unused, of });
    }
    if other.is_stream && !reference.is_stream {
        pairs.sort_by_key(|pair| pair.other_index);
    }
    let n_rows: Vec<u32> = pairs.iter().map(|pair| pair.window.n_rows).collect();
    let in_order = reference.is_shuffled || other.is_stream;
    let chosen = choose_windows(&n_rows, in_order, max_rows.unwrap_or(u64::MAX));
    let chosen = chosen.iter().filter_map(|&i| pairs.get(i).cloned());
    Ok(chosen.collect())
}

/// The result of the search for a window's partner.
enum Found<'f> {
    /// A window of the other file, and its index there.
    At(usize, &'f WindowSpec),
    /// The window that should match holds other tokens.
    OtherTokens(Error),
    Nothing,
}

/// The windows of the other file that have no partner yet.
struct Finder<'f> {
    reference: &'f Side<'f>,
    other: &'f Side<'f>,
    /// Tokens at the start of each window that need not agree.
    skipped: usize,
    search: Search<'f>,
}

enum Search<'f> {
    /// At the same index.
    SideBySide,
    /// By the windows' tokens, from the first that has to agree, each with its index.
    Tokens(BTreeSet<(&'f [u32], usize)>),
    /// By the windows' numbers.
    Numbers(BTreeMap<u32, usize>),
}

impl<'f> Finder<'f> {
    fn new(reference: &'f Side<'f>, other: &'f Side<'f>, by_tokens: bool) -> Self {
        let skipped = usize::from(reference.hides_bos || other.hides_bos);
        let indexed = || other.windows.iter().zip(0..);
        let search = if reference.is_stream && other.is_stream {
            Search::SideBySide
        } else if by_tokens {
            let of = |window: &'f WindowSpec| window.tokens.get(skipped..).unwrap_or_default();
            Search::Tokens(
                indexed()
                    .map(|(window, index)| (of(window), index))
                    .collect(),
            )
        } else {
            let numbers = indexed().map(|(window, index)| (window.window, index));
            Search::Numbers(numbers.collect())
        };
        Self {
            reference,
            other,
            skipped,
            search,
        }
    }

    /// Finds the partner of `window`, the reference's window at `index`.
    fn find(&mut self, index: usize, window: &'f WindowSpec) -> Found<'f> {
        let index = match &mut self.search {
            Search::SideBySide => Some(index),
            Search::Numbers(by_number) => by_number.remove(&window.window),
            Search::Tokens(by_tokens) => {
                let tokens = window.tokens.get(self.skipped..).unwrap_or_default();
                match take(by_tokens, tokens) {
                    None => return self.find_by_number(window),
                    index => index,
                }
            }
        };
        let other = self.other;
        match index.and_then(|index| Some((index, other.windows.get(index)?))) {
            Some((index, theirs)) => match self.difference(window, theirs) {
                Some(error) => Found::OtherTokens(error),
                None => Found::At(index, theirs),
            },
            None => Found::Nothing,
        }
    }

    /// Finds the window of the same number, for one that was not found by its tokens.
    fn find_by_number(&mut self, window: &WindowSpec) -> Found<'f> {
        let mut indexed = self.other.windows.iter().enumerate();
        let same_number = indexed.find(|(_, theirs)| theirs.window == window.window);
        let Some((index, theirs)) = same_number else {
            return Found::Nothing;
        };
        if let Some(error) = self.difference(window, theirs) {
            return Found::OtherTokens(error);
        }
        // The same text, cut differently: pairing the rows will show what is missing.
        let tokens = theirs.tokens.get(self.skipped..).unwrap_or_default();
        let is_left = match &mut self.search {
            Search::Tokens(left) => left.remove(&(tokens, index)),
            _ => false,
        };
        match is_left {
            true => Found::At(index, theirs),
            false => Found::Nothing,
        }
    }

    /// Describes the first difference between the tokens of two windows, over the length that both
    /// have.
    fn difference(&self, window: &WindowSpec, theirs: &WindowSpec) -> Option<Error> {
        let both = window.tokens.iter().zip(&theirs.tokens).enumerate();
        let (position, (here, there)) = both
            .skip(self.skipped)
            .find(|(_, (here, there))| here != there)?;
        Some(anyhow!(
            "{}: window {} has token {there} at position {position}, but window {} of {} has token {here}: the files differ in text or tokenizer; use files of the same text and model",
            self.other.path.display(),
            theirs.window,
            window.window,
            self.reference.path.display()
        ))
    }
}

/// Removes a window that begins with these tokens, or lacks only the last of them (the token after
/// the last row), and returns its index.
fn take<'f>(left: &mut BTreeSet<(&'f [u32], usize)>, tokens: &'f [u32]) -> Option<usize> {
    let longer = left.range((tokens, 0)..).next().copied();
    let found = longer.filter(|(held, _)| held.starts_with(tokens));
    let found = found.or_else(|| {
        let (_, but_last) = tokens.split_last()?;
        left.range((but_last, 0)..=(but_last, usize::MAX))
            .next()
            .copied()
    })?;
    left.remove(&found).then_some(found.1)
}

/// Pairs the rows that the reference has of a window; the other file must have them too. The tokens
/// are those of the longer window: both agree as far as they go.
fn common_rows(
    reference: &Side<'_>,
    other: &Side<'_>,
    window: &WindowSpec,
    theirs: &WindowSpec,
) -> Result<(WindowSpec, WindowSpec)> {
    let end = |window: &WindowSpec| window.first_scored + window.n_rows;
    if theirs.first_scored > window.first_scored || end(theirs) < end(window) {
        let missing = match theirs.first_scored > window.first_scored {
            true => window.first_scored..theirs.first_scored.min(end(window)),
            false => end(theirs).max(window.first_scored)..end(window),
        };
        bail!(
            "{}: window {} lacks the rows of positions {} to {}, which {} has: swap the two files, or write it again with --score all",
            other.path.display(),
            theirs.window,
            missing.start,
            missing.end - 1,
            reference.path.display()
        );
    }
    let mut ours = window.clone();
    if theirs.tokens.len() > ours.tokens.len() {
        ours.tokens.clone_from(&theirs.tokens);
    }
    let theirs = WindowSpec {
        window: theirs.window,
        tokens: Vec::new(),
        first_scored: window.first_scored,
        n_rows: window.n_rows,
    };
    Ok((ours, theirs))
}

/// Pairs all rows of two windows that only their numbers identify.
fn same_rows(
    reference: &Side<'_>,
    other: &Side<'_>,
    window: &WindowSpec,
    theirs: &WindowSpec,
) -> Result<(WindowSpec, WindowSpec)> {
    if window.n_rows != theirs.n_rows {
        bail!(
            "{}: window {} has {} rows, but {} has {} there: without token ids in both files, only whole windows can be compared",
            other.path.display(),
            theirs.window,
            theirs.n_rows,
            reference.path.display(),
            window.n_rows
        );
    }
    if window.first_scored != theirs.first_scored {
        bail!(
            "{}: the rows of window {} start at position {}, but those of {} at {}: they are not of the same tokens; use a file with the same scored positions",
            other.path.display(),
            theirs.window,
            theirs.first_scored,
            reference.path.display(),
            window.first_scored
        );
    }
    let with_tokens = if window.tokens.is_empty() {
        theirs
    } else {
        window
    };
    let ours = WindowSpec {
        window: window.window,
        ..with_tokens.clone()
    };
    Ok((ours, theirs.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_found_by_its_first_tokens() {
        let windows: [&[u32]; 4] = [&[1, 5, 6], &[1, 2, 3, 4], &[1, 5, 6], &[1, 2, 4]];
        let mut left: BTreeSet<(&[u32], usize)> = windows.into_iter().zip(0..).collect();
        assert_eq!(take(&mut left, &[1, 2, 3]), Some(1), "cut short");
        assert_eq!(take(&mut left, &[1, 2, 3]), None, "taken already");
        assert_eq!(take(&mut left, &[1, 5, 6]), Some(0), "the first of equals");
        assert_eq!(
            take(&mut left, &[1, 5, 6, 7]),
            Some(2),
            "with the token after its last row"
        );
        assert_eq!(take(&mut left, &[1, 2, 4, 8, 9]), None, "two tokens more");
        assert_eq!(take(&mut left, &[1, 2, 4]), Some(3));
        assert!(left.is_empty());
    }
}
