//! Pairs the windows of one file with those of the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Display;

use anyhow::{Result, anyhow, bail};
use kl_formats::{Kind, Reference, Rows, WindowSpec};
use kl_report::Warning;
use kl_report::number::count_of;

use crate::commands::observer::Watch;
use crate::pipeline::choose_windows;

/// One of the two files.
#[derive(Clone, Copy)]
pub struct Side<'s> {
    pub file: &'s Reference,
    /// All windows of the file.
    pub windows: &'s [WindowSpec],
}

impl<'s> Side<'s> {
    fn shown_path(&self) -> Display<'s> {
        self.file.path().display()
    }

    fn has_tokens(&self) -> bool {
        self.windows.iter().any(|window| !window.tokens.is_empty())
    }

    /// True if a model generated the answers in its windows.
    fn is_answered(&self) -> bool {
        let prompts = self.file.about().prompts.as_ref();
        prompts.is_some_and(|prompts| prompts.generated.is_some())
    }

    /// True if rows can only be read in the order of the file.
    fn is_stream(&self) -> bool {
        matches!(self.file.rows(), Rows::Stream(_))
    }
}

/// A window of the reference, and the rows of the other file to compare with it.
#[derive(Clone)]
pub struct WindowPair {
    /// The index of the window in the reference.
    pub index: usize,
    /// The index of the window in the other file.
    pub other_index: usize,
    /// The reference's window, with tokens from whichever file has them.
    pub window: WindowSpec,
    /// The other file's window: its number, and those of its rows that are compared.
    pub other: WindowSpec,
}

/// Finds the other file's window for each window of the reference: by its tokens where both files hold
/// them, else by its number. Two streams can only be read side by side. The pairs come in the order
/// in which they are to be read.
///
/// With `max_rows`, windows that the other file lacks are left out, and only as many of the others are
/// used as that number of rows needs.
///
/// # Errors
/// If the files do not hold rows of the same tokens, or the other file lacks rows of the reference.
pub fn pair(
    reference: Side<'_>,
    other: Side<'_>,
    max_rows: Option<u64>,
    watch: &Watch<'_>,
) -> Result<Vec<WindowPair>> {
    let sides = [reference, other];
    let by_tokens = sides.iter().all(|side| side.has_tokens());
    if !by_tokens {
        watch.warn(Warning::new(
            "tokens_unchecked",
            "the files do not both hold token ids: windows are paired by their numbers, and kl cannot check that they hold the same tokens",
        ));
    }
    // Windows are numbered by their order in the text, but those of kl.py by that in the file.
    let kinds = sides.map(|side| side.file.about().kind);
    let (mut pairs, mut missing, mut mismatch) = (Vec::new(), Vec::new(), None);
    for (index, window, found) in partners(sides, by_tokens) {
        match found {
            Ok(Some((other_index, theirs))) => {
                let (window, other) = paired_rows(sides, [window, theirs], by_tokens)?;
                pairs.push(WindowPair {
                    index,
                    other_index,
                    window,
                    other,
                });
            }
            Err(error) if !kinds.contains(&Kind::KlPy) => return Err(error),
            found => {
                mismatch = mismatch.or(found.err());
                missing.push(window.window);
            }
        }
    }
    if pairs.is_empty() {
        return Err(mismatch.unwrap_or_else(|| {
            anyhow!(
                "{}: has no window in common with {}: use files of the same text, cut into the same windows",
                other.shown_path(),
                reference.shown_path()
            )
        }));
    }
    check_unpaired(sides, &missing, pairs.len(), max_rows.is_some(), watch)?;
    if other.is_stream() && !reference.is_stream() {
        pairs.sort_by_key(|pair| pair.other_index);
    }
    let n_rows: Vec<u32> = pairs.iter().map(|pair| pair.window.n_rows).collect();
    let in_order = reference.file.is_shuffled() || other.is_stream();
    let indices = choose_windows(&n_rows, in_order, max_rows.unwrap_or(u64::MAX));
    let chosen = indices.iter().filter_map(|&i| pairs.get(i).cloned());
    Ok(chosen.collect())
}

/// Warns of the windows that only one of the two files has.
///
/// # Errors
/// If the other file lacks some, unless only a part of the rows was asked for.
fn check_unpaired(
    [reference, other]: [Side<'_>; 2],
    missing: &[u32],
    n_pairs: usize,
    is_partial: bool,
    watch: &Watch<'_>,
) -> Result<()> {
    if let Some(window) = missing.first() {
        let (n, n_all) = (missing.len(), reference.windows.len());
        if !is_partial {
            bail!(
                "{}: lacks {n} of the {n_all} windows of {}, the first is window {window}: swap the two files, or use -n with a number of rows to compare what both have",
                other.shown_path(),
                reference.shown_path()
            );
        }
        let of = count_of(n_all as u64, "window");
        let what = format!("{n} of the reference's {of}, not in the other file");
        watch.warn(Warning::left_out("missing_windows", &what));
    }
    let n_theirs = other.windows.iter().filter(|of| of.n_rows > 0).count();
    let unused = n_theirs.saturating_sub(n_pairs);
    if unused > 0 {
        let of = count_of(n_theirs as u64, "window");
        let what = format!("{unused} of the other file's {of}, not in the reference");
        watch.warn(Warning::left_out("unused_windows", &what));
    }
    Ok(())
}

/// The index of a window of the reference that has rows, the window, and the partner in the other file with
/// its index: `None` if there is none, and an error if the window of that number holds other tokens.
type Partnered<'s> = (
    usize,
    &'s WindowSpec,
    Result<Option<(usize, &'s WindowSpec)>>,
);

/// Finds the partner of each window of the reference. A window that was cut differently is not found by its
/// tokens, and may be by its number: pairing the rows shows what is missing.
fn partners<'s>([reference, other]: [Side<'s>; 2], by_tokens: bool) -> Vec<Partnered<'s>> {
    // Tokens at the start of each window that need not agree.
    let hides_bos = |side: Side<'_>| side.file.about().hides_bos;
    let skipped = usize::from(hides_bos(reference) || hides_bos(other));
    let tokens = |window: &'s WindowSpec| window.tokens.get(skipped..).unwrap_or_default();
    let is_side_by_side = reference.is_stream() && other.is_stream();
    let number = |index: usize, window: &WindowSpec| {
        if is_side_by_side {
            index as u32
        } else {
            window.window
        }
    };
    let theirs = || other.windows.iter().enumerate();
    let numbered = theirs().map(|(index, window)| (number(index, window), index));
    let by_number: BTreeMap<u32, usize> = numbered.collect();
    // The windows without a partner, if their tokens identify them.
    let mut left: BTreeSet<(&[u32], usize)> = BTreeSet::new();
    if by_tokens && !is_side_by_side {
        let with_rows = theirs().filter(|(_, window)| window.n_rows > 0);
        left.extend(with_rows.map(|(index, window)| (tokens(window), index)));
    }
    let mut paired = BTreeSet::new();
    let mut find = |index: usize, window: &'s WindowSpec| -> Result<_> {
        let alike = take(&mut left, tokens(window));
        let found = alike.or_else(|| by_number.get(&number(index, window)).copied());
        let Some((partner, theirs)) = found.and_then(|i| Some((i, other.windows.get(i)?))) else {
            return Ok(None);
        };
        check_tokens([reference, other], [window, theirs], skipped)?;
        left.remove(&(tokens(theirs), partner));
        Ok(paired.insert(partner).then_some((partner, theirs)))
    };
    let all = reference.windows.iter().enumerate();
    let with_rows = all.filter(|(_, window)| window.n_rows > 0);
    let partnered = with_rows.map(|(index, window)| (index, window, find(index, window)));
    partnered.collect()
}

/// Refuses two windows whose tokens differ in the length that both have, but for the first `skipped` ones.
fn check_tokens(
    [reference, other]: [Side<'_>; 2],
    [window, theirs]: [&WindowSpec; 2],
    skipped: usize,
) -> Result<()> {
    let both = window.tokens.iter().zip(&theirs.tokens).enumerate();
    let mut differing = both
        .skip(skipped)
        .filter(|(_, (here, there))| here != there);
    let Some((position, (here, there))) = differing.next() else {
        return Ok(());
    };
    let why = if reference.is_answered() || other.is_answered() {
        "answers that a model generated are its own; evaluate the other model against this reference, with kl -m MODEL -r, which runs it over the same answers"
    } else {
        "the files differ in text or tokenizer; use files of the same text and model"
    };
    bail!(
        "{}: window {} has token {there} at position {position}, but window {} of {} has token {here}: {why}",
        other.shown_path(),
        theirs.window,
        window.window,
        reference.shown_path()
    )
}

/// Removes a window that begins with these tokens, or lacks only the last of them (the token after
/// the last row), and returns its index.
fn take<'f>(left: &mut BTreeSet<(&'f [u32], usize)>, tokens: &'f [u32]) -> Option<usize> {
    let longer = left.range((tokens, 0)..).next().copied();
    let whole = longer.filter(|(held, _)| held.starts_with(tokens));
    let found = whole.or_else(|| {
        let (_, but_last) = tokens.split_last()?;
        left.range((but_last, 0)..=(but_last, usize::MAX))
            .next()
            .copied()
    })?;
    left.remove(&found).then_some(found.1)
}

/// Pairs the rows that the reference has of a window with those of the other file. That must have them all,
/// and no others if only numbers identify windows. The tokens are those of the longer window, with which the
/// shorter one agrees.
fn paired_rows(
    [reference, other]: [Side<'_>; 2],
    [window, theirs]: [&WindowSpec; 2],
    by_tokens: bool,
) -> Result<(WindowSpec, WindowSpec)> {
    let range = |of: &WindowSpec| of.first_scored..of.first_scored + of.n_rows;
    let (here, there) = (range(window), range(theirs));
    let has_all = there.start <= here.start && here.end <= there.end;
    if !(has_all && (by_tokens || here == there)) {
        let how = if by_tokens {
            "swap the two files, or write it again with --score all"
        } else {
            "without token ids in both files, only whole windows can be compared; use a file with the same scored positions"
        };
        bail!(
            "{}: window {} has the rows of positions {} to {}, and {} those of {} to {}: {how}",
            other.shown_path(),
            theirs.window,
            there.start,
            there.end.saturating_sub(1),
            reference.shown_path(),
            here.start,
            here.end.saturating_sub(1)
        );
    }
    let mut longer = &window.tokens;
    if theirs.tokens.len() > longer.len() {
        longer = &theirs.tokens;
    }
    let rows = |of: &WindowSpec, tokens| WindowSpec {
        window: of.window,
        tokens,
        ..*window
    };
    Ok((rows(window, longer.clone()), rows(theirs, Vec::new())))
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
