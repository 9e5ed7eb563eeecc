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
    for (index, window, partner) in partners(sides, by_tokens) {
        match partner {
            Ok(Some((other_index, other_window))) => {
                let (window, other) = paired_rows(sides, [window, other_window], by_tokens)?;
                pairs.push(WindowPair {
                    index,
                    other_index,
                    window,
                    other,
                });
            }
            Err(error) if !kinds.contains(&Kind::KlPy) => return Err(error),
            partner => {
                mismatch = mismatch.or(partner.err());
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
    Ok(indices
        .iter()
        .filter_map(|&i| pairs.get(i).cloned())
        .collect())
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
        let all = count_of(n_all as u64, "window");
        let left_out = format!("{n} of the reference's {all}, not in the other file");
        watch.warn(Warning::left_out("missing_windows", &left_out));
    }
    let n_others = other
        .windows
        .iter()
        .filter(|window| window.n_rows > 0)
        .count();
    let n_unused = n_others.saturating_sub(n_pairs);
    if n_unused > 0 {
        let all = count_of(n_others as u64, "window");
        let left_out = format!("{n_unused} of the other file's {all}, not in the reference");
        watch.warn(Warning::left_out("unused_windows", &left_out));
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
    let n_skipped = usize::from(hides_bos(reference) || hides_bos(other));
    let tokens = |window: &'s WindowSpec| window.tokens.get(n_skipped..).unwrap_or_default();
    let is_side_by_side = reference.is_stream() && other.is_stream();
    let number = |index: usize, window: &WindowSpec| {
        if is_side_by_side {
            index as u32
        } else {
            window.window
        }
    };
    let other_windows = || other.windows.iter().enumerate();
    let indices_by_number: BTreeMap<u32, usize> = other_windows()
        .map(|(index, window)| (number(index, window), index))
        .collect();
    // The windows without a partner, if their tokens identify them.
    let mut unpaired: BTreeSet<(&[u32], usize)> = BTreeSet::new();
    if by_tokens && !is_side_by_side {
        unpaired.extend(
            other_windows()
                .filter(|(_, window)| window.n_rows > 0)
                .map(|(index, window)| (tokens(window), index)),
        );
    }
    let mut paired = BTreeSet::new();
    let mut partner = |index: usize, window: &'s WindowSpec| -> Result<_> {
        let by_tokens = take_alike(&mut unpaired, tokens(window));
        let other_index =
            by_tokens.or_else(|| indices_by_number.get(&number(index, window)).copied());
        let Some((other_index, other_window)) =
            other_index.and_then(|i| Some((i, other.windows.get(i)?)))
        else {
            return Ok(None);
        };
        check_tokens([reference, other], [window, other_window], n_skipped)?;
        unpaired.remove(&(tokens(other_window), other_index));
        Ok(paired
            .insert(other_index)
            .then_some((other_index, other_window)))
    };
    reference
        .windows
        .iter()
        .enumerate()
        .filter(|(_, window)| window.n_rows > 0)
        .map(|(index, window)| (index, window, partner(index, window)))
        .collect()
}

/// Refuses two windows whose tokens differ in the length that both have, but for the first `n_skipped` ones.
fn check_tokens(
    [reference, other]: [Side<'_>; 2],
    [window, other_window]: [&WindowSpec; 2],
    n_skipped: usize,
) -> Result<()> {
    let first_difference = window
        .tokens
        .iter()
        .zip(&other_window.tokens)
        .enumerate()
        .skip(n_skipped)
        .find(|(_, (token, other_token))| token != other_token);
    let Some((position, (token, other_token))) = first_difference else {
        return Ok(());
    };
    let reason = if reference.is_answered() || other.is_answered() {
        "answers that a model generated are its own; evaluate the other model against this reference, with kl -m MODEL -r, which runs it over the same answers"
    } else {
        "the files differ in text or tokenizer; use files of the same text and model"
    };
    bail!(
        "{}: window {} has token {other_token} at position {position}, but window {} of {} has token {token}: {reason}",
        other.shown_path(),
        other_window.window,
        window.window,
        reference.shown_path()
    )
}

/// Removes a window that begins with these tokens, or lacks only the last of them (the token after
/// the last row), and returns its index.
fn take_alike<'f>(unpaired: &mut BTreeSet<(&'f [u32], usize)>, tokens: &'f [u32]) -> Option<usize> {
    let next = unpaired.range((tokens, 0)..).next().copied();
    let beginning_alike = next.filter(|(next_tokens, _)| next_tokens.starts_with(tokens));
    let window = beginning_alike.or_else(|| {
        let (_, all_but_last) = tokens.split_last()?;
        unpaired
            .range((all_but_last, 0)..=(all_but_last, usize::MAX))
            .next()
            .copied()
    })?;
    unpaired.remove(&window).then_some(window.1)
}

/// Pairs the rows that the reference has of a window with those of the other file. That must have them all,
/// and no others if only numbers identify windows. The tokens are those of the longer window, with which the
/// shorter one agrees.
fn paired_rows(
    [reference, other]: [Side<'_>; 2],
    [window, other_window]: [&WindowSpec; 2],
    by_tokens: bool,
) -> Result<(WindowSpec, WindowSpec)> {
    let positions = |window: &WindowSpec| window.first_scored..window.first_scored + window.n_rows;
    let (wanted, stored) = (positions(window), positions(other_window));
    let has_all = stored.start <= wanted.start && wanted.end <= stored.end;
    if !(has_all && (by_tokens || wanted == stored)) {
        let remedy = if by_tokens {
            "swap the two files, or write it again with --score all"
        } else {
            "without token ids in both files, only whole windows can be compared; use a file with the same scored positions"
        };
        bail!(
            "{}: window {} has the rows of positions {} to {}, and {} those of {} to {}: {remedy}",
            other.shown_path(),
            other_window.window,
            stored.start,
            stored.end.saturating_sub(1),
            reference.shown_path(),
            wanted.start,
            wanted.end.saturating_sub(1)
        );
    }
    let mut longer_tokens = &window.tokens;
    if other_window.tokens.len() > longer_tokens.len() {
        longer_tokens = &other_window.tokens;
    }
    let rows = |number: u32, tokens| WindowSpec {
        window: number,
        tokens,
        ..*window
    };
    Ok((
        rows(window.window, longer_tokens.clone()),
        rows(other_window.window, Vec::new()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_found_by_its_first_tokens() {
        let windows: [&[u32]; 4] = [&[1, 5, 6], &[1, 2, 3, 4], &[1, 5, 6], &[1, 2, 4]];
        let mut unpaired: BTreeSet<(&[u32], usize)> = windows.into_iter().zip(0..).collect();
        assert_eq!(take_alike(&mut unpaired, &[1, 2, 3]), Some(1), "cut short");
        assert_eq!(take_alike(&mut unpaired, &[1, 2, 3]), None, "taken already");
        assert_eq!(
            take_alike(&mut unpaired, &[1, 5, 6]),
            Some(0),
            "the first of equals"
        );
        assert_eq!(
            take_alike(&mut unpaired, &[1, 5, 6, 7]),
            Some(2),
            "with the token after its last row"
        );
        assert_eq!(
            take_alike(&mut unpaired, &[1, 2, 4, 8, 9]),
            None,
            "two tokens more"
        );
        assert_eq!(take_alike(&mut unpaired, &[1, 2, 4]), Some(3));
        assert!(unpaired.is_empty());
    }
}
