//! What a folder of `safetensors` files records about itself.

use super::{KIND, SafetensorsReader};
use crate::WindowEntry;
use crate::reference::{About, Checks, Reference, Rows, Values};

/// An open folder as a reference.
pub(super) fn reference(reader: SafetensorsReader) -> Reference {
    let n_ctx = reader.rows_per_window().max().unwrap_or(0);
    let mut about = About {
        file_bytes: reader.file_bytes(),
        encoding: reader.float().name(),
        values: match reader.log_probabilities() {
            true => Values::LogProbabilities,
            false => Values::Logits,
        },
        holds_tokens: Some(reader.holds_tokens()),
        is_decodable: false,
        checks: Checks::Lengths,
        ..About::new(KIND, reader.path(), n_ctx, reader.n_vocab())
    };
    about.first_scored = Some(0);
    let windows: Vec<WindowEntry> = reader.entries().collect();
    Reference::new(about, Some(windows), Rows::Blocks(Box::new(reader)))
}
