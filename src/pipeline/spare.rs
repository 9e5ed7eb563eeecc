//! Memory that has been used and will be again: a block of rows is a megabyte, and taking fresh
//! memory from the system for each costs more than filling it.

use std::sync::{Arc, Mutex};

use super::locked;

/// Things to use again, shared by those who use them up and those who need them.
#[derive(Debug)]
pub struct Spare<T>(Arc<Mutex<Vec<T>>>);

impl<T> Spare<T> {
    pub fn take(&self) -> Option<T> {
        self.things().pop()
    }

    pub fn give(&self, thing: T) {
        self.things().push(thing);
    }

    fn things(&self) -> std::sync::MutexGuard<'_, Vec<T>> {
        locked(&self.0)
    }
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Spare<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
