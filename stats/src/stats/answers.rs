//! The greedy answers of an evaluation: how far each is the same, and how it ends.

use kl_formats::TokenRecord;

use super::token::is_counted;

/// The greedy answers of an evaluation, one for each window that has one.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers(pub(super) Vec<Answer>);

/// A greedy answer of the reference's model, and the first token that the evaluated model would have
/// chosen otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// Its window.
    pub(super) window: u32,
    /// The position of the next record, if it is the answer's.
    next_position: u32,
    pub(super) n_tokens: u32,
    /// The number of the first token that differs, from 1.
    pub(super) differs_at: Option<u32>,
    /// The reference's model ended it: it was not cut.
    pub(super) has_ended: bool,
    /// Two tokens are so nearly tied that the reference's own row, computed in another batch or stored in
    /// 16 bits, chooses another one than its answer.
    pub(super) has_near_tie: bool,
    /// Before any token differs, a row is missing or not finite.
    pub(super) is_unknown: bool,
}

impl Answers {
    /// Adds a record. Those of a window come in the order of its positions.
    pub fn push(&mut self, record: &TokenRecord) {
        let Some(token) = record.next_token().filter(|_| record.is_greedy()) else {
            return;
        };
        let is_new = |last: &Answer| last.window != record.window;
        if self.0.last().is_none_or(is_new) {
            self.0.push(Answer {
                window: record.window,
                next_position: record.position,
                ..Answer::default()
            });
        }
        let Some(answer) = self.0.last_mut().filter(|answer| !answer.has_ended) else {
            return;
        };
        answer.n_tokens += 1;
        answer.has_ended = record.ends_answer();
        let is_known = record.position == answer.next_position && is_counted(record);
        answer.has_near_tie |= is_known && record.ref_top != token;
        answer.next_position = record.position.saturating_add(1);
        if answer.differs_at.is_none() {
            answer.is_unknown |= !is_known;
            answer.differs_at = (record.eval_top != token).then_some(answer.n_tokens);
        }
    }
}
