//! Which kind of file a reference is.

use std::fmt;

/// A kind of reference, known by its name: `kl`, `kl.py`, `llama.cpp`, `safetensors`, `npz`.
///
/// The kinds of this crate are constants of their modules, such as [`crate::native::KIND`]. Other
/// crates may have their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(&'static str);

impl Kind {
    /// A kind with this name.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}
