//! Memory that is reused: a block of rows is a megabyte, and fresh memory from the system costs
//! more than filling it.

use std::sync::{Arc, Mutex};

use super::locked;

/// A pool of things to reuse, shared between threads.
#[derive(Debug)]
pub struct Spare<T>(Arc<Mutex<Vec<T>>>);

impl<T> Spare<T> {
    /// Takes a thing out of the pool, unless it is empty.
    pub fn take(&self) -> Option<T> {
        self.things().pop()
    }

    /// Puts a thing into the pool.
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
