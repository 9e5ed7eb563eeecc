//! The greedy answers of an evaluation, as far as each is followed.

use kl_formats::TokenRecord;

use super::token::is_counted;

/// The greedy answers of an evaluation, one for each window that has one.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers(pub(super) Vec<Answer>);

/// A greedy answer, as far as it is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Answer {
    /// Its window.
    pub(super) window: u32,
    /// The position of the next record, if it is the answer's.
    next_position: u32,
    /// Tokens from its first on that are the same.
    pub(super) n_same: u32,
    pub(super) state: State,
}

/// The state of an answer after some of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Same,
    Differs,
    /// The token that the model would have chosen is not known: a row is missing or not finite, or two
    /// tokens are so nearly tied that the reference's own row chooses another than its answer.
    Lost,
}

impl Answers {
    /// Adds a record. Those of a window come in the order of its positions.
    pub fn push(&mut self, record: &TokenRecord) {
        let Some(token) = record.next_token().filter(|_| record.is_greedy()) else {
            return;
        };
        if self
            .0
            .last()
            .is_none_or(|last| last.window != record.window)
        {
            self.0.push(Answer {
                window: record.window,
                next_position: record.position,
                n_same: 0,
                state: State::Same,
            });
        }
        let Some(answer) = self.0.last_mut().filter(|of| of.state == State::Same) else {
            return;
        };
        if record.position != answer.next_position || !is_counted(record) {
            answer.state = State::Lost;
        } else if record.eval_top != token && record.ref_top != token {
            // The reference's own row, computed in another batch, no longer chooses its token.
            answer.state = State::Lost;
        } else if record.eval_top != token {
            answer.state = State::Differs;
        } else {
            answer.n_same += 1;
            answer.next_position = record.position.saturating_add(1);
        }
    }
}
