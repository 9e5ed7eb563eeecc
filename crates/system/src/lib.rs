//! The services of the operating system that `kl` uses, in one place: threads where few are allowed, locks that
//! outlive a panic, the identity of a file, and names as a shell reads them.
//!
//! It knows nothing of models, of files' contents or of the terminal. Begin with [`threads`].

mod file_id;
mod lock;
pub mod shell;
pub mod threads;

pub use file_id::file_id;
pub use lock::locked;
