//! Which window of one file is which of the other.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use anyhow::{Error, Result, anyhow, bail};
use kl_formats::{Reference, WindowHead};

use crate::cli::{Warning, warn};
use crate::pipeline::{choose_windows, is_shuffled};

/// One of the two files.
pub struct Side<'s> {
    path: &'s Path,
    heads: &'s [WindowHead],
    has_tokens: bool,
    /// Rows come in the file's order alone.
    is_stream: bool,
    /// Whether the windows' order may not be changed, since it is random already.
    is_shuffled: bool,
    /// Whether windows are numbered by their places in the text, not by those in the file.
    is_numbered: bool,
    /// Whether a BOS may stand in the place of each window's first token.
    hides_bos: bool,
}

impl<'s> Side<'s> {
    /// `heads`: all windows of the file.
    pub fn new(file: &'s Reference, heads: &'s [WindowHead]) -> Self {
        Self {
            path: file.path(),
            heads,
            has_tokens: heads.iter().any(|head| !head.tokens.is_empty()),
            is_stream: matches!(file, Reference::KlPy(_) | Reference::Npz(_)),
            is_shuffled: is_shuffled(file),
            is_numbered: !matches!(file, Reference::KlPy(_)),
            hides_bos: matches!(file, Reference::LlamaCpp(_)),
        }
    }
}

/// What is compared, in the order in which it is read.
pub struct Pairs {
    /// The reference's windows, each with the tokens of the file that has them.
    pub windows: Vec<WindowHead>,
    /// Beside each the rows of the other file: its window's number, and which of its rows.
    pub taken: Vec<WindowHead>,
    /// Their places in the reference.
    pub places: Vec<usize>,
    /// Their places in the other file.
    pub other_places: Vec<usize>,
    /// Whether one file at least holds token ids.
    pub have_tokens: bool,
}

/// Two windows that are one.
struct Pair {
    place: usize,
    other_place: usize,
    window: WindowHead,
    taken: WindowHead,
}

/// Finds for each window of the reference that of the other file: by its tokens, where both files
/// have them, else by its number. Two streams can only be read side by side.
///
/// With `max_rows` the windows that the other file lacks are left out, and as many of the rest taken
/// as have so many rows.
///
/// # Errors
/// Where the files are not of the same tokens, or one lacks what is needed of it.
pub fn pair(reference: &Side<'_>, other: &Side<'_>, max_rows: Option<u64>) -> Result<Pairs> {
    let by_tokens = reference.has_tokens && other.has_tokens;
    if !by_tokens {
        warn(&Warning::TokensUnchecked);
    }
    let mut finder = Finder::new(reference, other, by_tokens);
    let (mut pairs, mut lacking, mut mismatch) = (Vec::new(), Vec::new(), None);
    for (place, head) in reference.heads.iter().enumerate() {
        match finder.find(place, head) {
            Found::At(other_place, theirs) => {
                let (window, taken) = match by_tokens {
                    true => overlap(reference, other, head, theirs)?,
                    false => same_rows(reference, other, head, theirs)?,
                };
                pairs.push(Pair {
                    place,
                    other_place,
                    window,
                    taken,
                });
            }
            Found::Other(error) if reference.is_numbered && other.is_numbered => return Err(error),
            Found::Other(error) => {
                mismatch.get_or_insert(error);
                lacking.push(head.window);
            }
            Found::Nothing => lacking.push(head.window),
        }
    }
    if pairs.is_empty() {
        return Err(mismatch.unwrap_or_else(|| nothing_in_common(reference, other)));
    }
    if let Some(&window) = lacking.first() {
        let (n, of) = (lacking.len(), reference.heads.len());
        if max_rows.is_none() {
            bail!(
                "{}: lacks {n} of the {of} windows of {}, the first is window {window}: swap the two, or give -n and a number of rows to compare what both have",
                other.path.display(),
                reference.path.display()
            );
        }
        warn(&Warning::LackingWindows { n, of });
    }
    let unused = other.heads.len() - pairs.len();
    if unused > 0 {
        let of = other.heads.len();
        warn(&Warning::UnusedWindows { unused, of });
    }
    if other.is_stream && !reference.is_stream {
        pairs.sort_by_key(|pair| pair.other_place);
    }
    let rows: Vec<u32> = pairs.iter().map(|pair| pair.window.n_rows).collect();
    let in_order = reference.is_shuffled || other.is_stream;
    let chosen = choose_windows(&rows, in_order, max_rows.unwrap_or(u64::MAX));
    let chosen = || chosen.iter().filter_map(|&i| pairs.get(i));
    Ok(Pairs {
        windows: chosen().map(|pair| pair.window.clone()).collect(),
        taken: chosen().map(|pair| pair.taken.clone()).collect(),
        places: chosen().map(|pair| pair.place).collect(),
        other_places: chosen().map(|pair| pair.other_place).collect(),
        have_tokens: reference.has_tokens || other.has_tokens,
    })
}

/// What a search has come to.
enum Found<'f> {
    /// A window of the other file, and its place there.
    At(usize, &'f WindowHead),
    /// The window that should be it holds other tokens.
    Other(Error),
    Nothing,
}

/// The windows of the other file that are not yet taken.
struct Finder<'f> {
    reference: &'f Side<'f>,
    other: &'f Side<'f>,
    /// Tokens that need not agree, at the beginning of each window.
    skipped: usize,
    search: Search<'f>,
}

enum Search<'f> {
    /// At the same place.
    SideBySide,
    /// Places by the windows' tokens, from the first that has to agree.
    Tokens(BTreeMap<&'f [u32], VecDeque<usize>>),
    /// Places by the windows' numbers.
    Numbers(BTreeMap<u32, usize>),
}

impl<'f> Finder<'f> {
    fn new(reference: &'f Side<'f>, other: &'f Side<'f>, by_tokens: bool) -> Self {
        let skipped = usize::from(reference.hides_bos || other.hides_bos);
        let places = || other.heads.iter().zip(0..);
        let search = if reference.is_stream && other.is_stream {
            Search::SideBySide
        } else if by_tokens {
            let mut by_tokens: BTreeMap<_, VecDeque<usize>> = BTreeMap::new();
            for (head, place) in places() {
                let tokens = head.tokens.get(skipped..).unwrap_or_default();
                by_tokens.entry(tokens).or_default().push_back(place);
            }
            Search::Tokens(by_tokens)
        } else {
            Search::Numbers(places().map(|(head, place)| (head.window, place)).collect())
        };
        Self {
            reference,
            other,
            skipped,
            search,
        }
    }

    /// The window that is `head`, the one at `place` of the reference.
    fn find(&mut self, place: usize, head: &WindowHead) -> Found<'f> {
        let place = match &mut self.search {
            Search::SideBySide => Some(place),
            Search::Numbers(by_number) => by_number.remove(&head.window),
            Search::Tokens(by_tokens) => {
                let tokens = head.tokens.get(self.skipped..).unwrap_or_default();
                match take(by_tokens, tokens) {
                    None => return self.namesake(head),
                    place => place,
                }
            }
        };
        let other = self.other;
        match place.and_then(|place| Some((place, other.heads.get(place)?))) {
            Some((place, theirs)) => match self.difference(head, theirs) {
                Some(error) => Found::Other(error),
                None => Found::At(place, theirs),
            },
            None => Found::Nothing,
        }
    }

    /// What the window of the same number says of one that was not found by its tokens.
    fn namesake(&mut self, head: &WindowHead) -> Found<'f> {
        let mut heads = self.other.heads.iter().enumerate();
        let Some((place, theirs)) = heads.find(|(_, theirs)| theirs.window == head.window) else {
            return Found::Nothing;
        };
        if let Some(error) = self.difference(head, theirs) {
            return Found::Other(error);
        }
        // The same text, cut elsewhere: its rows tell what is missing.
        let tokens = theirs.tokens.get(self.skipped..).unwrap_or_default();
        let Search::Tokens(left) = &mut self.search else {
            return Found::Nothing;
        };
        let places = left.get_mut(tokens);
        let at = places.and_then(|places| {
            let at = places.iter().position(|&left| left == place)?;
            places.remove(at)
        });
        left.retain(|_, places| !places.is_empty());
        at.map_or(Found::Nothing, |place| Found::At(place, theirs))
    }

    /// Where the tokens of two windows differ, as far as both go: nowhere, if one has none.
    fn difference(&self, head: &WindowHead, theirs: &WindowHead) -> Option<Error> {
        let both = head.tokens.iter().zip(&theirs.tokens).enumerate();
        let (position, (here, there)) = both
            .skip(self.skipped)
            .find(|(_, (here, there))| here != there)?;
        Some(anyhow!(
            "{}: position {position} of its window {} holds token {there}, and that of window {} of {} token {here}: they are not of one text, or not of one tokenizer",
            self.other.path.display(),
            theirs.window,
            head.window,
            self.reference.path.display()
        ))
    }
}

/// Takes a window that begins with these tokens, or lacks the last one alone: that of a last row.
fn take(by_tokens: &mut BTreeMap<&[u32], VecDeque<usize>>, tokens: &[u32]) -> Option<usize> {
    let but_last = tokens.split_last().map(|(_, tokens)| tokens);
    let longer = by_tokens.range(tokens..).next().map(|(&key, _)| key);
    let key = longer.filter(|key| key.starts_with(tokens)).or_else(|| {
        but_last
            .and_then(|tokens| by_tokens.get_key_value(tokens))
            .map(|(&key, _)| key)
    })?;
    let places = by_tokens.get_mut(key)?;
    let place = places.pop_front();
    if places.is_empty() {
        by_tokens.remove(key);
    }
    place
}

/// The rows that the reference has of a window, out of those that the other file has of it. Of the
/// tokens those of the longer window: both are the same as far as they go.
fn overlap(
    reference: &Side<'_>,
    other: &Side<'_>,
    head: &WindowHead,
    theirs: &WindowHead,
) -> Result<(WindowHead, WindowHead)> {
    let end = |head: &WindowHead| head.first_scored + head.n_rows;
    if theirs.first_scored > head.first_scored || end(theirs) < end(head) {
        let lacking = match theirs.first_scored > head.first_scored {
            true => head.first_scored..theirs.first_scored.min(end(head)),
            false => end(theirs).max(head.first_scored)..end(head),
        };
        bail!(
            "{}: its window {} lacks the rows of positions {} to {}, which {} has: swap the two, or write it anew with them",
            other.path.display(),
            theirs.window,
            lacking.start,
            lacking.end - 1,
            reference.path.display()
        );
    }
    let mut window = head.clone();
    if theirs.tokens.len() > window.tokens.len() {
        window.tokens.clone_from(&theirs.tokens);
    }
    let taken = WindowHead {
        window: theirs.window,
        tokens: Vec::new(),
        first_scored: head.first_scored,
        n_rows: head.n_rows,
    };
    Ok((window, taken))
}

/// All rows of two windows that nothing but their number says to be one.
fn same_rows(
    reference: &Side<'_>,
    other: &Side<'_>,
    head: &WindowHead,
    theirs: &WindowHead,
) -> Result<(WindowHead, WindowHead)> {
    if head.n_rows != theirs.n_rows {
        bail!(
            "{}: its window {} has {} rows, and that of {} {}: without token ids in both files only whole windows can be compared",
            other.path.display(),
            theirs.window,
            theirs.n_rows,
            reference.path.display(),
            head.n_rows
        );
    }
    if head.first_scored != theirs.first_scored {
        bail!(
            "{}: the rows of its window {} begin at position {}, and those of {} at {}: they are not of the same tokens",
            other.path.display(),
            theirs.window,
            theirs.first_scored,
            reference.path.display(),
            head.first_scored
        );
    }
    let known = if head.tokens.is_empty() { theirs } else { head };
    let window = WindowHead {
        window: head.window,
        ..known.clone()
    };
    Ok((window, theirs.clone()))
}

fn nothing_in_common(reference: &Side<'_>, other: &Side<'_>) -> Error {
    anyhow!(
        "{}: has no window in common with {}: they are not of one text, or not cut alike",
        other.path.display(),
        reference.path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_found_by_its_beginning() {
        let windows: [&[u32]; 4] = [&[1, 5, 6], &[1, 2, 3, 4], &[1, 5, 6], &[1, 2, 4]];
        let mut left: BTreeMap<&[u32], VecDeque<usize>> = BTreeMap::new();
        for (place, tokens) in windows.into_iter().enumerate() {
            left.entry(tokens).or_default().push_back(place);
        }
        assert_eq!(take(&mut left, &[1, 2, 3]), Some(1), "cut short");
        assert_eq!(take(&mut left, &[1, 2, 3]), None, "taken already");
        assert_eq!(take(&mut left, &[1, 5, 6]), Some(0), "the first of equals");
        assert_eq!(
            take(&mut left, &[1, 5, 6, 7]),
            Some(2),
            "with the token behind its last row"
        );
        assert_eq!(take(&mut left, &[1, 2, 4, 8, 9]), None, "two tokens more");
        assert_eq!(take(&mut left, &[1, 2, 4]), Some(3));
        assert!(left.is_empty());
    }
}
