//! Writing a reference, whatever its kind.

mod order;
mod piece;
mod start;
mod target;
mod window_encoder;
mod window_format;
mod writer;

pub use piece::{Member, Piece, PieceMemory};
pub use target::{Target, TargetError};
pub use window_encoder::WindowEncoder;
pub use window_format::{WindowFormat, rows_per_piece};
pub use writer::Writer;

pub(crate) use piece::Part;
pub(crate) use start::{End, NoEnd, Start};
pub(crate) use window_format::{Framing, of_members};
