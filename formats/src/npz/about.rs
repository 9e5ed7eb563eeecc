//! What an npz records about itself.

use super::{KIND, NpzReader};
use crate::reference::{About, Checks, Reference, Rows, Values};

/// An open file as a reference.
pub(super) fn reference(reader: NpzReader) -> Reference {
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
        checks: Checks::Zip,
        ..About::new(KIND, reader.path(), n_ctx, reader.n_vocab())
    };
    about.first_scored = Some(0);
    about.model_path = reader.model().map(str::to_owned);
    let windows = (0..reader.n_windows()).map(|i| reader.window(i).entry());
    let windows = windows.collect();
    Reference::new(about, Some(windows), Rows::Stream(Box::new(reader)))
}
