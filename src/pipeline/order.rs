//! The windows of a reference that are still to come.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::locked;

/// Windows in the order in which they are handed out, each by its index in the reference.
pub(super) struct Order(Mutex<VecDeque<usize>>);

impl Order {
    pub(super) fn new(order: Vec<usize>) -> Self {
        Self(Mutex::new(order.into()))
    }

    /// The window that comes next.
    pub(super) fn peek(&self) -> Option<usize> {
        locked(&self.0).front().copied()
    }

    /// Hands out a window.
    pub(super) fn next(&self) -> Option<usize> {
        locked(&self.0).pop_front()
    }

    /// Leaves out the window that comes next.
    pub(super) fn skip(&mut self) {
        let order = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        order.pop_front();
    }
}
