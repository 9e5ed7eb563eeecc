//! Memory that has been used and will be again: a block of rows is a megabyte, and taking fresh
//! memory from the system for each costs more than filling it.

use std::sync::{Arc, Mutex, PoisonError};

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
        // A list is as good after a panic as before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
