//! What llama.cpp's base file records about itself: three counts.

use super::{KIND, LlamaCppReader};
use crate::WindowEntry;
use crate::reference::{About, Checks, Reference, Rows, Values};

/// An open file as a reference.
pub(super) fn reference(reader: LlamaCppReader) -> Reference {
    let header = *reader.header();
    let mut about = About {
        file_bytes: reader.file_bytes(),
        n_windows: Some(header.n_windows),
        n_rows: Some(header.n_rows()),
        encoding: "u16",
        values: match header.is_floored {
            true => Values::FlooredLogProbabilities,
            false => Values::LogProbabilities,
        },
        hides_bos: true,
        checks: Checks::LengthAndTokens,
        ..About::new(KIND, reader.path(), header.n_ctx, header.n_vocab)
    };
    about.first_scored = Some(header.first_scored());
    let windows = (0..header.n_windows).map(|window| WindowEntry {
        window,
        n_tokens: header.n_ctx,
        n_rows: header.rows_per_window(),
        first_scored: header.first_scored(),
    });
    Reference::new(
        about,
        Some(windows.collect()),
        Rows::Blocks(Box::new(reader)),
    )
}
