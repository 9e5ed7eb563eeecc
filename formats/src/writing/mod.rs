//! Writing a reference, whatever its kind.

mod target;
mod window_encoder;
mod writer;

pub use target::Target;
pub use window_encoder::{Piece, WindowEncoder, WindowFormat, rows_per_piece};
pub use writer::Writer;

pub(crate) use window_encoder::{FileFormat, Part};
pub(crate) use writer::Start;
