//! What `kl` asks of the operating system, in one place: threads where few are allowed, locks that outlive a
//! panic, which file a name stands for, and how its shell reads a name.
//!
//! It knows nothing of models, of files' contents or of the terminal. Begin with [`threads`].

mod file_id;
mod lock;
pub mod shell;
pub mod threads;

pub use file_id::file_id;
pub use lock::locked;
