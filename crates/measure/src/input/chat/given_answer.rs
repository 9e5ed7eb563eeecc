//! Where an answer that a conversation gives begins in what the chat template makes of it.
//!
//! A model that answers gets the text of the messages before, which ends with what asks for an answer.
//! So the prompt is that text, and the answer is what follows it in the text with the answer. Most
//! templates begin the second text with the first. Some do not: they write blanks in another way, drop
//! from the messages before what only the last one has, or ask with the mark that opens a thought, which
//! they leave out of an answer without one. There the answer follows the header with which the prompt
//! ends, such as `<|im_start|>assistant`, wherever the second text has it; without one, it is refused.
//!
//! A template that marks the assistant's words with `{% generation %}` tells where they begin and end;
//! what the prompt has of them is not the model's.

use std::ops::Range;

use crate::input::spans::markers::{last_marker, opening_at_end};

/// The most bytes between a message and the answer to it that are searched for the end of the prompt.
/// Published templates have less than 100.
const MAX_HEADER_BYTES: usize = 1024;

/// What a template makes of a conversation up to an answer.
pub(super) struct Renderings<'t> {
    /// The messages before the answer, and what asks for it.
    pub prompt: &'t str,
    /// The messages before the answer, and the answer.
    pub whole: &'t str,
    /// The ranges of `whole` that the template marks as the assistant's words.
    pub marked: &'t [Range<usize>],
    /// The messages before the answer, and another answer; `None` if the template refuses that.
    pub probed: Option<&'t str>,
    /// The texts in the message before the answer.
    pub texts_before: &'t [String],
    /// The texts in the answer.
    pub texts_of_answer: &'t [String],
    /// The reasoning of the answer; empty without any.
    pub reasoning: &'t str,
}

/// Where the prompt ends and the answer begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// The text before the answer.
    pub prompt: String,
    /// The answer's first byte in the text with it.
    pub at: usize,
}

impl Renderings<'_> {
    /// The answer's start, where the prompt is the beginning of the whole but for blanks. Needs neither
    /// `probed` nor the texts.
    pub fn start_after_prompt(&self) -> Option<Start> {
        let (in_prompt, at) = parting(self.prompt, self.whole);
        if !self.prompt.get(in_prompt..)?.trim().is_empty() {
            return None;
        }
        let mut after = self.marked.iter().filter(|range| range.end > at);
        match after.next() {
            // A header that the prompt lacks.
            Some(range) if range.start > at => {
                let header = self.whole.get(at..range.start).unwrap_or_default();
                Some(Start {
                    prompt: format!("{}{header}", self.prompt),
                    at: range.start,
                })
            }
            _ => Some(Start {
                prompt: self.prompt.to_owned(),
                at,
            }),
        }
    }

    /// The answer's start, where the prompt is not the beginning of the whole: after the header of the
    /// prompt. `None` if that header cannot be found in the whole.
    pub fn start_after_header(&self) -> Option<Start> {
        let possible = self.possible_starts()?;
        let ends = self.possible_ends_of_header(&possible).into_iter();
        let mut found = ends
            .flatten()
            .filter_map(|end| Some((end, self.after_header(end, &possible)?)));
        let (in_prompt, at) = found.next()?;
        // What the prompt has after the header is what the model sees, unless the answer does not follow
        // from that.
        let n_prompt = if self.follows(self.prompt.get(in_prompt..)?, at) {
            self.prompt.len()
        } else {
            in_prompt
        };
        Some(Start {
            prompt: self.prompt.get(..n_prompt)?.to_owned(),
            at,
        })
    }

    /// The bytes of the whole at which the answer can begin: after the message before it, and not after
    /// the byte where another answer would differ.
    fn possible_starts(&self) -> Option<PossibleStarts> {
        let last = match self.probed {
            Some(probed) => without_part_of_mark(self.whole, common_bytes(probed, self.whole)),
            None => {
                let texts = self.texts_of_answer.iter().map(String::as_str);
                let texts = texts.chain([self.reasoning]).map(str::trim);
                let all = texts.filter(|text| !text.is_empty());
                all.filter_map(|text| self.whole.rfind(text)).min()?
            }
        };
        let before = self.whole.get(..last)?;
        let ends = self
            .texts_before
            .iter()
            .map(|text| text.trim())
            .filter_map(|text| {
                let start = before.rfind(text)?;
                Some(start + text.len())
            });
        let end_of_message = ends.max();
        let first = end_of_message
            .unwrap_or_else(|| without_part_of_mark(self.whole, parting(self.prompt, before).1));
        let marked = self.marked.iter().map(|range| range.start);
        let first_marked = marked.filter(|&start| start >= first).min();
        let first = first_marked.unwrap_or(first);
        Some(PossibleStarts {
            first,
            last: last.max(first),
            end_of_message,
        })
    }

    /// The bytes of the prompt at which the header of an answer can end: at the prompt's end, or, as a
    /// template may ask with a text that it leaves out before an answer, where the prompt and the whole
    /// part, or before a thought that the prompt opens.
    fn possible_ends_of_header(&self, possible: &PossibleStarts) -> [Option<usize>; 3] {
        let parting = self.whole.get(..possible.last).and_then(|before| {
            let (in_prompt, at) = parting(self.prompt, before);
            // A message may end with what looks like the beginning of a mark.
            if without_part_of_mark(self.whole, at) >= possible.first {
                Some(without_part_of_mark(self.prompt, in_prompt))
            } else {
                Some(in_prompt).filter(|_| at >= possible.first)
            }
        });
        let opening = opening_at_end(self.prompt);
        let unopened = opening.and_then(|opening| self.prompt.strip_suffix(opening));
        let before_thought = unopened.map(|asking| asking.trim_end().len());
        [Some(self.prompt.len()), parting, before_thought]
    }

    /// The byte of the whole after the header that ends at this byte of the prompt: of the possible ones,
    /// the byte before which the longest part of the header is. The template may write the messages before
    /// in another way once they are answered.
    fn after_header(&self, end_of_header: usize, possible: &PossibleStarts) -> Option<usize> {
        let (asking, left_out) = self.prompt.split_at_checked(end_of_header)?;
        let nearest = possible.last.saturating_sub(MAX_HEADER_BYTES);
        let (mut longest, mut at) = (0, None);
        for end in possible.first.max(nearest)..=possible.last {
            let n_alike = self
                .whole
                .get(..end)
                .map(|begun| alike_at_end(asking, begun));
            if n_alike.is_some_and(|n| n > longest) {
                (longest, at) = (n_alike.unwrap_or_default(), Some(end));
            }
        }
        let at = at?;
        let skipped = self.whole.get(at..possible.last)?;
        let begins_at_once = skipped.trim().is_empty();
        // Else another header may follow, which the prompt lacks.
        let is_known = if left_out.trim().is_empty() {
            begins_at_once || Some(at) != possible.end_of_message
        } else {
            last_marker(left_out).is_some() || begins_at_once && possible.end_of_message.is_some()
        };
        if !is_known {
            return None;
        }
        // Blanks with which both go on are the prompt's.
        let (_, blanks) = asking.split_at(asking.trim_end().len());
        Some(at + common_bytes(blanks, skipped))
    }

    /// True if the answer at a byte of the whole can follow this end of the prompt. One without a thought
    /// cannot follow the mark that opens one, nor a thought the mark that ends one.
    fn follows(&self, end: &str, at: usize) -> bool {
        let Some(marker) = last_marker(end) else {
            return true;
        };
        let (before, answer) = self.whole.split_at(at);
        let (answer, reasoning) = (answer.trim_start(), self.reasoning.trim());
        let closes = |text: &String| {
            let begun = text.split_once(marker.close);
            begun.is_some_and(|(begun, _)| !begun.contains(marker.open))
        };
        let is_in_thought = opening_at_end(before).is_some()
            || !reasoning.is_empty() && answer.starts_with(reasoning)
            || marker.is_open
                && (answer.starts_with(marker.close) || self.texts_of_answer.iter().any(closes));
        if marker.is_open {
            is_in_thought
        } else {
            !is_in_thought && !answer.starts_with(marker.open)
        }
    }
}

/// The bytes of a rendered conversation at which its last answer can begin.
struct PossibleStarts {
    first: usize,
    last: usize,
    /// The end of the message before the answer, if it was found.
    end_of_message: Option<usize>,
}

/// The bytes of two texts at which they part. Blanks that only one of them has are passed over; blanks
/// at the parting are after it.
fn parting(one: &str, other: &str) -> (usize, usize) {
    let (mut left, mut right) = (one.chars(), other.chars());
    let mut ends = (0, 0);
    loop {
        let (a, b) = (left.clone().next(), right.clone().next());
        match (a, b) {
            (Some(a), Some(b)) if a == b => {
                left.next();
                right.next();
                ends = (
                    one.len() - left.as_str().len(),
                    other.len() - right.as_str().len(),
                );
            }
            (Some(a), Some(_)) if a.is_whitespace() => {
                left.next();
            }
            (Some(_), Some(b)) if b.is_whitespace() => {
                right.next();
            }
            _ => return ends,
        }
    }
}

/// The characters that are not blank with which both texts end, in whole marks and words.
fn alike_at_end(one: &str, other: &str) -> usize {
    let (one, other) = (end_of(one), end_of(other));
    let alike = visible_from_end(one).zip(visible_from_end(other));
    let alike = alike.take_while(|((_, a), (_, b))| a == b);
    let starts: Vec<_> = alike.map(|((one, _), (other, _))| (one, other)).collect();
    let whole = starts
        .iter()
        .rposition(|&(at, at_other)| starts_whole(one, at) && starts_whole(other, at_other));
    whole.map_or(0, |last| last + 1)
}

/// The characters of a text that are not blank, with their positions, from its end on.
fn visible_from_end(text: &str) -> impl Iterator<Item = (usize, char)> {
    let from_end = text.char_indices().rev();
    from_end.filter(|(_, c)| !c.is_whitespace())
}

/// True if neither a word nor a mark goes over this byte of a text.
fn starts_whole(text: &str, at: usize) -> bool {
    let (before, after) = text.split_at(at);
    let is_of_word = |c: char| c.is_alphanumeric();
    let is_in_word = before.ends_with(is_of_word) && after.starts_with(is_of_word);
    !is_in_word && without_part_of_mark(text, at) == at
}

/// About the last [`MAX_HEADER_BYTES`] of a text.
fn end_of(text: &str) -> &str {
    let from = text.len().saturating_sub(MAX_HEADER_BYTES);
    let start = (from..=text.len()).find(|&at| text.is_char_boundary(at));
    text.get(start.unwrap_or_default()..).unwrap_or_default()
}

/// The number of bytes with which both texts begin, in whole characters.
fn common_bytes(one: &str, other: &str) -> usize {
    let pairs = one.chars().zip(other.chars());
    let alike = pairs.take_while(|(a, b)| a == b);
    alike.map(|(c, _)| c.len_utf8()).sum()
}

/// The position `at` of a text, or that of the mark that it is inside of, such as `<think>` or `[INST]`.
pub(super) fn without_part_of_mark(text: &str, at: usize) -> usize {
    let (before, _) = text.split_at(at);
    let open = before.rfind(['<', '[']);
    let is_mark = |begun: &str| !begun.contains(|c: char| "]>".contains(c) || c.is_whitespace());
    open.filter(|&open| before.get(open..).is_some_and(is_mark))
        .unwrap_or(at)
}
